//! Rounds decided from the members' measurements.

use longhaul_common::schedule::{Changes, Pace, RoundSchedule};
use longhaul_proto::control::message::{Heartbeat, Measured, TimeSpent};

use super::*;

/// Twenty steps, of which the first eight are the warm-up.
const AUTO: &str = "preset = \"auto\"\nevery = 1\ngroups = 5\nwarmup_rounds = 8\nwarmup_share = 0";

fn story_of(steps: u64, sync: &str) -> Story {
    Story::of(parsed(&run_toml().steps(steps).table("sync", sync).set("checkpoint.every_rounds", 0)))
}

fn story(sync: &str) -> Story {
    story_of(20, sync).trained()
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
fn long_round_trips_move_rounds_apart_after_the_warmup() {
    let mut story = story(AUTO);
    assert_eq!(story.run.state().generations.present.as_ref().unwrap().until, Round(20));
    for round in 0..3 {
        applied(&mut story, round, 0.5);
        assert_eq!(story.told(2), [], "half of the warm-up is to come");
    }
    applied(&mut story, 3, 0.5);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
    story.settled(1, 2, 4, 5);
    story.settled(2, 2, 4, 5);
    let start = story.begun(2);
    // So small a model is one fragment, which takes no turns.
    let paced = RoundSchedule { every: 2, overlap: 2, groups: 1, ..AUTO_SCHEDULE };
    // Eight rounds of a step each, and six of two.
    assert_eq!((start.schedule, start.until, start.first_round), (paced, Round(14), Round(6)));
    assert_eq!(story.run.state().rounds.schedule, paced);

    // In the warm-up it is decided once.
    for round in 4..6 {
        applied(&mut story, round, 3.0);
    }
    assert_eq!(story.told(1), []);
    let notice = story.run.core.notices.iter().find(|notice| notice.text.contains("steps apart")).unwrap();
    let said = "from r8 on rounds are 2 steps apart, results 2 steps late, and each value is exchanged every 2 steps (before: 1, 1 and 1), as links and cores allow it: \
                a step takes 0.500 s or more, a round trip up to 500 ms";
    assert!(notice.text.starts_with(said), "{}", notice.text);
}

const AUTO_SCHEDULE: RoundSchedule = RoundSchedule {
    warmup_rounds: 8,
    warmup_every: 1,
    every: 1,
    overlap: 1,
    groups: 5,
    exchanges: 1,
    steps: 20,
    changes: Changes::NONE,
};

#[test]
fn nothing_changes_where_rounds_fit_or_are_not_to_be_changed() {
    let mut fitting = story(AUTO);
    (0..6).for_each(|round| applied(&mut fitting, round, 0.05));
    let mut bound = story(&format!("{AUTO}\nevery_max = 1"));
    (0..6).for_each(|round| applied(&mut bound, round, 0.5));
    let mut fixed = story(&format!("{AUTO}\nadapt = false"));
    (0..6).for_each(|round| applied(&mut fixed, round, 0.5));
    for story in [fitting, bound, fixed] {
        assert_eq!(
            (story.run.state().rounds.schedule, story.run.state().generations.announced),
            (AUTO_SCHEDULE, Generation(1))
        );
    }
}

/// A run of 400 steps that is past its warm-up of eight.
fn long_story() -> Story {
    let mut story = story_of(400, AUTO).trained();
    (0..8).for_each(|round| applied(&mut story, round, 0.05));
    story
}

/// Both settle for a generation, computing one round and having another open; returns their orders.
fn begun(story: &mut Story, generation: u64, open: u64) -> GenerationStart {
    for worker in [1, 2] {
        story.settled(worker, generation, open, open + 1);
    }
    story.begun(2)
}

#[test]
fn a_link_that_becomes_slow_moves_rounds_apart_and_one_that_recovers_brings_them_back() {
    let mut story = long_story();
    (8..72).for_each(|round| applied(&mut story, round, 0.05));
    assert_eq!(story.told(1), [], "nothing has changed");
    // Round trips of two seconds leave a quarter of eight steps: 1.5·2 s / (0.75·0.5 s).
    (72..87).for_each(|round| applied(&mut story, round, 2.0));
    assert_eq!(story.told(1), [], "two windows must agree");
    applied(&mut story, 87, 2.0);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
    let slower = begun(&mut story, 2, 88);
    let (from, pace) = (slower.first_round, slower.schedule.last_pace());
    assert_eq!((from, pace), (Round(90), Pace { overlap: 8, groups: 1, every: 8 }));
    assert_eq!(slower.schedule.steps_of(from), 90..98);
    assert_eq!(slower.until.0, 90 + 310u64.div_ceil(8));
    assert_eq!(slower.assignments.last().unwrap().feed.first_step, 90);

    // Rounds 88 and 89 are of before; 38 rounds of eight steps are too few for six windows of fast ones, and nothing is done.
    (88..128).for_each(|round| applied(&mut story, round, 0.05));
    assert_eq!(story.told(1), []);
}

#[test]
fn a_link_that_recovers_brings_rounds_back() {
    let mut story = long_story();
    (8..40).for_each(|round| applied(&mut story, round, 0.7));
    let slower = begun(&mut story, 2, 40);
    assert_eq!((slower.first_round, slower.schedule.last_pace().every), (Round(42), 3));
    (40..89).for_each(|round| applied(&mut story, round, 0.05));
    assert_eq!(story.told(1), [], "six windows must agree");
    applied(&mut story, 89, 0.05);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(3) }]);
    let faster = begun(&mut story, 3, 90);
    let paces: Vec<_> = faster
        .schedule
        .changes
        .kept()
        .iter()
        .map(|change| (change.round.0, change.step, change.pace.every))
        .collect();
    assert_eq!(paces, [(42, 42, 3), (92, 192, 1)]);
    assert_eq!(faster.until, Round(92 + 208));
    // A restarted coordinator goes on with the same.
    assert_eq!(story.run.state().rounds.schedule, faster.schedule);
    assert_eq!(story.run.state().rounds.paced_from, Some(Round(92)));
}

/// Rounds further apart help neither a member that never waits, nor those that wait for it.
#[test]
fn rounds_do_not_move_apart_for_a_machine_that_is_slow() {
    for (waits, moves) in [([0.9, 0.01], false), ([0.9, 0.5], true)] {
        let mut story = long_story();
        for round in 8..60 {
            for (worker, waits) in [1, 2].into_iter().zip(waits) {
                let at = round as f64;
                let time =
                    TimeSpent { compute_s: at * (1.0 - waits), wait_s: at * waits, ..TimeSpent::default() };
                let busy = Heartbeat { time, ..Heartbeat::default() };
                story.say(worker, ToCoordinator::Heartbeat(busy));
            }
            applied(&mut story, round, 2.0);
        }
        assert_eq!(story.run.state().generations.announced == Generation(2), moves, "{waits:?}");
    }
}

/// All leave, and go on from a state before the last change: from there on, the last pace holds.
#[test]
fn a_run_that_goes_back_keeps_its_pace() {
    let mut story = long_story();
    (8..40).for_each(|round| applied(&mut story, round, 2.0));
    let slower = begun(&mut story, 2, 40);
    assert_eq!(slower.schedule.steps_of(Round(42)), 42..50);
    story.run.accounting.keep_pace(&mut story.run.core, Round(20));
    let schedule = story.run.state().rounds.schedule;
    assert_eq!([schedule.steps_of(Round(19)), schedule.steps_of(Round(20))], [19..20, 20..28]);
    assert!(schedule.is_consistent());
    let before = schedule;
    story.run.accounting.keep_pace(&mut story.run.core, Round(30));
    assert_eq!(story.run.state().rounds.schedule, before, "no change is to come");
}

/// One member is past the warm-up when the last one has applied the round that would have decided it.
#[test]
fn rounds_that_were_begun_are_never_changed() {
    let mut story = story(AUTO);
    (0..3).for_each(|round| applied(&mut story, round, 0.5));
    applied(&mut story, 3, 0.5);
    story.settled(1, 2, 8, 9);
    story.settled(2, 2, 8, 8);
    let start = story.begun(2);
    assert_eq!(
        (0..10).map(|round| start.schedule.steps_of(Round(round)).start).collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>()
    );
    assert_eq!((start.schedule.steps_of(Round(10)), start.until), (10..12, Round(15)));
}

/// A member without samples has nothing to measure.
#[test]
fn late_in_the_warmup_those_decide_who_have_measured() {
    let mut story = story(AUTO);
    for round in 0..5 {
        applied_by(&mut story, round, [None, Some(0.5)]);
        assert_eq!(story.told(1), [], "the other one may still measure");
    }
    applied_by(&mut story, 5, [None, Some(0.5)]);
    assert_eq!(story.told(1), [ToWorker::Settle { generation: Generation(2) }]);
}
