//! Workers reported alive by another one of their site.

use longhaul_proto::control::message::{
    HEARTBEAT_INTERVAL_MS, Heartbeat, OWN_WORD_EVERY, SIGNS_MAX, SignOfLife,
};

use super::*;

const BEAT: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);

/// Workers 1 and 2 of one site, and 3 of another one, that train.
fn three() -> Story {
    let mut config = config();
    config.run.workers = 3;
    let mut story = Story::of(config);
    for (worker, site) in [(1, "near"), (2, "near"), (3, "far")] {
        story.join_from(worker, site);
    }
    (1..=3).for_each(|worker| story.say(worker, ready(0, 7)));
    assert_eq!(story.run.state().phase, Phase::Training);
    story
}

/// Of the process that a story's worker is.
fn sign(worker: u32, age_ms: u16) -> SignOfLife {
    SignOfLife { worker: WorkerId(worker), incarnation: worker.into(), age_ms }
}

fn speak(story: &mut Story, worker: u32, others: &[SignOfLife]) {
    let own = Heartbeat::default();
    story.say(worker, ToCoordinator::SiteHeartbeat { own, others: others.to_vec() });
}

fn last(story: &Story, worker: u32) -> Duration {
    story.run.core.peers[&WorkerId(worker)].silence.last()
}

/// Until that time, each half second: 1 reports for 2, which sends one heartbeat of five itself if it is alive, and 3 sends its own. Returns the workers
/// asked for a sign of life.
fn beat_to(story: &mut Story, to: Duration, is_alive: bool) -> Vec<u32> {
    let (mut asked, mut beats) = (Vec::new(), 0u64);
    while story.now + BEAT <= to {
        let next = story.now + BEAT;
        while let Some(due) = story.run.next_timeout().filter(|due| *due < next) {
            story.now = due;
            story.handle(Event::Timer);
            asked.extend((1..=3).filter(|worker| story.told(*worker).contains(&ToWorker::Speak)));
        }
        story.now = next;
        let is_own_word = beats.is_multiple_of(OWN_WORD_EVERY) && is_alive;
        let others = if is_own_word { vec![] } else { vec![sign(2, 50)] };
        speak(story, 1, &others);
        if is_own_word {
            story.say(2, heartbeat(1));
        }
        story.say(3, heartbeat(1));
        beats += 1;
    }
    asked
}

fn gone(story: &Story) -> Vec<String> {
    let events = story.run.status(0).events;
    let of_silence = |text: &String| text.contains("is gone: silent for");
    events.into_iter().map(|event| format!("{:?} {}", event.worker, event.text)).filter(of_silence).collect()
}

#[test]
fn who_is_spoken_for_is_missed_as_soon_as_who_speaks_for_itself() {
    let mut story = three();
    assert!(beat_to(&mut story, Duration::from_secs(100), true).is_empty());
    assert!(gone(&story).is_empty());
    // No worker receives a sign of it any more.
    let (died, mut missed) = (last(&story, 2), None);
    for _ in 0..30 {
        story.pass_to(story.now + BEAT / 5);
        [1, 3].into_iter().for_each(|worker| story.say(worker, heartbeat(1)));
        missed = missed.or((!gone(&story).is_empty()).then_some(story.now));
    }
    assert_eq!(gone(&story).len(), 1);
    let after = missed.unwrap() - died;
    assert!((2000..2200).contains(&after.as_millis()), "{after:?}");
}

/// A malicious worker reports a dead one alive; or that one is alive, and its connection is broken.
#[test]
fn nobody_is_spoken_for_long_who_says_nothing_itself() {
    let mut story = three();
    beat_to(&mut story, Duration::from_millis(100_500), true);
    let own = story.now;
    assert_eq!(last(&story, 2), own);
    beat_to(&mut story, own + Duration::from_millis(5000), false);
    assert!(gone(&story).is_empty());
    beat_to(&mut story, own + Duration::from_millis(6000), false);
    let gone = gone(&story);
    assert!(gone.len() == 1 && gone[0].contains("w2"), "{gone:?}");
}

#[test]
fn a_speaker_that_falls_silent_takes_nobody_with_it() {
    let mut story = three();
    beat_to(&mut story, Duration::from_secs(100), true);
    let frozen = story.now;
    // It had taken another sign. The next one is not answered, so that 2 sends its own.
    for after_ms in (1250..10_000).step_by(500) {
        story.pass_to(frozen + Duration::from_millis(after_ms));
        [2, 3].into_iter().for_each(|worker| story.say(worker, heartbeat(1)));
    }
    let gone = gone(&story);
    assert!(gone.len() == 1 && gone[0].contains("w1"), "{gone:?}");
}

/// No worker reports the signs of 2, which believes that one does.
#[test]
fn who_is_not_heard_of_is_asked_to_speak_before_it_is_missed() {
    let mut story = three();
    beat_to(&mut story, Duration::from_secs(100), true);
    let (told, mut asked) = (last(&story, 2), Vec::new());
    for _ in 0..19 {
        story.now += BEAT / 5;
        story.handle(Event::Timer);
        asked.extend(story.told(2).contains(&ToWorker::Speak).then(|| story.now - told));
        [1, 3].into_iter().for_each(|worker| story.say(worker, heartbeat(1)));
    }
    assert!(asked.len() == 1 && asked[0] <= Duration::from_millis(1600), "once: {asked:?}");
    story.say(2, heartbeat(1));
    assert!(beat_to(&mut story, Duration::from_secs(110), true).is_empty() && gone(&story).is_empty());
}

#[test]
fn a_sign_counts_from_when_it_was_shown() {
    let mut story = three();
    let joined = story.now;
    story.pass_to(joined + Duration::from_millis(900));
    speak(&mut story, 1, &[sign(2, 300)]);
    assert_eq!(last(&story, 2), joined + Duration::from_millis(600));
    speak(&mut story, 1, &[sign(2, 400)]);
    assert_eq!(last(&story, 2), joined + Duration::from_millis(600), "what is older says nothing");
    speak(&mut story, 1, &[sign(2, u16::MAX)]);
    story.say(2, heartbeat(1));
    assert_eq!(last(&story, 2), story.now);
}

#[test]
fn a_member_speaks_for_workers_of_its_site_alone_and_for_no_process_but_the_present_one() {
    let mut story = three();
    let joined = story.now;
    story.now += Duration::from_millis(500);
    let before = SignOfLife { incarnation: 17, ..sign(2, 0) };
    for (speaker, said) in [(3, sign(2, 0)), (1, sign(3, 0)), (1, before), (1, sign(9, 0))] {
        speak(&mut story, speaker, &[said]);
    }
    assert_eq!(last(&story, 2), joined);
    // A worker without part in the generation.
    story.join_from(4, "near");
    speak(&mut story, 4, &[sign(2, 0)]);
    assert_eq!(last(&story, 2), joined);
    speak(&mut story, 1, &[sign(2, 0), sign(4, 0)]);
    assert_eq!(last(&story, 2), story.now);
}

#[test]
fn who_speaks_for_more_than_a_site_has_is_hung_up_on() {
    let mut story = three();
    speak(&mut story, 1, &vec![sign(2, 0); SIGNS_MAX]);
    assert!(story.commands.is_empty(), "{:?}", story.commands);
    speak(&mut story, 1, &vec![sign(2, 0); SIGNS_MAX + 1]);
    let hung_up = |command: &Command| matches!(command, Command::Close { connection: ConnectionId(1), .. });
    assert!(story.commands.iter().any(hung_up), "{:?}", story.commands);
}
