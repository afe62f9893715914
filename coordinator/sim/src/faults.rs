//! Faults.

use std::time::Duration;

use longhaul_common::id::WorkerId;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::world::{Exchange, World};

/// Faults of processes, connections and machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends at once, and another one is started after so long.
    Kill(WorkerId, Duration),
    /// The process stands still for so long.
    Freeze(WorkerId, Duration),
    /// Its connection to the coordinator breaks.
    Disconnect(WorkerId),
    /// The coordinator is unreachable for this time; members reach each other.
    CutOff(Duration),
    /// The coordinator's process ends, and another one is started after so long.
    Coordinator(Duration),
    /// It asks to leave, and is started again so long after it was let go.
    Leave(WorkerId, Duration),
    /// An operator pauses training for this time.
    Pause(Duration),
    /// An operator has all leave, and starts the coordinator and them again so long after that.
    Suspend(Duration),
    /// Its checkpoints have nowhere to go, for so long.
    FullDisk(WorkerId, Duration),
    /// It loses its connection, and has another address when it is back.
    Move(WorkerId),
    /// An operator asks it to leave; it is started again so long after that.
    Dismiss(WorkerId, Duration),
    /// It is out of the run for good, if others can go on without it.
    Kick(WorkerId),
    /// A kicked worker comes again, and sends any member's messages.
    Intrude(WorkerId),
    /// An operator asks for the run's end.
    Drain,
    /// An operator asks for a checkpoint.
    Checkpoint,
    /// The first reports for this time that the second does not answer.
    OutOfReach(WorkerId, WorkerId, Duration),
    /// Another process of it reports that its predecessor's state came too late.
    TooLate(WorkerId),
    /// Messages between the two take this much longer from now on.
    Slow(WorkerId, WorkerId, Duration),
    /// Its device takes so many times as long from now on.
    SlowDevice(WorkerId, u32),
    /// It does not reach the coordinator for so long. Members reach it.
    Alone(WorkerId, Duration),
}

/// Faults of one frame of the round protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// Its sender dies before it has left, and is started again after so long.
    Sender(Duration),
    /// Its receiver dies before it arrives, and is started again after so long.
    Receiver(Duration),
    /// It arrives so much later, behind frames that were sent after it: the transport sends it again.
    Stuck(Duration),
}

/// A world of 2 to 5 workers with up to 13 faults in its first twelve seconds. Of every fifth seed, two workers are at each site.
#[must_use]
pub fn random(seed: u64) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xfa17);
    let workers: u32 = rng.random_range(2..6);
    let sites = if seed % 5 == 4 { workers.div_ceil(2) } else { workers };
    let world = World::with_sites(seed, workers, sites);
    with_faults(world, rng, seed, workers)
}

/// A world of 2 to 5 workers that exchange gradients, with up to 13 faults in its first twelve seconds.
#[must_use]
pub fn random_of(exchange: Exchange, seed: u64) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6e4d);
    let workers: u32 = rng.random_range(2..6);
    let world = World::exchanging(exchange, seed, workers);
    with_faults(world, rng, seed, workers)
}

/// A world of few rounds and of 2 to 9 workers, with up to four faults of the round protocol: processes that end at any time, with any frame or before any
/// event, frames that come late, workers that the coordinator loses sight of, slow links and devices, and workers that come later.
#[must_use]
pub fn random_rounds(seed: u64) -> World {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5e7_71ed);
    let (sites, each) = SHAPES[rng.random_range(0..SHAPES.len())];
    let time = |rng: &mut ChaCha8Rng| Duration::from_millis(rng.random_range(300..2_500));
    let late: Vec<(Duration, u32)> =
        (0..rng.random_range(0..3)).map(|_| (time(&mut rng), rng.random_range(0..=sites))).collect();
    let workers = sites * each + late.len() as u32;
    let mut world = World::of_rounds(seed, sites * each, sites, &late);
    for _ in 0..rng.random_range(1..5) {
        let (at, [worker, other]) =
            (time(&mut rng), [(); 2].map(|()| WorkerId(rng.random_range(1..=workers))));
        let (frame, event) = (rng.random_range(0..300), rng.random_range(0..250));
        let [soon, later] = [50..400, 400..4_000].map(|ms| Duration::from_millis(rng.random_range(ms)));
        let pause = if rng.random_bool(0.5) { soon } else { later };
        match rng.random_range(0..14) {
            0..2 => world.fault_at(at, Fault::Kill(worker, pause)),
            2..4 => world.fault_before_event(worker, event, pause),
            4..6 => world.fault_of_frame(frame, FrameFault::Sender(pause)),
            6..8 => world.fault_of_frame(frame, FrameFault::Receiver(pause)),
            8..10 => world.fault_of_frame(frame, FrameFault::Stuck(later)),
            10 => world.fault_at(at, Fault::Alone(worker, later)),
            11 => world.fault_at(at, Fault::Leave(worker, pause)),
            12 => world.fault_at(Duration::ZERO, Fault::SlowDevice(worker, rng.random_range(2..20))),
            _ => world.fault_at(Duration::ZERO, Fault::Slow(worker, other, pause)),
        }
    }
    world
}

/// Sites, and workers of each.
const SHAPES: [(u32, u32); 8] = [(2, 1), (3, 1), (2, 2), (3, 2), (5, 1), (8, 1), (1, 3), (2, 3)];

fn with_faults(mut world: World, mut rng: ChaCha8Rng, seed: u64, workers: u32) -> World {
    for _ in 0..rng.random_range(0..9) {
        add(&mut world, &mut rng, seed, workers);
    }
    // Drawn apart, so that the other faults stay those of seeds that have failed once.
    if seed % 3 == 1 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0f0a);
        for _ in 0..rng.random_range(0..5) {
            add_more(&mut world, &mut rng, workers);
        }
    }
    world
}

/// Faults of processes, connections and machines.
fn add(world: &mut World, rng: &mut ChaCha8Rng, seed: u64, workers: u32) {
    let at = Duration::from_millis(rng.random_range(50..12_000));
    let mut time = |most: u64| Duration::from_millis(rng.random_range(100..most));
    let (long, short) = (time(6000), time(900));
    let [worker, other] = [(); 2].map(|()| WorkerId(rng.random_range(1..=workers)));
    match rng.random_range(0..18) {
        0..4 => world.fault_at(at, Fault::Kill(worker, long)),
        4..6 => world.fault_at(at, Fault::Coordinator(long)),
        6 => world.fault_at(at, Fault::Freeze(worker, long)),
        7..9 => world.fault_at(at, Fault::Disconnect(worker)),
        9 => (1..=workers).for_each(|each| world.fault_at(at, Fault::Kill(WorkerId(each), long))),
        10 => world.fault_at(at, Fault::CutOff(long)),
        11 => world.fault_at(at, Fault::Leave(worker, long)),
        12 => world.fault_at(at, Fault::Pause(long)),
        13 => world.fault_at(at, Fault::FullDisk(worker, long)),
        14 => world.fault_at(at, Fault::Move(worker)),
        15 if seed.is_multiple_of(3) => world.fault_at(at, Fault::Suspend(short)),
        _ => world.fault_at(at, Fault::Slow(worker, other, short)),
    }
}

/// Operators, and workers' reports of each other and of themselves.
fn add_more(world: &mut World, rng: &mut ChaCha8Rng, workers: u32) {
    let at = Duration::from_millis(rng.random_range(50..12_000));
    let pause = Duration::from_millis(rng.random_range(100..6000));
    let [worker, other] = [(); 2].map(|()| WorkerId(rng.random_range(1..=workers)));
    match rng.random_range(0..10) {
        0..2 => world.fault_at(at, Fault::Dismiss(worker, pause)),
        2 => world.fault_at(at, Fault::Kick(worker)),
        3 => world.fault_at(at + Duration::from_secs(2), Fault::Drain),
        4 => world.fault_at(at, Fault::Checkpoint),
        5..8 => world.fault_at(at, Fault::OutOfReach(worker, other, pause)),
        _ => world.fault_at(at, Fault::TooLate(worker)),
    }
}
