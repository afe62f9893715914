//! Runs whose newest checkpoint is with workers that left in order.

use std::collections::BTreeSet;

use super::handovers::{finished_and_written, is_dismissed, last_one_leaving, leaving, of_whole_model};
use super::moves::{offer, written};
use super::*;

#[test]
fn who_is_back_first_waits_for_the_last_one_that_left() {
    let mut story = last_one_leaving();
    story.say(1, written(2, 0));
    story.say(1, finished(2, None));
    for worker in [2, 3] {
        story.join(worker, &[]);
    }
    let told = || "waits for w1, which left with the state before r2";
    assert!(story.told(3).iter().all(|message| !matches!(message, ToWorker::Prepare(_))));
    let events = story.run.status(0).events;
    assert!(events.iter().any(|event| event.text.contains(told())), "{events:?}");
    let problems = story.run.status(0).problems;
    assert!(
        problems
            .iter()
            .any(|line| line.contains("waits for w1, which left with the state before r2: for 1800 s")),
        "{problems:?}"
    );
    story.join(1, &[of_whole_model(2)]);
    assert!(story.run.status(0).problems.is_empty());
    assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(2)))));
}

/// All were killed just when one of them had written down all that was done: its machine may be gone.
#[test]
fn nobody_waits_for_a_worker_that_was_killed() {
    let mut story = Story::training();
    for worker in [1, 2] {
        (0..2).for_each(|round| story.applied(worker, round, 9));
    }
    story.say(1, written(2, 0));
    assert_eq!(story.run.state().rounds.ledger.through(), Round(2));
    for connection in [1, 2] {
        story.handle(Event::Closed { connection: ConnectionId(connection) });
    }
    story.pass_to(Duration::from_secs(600));
    story.handle(Event::Timer);
    story.join(3, &[]);
    story.join(4, &[of_whole_model(1)]);
    assert_eq!(story.told(4).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(1)))));
}

/// Another one has a copy of the first one's state, and both leave before the run goes on.
#[test]
fn who_leaves_while_the_run_gathers_is_waited_for_as_well() {
    let mut story = leaving();
    finished_and_written(&mut story);
    story.say(3, ToCoordinator::Kept(Some(offer(2, 1, false))));
    assert!(is_dismissed(&story.told(2)) && story.run.state().end.left_with.is_none(), "3 has what it had");
    story.handle(Event::Pause);
    story.join(1, &[offer(2, 0, true)]);
    story.join(3, &[offer(2, 1, false)]);
    for worker in [1, 3] {
        story.say(worker, ToCoordinator::Leaving);
    }
    let both = BTreeSet::from([WorkerId(1), WorkerId(3)]);
    assert_eq!(story.run.state().end.left_with, Some((Round(2), both)));

    story.handle(Event::Resume);
    let (config, state) = (story.run.core.config.clone(), story.run.state().clone());
    let mut story = Story::of_state(config, state);
    let older = |rank| offer(1, rank, false);
    story.join(4, &[older(0), older(1)]);
    story.join(5, &[]);
    assert_eq!(story.run.state().phase, Phase::Gathering);
    let problems = story.run.status(0).problems;
    assert!(problems.iter().any(|line| line.contains("waits for w1, w3")), "{problems:?}");
}

#[test]
fn who_will_not_come_back_is_waited_for_half_an_hour_or_until_it_is_kicked() {
    let left = || {
        let mut story = last_one_leaving();
        story.say(1, written(2, 0));
        story.say(1, finished(2, None));
        for worker in [2, 3] {
            story.join(worker, &[]);
        }
        story
    };
    let begins = |story: &Story| {
        story.told(2).iter().any(|message| matches!(message, ToWorker::Prepare(Start::Fresh)))
    };
    let mut story = left();
    story.handle(Event::Kick { worker: WorkerId(1) });
    assert!(begins(&story), "{:?}", story.told(2));
    assert_eq!(goes_back(&story, "before r2 was with workers that left: w1 was kicked"), 1);

    let mut story = left();
    let limit = story.now + Duration::from_secs(1800);
    while story.now < limit {
        assert!(!begins(&story));
        story.now += Duration::from_secs(1);
        for worker in [2, 3] {
            story.say(worker, heartbeat(0));
        }
    }
    story.handle(Event::Timer);
    assert_eq!(story.run.state().phase, Phase::Preparing);
    assert_eq!(goes_back(&story, "w1 has not come back"), 1);
}

/// Its disk is not mounted, or it was started with another folder.
#[test]
fn a_run_whose_last_worker_comes_back_without_its_checkpoint_says_that_it_goes_back() {
    let mut story = last_one_leaving();
    story.say(1, written(2, 0));
    story.say(1, finished(2, None));
    story.join(2, &[of_whole_model(1)]);
    story.join(1, &[]);
    assert_eq!(story.told(2).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(1)))));
    assert_eq!(goes_back(&story, "w1 came back without it"), 1);
}

/// A coordinator that lives for long sees it twice.
#[test]
fn each_time_it_is_waited_for_and_told_anew() {
    let mut story = last_one_leaving();
    story.say(1, written(2, 0));
    story.say(1, finished(2, None));
    story.join(2, &[of_whole_model(1)]);
    let limit = story.now + Duration::from_secs(1900);
    while story.now < limit {
        story.now += Duration::from_secs(1);
        story.say(2, heartbeat(0));
    }
    story.handle(Event::Timer);
    assert_eq!(goes_back(&story, "w1 has not come back"), 1);
    story.say(2, ready(1, 40));
    assert_eq!(story.begun(2).first_round, Round(1));

    // Now it is the other one.
    story.say(2, ToCoordinator::Leaving);
    let generation = story.run.state().generations.announced;
    story.settled(2, generation.0, 2, 2);
    story.say(2, written(3, 0));
    story.say(2, finished(3, None));
    assert_eq!(story.run.state().end.left_with, Some((Round(3), BTreeSet::from([WorkerId(2)]))));
    story.join(1, &[of_whole_model(2)]);
    story.pass_to(story.now + Duration::from_secs(60));
    story.handle(Event::Timer);
    assert_eq!(story.run.state().phase, Phase::Gathering);
    let problems = story.run.status(0).problems;
    assert!(
        problems.iter().any(|line| line.contains("waits for w2, which left with the state before r3")),
        "{problems:?}"
    );
}

/// Number of notices that the newest rounds are lost, for this reason.
fn goes_back(story: &Story, why: &str) -> usize {
    let events = story.run.status(0).events;
    events.iter().filter(|event| event.text.starts_with("goes back") && event.text.contains(why)).count()
}
