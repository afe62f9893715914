//! What a run promises, asked of a world that has come to its end.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::Round;
use longhaul_coordinator::run::Phase;
use longhaul_proto::control::message::Hash;

use crate::world::World;

/// Checks that the run has finished, that all members have one state, and that the books have each sample once.
pub fn check(world: &World) {
    let state = world.coordinator_state();
    assert_eq!(state.phase, Phase::Finished, "the run did not finish");
    // Parity: of the last round all have told the same.
    let mut last = BTreeMap::<Round, BTreeSet<Hash>>::new();
    for (round, hash) in world.states_after_rounds() {
        last.entry(round).or_default().insert(hash);
    }
    let (round, hashes) = last.last_key_value().expect("somebody has told a round");
    assert_eq!(hashes.len(), 1, "{round}: members have different states");
    assert_eq!(round.next(), state.ledger.through(), "the books end with the last round");
    // Exactly once, as far as the books go.
    let counted: BTreeSet<u64> = state.ledger.counted().iter().flatten().collect();
    let waiting: BTreeSet<u64> = state.ledger.waiting().iter().flatten().collect();
    assert!(counted.is_disjoint(&waiting), "samples that count are to be given out again");
    let is_lost = |position: &u64| !counted.contains(position) && !waiting.contains(position);
    let lost: Vec<u64> = (0..state.ledger.given_out()).filter(is_lost).collect();
    assert!(lost.is_empty(), "given out, and neither counted nor to be given out again: {lost:?}");
    assert_eq!(state.ledger.duplicates(), 0, "samples count twice");
    // Only where all were killed may nothing be left to go on from.
    let is_excused = |line: &str| world.were_all_killed() && line.contains("it starts from the beginning");
    let bad: Vec<&String> =
        world.log().iter().filter(|line| line.contains(" Error ") && !is_excused(line)).collect();
    assert!(bad.is_empty(), "the coordinator reports errors: {bad:?}");
}
