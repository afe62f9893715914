//! An operator's requests.

use super::*;

fn begins(told: &[ToWorker]) -> bool {
    told.iter().any(|message| matches!(message, ToWorker::Begin(_)))
}

/// Two members that have settled for a pause.
fn paused() -> Story {
    let mut story = Story::training();
    story.handle(Event::Pause);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
    for worker in [1, 2] {
        story.settled(worker, 2, 1, 1);
        assert!(!begins(&story.told(1)) && !begins(&story.told(2)), "nobody goes on");
    }
    story
}

#[test]
fn a_paused_run_settles_and_goes_on_when_it_is_resumed() {
    let mut story = paused();
    let status = story.run.status(0);
    assert!(
        status.run.paused && status.problems.iter().any(|problem| problem.contains("coordinator resume"))
    );
    assert_eq!(status.cluster.members.len(), 2);
    story.handle(Event::Timer);
    assert!(story.commands.is_empty(), "{:?}", story.commands);
    story.handle(Event::Resume);
    for worker in [1, 2] {
        assert_eq!((story.begun(worker).first_round, story.begun(worker).until), (Round(2), Round(10)));
    }
    assert!(!story.run.status(0).run.paused);
}

#[test]
fn who_joins_a_paused_run_waits_and_takes_part_when_it_is_resumed() {
    let mut story = paused();
    story.join(3, &[]);
    assert!(matches!(story.told(3).last(), Some(ToWorker::Heal { .. })), "{:?}", story.told(3));
    story.say(3, ready(1, 7));
    assert!(!begins(&story.told(3)));
    story.handle(Event::Resume);
    assert!(begins(&story.told(1)) && begins(&story.told(3)));
}

#[test]
fn a_pause_outlives_the_coordinator_and_a_member() {
    let state = paused().run.state().clone();
    assert!(state.requests.pause);
    let mut story = Story::of_state(config(), state);
    story.resume(1, Generation(1));
    story.resume(2, Generation(1));
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(3) }]);
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(4) }]);
    story.settled(1, 4, 1, 1);
    assert!(!begins(&story.told(1)));
    story.handle(Event::Resume);
    assert_eq!(story.begun(1).membership.members().len(), 1);
}

#[test]
fn a_run_that_is_paused_before_it_begins_waits_with_that() {
    let mut story = Story::new();
    story.handle(Event::Pause);
    for worker in [1, 2] {
        story.join(worker, &[]);
        assert!(!story.told(worker).iter().any(|told| matches!(told, ToWorker::Prepare(_))));
    }
    story.handle(Event::Resume);
    assert_eq!(story.told(1), [ToWorker::Prepare(Start::Fresh)]);
    story.handle(Event::Pause);
    for worker in [1, 2] {
        story.say(worker, ready(0, 7));
    }
    assert_eq!(story.run.state().phase, Phase::Preparing);
    story.handle(Event::Resume);
    assert!(begins(&story.told(1)) && begins(&story.told(2)));
}

#[test]
fn a_paused_run_that_is_asked_to_stop_ends() {
    let mut story = paused();
    story.handle(Event::Drain);
    assert_eq!(story.begun(1).until, Round(2));
    for worker in [1, 2] {
        story.say(worker, finished(2, None));
    }
    assert_eq!(story.run.state().phase, Phase::Finished);
}

#[test]
fn a_worker_that_is_asked_to_leave_is_dismissed_and_the_others_settle_without_it() {
    let mut story = Story::training();
    story.handle(Event::Dismiss { worker: WorkerId(2) });
    let told = story.told(2);
    let [ToWorker::Dismiss { reason }] = told.as_slice() else { panic!("{told:?}") };
    assert!(reason.contains("operator"), "{reason}");
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
    let status = story.run.status(0);
    let [gone] = status.cluster.gone.as_slice() else { panic!("{:?}", status.cluster.gone) };
    assert_eq!((gone.id.as_str(), gone.revoked, gone.word()), ("w2", false, "left"));
    assert!(gone.why.as_ref().is_some_and(|why| why.contains("operator")), "{gone:?}");
    story.join(2, &[]);
    assert!(story.run.status(0).cluster.gone.is_empty(), "it may come back");
}

#[test]
fn who_asks_to_leave_has_left_and_who_is_lost_is_gone() {
    let word =
        |story: &Story| story.run.status(0).cluster.gone.iter().map(|gone| gone.word()).collect::<Vec<_>>();
    let mut story = Story::training();
    story.say(2, ToCoordinator::Leaving);
    assert_eq!(word(&story), ["left"]);
    let mut story = Story::training();
    story.say(2, ToCoordinator::Failed { reason: "the disk is full".into() });
    assert_eq!(word(&story), ["gone"]);
    let mut story = Story::training();
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(word(&story), ["gone"]);
    // How it went last counts.
    story.join(2, &[]);
    story.say(2, ToCoordinator::Leaving);
    assert_eq!(word(&story), ["left"]);
}

#[test]
fn everybody_is_told_of_a_worker_that_is_kicked_after_it_is_written_down() {
    let mut story = Story::training();
    story.handle(Event::Kick { worker: WorkerId(2) });
    let revoked = ToWorker::Revoked { workers: vec![WorkerId(2)] };
    assert_eq!(story.told(1), [revoked.clone(), ToWorker::Settle { generation: Generation(2) }]);
    assert!(matches!(story.told(2).as_slice(), [ToWorker::Refused { .. }]), "{:?}", story.told(2));
    let is_send = |command: &Command| matches!(command, Command::Send { .. });
    let is_written = |command: &Command| matches!(command, Command::Persist(super::super::Record::State(state)) if state.roster.revoked.contains(&WorkerId(2)));
    let (sent, written) =
        (story.commands.iter().position(is_send), story.commands.iter().position(is_written));
    assert!(written.is_some() && written < sent, "{:?}", story.commands);
    let closed = Command::Close {
        connection: ConnectionId(2),
        reason: "was taken out of the run by the operator, for good".into(),
    };
    assert!(story.commands.contains(&closed), "{:?}", story.commands);
    assert!(
        story.run.status(0).cluster.gone[0].revoked && story.run.status(0).cluster.gone[0].word() == "kicked"
    );
    // It is not admitted again, and new workers receive that.
    story.join(2, &[]);
    assert!(matches!(story.told(2).as_slice(), [ToWorker::Refused { .. }]), "{:?}", story.told(2));
    story.join(3, &[]);
    assert_eq!(story.told(3)[1], revoked);
    story.resume(1, Generation(1));
    assert_eq!(story.told(1)[1], revoked);
}

/// The beginning of a generation decides which earlier rounds count, so it is repeated to a worker that has missed it, whoever is a
/// member.
#[test]
fn who_comes_back_to_a_generation_of_which_somebody_was_kicked_hears_of_that_first() {
    let state = Story::training().run.state().clone();
    let mut story = Story::of_state(config(), state);
    story.handle(Event::Kick { worker: WorkerId(2) });
    story.resume(1, Generation(0));
    let told = story.told(1);
    let [ToWorker::Welcome(_), ToWorker::Revoked { workers }, ToWorker::Begin(start), rest @ ..] =
        told.as_slice()
    else {
        panic!("{told:?}")
    };
    assert_eq!((workers.as_slice(), start.membership.generation), ([WorkerId(2)].as_slice(), Generation(1)));
    let settle = ToWorker::Settle { generation: Generation(2) };
    assert!(rest.contains(&settle), "it is over with whoever was kicked: {rest:?}");
}

#[test]
fn a_worker_that_is_not_here_can_be_kicked_and_once_is_enough() {
    let mut story = Story::training();
    story.handle(Event::Kick { worker: WorkerId(9) });
    assert_eq!(story.told(1), [ToWorker::Revoked { workers: vec![WorkerId(9)] }]);
    story.handle(Event::Kick { worker: WorkerId(9) });
    assert!(story.commands.is_empty());
    let state = story.run.state().clone();
    let mut story = Story::of_state(config(), state);
    story.resume(1, Generation(1));
    assert_eq!(story.told(1)[1], ToWorker::Revoked { workers: vec![WorkerId(9)] });
}

#[test]
fn all_write_a_checkpoint_after_the_first_round_of_a_new_generation() {
    let mut story = Story::training();
    story.handle(Event::Checkpoint);
    story.settled(1, 2, 1, 1);
    story.settled(2, 2, 1, 1);
    let [one, other] = [1, 2].map(|worker| story.begun(worker));
    assert!(one.checkpoint && other.checkpoint);
    assert_eq!((one.first_round, other.first_round), (Round(2), Round(2)));

    // It ends before anybody has applied that round: the next one is to have it.
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 3, 2, 2);
    assert!(story.begun(1).checkpoint);
    let first = story.begun(1).first_round;
    (0..=first.0).for_each(|round| story.applied(1, round, 9));
    assert_eq!(
        story.run.state().lineage.milestones.keys().collect::<Vec<_>>(),
        [&first.next()],
        "a state that is remembered"
    );

    story.join(3, &[]);
    story.say(3, ready(first.0 + 1, 9));
    story.settled(1, 4, first.0 + 1, first.0 + 1);
    assert!(!story.begun(3).checkpoint, "it was asked for once");
}

#[test]
fn a_coordinator_that_is_started_anew_has_not_forgotten_that_a_checkpoint_was_asked_for() {
    let mut story = Story::training();
    story.handle(Event::Checkpoint);
    let mut story = Story::of_state(config(), story.run.state().clone());
    for worker in [1, 2] {
        story.resume(worker, Generation(1));
    }
    for worker in [1, 2] {
        story.settled(worker, 3, 1, 1);
    }
    assert!([1, 2].iter().all(|&worker| story.begun(worker).checkpoint));

    // No worker has received the generation that has it.
    let mut story = Story::of_state(config(), story.run.state().clone());
    for worker in [1, 2] {
        story.resume(worker, Generation(1));
        assert!(story.begun(worker).checkpoint, "{worker}");
    }
}

#[test]
fn a_run_at_its_end_or_before_its_beginning_is_asked_for_no_checkpoint() {
    let mut story = Story::new();
    story.join(1, &[]);
    story.handle(Event::Checkpoint);
    assert!(!story.run.state().checkpoints.is_asked);
    let mut story = Story::training();
    story.handle(Event::Drain);
    story.told(1);
    story.handle(Event::Checkpoint);
    assert!(story.told(1).is_empty() && !story.run.state().checkpoints.is_asked);
}
