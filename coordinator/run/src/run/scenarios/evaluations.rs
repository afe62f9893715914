//! Held-out losses decide which checkpoint stays, and when the run ends.

use longhaul_common::config::{BestCheckpoints, EvaluateConfig};
use longhaul_proto::control::message::CheckpointReport;

use super::*;

/// Evaluates every other of ten rounds, and ends after two evaluations without an improvement.
fn evaluating() -> Story {
    let mut config = config();
    config.train.evaluate_every_rounds = 2;
    config.evaluate = EvaluateConfig { keep_best: true, patience: Some(2), ..EvaluateConfig::default() };
    Story::of(config).trained()
}

/// Both have applied a round, whose loss is the mean of theirs.
fn evaluated(story: &mut Story, round: u64, losses: [Option<f32>; 2]) {
    for (worker, validation_loss) in [1, 2].into_iter().zip(losses) {
        story.say(worker, ToCoordinator::RoundApplied(RoundReport { validation_loss, ..report(round, 7) }));
    }
}

fn wrote(story: &mut Story, worker: u32, next_round: u64) {
    let next_round = Round(next_round);
    let report =
        CheckpointReport { next_round, generation: Generation(1), path: "a".into(), outcome: Ok([7; 32]) };
    story.say(worker, ToCoordinator::Checkpoint(report));
}

fn told_best(story: &Story) -> Option<BestCheckpoints> {
    story.told(2).into_iter().find_map(best_of)
}

fn best_of(message: ToWorker) -> Option<BestCheckpoints> {
    match message {
        ToWorker::Best(best) => Some(best),
        _ => None,
    }
}

/// To the middle of the run: the best is that before round 2.
fn without_improvement() -> Story {
    let mut story = evaluating();
    for (round, losses) in [
        (0, [None; 2]),
        (1, [Some(2.0), Some(3.0)]),
        (2, [None; 2]),
        (3, [Some(2.4), Some(2.7)]),
        (4, [None; 2]),
    ] {
        evaluated(&mut story, round, losses);
    }
    story
}

#[test]
fn members_hear_which_checkpoints_to_keep_once_one_is_written() {
    let mut story = evaluating();
    evaluated(&mut story, 0, [None; 2]);
    wrote(&mut story, 1, 2);
    evaluated(&mut story, 1, [Some(2.0), Some(3.0)]);
    let two = Some(Round(2));
    assert_eq!(told_best(&story), Some(BestCheckpoints { rounds: [two; 2], judged: Round(2) }));
    evaluated(&mut story, 2, [None; 2]);
    evaluated(&mut story, 3, [Some(2.0), Some(2.0)]);
    let four = Some(Round(4));
    assert_eq!(told_best(&story), Some(BestCheckpoints { rounds: [two, four], judged: Round(4) }));
    wrote(&mut story, 2, 4);
    assert_eq!(told_best(&story), Some(BestCheckpoints { rounds: [four; 2], judged: Round(4) }));
    let status = story.run.status(0);
    assert_eq!(status.training.best_checkpoint.map(|best| (best.step, best.loss)), Some((8, 2.0)));
}

#[test]
fn the_run_ends_in_order_without_an_improvement_and_says_why_and_can_be_extended() {
    let mut story = without_improvement();
    assert!(!story.run.state().requests.drain);
    evaluated(&mut story, 5, [Some(2.5), Some(2.5)]);
    assert!(story.run.state().requests.drain);
    for worker in [1, 2] {
        story.settled(worker, 2, 6, 6);
    }
    assert_eq!(story.begun(1).until, Round(7));
    for worker in [1, 2] {
        story.say(worker, finished(7, Some(2.6)));
    }
    assert_eq!(story.run.state().phase, Phase::Finished);
    let status = story.run.status(0);
    let why = "the held-out loss has not improved in 2 evaluations since step 4 (2.5000)";
    assert_eq!(status.run.ended_early.as_deref(), Some(why));
    let text = &status.events.last().unwrap().text;
    assert!(text.contains("it ended after 14 of 20 steps") && text.contains(why), "{text}");

    let (config, mut state) = (story.run.config().clone(), story.run.state().clone());
    state.extend(config.run.steps).unwrap();
    assert_eq!((state.evaluations.ended(), state.evaluations.without_improvement()), (None, 0));
    assert_eq!(state.evaluations.best().unwrap().next_round, Round(2), "it is still the best");
}

#[test]
fn a_restarted_coordinator_goes_on_counting() {
    let before = without_improvement();
    let (config, state) = (before.run.config().clone(), before.run.state().clone());
    let mut story = Story::of_state(config, state);
    for worker in [1, 2] {
        story.resume(worker, Generation(1));
        assert_eq!(told_best(&story).is_some(), worker == 2, "who is back hears it again");
    }
    evaluated(&mut story, 5, [Some(2.5), Some(2.5)]);
    assert!(story.run.state().requests.drain);
}

#[test]
fn the_evaluation_at_the_end_counts_and_is_no_early_end() {
    let mut story = evaluating();
    for worker in [1, 2] {
        story.say(worker, finished(10, Some(1.5)));
    }
    let evaluations = &story.run.state().evaluations;
    assert_eq!(evaluations.best().map(|best| best.next_round), Some(Round(10)));
    assert_eq!(evaluations.ended(), None);
}

/// It removes old checkpoints from its disk as well, once it has written one, or has a copy of one.
#[test]
fn a_worker_that_is_no_member_hears_which_checkpoints_to_keep_before_any_order() {
    let mut story = evaluating();
    evaluated(&mut story, 0, [None; 2]);
    wrote(&mut story, 1, 2);
    evaluated(&mut story, 1, [Some(2.0), Some(3.0)]);
    let [two, four] = [2, 4].map(|round| Some(Round(round)));
    story.join(3, &[]);
    let told = story.told(3);
    let [ToWorker::Welcome(_), ToWorker::Best(best), ToWorker::Heal { .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(best.rounds, [two; 2]);
    evaluated(&mut story, 2, [None; 2]);
    evaluated(&mut story, 3, [Some(2.0), Some(2.0)]);
    assert_eq!(story.told(3).into_iter().find_map(best_of).map(|best| best.rounds), Some([two, four]));
}
