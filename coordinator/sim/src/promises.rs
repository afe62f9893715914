//! A run's guarantees, checked at the end of a world.

use std::collections::BTreeSet;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_run::{Phase, RunState};

use crate::world::World;

/// Checks that the run has finished, that all members have one state, and that the books have each sample once.
pub fn check(world: &World) {
    check_with(world, world.coordinator_state());
}

/// The same with another state of the coordinator.
pub fn check_with(world: &World, state: &RunState) {
    assert_eq!(state.phase, Phase::Finished, "the run did not finish");
    // Only where all were away may nothing be left to go on from, and only a disk without room takes no checkpoint.
    let is_excused = |line: &str| {
        world.were_all_away() && line.contains("the run starts from the beginning")
            || world.had_full_disk() && line.contains("could not write a checkpoint")
    };
    let bad: Vec<&String> =
        world.log().iter().filter(|line| line.contains(" Error ") && !is_excused(line)).collect();
    assert!(bad.is_empty(), "the coordinator reports errors: {bad:?}");
    if let Err(violation) = world.check_protocol() {
        panic!("{violation}");
    }
    // If all left before a requested end, no member reports it.
    if world.was_drained() && state.generations.present.is_none() {
        return;
    }
    // Parity: all have reported the same of the last round.
    let (round, hashes) = world.books().last().expect("somebody has told a round");
    assert_eq!(hashes.len(), 1, "{round}: members have different states");
    // A requested end may be reported by a checkpoint alone: that of a member that came in for the last round.
    let through = state.rounds.ledger.through();
    let is_last = round.next() == through || world.was_drained() && round.next() < through;
    assert!(is_last, "the books end with {through}, and members told of {round}");
    // Exactly once, as far as the books go.
    let counted: BTreeSet<u64> = state.rounds.ledger.counted().iter().flatten().collect();
    let waiting: BTreeSet<u64> = state.rounds.ledger.waiting().iter().flatten().collect();
    assert!(counted.is_disjoint(&waiting), "samples that count are to be given out again");
    let is_lost = |position: &u64| !counted.contains(position) && !waiting.contains(position);
    let lost: Vec<u64> = (0..state.rounds.ledger.given_out()).filter(is_lost).collect();
    assert!(lost.is_empty(), "given out, and neither counted nor to be given out again: {lost:?}");
    assert_eq!(state.rounds.ledger.duplicates(), 0, "samples count twice");
    // And as far as devices go, which have not seen the accounts. Where all died, the late members of the last rounds before their checkpoint may be unreported.
    if world.log().iter().any(|line| line.contains("goes on from the checkpoint")) {
        return;
    }
    let is_at = |worker: WorkerId, site: SiteId| {
        world.site_of(worker).as_ref() == state.roster.sites.get(site.0 as usize)
    };
    let (applied, missed) = world.books().positions(is_at);
    let beyond: Vec<&u64> = applied.difference(&counted).collect();
    assert!(beyond.is_empty(), "in a result, and not in the books: {beyond:?}");
    // A late member may have skipped a round, and left before its report.
    if !world.books().all_name(state.roster.sites.len()) {
        return;
    }
    let missing: Vec<&u64> =
        counted.difference(&applied).filter(|position| !missed.contains(position)).collect();
    assert!(missing.is_empty(), "in the books, and in no result: {missing:?}");
}
