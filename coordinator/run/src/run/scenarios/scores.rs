//! Scores of questions, which the members share.

use longhaul_common::config::TaskKind;
use longhaul_proto::control::message::TaskScore;

use super::handovers::of_whole_model;
use super::*;

/// Scores the state before every other of ten rounds.
fn scoring() -> Story {
    let mut config = config();
    config.train.evaluate_every_rounds = 2;
    config.evaluate.tasks.arc = vec!["arc.jsonl".to_owned()];
    Story::of(config).trained()
}

/// These have applied the rounds before this one.
fn reached(story: &mut Story, workers: &[u32], next_round: u64) {
    for &worker in workers {
        story.applied(worker, next_round - 1, 7);
    }
}

fn scores(story: &mut Story, worker: u32, next_round: u64, right: [u32; 2], questions: u32) {
    let scores = vec![TaskScore { kind: TaskKind::Arc, right, questions }];
    story.say(worker, ToCoordinator::Scores { next_round: Round(next_round), scores });
}

/// Measure, value, questions and step.
fn shown(story: &Story) -> Vec<(String, f64, u64, u64)> {
    let scores = story.run.status(0).training.scores;
    scores.into_iter().map(|score| (score.measure, score.value, score.questions, score.step)).collect()
}

/// Of the first measure: value, questions and step.
fn accuracy(story: &Story) -> Option<(f64, u64, u64)> {
    shown(story).first().map(|(_, value, questions, step)| (*value, *questions, *step))
}

#[test]
fn members_share_questions_and_their_scores_are_shown_once_all_have_reported() {
    let mut story = scoring();
    reached(&mut story, &[1, 2], 2);
    scores(&mut story, 1, 2, [1, 2], 4);
    assert_eq!(shown(&story), []);
    scores(&mut story, 9, 2, [3, 3], 3);
    scores(&mut story, 2, 2, [2, 2], 4);
    assert_eq!(shown(&story), [("acc".into(), 0.375, 8, 4), ("acc_norm".into(), 0.5, 8, 4)]);
    let status = story.run.status(0);
    let text = &status.events.last().unwrap().text;
    assert_eq!(text, "scores at step 4: arc acc 0.3750, acc_norm 0.5000 of 8 questions");
    // At the end, those of the members that are left.
    reached(&mut story, &[1], 10);
    scores(&mut story, 1, 10, [4, 4], 4);
    for worker in [1, 2] {
        story.say(worker, finished(10, Some(1.5)));
    }
    assert_eq!(accuracy(&story), Some((1.0, 4, 20)));
}

#[test]
fn scores_that_no_member_can_have_count_for_nothing() {
    let mut story = scoring();
    reached(&mut story, &[1, 2], 3);
    // No state of an evaluation, one that its member does not have yet, and ones that do not exist.
    for next_round in [0, 3, 4, 10, 99] {
        scores(&mut story, 2, next_round, [3, 3], 3);
    }
    scores(&mut story, 1, 2, [1, 1], 4);
    assert_eq!(shown(&story), []);
    // More than half of the first 200 questions of a file; of a kind that the run does not have.
    let kinds = [(TaskKind::Arc, 101), (TaskKind::Piqa, 1)];
    let scores = kinds.map(|(kind, questions)| TaskScore { kind, right: [1, 1], questions }).to_vec();
    story.say(2, ToCoordinator::Scores { next_round: Round(2), scores });
    assert_eq!((accuracy(&story), shown(&story).len()), (Some((0.25, 4, 4)), 2));
}

/// The third worker takes part from round 2 on: it has no share of the questions about the state before it.
#[test]
fn scores_do_not_wait_for_a_worker_that_became_a_member_after_the_scored_round() {
    let mut story = scoring();
    story.join(3, &[]);
    story.say(3, ready(0, 7));
    for worker in [1, 2] {
        story.settled(worker, 2, 1, 1);
    }
    assert_eq!(story.begun(3).first_round, Round(2));
    reached(&mut story, &[1, 2, 3], 2);
    scores(&mut story, 3, 2, [4, 4], 4);
    scores(&mut story, 1, 2, [1, 1], 4);
    assert_eq!(shown(&story), []);
    scores(&mut story, 2, 2, [2, 2], 4);
    assert_eq!(accuracy(&story), Some((0.375, 8, 4)));
    // It has a share of the next ones.
    reached(&mut story, &[1, 2, 3], 4);
    for worker in [1, 2] {
        scores(&mut story, worker, 4, [3, 3], 3);
    }
    assert_eq!(accuracy(&story).map(|(.., step)| step), Some(4));
    scores(&mut story, 3, 4, [0, 0], 3);
    assert_eq!(accuracy(&story), Some((6.0 / 9.0, 9, 8)));
}

#[test]
fn a_member_that_leaves_takes_its_questions_with_it_and_the_others_scores_are_shown() {
    let mut story = scoring();
    reached(&mut story, &[1, 2], 2);
    scores(&mut story, 1, 2, [3, 3], 4);
    assert_eq!(shown(&story), []);
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(accuracy(&story), Some((0.75, 4, 4)));
}

/// It may have jumped over the round.
#[test]
fn scores_that_lack_a_member_are_shown_once_there_are_newer_ones() {
    let mut story = scoring();
    reached(&mut story, &[1, 2], 4);
    scores(&mut story, 1, 2, [3, 3], 4);
    scores(&mut story, 2, 4, [1, 1], 4);
    assert_eq!(accuracy(&story), Some((0.75, 4, 4)));
    scores(&mut story, 1, 4, [1, 1], 4);
    assert_eq!(accuracy(&story), Some((0.25, 8, 8)));
}

#[test]
fn scores_of_rounds_that_are_made_anew_from_a_checkpoint_count() {
    let mut before = scoring();
    reached(&mut before, &[1, 2], 4);
    for worker in [1, 2] {
        scores(&mut before, worker, 4, [1, 1], 4);
    }
    assert_eq!(accuracy(&before), Some((0.25, 8, 8)));
    // All members are lost.
    let mut story = Story::of_state(before.run.config().clone(), before.run.state().clone());
    story.now = Duration::from_secs(3600);
    for worker in [1, 2] {
        story.join(worker, &[of_whole_model(2)]);
    }
    for worker in [1, 2] {
        story.say(worker, ready(2, 40));
    }
    assert_eq!((story.begun(1).first_round, shown(&story)), (Round(2), vec![]));
    reached(&mut story, &[1, 2], 4);
    for worker in [1, 2] {
        scores(&mut story, worker, 4, [3, 3], 4);
    }
    assert_eq!(accuracy(&story), Some((0.75, 8, 8)));
}
