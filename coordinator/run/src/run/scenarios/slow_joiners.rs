//! A worker that comes in too far behind to take part.

use super::*;

/// Two training members. A third one, which was too late before after a state that took this long, is to fetch it again.
fn with_a_slow_joiner(took: Duration) -> Story {
    let mut config = config();
    config.run.steps = 400;
    let mut story = Story::of(config).trained();
    come_too_late(&mut story, took);
    story
}

fn come_too_late(story: &mut Story, took: Duration) {
    let too_late_ms = u32::try_from(took.as_millis()).ok();
    // Each of its sessions has an incarnation of its own.
    let incarnation = 1000 + u64::try_from(story.now.as_millis()).unwrap();
    story.enter(3, "site-3", |join| (join.incarnation, join.too_late_ms) = (incarnation, too_late_ms));
    assert!(matches!(story.told(3).last(), Some(ToWorker::Heal { .. })));
}

fn leave(story: &mut Story) {
    story.handle(Event::Closed { connection: ConnectionId(3) });
}

/// Both answer; whether rounds go on then.
fn settle(story: &mut Story, generation: u64, round: u64) -> bool {
    for worker in [1, 2] {
        story.settled(worker, generation, round, round);
    }
    begins(story, 1)
}

/// Lets a second go by in which all say something.
fn pass_a_second(story: &mut Story) {
    for worker in [1, 2, 3] {
        story.say(worker, heartbeat(1));
    }
    story.now += Duration::from_secs(1);
    story.handle(Event::Timer);
}

fn begins(story: &Story, worker: u32) -> bool {
    story.told(worker).iter().any(|message| matches!(message, ToWorker::Begin(_)))
}

fn is_asked_to_settle(story: &Story) -> bool {
    matches!(story.told(1).as_slice(), [ToWorker::Settle { .. }])
}

#[test]
fn rounds_wait_for_who_was_too_far_behind_when_it_comes_again() {
    let mut story = with_a_slow_joiner(Duration::from_secs(12));
    assert!(is_asked_to_settle(&story) && !settle(&mut story, 2, 4), "rounds wait");
    let status = story.run.status(0);
    assert!(!status.run.paused, "nobody asked for it");
    assert!(status.problems.iter().any(|problem| problem.contains("rounds wait for w3")), "{status:?}");
    story.say(3, ready(4, 7));
    assert_eq!(story.begun(1).membership.members().len(), 3);
    assert!(begins(&story, 3));
}

#[test]
fn who_was_not_too_late_or_has_taken_part_since_is_not_waited_for() {
    let mut story = Story::training();
    story.join(3, &[]);
    assert!(story.told(1).is_empty());
    let mut story = with_a_slow_joiner(Duration::from_secs(12));
    settle(&mut story, 2, 4);
    story.now += Duration::from_secs(1);
    story.say(3, ready(4, 7));
    story.say(3, ToCoordinator::RoundApplied(RoundReport { generation: Generation(2), ..report(5, 7) }));
    leave(&mut story);
    assert!(settle(&mut story, 3, 6));
    story.now += Duration::from_secs(100);
    story.join(3, &[]);
    assert!(!is_asked_to_settle(&story));
}

#[test]
fn rounds_wait_for_twice_as_long_as_the_state_took_and_not_again_for_ten_times_as_long() {
    let mut story = with_a_slow_joiner(Duration::from_secs(12));
    settle(&mut story, 2, 4);
    let began = story.now;
    while !begins(&story, 1) {
        pass_a_second(&mut story);
        assert!(story.now - began < Duration::from_secs(60), "for ever");
    }
    assert_eq!(story.now - began, Duration::from_secs(34));
    assert_eq!(story.begun(1).membership.members().len(), 2);
    let waited_until = story.now;
    leave(&mut story);
    come_too_late(&mut story, Duration::from_secs(12));
    while !is_asked_to_settle(&story) {
        pass_a_second(&mut story);
        assert!(story.now - waited_until < Duration::from_secs(600), "it is waited for again");
    }
    assert_eq!(story.now - waited_until, Duration::from_secs(340));
}

#[test]
fn nobody_waits_for_a_state_that_takes_minutes() {
    let story = with_a_slow_joiner(Duration::from_secs(90));
    assert!(!is_asked_to_settle(&story));
    let events = story.run.status(0).events;
    assert!(events.iter().any(|event| event.text.contains("fetching the state took 90.0 s")), "{events:#?}");
}

#[test]
fn who_goes_is_not_waited_for_and_neither_is_anybody_in_a_run_that_stops() {
    let mut story = with_a_slow_joiner(Duration::from_secs(12));
    assert!(!settle(&mut story, 2, 4));
    leave(&mut story);
    assert!(begins(&story, 1), "it has gone");
    let mut story = with_a_slow_joiner(Duration::from_secs(12));
    assert!(!settle(&mut story, 2, 4));
    story.handle(Event::Drain);
    assert!(begins(&story, 1), "the run is to end");
    assert!(!story.run.status(0).problems.iter().any(|problem| problem.contains("wait for w3")));
}
