//! The run against model workers, in virtual time, under seeded faults: it must always finish, and its ledger must say
//! exactly what the results contain.
//!
//! `LONGHAUL_SEEDS=17..18 cargo test -p longhaul-coordinator simulation` replays one seed; `cargo xtask chaos --simulated` tries many.

mod node;
mod world;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::LazyLock;

use longhaul_common::config::RunConfig;
use longhaul_common::id::WorkerId;
use longhaul_common::schedule::RoundSchedule;
use node::{Applied, Node, state_hash};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use world::{Fault, World};

use super::Phase;
use crate::store::etcd::PART_BYTES_MAX;

const STEPS: u64 = 120;
/// Of a hundred seeds, those whose books are compared at least: in the others everybody dies where somebody is late, or the run ends before it has trained.
const BOOKS_COMPARED: u64 = 70;

fn config(workers: u32) -> RunConfig {
    let text = format!(
        "[run]\nname = \"simulated\"\nworkers = {workers}\nsteps = {STEPS}\n\
         [model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n\
         [data]\npath = \"none\"\nsequence_length = 8\n\
         [train]\nbatch = {}\n[sync]\npreset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\noverlap = 1\n\
         [parallel]\nplan = \"fixed\"\n[faults]\nsilent_after_ms = 2000\nreconnect_grace_ms = 3000\n",
        workers * 3
    );
    RunConfig::parse(&text).unwrap()
}

/// The half hour for which those are waited for who left with what nobody else has, and as long as any run takes.
const HOLDERS_GONE_MS: u64 = 30 * 60_000 + 2 * 120_000;

/// Asked for at each round and heartbeat.
fn schedule() -> &'static RoundSchedule {
    static SCHEDULE: LazyLock<RoundSchedule> = LazyLock::new(|| config(4).round_schedule());
    &SCHEDULE
}

/// Checks a finished world: one state everywhere, and books that agree with it. Answers whether the books could be compared.
fn check(world: &World) -> bool {
    let run = world.run.as_ref().unwrap();
    assert_eq!(run.state().phase, Phase::Finished, "the run did not finish");
    let last = run.state().generation.as_ref().unwrap();
    let in_last = |node: &&Node| node.finished && last.rank_of(node.worker).is_some();
    let finished: Vec<&Applied> = world.nodes.values().filter(in_last).map(|node| &node.applied).collect();
    let state = finished.first().expect("somebody finished");
    for other in &finished {
        assert_eq!(state_hash(state, 0), state_hash(other, 0), "finished with different states");
    }
    let ledger = &run.state().ledger;
    assert_eq!(ledger.through().0, state.len() as u64);

    // When all members die, nobody is left to report which contributions were late in the last rounds before the
    // checkpoint, so the books are exact then only where nobody is late.
    if world.lateness && world.log.iter().any(|line| line.contains("goes on from")) {
        return false;
    }
    let mut applied = BTreeSet::new();
    for position in state
        .iter()
        .flat_map(|result| &result.shares)
        .flat_map(|share| share.positions.iter().cloned())
        .flatten()
    {
        assert!(applied.insert(position), "position {position} is in two results");
    }
    let counted: BTreeSet<u64> = ledger.counted().iter().flatten().collect();
    let waiting: BTreeSet<u64> = ledger.waiting().iter().flatten().collect();
    assert!(counted.is_disjoint(&waiting), "positions that count are to be given out again");
    let gaps: Vec<_> = (0..ledger.given_out())
        .filter(|position| !counted.contains(position) && !waiting.contains(position))
        .collect();
    assert!(gaps.is_empty(), "given out, and neither in the ledger nor to be given out again: {gaps:?}");
    let beyond: Vec<_> = applied.difference(&counted).collect();
    assert!(beyond.is_empty(), "applied, and not in the ledger: {beyond:?}");
    // Only what was late can be missing: it was in a residual, which died with its holder or outlived the run.
    let residual: BTreeSet<u64> = world
        .nodes
        .values()
        .flat_map(|node| node.carried.iter().chain(&node.dropped))
        .flat_map(|share| share.positions.iter().cloned())
        .flatten()
        .filter(|_| world.lateness)
        .collect();
    let missing: Vec<_> =
        counted.difference(&applied).filter(|position| !residual.contains(position)).collect();
    assert!(missing.is_empty(), "in the ledger, and not applied: {missing:?}");
    true
}

/// Draws faults for the first twelve seconds, then lets the run heal.
fn random_world(seed: u64) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xfa17);
    let workers = rng.random_range(2..6);
    let mut world = World::new(seed, workers, seed.is_multiple_of(2));
    for _ in 0..rng.random_range(0..9) {
        let at = rng.random_range(50..12_000);
        let worker = WorkerId(rng.random_range(1..=workers));
        match rng.random_range(0..18) {
            0..4 => world.fault_at_ms(at, Fault::Kill(worker)),
            4..6 => world.fault_at_ms(at, Fault::StopRun),
            6 => {
                world.fault_at_ms(at, Fault::Freeze(worker));
                world.fault_at_ms(at + rng.random_range(100..6000), Fault::Thaw(worker));
            }
            7..9 => world.fault_at_ms(at, Fault::Disconnect(worker)),
            9 => world.fault_at_ms(at, Fault::Corrupt(worker)),
            10 => (1..=workers).for_each(|w| world.fault_at_ms(at, Fault::Kill(WorkerId(w)))),
            11 if seed.is_multiple_of(5) => world.fault_at_ms(at, Fault::Leave(worker)),
            12 if seed.is_multiple_of(3) => world.fault_at_ms(at + 2000, Fault::Drain),
            13 => world.fault_at_ms(at, Fault::CutOff(rng.random_range(100..8000))),
            14 => {
                world.fault_at_ms(at, Fault::Pause);
                world.fault_at_ms(at + rng.random_range(100..5000), Fault::Resume);
            }
            15 if seed.is_multiple_of(7) => world.fault_at_ms(at, Fault::Kick(worker)),
            16 if seed.is_multiple_of(11) => world.fault_at_ms(at, Fault::Dismiss(worker)),
            17 => world.fault_at_ms(at, Fault::NoDisk(worker, rng.random_range(500..6000))),
            _ => {}
        }
    }
    if seed % 4 == 1 {
        world.nodes.values_mut().for_each(|node| node.in_parts = true);
    }
    if seed % 13 == 6 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5057);
        let (at, for_ms) = (rng.random_range(500..12_000), rng.random_range(200..3_000));
        world.fault_at_ms(at, Fault::Suspend(for_ms));
    }
    // Drawn apart, so that the others are what they were in seeds that have failed once.
    if seed.is_multiple_of(3) {
        add_words(&mut world, ChaCha8Rng::seed_from_u64(seed ^ 0x0f0a), workers);
    }
    world
}

/// What workers say of each other and of themselves, and addresses that change.
fn add_words(world: &mut World, mut rng: ChaCha8Rng, workers: u32) {
    for _ in 0..rng.random_range(0..5) {
        let at = rng.random_range(50..12_000);
        let [worker, other] = [(); 2].map(|()| WorkerId(rng.random_range(1..=workers)));
        let fault = match rng.random_range(0..4) {
            0..2 => Fault::OutOfReach(worker, other, rng.random_range(100..6000)),
            2 => Fault::TooLate(worker),
            _ => Fault::Move(worker),
        };
        world.fault_at_ms(at, fault);
    }
}

/// Answers whether the run's books could be compared at its end.
fn simulate(seed: u64) -> bool {
    let mut world = random_world(seed);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run_until_ms(120_000);
        // Who left in order for good, with more than the others have, is waited for.
        let waits = world.log.iter().any(|line| line.contains("who left with all before"));
        if waits && world.phase() == Phase::Gathering {
            world.run_until_ms(HOLDERS_GONE_MS);
        }
        // Who does not come back in time from a drain has written what there is.
        let drained_early = world.phase() == Phase::Finished
            && (!world.nodes.values().any(|node| node.finished)
                || world.was_drained() && !world.has_generation());
        // Without somebody who left for good, a run that has no state yet waits for one more worker.
        let holds = |node: &Node| node.running && node.generation.is_some() || !node.disk.is_empty();
        let has_state = |node: &Node| !node.dismissed && holds(node);
        let wants_more = world.phase() != Phase::Finished
            && world.nodes.values().any(|node| node.dismissed)
            && !world.nodes.values().any(has_state);
        !drained_early && !wants_more && check(&world)
    }));
    let Ok(is_compared) = outcome else {
        world.log.iter().for_each(|line| eprintln!("{line}"));
        for node in world.nodes.values() {
            let generation = node.generation.as_ref().map(|start| start.membership.generation);
            eprintln!(
                "{}: running {}, frozen {}, connected {}, {generation:?}, next {}, computing {:?}, sent {:?}, settling {}",
                node.worker,
                node.running,
                node.frozen,
                node.connection.is_some(),
                node.next_round(),
                node.computing,
                node.sent,
                node.settling
            );
        }
        panic!(
            "seed {seed}; replay: LONGHAUL_SEEDS={seed}..{} cargo test -p longhaul-coordinator simulation",
            seed + 1
        );
    };
    is_compared
}

/// Those that somebody asked for.
fn seeds() -> Option<Range<u64>> {
    let text = std::env::var("LONGHAUL_SEEDS").ok()?;
    let (from, to) = text.split_once("..").expect("LONGHAUL_SEEDS is FROM..TO");
    Some(from.parse().unwrap()..to.parse().unwrap())
}

#[test]
fn whatever_happens_the_run_finishes_and_the_ledger_tells_what_was_applied() {
    let seeds = seeds().unwrap_or(0..400);
    let tried = seeds.end.saturating_sub(seeds.start);
    let compared = seeds.filter(|&seed| simulate(seed)).count() as u64;
    // With few seeds chance has its way.
    assert!(
        tried < 100 || compared * 100 >= tried * BOOKS_COMPARED,
        "the books of {compared} of {tried} were compared"
    );
}

/// The only one who has some rounds is killed, and a member that had joined lately lags behind them: it makes them anew, and the books follow.
#[test]
fn rounds_that_died_with_those_who_had_them_are_struck_from_the_books() {
    simulate(50_084);
}

/// A worker that has come back as another process has nothing of what it was given before.
#[test]
fn who_comes_back_as_another_process_has_lost_the_rounds_before() {
    simulate(74_053);
}

/// The only one who has a round, in which all were named, is killed; the others make it anew without those who are late.
#[test]
fn what_was_reported_of_a_round_that_is_made_anew_does_not_count() {
    simulate(80_380);
}

/// The only one who has a round is killed before the others have pulled it. Nobody makes another result in its place, whatever arrives for it, until a generation says that the round is open.
#[test]
fn a_round_that_is_to_be_pulled_is_made_anew_in_a_later_generation_only() {
    simulate(77_938);
}

/// Before the first checkpoint, the members' memory is all there is of a run. They train on while they cannot reach the coordinator, which
/// may itself be restarted meanwhile, and none of it is lost.
#[test]
fn a_run_without_a_checkpoint_outlives_any_time_without_a_coordinator() {
    for seed in 0..60 {
        let mut world = World::new(seed, 3, false);
        let cut_at = 500 + 5 * seed;
        world.fault_at_ms(cut_at, Fault::CutOff(30_000));
        if seed % 2 == 1 {
            world.fault_at_ms(cut_at + 5_000, Fault::StopRun);
        }
        world.run_until_ms(cut_at + 4);
        let state = &world.run.as_ref().unwrap().core.state;
        assert_eq!(state.phase, Phase::Training, "seed {seed}");
        assert!(world.nodes.values().all(|node| node.disk.is_empty()), "seed {seed}");
        world.run_until_ms(120_000);
        check(&world);
        let lost =
            world.log.iter().find(|line| line.contains("the beginning") || line.contains("goes on from"));
        assert_eq!(lost, None, "seed {seed}");
    }
}

/// How the workers of `world` leave for the night, and come back.
fn leave_all(world: &mut World, seed: u64, at: u64) {
    let workers: Vec<WorkerId> = world.nodes.keys().copied().collect();
    match seed % 3 {
        // One after the other, as shells that are closed, or all at once, as a batch system ends them.
        way @ 0..2 => {
            let apart = way * (seed * 37 % 400);
            for (turn, &worker) in workers.iter().enumerate() {
                // The last one may come long after all others.
                let late = if turn + 1 == workers.len() { seed * 71 % 9_000 } else { 0 };
                world.fault_at_ms(at + apart * turn as u64, Fault::LeaveFor(worker, 20_000 + late));
            }
            if seed % 2 == 1 {
                world.fault_at_ms(at + 15_000, Fault::StopRun);
            }
        }
        _ => {
            world.fault_at_ms(at, Fault::Suspend(5_000));
            if seed % 2 == 1 {
                world.fault_at_ms(at + seed * 29 % 900, Fault::Disconnect(WorkerId(1)));
            }
        }
    }
}

/// Nothing of a run is lost where everybody leaves in order, before the first checkpoint or after it.
#[test]
fn all_leave_in_order_and_the_run_goes_on_where_it_was() {
    for seed in 0..90 {
        let workers = 1 + (seed % 4) as u32;
        // Where the run wants one less, all but one may be back and begin.
        let wanted = (workers - u32::from(seed % 5 > 1)).max(1);
        let mut world = World::wanting(wanted, seed, workers, false);
        world.nodes.values_mut().for_each(|node| node.tells_last = true);
        let at = 700 + 53 * seed;
        leave_all(&mut world, seed, at);
        world.run_until_ms(at - 1);
        let made = world.nodes.values().map(Node::next_round).max().unwrap();
        world.run_until_ms(at + 14_000);
        let have_left = match seed % 3 {
            2 => world.log.iter().any(|line| line.contains("fault: StartRun")),
            _ => world.nodes.values().all(|node| node.dismissed),
        };
        assert!(have_left, "seed {seed}: all have left, or the coordinator has ended");
        world.run_until_ms(120_000);
        world.log.iter().for_each(|line| println!("{line}"));
        check(&world);
        let since = world.log.iter().position(|line| line.contains("fault: Return")).unwrap();
        let goes_on = world.log[since..]
            .iter()
            .find_map(|line| line.split_once("goes on from the checkpoint before r"));
        let (_, rest) = goes_on.unwrap_or_else(|| panic!("seed {seed}: it goes on from a checkpoint"));
        let round: u64 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!(round >= made.0, "seed {seed}: {round} of {made}");
        let is_loss = |line: &&String| {
            ["starts from the beginning", "not be written", "nobody of"]
                .iter()
                .any(|words| line.contains(words))
        };
        let lost = world.log.iter().find(is_loss);
        assert_eq!(lost, None, "seed {seed}");
    }
}

#[test]
fn an_undisturbed_run_counts_every_position_once() {
    let mut world = World::new(1, 4, false);
    world.run_until_ms(60_000);
    check(&world);
    let counted = world.run.as_ref().unwrap().state().ledger.counted();
    assert!(counted.iter().eq(std::iter::once(0..STEPS * 12)));
}

/// Whatever a worker that was kicked says, over however many connections, it is told that it is out and nothing else, and the others go on (`World::check_sent`).
#[test]
fn who_was_kicked_gets_nothing_whatever_it_says() {
    for seed in 0..40 {
        let mut world = World::new(seed, 4, seed % 2 == 0);
        let kicked = WorkerId(1 + (seed % 4) as u32);
        let at = 4_000 + 113 * seed;
        world.fault_at_ms(at, Fault::Kick(kicked));
        for later in [1, 30, 500, 2_000, 5_000] {
            world.fault_at_ms(at + later, Fault::Intrude(kicked));
        }
        world.run_until_ms(60_000);
        check(&world);
        let run = world.run.as_ref().unwrap();
        assert!(run.state().revoked.contains(&kicked), "seed {seed}: it was kicked");
        let lineup = run.state().generation.as_ref().unwrap();
        assert_eq!(lineup.members().count(), 3, "seed {seed}: {lineup:?}");
    }
}

/// Step s of one worker with batches of b has the samples from s · b on.
#[test]
fn however_many_share_a_run_each_round_has_the_samples_that_one_worker_would_have() {
    for workers in 1..=6 {
        let mut world = World::new(u64::from(workers), workers, false);
        world.run_until_ms(60_000);
        check(&world);
        let (batch, schedule) = (u64::from(workers) * 3, schedule());
        let state = &world.nodes[&WorkerId(1)].applied;
        assert_eq!(state.len() as u64, schedule.rounds());
        for result in state {
            let shares = result.shares.iter().flat_map(|share| &share.positions);
            let mut positions: Vec<u64> = shares.flat_map(|positions| positions.clone()).collect();
            positions.sort_unstable();
            let steps = schedule.steps_of(result.round);
            assert!(
                positions.into_iter().eq(steps.start * batch..steps.end * batch),
                "{workers}: {result:?}"
            );
        }
    }
}

/// Nobody else is at its new address, and nobody finds it at the one of before.
#[test]
fn a_worker_that_moves_is_where_it_is_in_the_next_generation() {
    for seed in 0..20 {
        let mut world = World::new(seed, 4, false);
        let mover = WorkerId(1 + (seed % 4) as u32);
        world.fault_at_ms(1_000 + 37 * seed, Fault::Move(mover));
        world.run_until_ms(60_000);
        check(&world);
        let lineup = world.run.as_ref().unwrap().state().generation.as_ref().unwrap();
        let ports = lineup.members().map(|member| (member.worker, member.wan_address.port()));
        let expected = (1..=4).map(|w| (WorkerId(w), 7000 + u16::from(WorkerId(w) == mover)));
        assert!(ports.eq(expected), "seed {seed}: {lineup:?}");
    }
}

/// Half of the workers die and come back, again and again. etcd takes a record of this length in one request.
#[test]
fn the_state_of_64_workers_that_come_and_go_is_one_record() {
    let mut world = World::new(3, 64, true);
    for (turn, worker) in (1..=64).step_by(2).map(WorkerId).enumerate() {
        world.fault_at_ms(3_000 + 400 * turn as u64, Fault::Kill(worker));
    }
    world.run_until_ms(120_000);
    let bytes = world.stored_bytes_most;
    assert!(bytes > 1000 && bytes < PART_BYTES_MAX / 4, "{bytes} bytes");
}

/// The checker must be able to fail: books from which a share was struck do not agree with what was applied.
#[test]
#[should_panic(expected = "not in the ledger")]
fn the_checker_notices_books_that_are_wrong() {
    let mut world = World::new(1, 4, false);
    world.run_until_ms(60_000);
    let run = world.run.as_mut().unwrap();
    assert!(run.core.state.ledger.lose(longhaul_common::id::Round(5), WorkerId(2)));
    check(&world);
}
