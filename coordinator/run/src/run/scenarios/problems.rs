//! Lasting problems, and their display in the status.

use longhaul_proto::control::message::CheckpointReport;

use super::*;

#[test]
fn members_that_are_overdue_keep_nobody_out() {
    let mut narrow = config();
    narrow.train.batch = 2;
    let mut story = Story::of(narrow).trained();
    for worker in [1, 2] {
        story.handle(Event::Closed { connection: ConnectionId(worker) });
    }
    story.join(3, &[]);
    assert!(matches!(story.told(3).as_slice(), [ToWorker::Refused { .. }]), "they may come back any moment");
    story.now = Duration::from_secs(36_000);
    story.handle(Event::Timer);
    assert_eq!(story.run.state().phase, Phase::Training, "they alone hold the run's state");
    for worker in [4, 5] {
        story.join(worker, &[]);
        assert!(!story.told(worker).iter().any(|told| matches!(told, ToWorker::Refused { .. })));
    }
    assert_eq!(story.run.state().phase, Phase::Preparing, "as many as a run needs go on in their place");
}

#[test]
fn a_worker_that_cannot_write_checkpoints_stays_a_problem_however_many_the_others_write_until_it_leaves() {
    let mut story = Story::training();
    let report = |next_round: u64, outcome| {
        ToCoordinator::Checkpoint(CheckpointReport {
            next_round: Round(next_round),
            generation: WRITTEN_IN,
            path: "c".into(),
            outcome,
        })
    };
    story.say(2, report(1, Err("the disk is full".into())));
    for round in 1..100 {
        story.say(1, report(round, Ok([1; 32])));
    }
    let is_told = |story: &Story| {
        let problems = story.run.status(0).problems;
        problems.iter().any(|problem| problem.contains("w2") && problem.contains("the disk is full"))
    };
    assert!(is_told(&story));
    assert!(story.run.state().checkpoints.newest.len() < 50);
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert!(!is_told(&story), "{:#?}", story.run.status(0).problems);
}
