//! A worker that comes in too far behind to take part.

use super::*;

/// Two members that train, and a third one that fetched the state for so long, was twenty rounds behind when it came in, and is told to fetch it again.
fn after_coming_in_vain(took: Duration) -> Story {
    let mut config = config();
    config.run.steps = 80;
    let mut story = Story::of(config).trained();
    story.join(3, &[]);
    assert!(is_told_to_heal(&story));
    story.now += took;
    hear_all(&mut story);
    story.say(3, ready(1, 7));
    for worker in [1, 2] {
        story.settled(worker, 2, 20, 20);
    }
    assert_eq!(story.begun(3).membership.members().len(), 3);
    story.handle(Event::Closed { connection: ConnectionId(3) });
    for worker in [1, 2] {
        story.settled(worker, 3, 22, 22);
    }
    assert_eq!(story.begun(1).membership.members().len(), 2);
    story.join(3, &[]);
    assert!(is_told_to_heal(&story));
    story
}

/// Whoever is connected has said something.
fn hear_all(story: &mut Story) {
    for worker in [1, 2, 3] {
        story.say(worker, heartbeat(1));
    }
}

fn is_told_to_heal(story: &Story) -> bool {
    matches!(story.told(3).last(), Some(ToWorker::Heal { .. }))
}

fn begins(story: &Story, worker: u32) -> bool {
    story.told(worker).iter().any(|message| matches!(message, ToWorker::Begin(_)))
}

#[test]
fn rounds_wait_for_who_was_too_far_behind_when_it_comes_again() {
    let mut story = after_coming_in_vain(Duration::from_secs(12));
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(4) }]);
    for worker in [1, 2] {
        story.settled(worker, 4, 24, 24);
        assert!(!begins(&story, 1) && !begins(&story, 2), "rounds wait");
    }
    let status = story.run.status(0);
    assert!(!status.paused, "nobody asked for it");
    assert!(status.problems.iter().any(|problem| problem.contains("rounds wait for w3")), "{status:?}");
    story.say(3, ready(24, 7));
    assert_eq!(story.begun(1).membership.members().len(), 3);
    assert!(begins(&story, 3));
    story.say(3, ToCoordinator::RoundApplied(RoundReport { generation: Generation(4), ..report(24, 7) }));
    // Who has taken part is late no more.
    story.handle(Event::Closed { connection: ConnectionId(3) });
    for worker in [1, 2] {
        story.settled(worker, 5, 26, 26);
    }
    story.join(3, &[]);
    assert!(is_told_to_heal(&story) && story.told(1).is_empty());
}

#[test]
fn they_wait_for_twice_as_long_as_the_state_took_and_not_again_soon() {
    let mut story = after_coming_in_vain(Duration::from_secs(12));
    for worker in [1, 2] {
        story.settled(worker, 4, 24, 24);
    }
    let began = story.now;
    while !begins(&story, 1) {
        hear_all(&mut story);
        story.now += Duration::from_secs(1);
        story.handle(Event::Timer);
        assert!(story.now - began < Duration::from_secs(60), "for ever");
    }
    assert_eq!(story.now - began, Duration::from_secs(29));
    assert_eq!(story.begun(1).membership.members().len(), 2);
    story.handle(Event::Closed { connection: ConnectionId(3) });
    story.join(3, &[]);
    assert!(is_told_to_heal(&story) && story.told(1).is_empty(), "{:?}", story.told(1));
}

#[test]
fn nobody_waits_for_a_state_that_takes_minutes() {
    let story = after_coming_in_vain(Duration::from_secs(90));
    assert!(story.told(1).is_empty(), "{:?}", story.told(1));
    let events = story.run.status(0).events;
    assert!(events.iter().any(|event| event.text.contains("took 90 s for the state")), "{events:#?}");
}

#[test]
fn another_process_of_the_worker_is_not_waited_for() {
    let mut story = after_coming_in_vain(Duration::from_secs(12));
    story.handle(Event::Closed { connection: ConnectionId(3) });
    for worker in [1, 2] {
        story.settled(worker, 4, 24, 24);
    }
    assert!(begins(&story, 1), "it has gone");
    story.enter(3, "site-3", |join| join.incarnation = 99);
    assert!(is_told_to_heal(&story) && story.told(1).is_empty());
}
