//! Runs under faults that are drawn from a seed. `LONGHAUL_SEEDS=17..18 cargo test -p longhaul-sim` replays one.

#![allow(clippy::print_stderr, reason = "a failure shows what happened before it")]

use std::ops::Range;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_sim::{Fault, World, check, random};

/// Faults end after 18 s, and 40 rounds take 8 s.
const MOST: Duration = Duration::from_secs(90);

fn seeds() -> Option<Range<u64>> {
    let text = std::env::var("LONGHAUL_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("LONGHAUL_SEEDS is FROM..TO");
    Some(from.parse().expect("a seed")..to.parse().expect("a seed"))
}

fn finish(mut world: World, seed: u64) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run_until(MOST);
        check(&world);
    }));
    if outcome.is_err() {
        world.log().iter().for_each(|line| eprintln!("{line}"));
        panic!("seed {seed}; replay: LONGHAUL_SEEDS={seed}..{} cargo test -p longhaul-sim", seed + 1);
    }
}

#[test]
fn a_run_without_faults_finishes_with_one_state() {
    finish(World::new(1, 3), 1);
}

/// Whichever it is: the owner of the model's only fragment is one of them.
#[test]
fn a_member_that_stands_still_for_good_is_gone_on_without() {
    for worker in (1..=3).map(WorkerId) {
        let mut world = World::new(worker.0.into(), 3);
        world.fault_at(Duration::from_secs(3), Fault::Freeze(worker, Duration::from_secs(600)));
        world.run_until(Duration::from_secs(30));
        check(&world);
    }
}

/// What members have in memory is not lost with the coordinator, nor with the way to it.
#[test]
fn a_run_goes_on_where_it_was_whatever_becomes_of_the_coordinator() {
    for seed in 0..30 {
        let mut world = World::new(seed, 3);
        for turn in 0..3 {
            let at = Duration::from_millis(700 + 2900 * turn + 37 * seed);
            // Less than those are waited for who were there.
            let pause = Duration::from_millis(300 + 211 * (seed + turn) % 2000);
            world.fault_at(
                at,
                match (seed + turn) % 3 {
                    0 => Fault::Coordinator(pause),
                    1 => Fault::CutOff(pause),
                    _ => Fault::Disconnect(WorkerId(1 + (seed % 3) as u32)),
                },
            );
        }
        world.run_until(MOST);
        check(&world);
        let is_lost = |line: &&String| line.contains("goes on from") || line.contains("from the beginning");
        let lost = world.log().iter().find(is_lost);
        assert_eq!(lost, None, "seed {seed}: {:#?}", world.log());
    }
}

/// One after the other, before the first checkpoint or after it: whoever is last has what the others had.
#[test]
fn all_leave_in_order_and_nothing_is_lost() {
    for seed in 0..30 {
        let workers = 2 + (seed % 3) as u32;
        let mut world = World::new(seed, workers);
        for worker in 1..=workers {
            let at = Duration::from_millis(700 + 61 * seed + u64::from(worker) * (seed * 37 % 400));
            world.fault_at(at, Fault::Leave(WorkerId(worker), Duration::from_secs(9)));
        }
        world.run_until(MOST);
        check(&world);
    }
}

#[test]
fn whatever_happens_the_run_finishes_with_one_state_and_each_sample_once() {
    seeds().unwrap_or(0..60).for_each(|seed| finish(random(seed), seed));
}
