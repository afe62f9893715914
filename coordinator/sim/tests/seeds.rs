//! Runs under faults that are drawn from a seed. `LONGHAUL_SEEDS=17..18 cargo test -p longhaul-sim` replays one.

#![allow(clippy::print_stderr, reason = "a failure shows what happened before it")]

mod replay;

use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use longhaul_sim::{Exchange, Fault, World, check, check_with, random, random_of};
use replay::seeds;

/// Faults end after 18 s. Then 40 rounds take 8 s, or two minutes over the slowest links.
const MOST: Duration = Duration::from_secs(240);

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

/// The members' memory survives the loss of the coordinator, or of the link to it.
#[test]
fn a_run_goes_on_where_it_was_whatever_becomes_of_the_coordinator() {
    for seed in 0..30 {
        let mut world = World::new(seed, 3);
        for turn in 0..3 {
            let at = Duration::from_millis(700 + 2900 * turn + 37 * seed);
            // Less than the wait for earlier workers.
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

/// Before the first checkpoint, the members' memory is all there is of a run. They train on while they cannot reach the coordinator, which may itself be restarted
/// meanwhile, and none of it is lost.
#[test]
fn a_run_without_a_checkpoint_outlives_any_time_without_a_coordinator() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3);
        let at = Duration::from_millis(500 + 37 * seed);
        world.fault_at(at, Fault::CutOff(Duration::from_secs(30)));
        if seed % 2 == 1 {
            world.fault_at(at + Duration::from_secs(5), Fault::Coordinator(Duration::from_secs(1)));
        }
        world.run_until(MOST);
        check(&world);
        let is_lost = |line: &&String| line.contains("goes on from") || line.contains("from the beginning");
        let lost = world.log().iter().find(is_lost);
        assert_eq!(lost, None, "seed {seed}: {:#?}", world.log());
    }
}

/// One stands still, and the other goes on and dies while no coordinator hears it: the first one alone can say whose samples are in those rounds.
#[test]
fn whoever_is_left_reports_the_rounds_that_went_on_without_it() {
    finish(random(256), 256);
}

/// They are in the middle of a round when the run ends without them.
#[test]
fn a_run_that_is_stopped_while_its_members_are_cut_off_loses_nothing() {
    for seed in 0..6 {
        let mut world = World::new(seed, 2);
        world.fault_at(Duration::from_millis(1_000), Fault::CutOff(Duration::from_secs(5)));
        world.fault_at(Duration::from_millis(1_500), Fault::Drain);
        world.run_until(MOST);
        check(&world);
    }
}

/// One after the other, before the first checkpoint or after it: the last one has the others' state.
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

/// Whatever a kicked worker sends, over however many connections, it receives its exclusion and nothing else, and the others go on.
#[test]
fn a_worker_that_was_kicked_gets_nothing_whatever_it_says() {
    for seed in 0..20 {
        let mut world = World::new(seed, 4);
        let kicked = WorkerId(1 + (seed % 4) as u32);
        let at = Duration::from_millis(4_000 + 113 * seed);
        world.fault_at(at, Fault::Kick(kicked));
        for later in [1, 30, 500, 2_000, 5_000] {
            world.fault_at(at + Duration::from_millis(later), Fault::Intrude(kicked));
        }
        world.run_until(MOST);
        check(&world);
        let state = world.coordinator_state();
        assert!(state.roster.revoked.contains(&kicked), "seed {seed}: it was kicked");
        let last = state.generations.present.as_ref().expect("the last generation is known");
        assert_eq!(last.members().count(), 3, "seed {seed}: {last:?}");
    }
}

/// No other worker is at its new address, and none finds it at the old one.
#[test]
fn a_worker_that_moves_is_where_it_is_in_the_next_generation() {
    for seed in 0..10 {
        let mut world = World::new(seed, 4);
        let mover = WorkerId(1 + (seed % 4) as u32);
        world.fault_at(Duration::from_millis(1_000 + 37 * seed), Fault::Move(mover));
        world.run_until(MOST);
        check(&world);
        let last =
            world.coordinator_state().generations.present.as_ref().expect("the last generation is known");
        let ports = last.members().map(|member| (member.worker, member.wan_address.port()));
        let expected =
            (1..=4).map(|w| (WorkerId(w), 7000 + 100 * u16::from(WorkerId(w) == mover) + w as u16));
        assert!(ports.eq(expected), "seed {seed}: {last:?}");
    }
}

/// Step s of one worker with batches of b has the samples from s · b on.
#[test]
fn however_many_share_a_run_each_round_has_the_samples_that_one_worker_would_have() {
    for workers in 1..=6 {
        // Alone or two at a site, and with one fragment or several.
        let mut world = World::with_sites(u64::from(workers), workers, workers.div_ceil(2));
        world.run_until(MOST);
        check(&world);
        let batch = u64::from(workers) * 3;
        let state = world.coordinator_state();
        assert!(state.rounds.ledger.counted().iter().eq(std::iter::once(0..80 * batch)), "{workers}");
        for round in 0..40 {
            let steps = 2 * round..2 * (round + 1);
            let expected: Vec<u64> = (steps.start * batch..steps.end * batch).collect();
            assert_eq!(world.books().trained_in(Round(round)), expected, "{workers} workers, round {round}");
        }
    }
}

/// A quarter of the bytes that a store in etcd writes in one request.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// Half of the workers die and come back, again and again.
#[test]
fn the_state_of_64_workers_that_come_and_go_is_one_record() {
    let mut world = World::new(3, 64);
    for (turn, worker) in (1..=64).step_by(2).map(WorkerId).enumerate() {
        let at = Duration::from_millis(1_000 + 200 * turn as u64);
        world.fault_at(at, Fault::Kill(worker, Duration::from_secs(1)));
    }
    world.run_until(MOST);
    let bytes = world.longest_state();
    assert!(bytes > 1000 && bytes < RECORD_BYTES_MAX, "{bytes} bytes");
}

/// The checker must be able to fail: accounts without one of the shares disagree with the devices' samples.
#[test]
#[should_panic(expected = "in a result, and not in the books")]
fn the_checker_notices_books_that_are_wrong() {
    let mut world = World::new(1, 4);
    world.run_until(MOST);
    let mut state = world.coordinator_state().clone();
    assert!(state.rounds.ledger.lose(Round(5), WorkerId(2)));
    check_with(&world, &state);
}

#[test]
fn whatever_happens_the_run_finishes_with_one_state_and_each_sample_once() {
    seeds().unwrap_or(0..60).for_each(|seed| finish(random(seed), seed));
}

/// All members apply the mean of a step's gradients, and go on from it alike.
#[test]
fn gradients_survive_whatever_happens_too() {
    seeds().unwrap_or(0..15).for_each(|seed| finish(random_of(Exchange::Gradients, seed), seed));
}

/// A worker that comes back in the warm-up waits for its end.
#[test]
fn no_mixture_of_faults_breaks_a_promise_where_everybody_computes_the_warmup() {
    seeds().unwrap_or(0..15).for_each(|seed| finish(random_of(Exchange::RedundantWarmup, seed), seed));
}
