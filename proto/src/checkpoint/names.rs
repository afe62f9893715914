//! How rounds and parts of the model are called in folders and archives.

use longhaul_common::id::Round;

/// `round-000120`
#[must_use]
pub fn folder_name(next_round: Round) -> String {
    format!("round-{:06}", next_round.0)
}

/// The round of a name that [`folder_name`] gives.
#[must_use]
pub fn parse_folder_name(name: &str) -> Option<Round> {
    let round = Round(name.strip_prefix("round-")?.parse().ok()?);
    (folder_name(round) == name).then_some(round)
}

/// A part of the model, as people count them: `part-1-of-2`.
#[must_use]
pub fn part_name(rank: u32, parts: u32) -> String {
    format!("part-{}-of-{parts}", rank + 1)
}

/// Which part it is, from 0, and of how many.
#[must_use]
pub fn parse_part_name(name: &str) -> Option<(u32, u32)> {
    let (number, parts) = name.strip_prefix("part-")?.split_once("-of-")?;
    let (number, parts) = (number.parse::<u32>().ok()?, parts.parse().ok()?);
    let rank = number.checked_sub(1).filter(|rank| *rank < parts)?;
    (part_name(rank, parts) == name).then_some((rank, parts))
}
