//! Runs of few rounds under faults of the round protocol. `LONGHAUL_SEEDS=17..18 cargo test -p longhaul-sim --test rounds` replays one.

#![allow(clippy::print_stderr, reason = "a failure shows what happened before it")]

mod replay;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_sim::{Fault, FrameFault, World, check, random_rounds};
use replay::seeds;

/// Rounds take a few seconds, or a minute over the slowest links.
const MOST: Duration = Duration::from_secs(240);

fn finish(mut world: World, what: &str) -> World {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run_until(MOST);
        check(&world);
    }));
    if outcome.is_err() {
        world.log().iter().for_each(|line| eprintln!("{line}"));
        panic!("{what}");
    }
    world
}

/// Sites, and workers of each.
const SHAPES: [(u32, u32); 6] = [(1, 1), (2, 1), (2, 2), (3, 2), (5, 1), (8, 1)];
/// Seeds and shapes in which something is lost in turn: with one to five fragments, groups of them, means and gradients.
const FEW: [(u64, (u32, u32)); 4] = [(12, (2, 1)), (18, (3, 1)), (6, (2, 2)), (9, (3, 2))];
const SOON: Duration = Duration::from_millis(200);

fn calm(seed: u64, (sites, each): (u32, u32)) -> World {
    World::of_rounds(seed, sites * each, sites, &[])
}

/// Seeds and shapes in which something is lost in turn: asked for, or few.
fn in_turn() -> Vec<(u64, (u32, u32))> {
    let shape = |seed: u64| (seed, FEW[seed as usize % FEW.len()].1);
    seeds().map_or(FEW.to_vec(), |seeds| seeds.map(shape).collect())
}

/// Of all frames or events of a run, those of so many rounds from its middle.
fn of_rounds(count: u64, all: u64, rounds: u64) -> Range<u64> {
    all / 2..all / 2 + (count * all).div_ceil(rounds)
}

fn generations(world: &World) -> usize {
    world.log().iter().filter(|line| line.contains(" begins with ")).count()
}

#[test]
fn a_calm_run_of_any_shape_applies_every_round_everywhere() {
    for shape in SHAPES {
        for seed in 0..4 {
            let world = finish(calm(seed, shape), &format!("seed {seed}, {shape:?}"));
            assert_eq!((generations(&world), world.dropped().duplicate), (1, 0), "seed {seed}, {shape:?}");
        }
    }
}

/// The frames of a round are lost one at a time, with their sender or receiver.
#[test]
fn whoever_dies_with_any_frame_of_a_round_the_rest_goes_on() {
    for (seed, shape) in in_turn() {
        let all = finish(calm(seed, shape), "calm");
        for number in of_rounds(2, all.frames(), all.rounds()) {
            for fault in [FrameFault::Sender(SOON), FrameFault::Receiver(SOON)] {
                let mut world = calm(seed, shape);
                world.fault_of_frame(number, fault);
                finish(world, &format!("seed {seed}, {shape:?}, frame {number}, {fault:?}"));
            }
        }
    }
}

/// The transport retransmits lost data, so a lost frame comes late: after a repair within a round, or on a new connection, while others go on for some rounds.
#[test]
fn any_frame_of_a_run_may_be_lost_and_sent_again() {
    for (seed, shape) in in_turn() {
        let all = finish(calm(seed, shape), "calm");
        for number in of_rounds(1, all.frames(), all.rounds()) {
            for ms in [100, 1_200] {
                let mut world = calm(seed, shape);
                world.fault_of_frame(number, FrameFault::Stuck(Duration::from_millis(ms)));
                let what = format!("seed {seed}, {shape:?}, frame {number}, {ms} ms");
                assert_eq!(generations(&finish(world, &what)), 1, "{what}");
            }
        }
    }
}

/// Including owners and uploaders, while compressing, reducing, settling and catching up.
#[test]
fn a_member_may_vanish_before_any_of_its_events() {
    for (seed, shape) in in_turn() {
        let all = finish(calm(seed, shape), "calm");
        for (worker, events) in all.events() {
            for number in of_rounds(1, events, all.rounds()) {
                let mut world = calm(seed, shape);
                world.fault_before_event(worker, number, SOON);
                finish(world, &format!("seed {seed}, {shape:?}, {worker}, event {number}"));
            }
        }
    }
}

/// The second death comes during the first settlement, or while the survivors catch up.
#[test]
fn a_second_death_during_a_settlement_starts_it_over() {
    for (seed, shape) in in_turn().into_iter().filter(|(_, (sites, each))| sites * each > 2) {
        for turn in 0..15 {
            let mut world = calm(seed, shape);
            let first = Duration::from_millis(700 + 7 * turn);
            world.fault_at(first, Fault::Kill(WorkerId(2), SOON));
            world.fault_at(first + Duration::from_millis(turn * 31 % 150), Fault::Kill(WorkerId(3), SOON));
            finish(world, &format!("seed {seed}, {shape:?}, turn {turn}"));
        }
    }
}

#[test]
fn workers_may_join_at_any_time() {
    for (seed, (sites, each)) in in_turn() {
        for turn in 0..6 {
            // One at an existing site, one at a new one, shortly after.
            let at = |ms: u64| Duration::from_millis(400 + 61 * turn + ms);
            let world = World::of_rounds(seed, sites * each, sites, &[(at(0), 0), (at(9), sites)]);
            finish(world, &format!("seed {seed}, {sites} sites of {each}, turn {turn}"));
        }
    }
}

#[test]
fn a_slow_device_skips_rounds_and_what_it_learnt_comes_later() {
    let mut carried = 0;
    for seed in 0..12 {
        let mut world = calm(seed, (3, 1));
        world.fault_at(Duration::ZERO, Fault::SlowDevice(WorkerId(2), 15));
        let world = finish(world, &format!("seed {seed}"));
        carried += u64::from(world.executed().contains_key("carry over"));
    }
    assert!(carried > 6, "only {carried} of 12 runs had late contributions");
}

#[test]
fn of_a_late_round_what_was_ready_in_time_counts() {
    let mut in_part = 0;
    for seed in (0..12).map(|seed| 8 * seed) {
        let mut world = calm(seed, (3, 1));
        world.fault_at(Duration::ZERO, Fault::SlowDevice(WorkerId(2), 8));
        in_part += finish(world, &format!("seed {seed}")).rounds_in_part();
    }
    assert!(in_part > 10, "only {in_part} rounds counted in part");
}

#[test]
fn a_frame_that_is_stuck_for_many_rounds_holds_nobody_up() {
    let (mut ahead, mut pulls) = (0, 0);
    for seed in [5, 15] {
        for number in 8..16 {
            let mut world = calm(seed, (3, 1));
            world.fault_of_frame(number, FrameFault::Stuck(Duration::from_secs(3)));
            let world = finish(world, &format!("seed {seed}, frame {number}"));
            ahead += world.dropped().ahead;
            pulls += world.executed().get("pull").copied().unwrap_or_default();
        }
    }
    assert!(ahead > 0 && pulls > 0, "{ahead} results too early, {pulls} pulls");
}

/// Members that do not do what the round protocol says: each check must find its own.
#[test]
fn the_checks_find_known_bugs() {
    for (ignored, promise) in [
        ("retract", "exactly once"),
        ("carry over", "conservation"),
        ("move residual", "conservation"),
        ("move owner residual", "conservation"),
    ] {
        let found = (0..100).any(|seed| {
            let mut world = random_rounds(seed);
            world.ignore(ignored);
            world.run_until(MOST);
            world.check_protocol().is_err_and(|violation| violation.contains(promise))
        });
        assert!(found, "{ignored} is ignored, and {promise} holds");
    }
}

/// Those of the default seeds cover all cases.
#[test]
fn any_mixture_of_faults_is_survived() {
    let (mut executed, mut dropped) = (BTreeMap::new(), [0; 3]);
    for seed in seeds().unwrap_or(0..120) {
        let replay = "cargo test -p longhaul-sim --test rounds any_mixture";
        let what = format!("replay: LONGHAUL_SEEDS={seed}..{} {replay}", seed + 1);
        let world = finish(random_rounds(seed), &what);
        world.executed().into_iter().for_each(|(name, count)| *executed.entry(name).or_insert(0) += count);
        let counts = [world.dropped().stale, world.dropped().settling, world.dropped().late];
        dropped.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    if seeds().is_some() {
        return;
    }
    for name in COMMANDS {
        assert!(executed.get(name).is_some_and(|count| *count > 10), "{name}: {executed:?}");
    }
    assert!(dropped.iter().all(|count| *count > 10), "stale, settling, late: {dropped:?}");
}

/// Commands of the round protocol by which frames and parts of updates go somewhere.
const COMMANDS: [&str; 11] = [
    "send local",
    "send",
    "compress",
    "retract",
    "carry over",
    "move residual",
    "move owner residual",
    "reduce",
    "pull",
    "result here",
    "release",
];
