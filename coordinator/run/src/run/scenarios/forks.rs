//! Runs that begin from another one's checkpoint.

use longhaul_common::id::RunId;

use super::handovers::of_whole_model;
use super::moves::{held, offer};
use super::pipelines::ready_with;
use super::tensor_groups::in_groups;
use super::*;
use crate::Fork;
use crate::run::recovery::source::Found;

/// A fork at step 8, before the fifth of ten rounds.
fn forked() -> Story {
    let fork = Fork { of: RunId([2; 16]), step: 8, first_round: Round(4) };
    Story::of_state(config(), RunState::forked(RunId([1; 16]), &config(), fork))
}

#[test]
fn a_fork_never_begins_without_its_checkpoint() {
    let mut story = forked();
    story.join(1, &[]);
    story.join(2, &[]);
    assert_eq!(story.run.state().phase, Phase::Gathering);
    let problems = story.run.status(0).problems.concat();
    assert!(problems.contains("start a worker with the --checkpoint-dir"), "{problems}");
    story.join(3, &[of_whole_model(4)]);
    assert_eq!(story.run.state().phase, Phase::Preparing);
    assert_eq!(story.told(3).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(4)))));
    // Who heals has no moments, so the others copy the file.
    let [.., ToWorker::Prepare(Start::Held(parts))] = &story.told(1)[..] else {
        panic!("{:?}", story.told(1))
    };
    assert_eq!(parts[0].holders[0].worker, WorkerId(3));
}

#[test]
fn a_fork_goes_on_with_the_step_and_the_samples_of_the_other_run() {
    let mut story = forked();
    for worker in [1, 2] {
        story.join(worker, &[of_whole_model(4)]);
    }
    for worker in [1, 2] {
        story.say(worker, ready(4, 40));
    }
    let start = story.begun(1);
    assert_eq!((start.first_round, start.until), (Round(4), Round(10)));
    assert_eq!(start.assignments[0].feed.cursor, 8 * 4);
    for worker in [1, 2] {
        story.say(worker, finished(10, None));
    }
    let state = story.run.state();
    assert_eq!(state.phase, Phase::Finished);
    assert_eq!((state.rounds.ledger.counted().len(), state.rounds.ledger.duplicates()), (20 * 4, 0));
}

/// The other run had as many parts: stages, each with its blocks.
#[test]
fn a_fork_with_as_many_parts_of_another_cut_assembles_its_own() {
    let config = parsed(&in_groups().workers(2));
    let fork = Fork { of: RunId([2; 16]), step: 8, first_round: Round(4) };
    let state = RunState::forked(RunId([1; 16]), &config, fork);
    let mut story = Story::of_state(config, state);
    let stages = [offer(4, 0, false), offer(4, 1, false)];
    story.join_as(1, "a", None, &stages);
    story.join_as(2, "a", None, &[]);
    for (worker, holders) in [(1, 0), (2, 1)] {
        let parts = held(&story, worker);
        assert_eq!(parts.iter().map(|part| part.offer.clone()).collect::<Vec<_>>(), stages);
        assert!(parts.iter().all(|part| part.holders.len() == holders), "{parts:?}");
    }
    for (worker, rank) in [(1, 0), (2, 1)] {
        story.say(worker, ready_with(rank, 4, 70 + rank as u8));
    }
    assert_eq!(story.begun(1).first_round, Round(4));
    // Its own checkpoints are of its own cut.
    let own = story.run.core.is_same_cut(&Found { round: Round(5), hashes: vec![[1; 32]; 2] });
    assert!(own);
}

/// The second worker's contribution to the last round before the checkpoint was late, and waits in its residual.
#[test]
fn a_fork_gives_out_again_what_the_other_run_had_not_trained_on() {
    let mut other = Story::training();
    for round in 0..4 {
        let sites = if round == 3 { vec![SiteId(0)] } else { vec![SiteId(0), SiteId(1)] };
        for worker in [1, 2] {
            let report = RoundReport { sites: sites.clone(), ..report(round, 7) };
            other.say(worker, ToCoordinator::RoundApplied(report));
        }
    }
    let fork = Fork { of: RunId([2; 16]), step: 8, first_round: Round(4) };
    let mut state = RunState::forked(RunId([1; 16]), &config(), fork);
    assert!(!state.continue_samples(&config(), other.run.state(), Round(3)), "it is at another step there");
    assert!(state.continue_samples(&config(), other.run.state(), Round(4)));
    let mut story = Story::of_state(config(), state);
    for worker in [1, 2] {
        story.join(worker, &[of_whole_model(4)]);
    }
    for worker in [1, 2] {
        story.say(worker, ready(4, 40));
    }
    let feed = story.begun(1).assignments[0].feed.clone();
    assert_eq!((feed.cursor, feed.backlog.iter().map(|range| range.end - range.start).sum::<u64>()), (32, 4));
    for worker in [1, 2] {
        story.say(worker, finished(10, None));
    }
    let ledger = &story.run.state().rounds.ledger;
    assert_eq!((ledger.counted().len(), ledger.duplicates(), ledger.pending()), (20 * 4 - 4, 0, 0));
}
