//! Rounds that are decided on from what members measure.

use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::Measured;

use super::*;

/// Twenty steps, of which the first eight are the opening.
const AUTO: &str = "preset = \"auto\"\nopening_rounds = 8\nopening_share = 0";

fn story(sync: &str) -> Story {
    let text = config().to_toml().unwrap();
    let (before, _) = text.split_once("[sync]").unwrap();
    Story::of(RunConfig::parse(&format!("{before}[sync]\n{sync}\n[checkpoint]\nevery_rounds = 0")).unwrap())
        .trained()
}

/// Both have applied a round, in which one of them measured round trips of as long as its step.
fn applied(story: &mut Story, round: u64, round_trip_s: f32) {
    applied_by(story, round, [Some(0.01), Some(round_trip_s)]);
}

fn applied_by(story: &mut Story, round: u64, round_trips: [Option<f32>; 2]) {
    for (worker, round_trip_s) in [1, 2].into_iter().zip(round_trips) {
        let measured = round_trip_s.map(|round_trip_s| Measured {
            step_s: 0.5,
            round_trip_s,
            bit_s: 0.001,
            spare_cores: 4.0,
        });
        story.say(worker, ToCoordinator::RoundApplied(RoundReport { measured, ..report(round, 9) }));
    }
}

#[test]
fn long_round_trips_move_rounds_apart_after_the_opening() {
    let mut story = story(AUTO);
    assert_eq!(story.run.state().generation.as_ref().unwrap().until, Round(20));
    for round in 0..3 {
        applied(&mut story, round, 0.5);
        assert_eq!(story.told(2), [], "half of the opening is to come");
    }
    applied(&mut story, 3, 0.5);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
    story.settled(1, 2, 4, 5);
    story.settled(2, 2, 4, 5);
    let start = story.begun(2);
    // So small a model is one fragment, which takes no turns.
    let paced = RoundSchedule { every: 2, groups: 1, ..AUTO_SCHEDULE };
    // Eight rounds of a step each, and six of two.
    assert_eq!((start.schedule, start.until, start.first_round), (paced, Round(14), Round(6)));
    assert_eq!(story.run.state().schedule, paced);

    // It is decided once.
    for round in 4..6 {
        applied(&mut story, round, 3.0);
    }
    assert_eq!(story.told(1), []);
}

const AUTO_SCHEDULE: RoundSchedule =
    RoundSchedule { opening_rounds: 8, opening_every: 1, every: 1, groups: 5, exchanges: 1, steps: 20 };

#[test]
fn nothing_changes_where_rounds_fit_or_are_not_to_be_changed() {
    let mut fitting = story(AUTO);
    (0..6).for_each(|round| applied(&mut fitting, round, 0.05));
    let mut bound = story(&format!("{AUTO}\nevery_max = 1"));
    (0..6).for_each(|round| applied(&mut bound, round, 0.5));
    let mut fixed = story(&format!("{AUTO}\nadapt = false"));
    (0..6).for_each(|round| applied(&mut fixed, round, 0.5));
    for story in [fitting, bound, fixed] {
        assert_eq!((story.run.state().schedule, story.run.state().announced), (AUTO_SCHEDULE, Generation(1)));
    }
}

/// Somebody is past the opening when the last one has applied the round that would have decided it.
#[test]
fn rounds_that_were_begun_are_never_changed() {
    let mut story = story(AUTO);
    (0..3).for_each(|round| applied(&mut story, round, 0.5));
    applied(&mut story, 3, 0.5);
    story.settled(1, 2, 8, 9);
    story.settled(2, 2, 8, 8);
    let start = story.begun(2);
    assert_eq!((start.schedule, start.until), (AUTO_SCHEDULE, Round(20)));
}

/// A member without samples has nothing to measure.
#[test]
fn late_in_the_opening_those_decide_who_have_measured() {
    let mut story = story(AUTO);
    for round in 0..5 {
        applied_by(&mut story, round, [None, Some(0.5)]);
        assert_eq!(story.told(1), [], "the other one may still measure");
    }
    applied_by(&mut story, 5, [None, Some(0.5)]);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
}
