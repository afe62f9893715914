//! Runs that keep their best checkpoint and end early.

use std::time::Duration;

use longhaul_common::config::TaskKind;
use longhaul_common::id::{Round, WorkerId};
use longhaul_sim::{Fault, QUESTIONS, TURNING_ROUND, World, check};

const BEST: Round = Round(TURNING_ROUND);

/// The coordinator is away while evaluations take place, and a worker is lost with its checkpoints' verdicts.
#[test]
fn the_best_checkpoint_outlives_newer_ones_and_the_run_ends_early_whatever_happens() {
    for seed in 0..12 {
        let mut world = World::evaluating(seed, 3);
        let at = |ms: u64| Duration::from_millis(ms + 311 * seed);
        if seed % 3 > 0 {
            world.fault_at(at(600), Fault::Coordinator(at(500)));
        }
        if seed % 3 > 1 {
            world.fault_at(at(900), Fault::Kill(WorkerId(2), Duration::from_millis(300)));
        }
        world.run_until(Duration::from_secs(240));
        check(&world);
        let state = world.coordinator_state();
        let through = state.rounds.ledger.through();
        let evaluations = &state.evaluations;
        assert!(evaluations.ended().is_some(), "seed {seed}: {through}");
        assert_eq!(evaluations.kept().map(|kept| kept.next_round), Some(BEST), "seed {seed}");
        let scored = state.tasks.newest().unwrap();
        let score = scored.kinds[&TaskKind::Arc];
        assert!(score.questions <= QUESTIONS as u64, "seed {seed}: {score:?}");
        if seed % 3 == 0 {
            assert_eq!((score.questions, score.right[0]), (QUESTIONS as u64, 6), "seed {seed}");
        }
        // Three evaluations later, and the rounds until all have heard of it.
        let latest = if seed % 3 == 0 { 28 } else { 39 };
        assert!((24..=latest).contains(&through.0), "seed {seed}: {through}");
        let holds = |worker| world.checkpoints_of(WorkerId(worker)).contains(&BEST);
        assert!((1..=3).filter(|worker| holds(*worker)).count() >= 2, "seed {seed}");
    }
}
