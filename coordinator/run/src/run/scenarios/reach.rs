//! Members that cannot reach each other.

use longhaul_proto::control::message::HEARTBEAT_INTERVAL_MS;

use super::*;

const BEAT: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);

/// Workers 1 to 4 that train: two of one site, and one each of two others.
fn four() -> Story {
    let mut config = config();
    config.run.workers = 4;
    let mut story = Story::of(config);
    for (worker, site) in [(1, "a"), (2, "a"), (3, "b"), (4, "c")] {
        story.join_from(worker, site);
    }
    (1..=4).for_each(|worker| story.say(worker, ready(0, 7)));
    assert_eq!(story.run.state().phase, Phase::Training);
    // For so long that nothing is left of their coming.
    beat_for(&mut story, 100, &[1, 2, 3, 4], &[]);
    story
}

fn out_of_reach(of: &[u32]) -> ToCoordinator {
    ToCoordinator::OutOfReach(of.iter().map(|worker| WorkerId(*worker)).collect())
}

/// For this many seconds, twice in each, live workers send heartbeats, and each second some report others out of reach. Returns the messages
/// to workers.
fn beat_for(story: &mut Story, seconds: u32, alive: &[u32], said: &[(u32, &[u32])]) -> Vec<(u32, ToWorker)> {
    let mut told = Vec::new();
    let mut keep = |story: &Story| {
        told.extend((1..=4).flat_map(|worker| story.told(worker).into_iter().map(move |m| (worker, m))));
    };
    for beat in 0..2 * seconds {
        let next = story.now + BEAT;
        while let Some(due) = story.run.next_timeout().filter(|due| *due < next) {
            story.now = due;
            story.handle(Event::Timer);
            keep(story);
        }
        story.now = next;
        for worker in alive {
            story.say(*worker, heartbeat(1));
            keep(story);
        }
        for (by, of) in said.iter().filter(|_| beat % 2 == 0) {
            story.say(*by, out_of_reach(of));
            keep(story);
        }
    }
    told
}

fn is_here(story: &Story, worker: u32) -> bool {
    story.run.core.peers.contains_key(&WorkerId(worker))
}

/// Time after which a worker without any further message is given up.
fn missed_after(story: &mut Story, worker: u32, by: &[u32]) -> Duration {
    let alive: Vec<u32> = (1..=4).filter(|other| *other != worker).collect();
    let last = story.run.core.peers[&WorkerId(worker)].silence.last();
    while is_here(story, worker) {
        story.pass_to(story.now + BEAT / 10);
        story.handle(Event::Timer);
        if (story.now.as_millis()).is_multiple_of(BEAT.as_millis()) {
            alive.iter().for_each(|other| story.say(*other, heartbeat(1)));
        }
        if story.now > last + BEAT {
            by.iter().for_each(|other| story.say(*other, out_of_reach(&[worker])));
        }
        assert!(story.now < last + Duration::from_secs(30));
    }
    story.now - last
}

#[test]
fn who_is_out_of_others_reach_is_asked_and_missed_sooner() {
    let nobody_says_so = missed_after(&mut four(), 4, &[]);
    let somebody_does = missed_after(&mut four(), 4, &[1]);
    assert_eq!(nobody_says_so, Duration::from_millis(2000));
    assert!(somebody_does <= Duration::from_millis(1050), "{somebody_does:?}");
    let mut story = four();
    story.pass_to(story.now + BEAT);
    story.say(1, out_of_reach(&[4]));
    assert_eq!(story.told(4), [ToWorker::Speak]);
}

#[test]
fn who_says_that_it_hears_nothing_is_missed_sooner_and_blames_nobody() {
    let says_so = missed_after(&mut four(), 4, &[4]);
    assert!(says_so <= Duration::from_millis(1050), "{says_so:?}");
    let mut story = four();
    beat_for(&mut story, 10, &[1, 2, 3, 4], &[(3, &[4, 3])]);
    assert!((1..=4).all(|worker| is_here(&story, worker)), "heard after all");
}

#[test]
fn who_is_heard_is_not_taken_out_for_what_others_say_within_the_patience_for_silence() {
    let mut story = four();
    beat_for(&mut story, 1, &[1, 2, 3, 4], &[(3, &[4])]);
    beat_for(&mut story, 60, &[1, 2, 3, 4], &[(3, &[])]);
    assert!((1..=4).all(|worker| is_here(&story, worker)));
}

#[test]
fn of_two_that_cannot_reach_each_other_one_is_left_out_and_comes_back_after_a_pause() {
    let mut story = four();
    beat_for(&mut story, 3, &[1, 2, 3, 4], &[(3, &[4]), (4, &[3])]);
    assert!(is_here(&story, 3) && !is_here(&story, 4), "the higher-numbered one of two alike");
    let told = story.run.status(0).events;
    let says = |text: &str| told.iter().any(|event| event.text.contains(text));
    assert!(says("is left out for 2 s: it and w3 cannot reach each other"), "{told:#?}");
    // It joins at once, as it knows no better, and heals only when the pause is over.
    story.join_from(4, "c");
    let heals = |told: &[(u32, ToWorker)]| told.iter().any(|(_, m)| matches!(m, ToWorker::Heal { .. }));
    let told = beat_for(&mut story, 1, &[1, 2, 3, 4], &[]);
    assert!(!heals(&told), "{told:?}");
    let told = beat_for(&mut story, 2, &[1, 2, 3, 4], &[]);
    assert!(heals(&told), "{told:?}");
}

/// It has no part in the run with worker 3, and there is no worker 3 any more.
#[test]
fn who_was_left_out_is_asked_in_again_when_the_other_one_is_gone() {
    let mut story = four();
    beat_for(&mut story, 3, &[1, 2, 3, 4], &[(3, &[4]), (4, &[3])]);
    story.join_from(4, "c");
    assert!(!story.told(4).iter().any(|message| matches!(message, ToWorker::Heal { .. })));
    story.handle(Event::Closed { connection: ConnectionId(3) });
    assert!(
        story.told(4).iter().any(|message| matches!(message, ToWorker::Heal { .. })),
        "{:?}",
        story.told(4)
    );
}

#[test]
fn the_one_that_reaches_fewest_is_left_out_and_not_those_that_miss_it() {
    let mut story = four();
    beat_for(&mut story, 3, &[1, 2, 3, 4], &[(1, &[3]), (2, &[3]), (4, &[3])]);
    let here: Vec<_> = (1..=4).filter(|worker| is_here(&story, *worker)).collect();
    assert_eq!(here, [1, 2, 4]);
}

/// A worker that reports all others takes itself out of the run: they can go on, and it reports that it cannot.
#[test]
fn who_alone_says_that_others_are_out_of_reach_is_left_out_itself() {
    for named in [&[1][..], &[1, 2, 4]] {
        let mut story = four();
        beat_for(&mut story, 3, &[1, 2, 3, 4], &[(3, named)]);
        let here: Vec<_> = (1..=4).filter(|worker| is_here(&story, *worker)).collect();
        assert_eq!(here, [1, 2, 4]);
    }
}

/// The second one at a site whose link is cut: no worker needs it right then, so none reports it.
#[test]
fn who_is_silent_at_a_site_that_misses_somebody_is_missed_no_later_than_who_is_regular() {
    for is_doubted in [true, false] {
        let mut story = four();
        // It was silent for long lately.
        beat_for(&mut story, 1, &[1, 3, 4], &[]);
        story.pass_to(story.now + BEAT);
        [1, 2, 3, 4].into_iter().for_each(|worker| story.say(worker, heartbeat(1)));
        let died = story.now;
        beat_for(&mut story, 1, &[3, 4], &[]);
        beat_for(&mut story, 1, &[3, 4], if is_doubted { &[(3, &[1])] } else { &[] });
        while is_here(&story, 2) {
            beat_for(&mut story, 1, &[3, 4], &[]);
        }
        let after = (story.now - died).as_secs();
        assert!(if is_doubted { after <= 3 } else { after >= 4 }, "{after} s");
    }
}

/// The route between the sites of two stages is lost. One copy breaks up; the other, waiting for the same, alone holds the run's state.
#[test]
fn of_copies_in_parts_the_last_one_is_left_as_it_is() {
    let mut story = pipelines::training();
    let alive = [1, 2, 3, 4];
    beat_for(&mut story, 100, &alive, &[]);
    beat_for(&mut story, 5, &alive, &[(1, &[2]), (2, &[1]), (3, &[4]), (4, &[3])]);
    let here: Vec<_> = alive.into_iter().filter(|worker| is_here(&story, *worker)).collect();
    assert_eq!(here, [1, 2, 3]);
    assert_eq!(story.run.state().phase, Phase::Training);
}
