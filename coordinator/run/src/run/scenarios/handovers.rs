//! Leaving workers with unique state.

use longhaul_proto::control::message::{CheckpointReport, HANDOVER_MAX};

use super::super::{Decided, Moving, Suspended};
use super::moves::{keeps, offer, one_copy, written};
use super::pipelines::{lineup, rank_in, ready_with, training};
use super::planning::welcomed;
use super::*;

pub(super) fn is_dismissed(told: &[ToWorker]) -> bool {
    told.iter().any(|message| matches!(message, ToWorker::Dismiss { .. }))
}

/// Workers 1 and 2 have the only copy, 3 has no slot; 2 is asked to leave, and the generation ends before round 2.
pub(super) fn leaving() -> Story {
    let mut story = one_copy();
    story.handle(Event::Dismiss { worker: WorkerId(2) });
    assert_eq!(story.told(2), [ToWorker::Handover, ToWorker::Settle { generation: Generation(2) }]);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
    story.settled(1, 2, 1, 1);
    story.settled(2, 2, 1, 1);
    let start = story.begun(2);
    assert_eq!((start.first_round, start.until), (Round(2), Round(2)));
    story
}

/// All have finished their rounds, and have written a checkpoint.
pub(super) fn finished_and_written(story: &mut Story) {
    for (worker, rank) in [(1, 0), (2, 1)] {
        story.say(worker, written(2, rank));
        story.say(worker, finished(2, None));
    }
}

#[test]
fn the_only_holder_of_a_part_goes_when_another_has_a_copy_and_a_spare_takes_its_place() {
    let mut story = leaving();
    story.say(2, written(2, 1));
    assert_eq!(keeps(&story, 3), [(1, vec![2])], "who is of its site");
    story.say(1, written(2, 0));
    for worker in [1, 2] {
        story.say(worker, finished(2, None));
        assert!(!is_dismissed(&story.told(2)));
    }
    story.say(3, ToCoordinator::Kept(Some(offer(2, 1, false))));
    assert!(is_dismissed(&story.told(2)));
    for worker in [1, 3] {
        assert_eq!(welcomed(&story.told(worker)).len(), 1, "it begins anew");
    }
    assert_eq!(story.run.state().phase, Phase::Gathering);

    story.join(1, &[offer(2, 0, true)]);
    assert_eq!(story.run.state().phase, Phase::Gathering, "all are waited for");
    story.join(3, &[offer(2, 1, false)]);
    assert_eq!((rank_in(&story.told(1)), rank_in(&story.told(3))), (Some(0), Some(1)));
    story.say(1, ready_with(0, 2, 40));
    story.say(3, ready_with(1, 2, 41));
    assert_eq!((lineup(&story), story.begun(3).first_round), (vec![vec![1, 3]], Round(2)));
}

#[test]
fn a_copy_that_cannot_be_had_is_asked_for_elsewhere_and_each_is_asked_once() {
    let mut story = leaving();
    finished_and_written(&mut story);
    // Both were asked when these checkpoints were written, like for any other.
    for worker in [3, 1] {
        assert!(keeps(&story, 3).is_empty() && keeps(&story, 1).is_empty());
        story.say(worker, ToCoordinator::Kept(None));
    }
    assert_eq!(keeps(&story, 3), [(1, vec![2])]);
    story.say(3, ToCoordinator::Kept(None));
    assert_eq!((keeps(&story, 3), keeps(&story, 1)), (vec![], vec![(1, vec![2])]));
    story.say(1, ToCoordinator::Kept(Some(offer(2, 1, false))));
    assert!(is_dismissed(&story.told(2)));
}

/// No worker may have a copy, or none could: nothing to wait for.
#[test]
fn who_nobody_can_copy_does_not_wait() {
    let mut story = leaving();
    finished_and_written(&mut story);
    for worker in [3, 1, 3, 1] {
        assert!(!is_dismissed(&story.told(2)));
        story.say(worker, ToCoordinator::Kept(None));
    }
    assert!(is_dismissed(&story.told(2)));
    let told = story.run.status(0).events;
    let expected = "before r2 is in checkpoints of workers that leave (w2)";
    assert!(told.iter().any(|event| event.text.contains(expected)), "{told:?}");
}

pub(super) fn of_whole_model(next_round: u64) -> CheckpointOffer {
    CheckpointOffer { parts: 1, ..offer(next_round, 0, true) }
}

/// The only one that trains is to leave, and its generation ends before round 2.
pub(super) fn last_one_leaving() -> Story {
    let mut story = Story::training();
    story.say(2, ToCoordinator::Leaving);
    assert!(is_dismissed(&story.told(2)), "there is another one");
    story.settled(1, 2, 1, 1);
    story.told(1);
    story.say(1, ToCoordinator::Leaving);
    assert_eq!(story.told(1), [ToWorker::Handover, ToWorker::Settle { generation: Generation(3) }]);
    story.settled(1, 3, 1, 1);
    let start = story.begun(1);
    assert_eq!((start.first_round, start.until), (Round(2), Round(2)));
    story
}

#[test]
fn the_last_one_writes_a_checkpoint_before_it_goes_and_the_run_goes_on_from_there() {
    let mut story = last_one_leaving();
    story.say(1, written(2, 0));
    assert!(!is_dismissed(&story.told(1)), "not all that it has begun is in it");
    story.say(1, finished(2, None));
    assert!(is_dismissed(&story.told(1)));
    assert_eq!(story.run.state().phase, Phase::Gathering);
    let lost = story.run.state().residuals.lost;
    assert_eq!((lost.contributions, lost.results), (1, 0), "of the first that left alone");
    let told = story.run.status(0).events;
    assert!(
        told.iter()
            .any(|event| event.text.contains("before r2 is in checkpoints of workers that leave (w1)")),
        "{told:?}"
    );

    story.join(1, &[of_whole_model(2)]);
    story.join(2, &[]);
    assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(2)))));
}

#[test]
fn who_cannot_write_its_last_checkpoint_goes_all_the_same_and_that_is_told() {
    let mut story = last_one_leaving();
    let full = CheckpointReport {
        next_round: Round(2),
        generation: WRITTEN_IN,
        path: String::new(),
        outcome: Err("no space left".to_owned()),
    };
    story.say(1, ToCoordinator::Checkpoint(full));
    story.say(1, finished(2, None));
    assert!(is_dismissed(&story.told(1)));
    let told = story.run.status(0).events;
    assert!(told.iter().any(|event| event.text.contains("last checkpoint could not be written")), "{told:?}");
}

/// The newcomer has nothing yet, and is there when the checkpoint is written.
#[test]
fn who_joins_while_the_last_one_writes_is_asked_for_a_copy() {
    let mut story = last_one_leaving();
    story.join(3, &[]);
    story.say(1, written(2, 0));
    story.say(1, finished(2, None));
    assert!(!is_dismissed(&story.told(1)));
    assert_eq!(keeps(&story, 3), [(0, vec![1])]);
    story.say(3, ToCoordinator::Kept(Some(of_whole_model(2))));
    assert!(is_dismissed(&story.told(1)));
}

#[test]
fn a_run_that_stops_for_now_has_all_write_a_checkpoint_and_leave() {
    let mut story = Story::training();
    story.join(3, &[]);
    story.handle(Event::Suspend);
    assert!(is_dismissed(&story.told(3)), "it has nothing yet");
    for worker in [1, 2] {
        let told = story.told(worker);
        assert!(matches!(told.as_slice(), [ToWorker::Handover, ToWorker::Settle { .. }]), "{told:?}");
    }
    story.join(3, &[]);
    assert!(story.told(3).is_empty(), "nobody comes in");
    story.settled(1, 2, 1, 1);
    story.settled(2, 2, 1, 1);
    assert_eq!(story.begun(1).until, Round(2));
    for worker in [1, 2] {
        assert!(story.run.suspended().is_none() && !is_dismissed(&story.told(1)));
        story.say(worker, written(2, 0));
        story.say(worker, finished(2, None));
    }
    assert!(is_dismissed(&story.told(1)) && is_dismissed(&story.told(2)));
    assert_eq!(story.run.suspended(), Some(Suspended::Whole));

    let (config, state) = (story.run.core.config.clone(), story.run.state().clone());
    story = Story::of_state(config, state);
    story.join(1, &[of_whole_model(2)]);
    story.join(2, &[of_whole_model(2)]);
    assert_eq!(story.told(2).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole_model(2)))));
}

#[test]
fn a_run_that_stops_for_now_while_nobody_is_here_has_stopped() {
    let mut story = Story::new();
    story.handle(Event::Suspend);
    assert_eq!(story.run.suspended(), Some(Suspended::Whole));
    let mut story = Story::new();
    story.join(1, &[]);
    story.handle(Event::Suspend);
    assert!(is_dismissed(&story.told(1)) && story.run.suspended().is_some());
}

#[test]
fn nobody_waits_for_ever_to_leave() {
    let mut story = leaving();
    finished_and_written(&mut story);
    let limit = story.now + HANDOVER_MAX;
    let mut gone_at = None;
    while story.now < limit + Duration::from_secs(10) && gone_at.is_none() {
        story.now += Duration::from_secs(1);
        for worker in 1..=3 {
            story.say(worker, heartbeat(0));
            gone_at = gone_at.or(is_dismissed(&story.told(2)).then_some(story.now));
        }
    }
    assert_eq!(gone_at, Some(limit));
}

/// It is needed like before, and comes back.
#[test]
fn who_loses_its_connection_before_the_generation_ends_is_not_let_go() {
    let mut story = one_copy();
    story.handle(Event::Dismiss { worker: WorkerId(2) });
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert!(story.told(1).iter().all(|message| !matches!(message, ToWorker::Placed { .. })));
    story.join_as(2, "b", Some((Generation(1), Round(0))), &[]);
    assert!(
        story.told(2).iter().any(|message| matches!(message, ToWorker::Welcome(welcome) if welcome.resumed))
    );
    story.say(2, ToCoordinator::Leaving);
    assert!(story.told(2).contains(&ToWorker::Handover), "{:?}", story.told(2));
}

/// The second one alone has the copy of the first one's state.
#[test]
fn who_has_a_part_alone_that_the_run_is_to_go_on_from_stays_until_it_does() {
    let mut story = leaving();
    finished_and_written(&mut story);
    story.say(3, ToCoordinator::Kept(Some(offer(2, 1, false))));
    story.join(1, &[offer(2, 0, true)]);
    story.say(1, ToCoordinator::Leaving);
    assert!(is_dismissed(&story.told(1)), "nobody else is here");

    let mut story = Story::of(one_copy().run.core.config);
    story.handle(Event::Pause);
    story.join(1, &[offer(2, 0, true)]);
    story.join(3, &[offer(2, 1, false)]);
    story.say(1, ToCoordinator::Leaving);
    assert_eq!(story.told(1), [ToWorker::Handover]);
    story.handle(Event::Resume);
    story.say(1, ready_with(0, 2, 40));
    story.say(3, ready_with(1, 2, 41));
    assert_eq!(lineup(&story), [[1, 3]]);
    assert!(!is_dismissed(&story.told(1)), "now it alone has a part that trains");
}

/// A worker asked to leave would have no part in the plan, or a unique one.
#[test]
fn a_move_is_given_up_where_somebody_leaves_who_is_needed() {
    let mut story = leaving();
    let copies = vec![vec![WorkerId(2), WorkerId(1)]];
    let plan = Decided {
        parallel: story.run.core.config.parallel.clone(),
        recompute: false,
        copies,
        redundant_warmup: false,
        why: "for a test".to_owned(),
    };
    let workers = [WorkerId(1), WorkerId(2)].into();
    story.run.core.state.plans.moving = Some(Moving { plan, workers });
    story.say(2, written(2, 1));
    story.say(1, written(2, 0));
    for worker in [1, 2] {
        story.say(worker, finished(2, None));
        assert!(!is_dismissed(&story.told(2)) && story.run.state().phase == Phase::Training);
    }
    story.say(3, ToCoordinator::Kept(Some(offer(2, 1, false))));
    assert!(is_dismissed(&story.told(2)) && story.run.state().plans.moving.is_none());
}

/// A generation due to end does so, despite a pause requested meanwhile.
#[test]
fn a_pause_does_not_keep_a_generation_from_its_end() {
    let mut story = leaving();
    story.handle(Event::Pause);
    assert!(story.told(1).is_empty(), "{:?}", story.told(1));
    finished_and_written(&mut story);
    story.say(3, ToCoordinator::Kept(Some(offer(2, 1, false))));
    assert!(is_dismissed(&story.told(2)));
    assert_eq!(story.run.state().phase, Phase::Gathering);
}

/// With another copy, no handover is needed.
#[test]
fn who_can_be_spared_goes_at_once() {
    let mut story = training();
    story.say(2, ToCoordinator::Leaving);
    assert!(is_dismissed(&story.told(2)));
    assert!(!is_dismissed(&story.told(1)));

    let mut story = Story::training();
    story.say(2, ToCoordinator::Leaving);
    assert!(is_dismissed(&story.told(2)));
    assert!(!is_dismissed(&story.told(1)));
}

#[test]
fn the_last_one_that_trains_stays_until_a_joiner_trains() {
    let mut story = Story::training();
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 2, 1, 1);
    story.join(3, &[]);
    assert!(matches!(story.told(3).last(), Some(ToWorker::Heal { .. })));
    story.say(1, ToCoordinator::Leaving);
    assert_eq!(story.told(1), [ToWorker::Handover]);
    story.say(3, ready(2, 7));
    story.settled(1, 3, 2, 2);
    assert_eq!(story.begun(3).membership.members().len(), 2);
    assert!(is_dismissed(&story.told(1)), "{:?}", story.told(1));
    assert_eq!(story.told(3).last(), Some(&ToWorker::Settle { generation: Generation(4) }));
}

/// The coordinator has forgotten the requests to leave; all have come to an end that is none.
#[test]
fn a_coordinator_that_is_started_anew_meanwhile_goes_on_with_all() {
    let mut story = leaving();
    let (config, state) = (story.run.core.config.clone(), story.run.state().clone());
    story = Story::of_state(config, state);
    for (worker, site) in [(1, "a"), (2, "b")] {
        story.join_as(worker, site, Some((Generation(2), Round(2))), &[]);
    }
    finished_and_written(&mut story);
    assert_eq!(story.run.state().phase, Phase::Gathering);
    for worker in [1, 2] {
        assert_eq!(welcomed(&story.told(worker)).len(), 1);
    }
}

#[test]
fn who_is_to_leave_a_paused_run_does_not_wait_for_its_end() {
    let mut story = one_copy();
    story.handle(Event::Pause);
    story.settled(1, 2, 1, 1);
    story.settled(2, 2, 1, 1);
    story.handle(Event::Dismiss { worker: WorkerId(2) });
    assert_eq!(story.begun(2).until, Round(2));
    finished_and_written(&mut story);
    story.say(3, ToCoordinator::Kept(Some(offer(2, 1, false))));
    assert!(is_dismissed(&story.told(2)));
    assert!(story.run.status(0).run.paused);
}

#[test]
fn who_dies_before_it_has_gone_is_waited_for_like_anybody_else() {
    let mut story = leaving();
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(story.run.state().phase, Phase::Training);
    story.join(2, &[offer(2, 1, true)]);
    assert!(!is_dismissed(&story.told(2)), "it came back, and nobody has asked this process to leave");
}

/// The connection of one breaks while all write, and the coordinator is started again while all are away.
#[test]
fn who_comes_back_while_the_run_stops_for_now_writes_and_leaves_like_the_others() {
    let mut story = Story::training();
    story.handle(Event::Suspend);
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 2, 1, 1);
    assert!(story.run.suspended().is_none());
    // Another process of it comes, or a member that was given up: the run waits for neither.
    story.join(2, &[]);
    assert!(story.told(2).is_empty());

    let trained = Story::training();
    let (config, state) = (trained.run.core.config.clone(), trained.run.state().clone());
    let mut story = Story::of_state(config, state);
    story.handle(Event::Suspend);
    assert!(story.run.suspended().is_none(), "members are awaited");
    for worker in [1, 2] {
        story.resume(worker, Generation(1));
        assert!(story.told(worker).contains(&ToWorker::Handover), "{:?}", story.told(worker));
    }
    let generation = story.run.state().generations.announced.0;
    for worker in [1, 2] {
        story.settled(worker, generation, 1, 1);
    }
    for worker in [1, 2] {
        story.say(worker, written(2, 0));
        story.say(worker, finished(2, None));
    }
    assert_eq!(story.run.suspended(), Some(Suspended::Whole));
}

#[test]
fn a_run_that_stops_for_now_and_loses_somebody_for_good_says_so() {
    let trained = Story::training();
    let (config, state) = (trained.run.core.config.clone(), trained.run.state().clone());
    let mut story = Story::of_state(config, state);
    story.handle(Event::Suspend);
    // No worker comes back.
    story.pass_to(Duration::from_secs(600));
    story.handle(Event::Timer);
    assert_eq!(story.run.suspended(), Some(Suspended::Short));

    let mut story = Story::training();
    story.handle(Event::Suspend);
    for worker in [1, 2] {
        story.settled(worker, 2, 1, 1);
    }
    for worker in [1, 2] {
        story.say(worker, finished(2, None));
    }
    assert_eq!(story.run.suspended(), Some(Suspended::Short), "nobody has written anything");
}

/// The first process is away for a moment, and has written its checkpoint before.
#[test]
fn checkpoints_that_were_told_before_a_connection_broke_are_known_after() {
    let mut story = last_one_leaving();
    story.say(1, written(2, 0));
    story.handle(Event::Closed { connection: ConnectionId(1) });
    story.join_holding(1, Some((Generation(3), Round(2))), &[of_whole_model(2)]);
    story.say(1, ToCoordinator::Leaving);
    story.say(1, finished(2, None));
    assert!(is_dismissed(&story.told(1)));
    let told = story.run.status(0).events;
    assert!(told.iter().all(|event| !event.text.contains("could not be written")), "{told:?}");
}
