//! Workers that leave while those that stay catch up.

use longhaul_proto::control::message::HANDOVER_MAX;

use super::handovers::is_dismissed;
use super::*;

/// Workers 1 and 2 have done four rounds; 3 has joined with the state before the second.
fn with_one_that_catches_up() -> Story {
    let mut story = Story::training();
    for worker in [1, 2] {
        for round in 0..4 {
            story.say(worker, ToCoordinator::RoundApplied(report(round, 7)));
        }
    }
    story.join(3, &[]);
    story.say(3, ready(1, 7));
    for worker in [1, 2] {
        story.settled(worker, 2, 4, 4);
    }
    assert_eq!(story.begun(3).membership.members().len(), 3);
    story
}

#[test]
fn holders_of_the_newest_rounds_leave_once_who_stays_has_caught_up() {
    let mut story = with_one_that_catches_up();
    story.say(1, ToCoordinator::Leaving);
    assert!(is_dismissed(&story.told(1)), "worker 2 has the rounds");
    story.say(2, ToCoordinator::Leaving);
    assert_eq!(story.told(2), [ToWorker::Handover]);
    let told = story.run.status(0).events;
    assert!(told.iter().any(|event| event.text.contains("are catching up: it leaves once")), "{told:?}");
    story.settled(2, 3, 4, 4);
    story.settled(3, 3, 1, 4);
    let start = story.begun(2);
    assert_eq!(start.until, Round(10), "the generation does not end for a checkpoint");
    for round in 1..4 {
        assert!(!is_dismissed(&story.told(2)), "before r{round}");
        let report = RoundReport { generation: Generation(3), ..report(round, 7) };
        story.say(3, ToCoordinator::RoundApplied(report));
    }
    assert!(is_dismissed(&story.told(2)));
    story.settled(3, 4, 4, 4);
    assert_eq!(story.run.state().rounds.ledger.through(), Round(4), "the run does not go back");
}

/// Its device has not entered, so it reports none of them.
#[test]
fn who_has_all_results_has_caught_up_before_it_applies_them() {
    let mut story = with_one_that_catches_up();
    story.say(1, ToCoordinator::Leaving);
    story.settled(2, 3, 4, 4);
    story.settled(3, 3, 4, 4);
    story.say(2, ToCoordinator::Leaving);
    assert!(is_dismissed(&story.told(2)));
}

/// The first may go, as the second has the rounds; the third has less than the second, who is still there.
#[test]
fn where_all_leave_the_one_with_the_rounds_writes_a_checkpoint() {
    let mut story = with_one_that_catches_up();
    story.say(1, ToCoordinator::Leaving);
    story.say(2, ToCoordinator::Leaving);
    assert_eq!(story.told(2), [ToWorker::Handover]);
    story.say(3, ToCoordinator::Leaving);
    let told = story.run.status(0).events;
    let of_last = told.iter().rfind(|event| event.worker.as_deref() == Some("w3")).unwrap();
    assert!(of_last.text.contains("it leaves once its checkpoint is written"), "{of_last:?}");
    story.settled(2, 3, 4, 4);
    story.settled(3, 3, 1, 4);
    assert_eq!(story.begun(2).until, story.begun(2).first_round, "the generation ends");
}

/// After a restart of the coordinator, members repeat their reports, and one that has yet to enter has none.
#[test]
fn who_has_told_nothing_since_a_restart_may_be_catching_up() {
    let story = with_one_that_catches_up();
    let mut again = Story::of_state(config(), story.run.state().clone());
    for worker in [1, 2, 3] {
        again.resume(worker, Generation(2));
    }
    for worker in [1, 2] {
        again.say(
            worker,
            ToCoordinator::RoundApplied(RoundReport { generation: Generation(2), ..report(3, 7) }),
        );
    }
    again.say(1, ToCoordinator::Leaving);
    assert!(is_dismissed(&again.told(1)));
    again.say(2, ToCoordinator::Leaving);
    assert_eq!(again.told(2), [ToWorker::Handover]);
}

/// Whoever catches up may never get there.
#[test]
fn a_checkpoint_is_written_where_who_stays_does_not_catch_up_in_time() {
    let mut story = with_one_that_catches_up();
    story.say(1, ToCoordinator::Leaving);
    story.say(2, ToCoordinator::Leaving);
    story.settled(2, 3, 4, 4);
    story.settled(3, 3, 1, 4);
    let asked = ToWorker::Settle { generation: Generation(4) };
    let half = HANDOVER_MAX / 2;
    while story.now < half {
        assert!(!story.told(2).contains(&asked), "after {:?}", story.now);
        story.say(2, heartbeat(1));
        story.say(3, heartbeat(1));
        story.pass_to(half.min(story.now + Duration::from_secs(1)));
    }
    story.handle(Event::Timer);
    assert!(story.told(2).contains(&asked), "{:?}", story.told(2));
}
