//! Workers that are not equally fast.

use std::time::Duration;

use longhaul_common::config::ShareRule;
use longhaul_proto::control::message::{Heartbeat, TimeSpent};

use super::*;

/// Steps of twenty sequences, more than are made here.
fn story(change: impl FnOnce(&mut RunConfig)) -> Story {
    let mut config = config();
    (config.run.steps, config.train.batch) = (100_000, 20);
    change(&mut config);
    Story::of(config).trained()
}

/// Both report for so many seconds how fast they compute, in tokens per second; returns whether a generation was to end.
fn compute(story: &mut Story, seconds: u32, speeds: [u64; 2]) -> bool {
    compute_in(story, seconds, speeds, [1.0, 1.0])
}

/// The same where they compute in a share of the time alone, and wait otherwise.
fn compute_in(story: &mut Story, seconds: u32, speeds: [u64; 2], shares: [f64; 2]) -> bool {
    let mut settles = false;
    for _ in 0..2 * seconds {
        story.now += Duration::from_millis(500);
        let half_seconds = story.now.as_millis() as u64 / 500;
        for ((worker, speed), share) in [1, 2].into_iter().zip(speeds).zip(shares) {
            let compute_s = share * half_seconds as f64 / 2.0;
            let tokens = (share * (speed * half_seconds) as f64) as u64;
            let time = TimeSpent { compute_s, ..TimeSpent::default() };
            let heartbeat = Heartbeat { tokens, time, ..Heartbeat::default() };
            story.say(worker, ToCoordinator::Heartbeat(heartbeat));
            settles |= story.told(1).iter().any(|told| matches!(told, ToWorker::Settle { .. }));
        }
    }
    settles
}

fn settled(story: &mut Story, generation: u64) -> Vec<u32> {
    story.settled(1, generation, 0, 1);
    story.settled(2, generation, 0, 1);
    story.begun(1).assignments.last().unwrap().weights.each().to_vec()
}

#[test]
fn a_worker_that_stays_slow_computes_less_of_each_step_from_another_generation_on() {
    let mut story = story(|_| ());
    assert!(!compute(&mut story, 25, [400, 100]), "it may be slow for a moment");
    assert!(compute(&mut story, 15, [400, 100]));
    assert_eq!(settled(&mut story, 2), [64, 16]);
    let told =
        story.run.core.notices.iter().any(|notice| notice.text.ends_with("of 20 sequences w1 16, w2 4"));
    assert!(told, "{:#?}", story.run.core.notices);
    assert!(!compute(&mut story, 60, [400, 100]), "shares are as they should be");
    assert!(compute(&mut story, 60, [400, 390]), "and it is fast again");
    assert!(settled(&mut story, 3).is_empty());
}

/// It computes 0.6 s in the ten seconds that are looked at.
#[test]
fn a_fast_worker_that_mostly_waits_is_known_as_fast() {
    let mut story = story(|_| ());
    assert!(compute_in(&mut story, 60, [1600, 400], [0.06, 0.24]));
    assert_eq!(settled(&mut story, 2), [64, 16]);
}

#[test]
fn shares_stay_even_where_speeds_are_nearly_so_or_the_user_wants_it() {
    assert!(!compute(&mut story(|_| ()), 120, [400, 370]));
    assert!(!compute(&mut story(|config| config.train.shares = Some(ShareRule::Even)), 120, [400, 100]));
}

/// A new worker counts as fast as the others until it has computed.
#[test]
fn a_generation_that_begins_for_another_reason_has_shares_by_speed_too() {
    let mut story = story(|_| ());
    compute(&mut story, 15, [400, 100]);
    story.join(3, &[]);
    story.say(3, ready(0, 7));
    assert_eq!(settled(&mut story, 2), [64, 16, 64]);
}
