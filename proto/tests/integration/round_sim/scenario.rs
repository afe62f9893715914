//! Description of a simulation.

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::schedule::{Changes, RoundSchedule};
use rand::Rng;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::node::Sabotage;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub sites: u32,
    pub members: u32,
    pub fragments: u32,
    pub rounds: u64,
    /// Form of published results.
    pub form: Form,
    /// Groups of fragments that take turns.
    pub groups: u32,
    /// No overlap: a round begins when the previous one is applied.
    pub synchronous: bool,
    /// Workers whose fragments become ready one by one during computation.
    pub streams: Streams,
    /// Worker whose device takes this many times as long.
    pub slow: Option<(WorkerId, u64)>,
    /// Worker to which all frames take this much longer, in milliseconds.
    pub distant: Option<(WorkerId, u64)>,
    pub faults: Vec<Fault>,
    /// Times (ms) and sites of joins.
    pub joiners: Vec<(u64, SiteId)>,
    /// Bug in the caller of worker 1.
    pub sabotage: Option<Sabotage>,
}

/// Workers whose fragments become ready one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    Nobodys,
    Everybodys,
    /// Every other worker.
    Some,
}

/// Form of published results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Bundle,
    /// Recompressed, with a residual at the owner.
    Mean,
}

/// A worker's death, or a similar fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// At a time (ms).
    At(u64, WorkerId),
    /// Before it handles its n-th event.
    BeforeEvent(WorkerId, usize),
    /// When the n-th frame of the run is sent, which is lost with its sender.
    SenderOf(usize),
    /// When the n-th frame of the run is sent, which is lost with its receiver.
    ReceiverOf(usize),
    /// The n-th frame of the run is delayed by this time (ms); no worker dies.
    Stuck(usize, u64),
    /// At a time (ms) the coordinator takes it for dead, but it continues.
    Cut(u64, WorkerId),
}

impl Scenario {
    /// No faults.
    pub fn calm(seed: u64, sites: u32, members: u32) -> Self {
        // Any combination of the options.
        let mut rng = ChaCha8Rng::seed_from_u64(!seed);
        let streams = [Streams::Nobodys, Streams::Everybodys, Streams::Some];
        Self {
            seed,
            sites,
            members,
            fragments: 3,
            rounds: 6,
            form: if seed.is_multiple_of(2) { Form::Bundle } else { Form::Mean },
            groups: rng.random_range(1..4),
            synchronous: rng.random_bool(0.5),
            streams: streams[rng.random_range(0..3)],
            slow: None,
            distant: None,
            faults: Vec::new(),
            joiners: Vec::new(),
            sabotage: None,
        }
    }

    pub fn streams(&self, worker: WorkerId) -> bool {
        match self.streams {
            Streams::Nobodys => false,
            Streams::Everybodys => true,
            Streams::Some => worker.0.is_multiple_of(2),
        }
    }

    /// A round per step, and groups that take turns.
    pub fn schedule(&self) -> RoundSchedule {
        let groups = self.groups;
        RoundSchedule {
            warmup_rounds: 1,
            warmup_every: 1,
            every: 1,
            groups,
            exchanges: 1,
            steps: self.rounds,
            changes: Changes::NONE,
        }
        .for_fragments(self.fragments)
    }

    pub fn with(self, fault: Fault) -> Self {
        Self { faults: vec![fault], ..self }
    }

    /// Any faults at any time.
    pub fn random(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let &(sites, members) = [(1, 1), (2, 1), (2, 2), (3, 2), (5, 1), (8, 1), (1, 3), (2, 3)]
            .choose(&mut rng)
            .expect("some shapes");
        let first_joiner = sites * members;
        let joiners: Vec<_> = (0..rng.random_range(0..4))
            .map(|_| (rng.random_range(0..400), SiteId(rng.random_range(0..sites + 1))))
            .collect();
        let workers = first_joiner + joiners.len() as u32;
        let someone = |rng: &mut ChaCha8Rng| WorkerId(rng.random_range(1..=workers));
        let faults = (0..rng.random_range(0..4))
            .map(|_| match rng.random_range(0..6) {
                0 => Fault::At(rng.random_range(0..400), someone(&mut rng)),
                1 => Fault::BeforeEvent(someone(&mut rng), rng.random_range(0..200)),
                2 => Fault::SenderOf(rng.random_range(0..300)),
                3 => Fault::ReceiverOf(rng.random_range(0..300)),
                4 => Fault::Stuck(rng.random_range(0..300), rng.random_range(50..3_000)),
                _ => Fault::Cut(rng.random_range(0..400), someone(&mut rng)),
            })
            .collect();
        Self {
            fragments: rng.random_range(1..6),
            rounds: rng.random_range(1..20),
            slow: rng.random_bool(0.3).then(|| (someone(&mut rng), rng.random_range(2..40))),
            distant: rng.random_bool(0.3).then(|| (someone(&mut rng), rng.random_range(10..1_000))),
            faults,
            joiners,
            ..Self::calm(seed, sites, members)
        }
    }
}
