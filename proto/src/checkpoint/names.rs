//! Names of rounds and parts of the model in folders and archives.

use longhaul_common::id::Round;

/// `round-000120`
#[must_use]
pub fn folder_name(next_round: Round) -> String {
    format!("round-{:06}", next_round.0)
}

/// Parses a name of [`folder_name`].
#[must_use]
pub fn parse_folder_name(name: &str) -> Option<Round> {
    let round = Round(name.strip_prefix("round-")?.parse().ok()?);
    (folder_name(round) == name).then_some(round)
}

/// Returns the name of a part, counted from 1: `part-1-of-2`.
#[must_use]
pub fn part_name(rank: u32, parts: u32) -> String {
    format!("part-{}-of-{parts}", rank + 1)
}

/// Parses a name of [`part_name`] into the index, from 0, and the number of parts.
#[must_use]
pub fn parse_part_name(name: &str) -> Option<(u32, u32)> {
    let (number, parts) = name.strip_prefix("part-")?.split_once("-of-")?;
    let (number, parts) = (number.parse::<u32>().ok()?, parts.parse().ok()?);
    let rank = number.checked_sub(1).filter(|rank| *rank < parts)?;
    (part_name(rank, parts) == name).then_some((rank, parts))
}
