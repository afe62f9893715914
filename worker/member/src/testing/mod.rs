//! Synchronisers in one process, two by default. The test plays their devices and the coordinator.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, reason = "this is all test code")]

mod config;
mod measured;
mod replies;
mod wires;
mod world;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longhaul_collective::SiteTls;
use longhaul_common::config::RunConfig;
use longhaul_common::id::{FragmentId, Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::plan::{FragmentLayout, Member, Membership};
use longhaul_common::sampler::SampleFeed;
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::Assignment;
use longhaul_proto::control::message::{
    GenerationStart, RoundReport, Settled, Settlement, Start, ToCoordinator, ToWorker,
};
use longhaul_proto::identity::{Authority, Identity, WorkerKey};
use longhaul_proto::round::{Event, FragmentResult, Frame};

use self::config::config;
pub use self::replies::{Answered, reply};
use self::wires::{Acceptor, SiteThread, Wires};
pub use self::world::Busy;
use self::world::{Arrival, World};
use crate::message::{
    Applied, Enter, FromDevice, Load, LocalUpdate, ParameterChange, Prepared, RoundUpdate, ToDevice,
};
use crate::running::{Running, Stage};
use crate::sparse_ranges::SparseRanges;
use crate::step_barrier::{Entry, StepBarrier};
use crate::{SyncEvent, Synchroniser};

pub const VALUES: usize = 96;
pub const UNTIL: Round = Round(50);
pub const RUN: RunId = RunId([7; 16]);

/// A worker without a device.
pub struct Worker {
    pub sync: Synchroniser,
    pub member: Member,
    pub device: Receiver<ToDevice>,
    pub reports: Receiver<ToCoordinator>,
    pub barrier: Arc<StepBarrier>,
    acceptor: Acceptor,
    site: SiteThread,
    epoch: u64,
    /// Time of all events so far.
    pub busy: Duration,
    /// Parameters on the device.
    pub local: Vec<f32>,
    /// Sums of all updates made here, and of those in results that name this worker's site.
    pub learnt: Vec<f64>,
    pub counted: Vec<f64>,
}

pub struct Rig<const N: usize = 2> {
    pub workers: [Worker; N],
    /// Applied to frames in flight, after verification of their hash: the sender may be bad.
    pub tamper: fn(&mut Frame),
    world: Arc<World>,
    events: Receiver<Arrival>,
    tap: Tap,
}

/// Sees every event before the worker at this index, and may replace it.
pub type Tap = Box<dyn FnMut(usize, SyncEvent) -> SyncEvent>;

impl<const N: usize> Rig<N> {
    /// Creates workers with these numbers, each on its own site, with their models built. `sync`: lines of the configuration.
    pub fn new(numbers: [u32; N], sync: &str) -> Self {
        Self::at_sites(numbers, std::array::from_fn(|at| at as u32), sync)
    }

    /// The same, at these sites.
    pub fn at_sites(numbers: [u32; N], sites: [u32; N], sync: &str) -> Self {
        let mut rig = Self::without_devices(numbers, sites, &config(sync));
        rig.workers.iter_mut().for_each(Worker::play_device);
        rig
    }

    /// The same for this run, without built models.
    pub fn without_devices(numbers: [u32; N], sites: [u32; N], config: &RunConfig) -> Self {
        let (world, events) = World::new();
        #[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let authority = Authority::create(RUN, now).unwrap();
        let mut places = sites.into_iter().map(SiteId).enumerate();
        let workers = numbers.map(|number| {
            let (at, site) = places.next().unwrap();
            let identity = identity_of(&authority, WorkerId(number), now);
            Worker::new(&world, at, &identity, site, config.clone())
        });
        Self { workers, tamper: |_| {}, world, events, tap: Box::new(|_, event| event) }
    }

    /// Brings all of them to their first round.
    pub fn training(mut self) -> Self {
        self.workers.iter_mut().for_each(Worker::prepare);
        let all: Vec<usize> = (0..N).collect();
        let start = self.begin(1, &all, 0, &[], None);
        for worker in &mut self.workers {
            worker.hear(ToWorker::Begin(Arc::new(start.clone())));
            worker.entry();
            worker.begin(0);
        }
        self
    }

    /// Passes events through this tap.
    pub fn tap(&mut self, tap: impl FnMut(usize, SyncEvent) -> SyncEvent + 'static) {
        self.tap = Box::new(tap);
    }

    pub fn layout(&self) -> FragmentLayout {
        self.workers[0].running().rounds.layout
    }

    pub fn schedule(&self) -> RoundSchedule {
        self.workers[0].sync.config.round_schedule()
    }

    /// Begins a generation of these workers.
    pub fn begin(
        &mut self,
        generation: u64,
        of: &[usize],
        first_round: u64,
        active_before: &[usize],
        settlement: Option<Settlement>,
    ) -> GenerationStart {
        let member = |&at: &usize| self.workers[at].member.clone();
        let members: Vec<Member> = of.iter().map(member).collect();
        let workers: Vec<WorkerId> = members.iter().map(|member| member.worker).collect();
        let parameters =
            self.workers[0].sync.part.prepared.as_ref().map_or(0, |model| model.parameters.len());
        let layout =
            FragmentLayout { values: parameters as u64, fragment_values: self.workers[0].fragment_values() };
        GenerationStart {
            membership: Membership::assign(Generation(generation), members, layout, 1),
            settlement,
            first_round: Round(first_round),
            active_before: active_before.iter().map(|at| self.workers[*at].member.worker).collect(),
            assignments: vec![Arc::new(Assignment::evenly(SampleFeed::default(), workers))],
            until: UNTIL,
            schedule: self.schedule(),
            replica: None,
            checkpoint: false,
        }
    }

    /// Processes events until `done`.
    pub fn pump(&mut self, done: impl Fn(&[Worker; N]) -> bool) {
        while !done(&self.workers) {
            let timer = self.workers.iter().filter_map(|worker| worker.sync.timeout()).min();
            match self.world.next(&self.events, timer) {
                Some((at, mut event)) => {
                    if let SyncEvent::Frame { frame, .. } = &mut event {
                        (self.tamper)(frame);
                    }
                    let event = (self.tap)(at, event);
                    self.workers[at].handle(event);
                }
                None => self.workers.iter_mut().filter(|w| w.try_running().is_some()).for_each(|worker| {
                    worker.sync.feed(Event::Timeout);
                    worker.sync.carry_out().unwrap();
                }),
            }
        }
    }

    /// Advances the time at once.
    pub fn pass(&self, time: Duration) {
        self.world.pass(time);
    }

    /// Returns the next event without passing it to its worker.
    pub fn next_event(&self) -> Arrival {
        self.world.next(&self.events, None).expect("nothing is due")
    }

    /// Returns a queue for a thread of the test that plays a worker's device. Time stands still during its lifetime.
    pub fn device_queue(&self, at: usize) -> DeviceQueue {
        let (world, busy) = (Arc::clone(&self.world), self.world.busy());
        DeviceQueue { world, at, _busy: busy }
    }

    /// Waits for the result of `round` at a worker, and applies it on its device.
    pub fn apply(&mut self, at: usize, round: u64) {
        self.pump(|workers| workers[at].running().replica.next_round() > Round(round));
        let worker = &mut self.workers[at];
        match worker.device.try_recv().unwrap() {
            ToDevice::Apply { round: got, update: RoundUpdate::Parameters(change), .. }
                if got == Round(round) =>
            {
                let ParameterChange { kept, values } = change;
                for (range, values) in values.iter() {
                    let local = worker.local[range].iter_mut().zip(values);
                    local.for_each(|(local, value)| *local = kept * *local + value);
                }
            }
            other => panic!("{other:?}"),
        }
        worker.count(Round(round));
        worker.applied(round, None);
    }

    /// Waits for a worker's entry, and takes it.
    pub fn enter(&mut self, at: usize, round: u64) -> Enter {
        self.pump(|workers| workers[at].running().device.named == Some(Round(round)));
        self.workers[at].entry()
    }
}

/// See [`Rig::device_queue`].
pub struct DeviceQueue {
    world: Arc<World>,
    at: usize,
    _busy: Busy,
}

impl DeviceQueue {
    /// Sends a message; reports whether a receiver exists.
    pub fn say(&self, message: FromDevice) -> bool {
        self.world.post(self.at, SyncEvent::Device(message))
    }
}

fn identity_of(authority: &Authority, worker: WorkerId, now: u64) -> Identity {
    let key = WorkerKey::generate().unwrap();
    let certificate = authority.issue_worker(&key.request().unwrap(), worker, now).unwrap();
    Identity::new(certificate, authority.certificate().clone(), key.to_pkcs8()).unwrap()
}

impl Worker {
    fn new(world: &Arc<World>, at: usize, identity: &Identity, site: SiteId, config: RunConfig) -> Self {
        let worker = identity.worker();
        world.is_at(worker, at);
        let acceptor = Acceptor::open(SiteTls::of(identity).unwrap()).unwrap();
        let thread = SiteThread::default();
        let (to_device, device) = sync_channel(8);
        let (coordinator, reports): (Sender<ToCoordinator>, _) = channel();
        let barrier = Arc::new(StepBarrier::new(u64::from(config.train.batch), config.round_schedule()));
        let wires = Wires::new(
            (Arc::clone(world), at, worker),
            to_device,
            Arc::clone(&barrier),
            coordinator,
            (acceptor.clone(), Arc::clone(&thread)),
        );
        let sync = Synchroniser::new(worker, RUN, site, Arc::new(config), PathBuf::new(), Box::new(wires));
        let address = acceptor.address();
        let member = Member { worker, site, lan_address: address, wan_address: address, upload_weight: 1 };
        let zeros = vec![0.0; VALUES];
        Self {
            sync,
            member,
            device,
            reports,
            barrier,
            acceptor,
            site: thread,
            epoch: 0,
            busy: Duration::ZERO,
            local: vec![0.0; VALUES],
            learnt: zeros.clone(),
            counted: zeros,
        }
    }

    /// Frees the port on which members of its site connect.
    pub fn free_port(&self) {
        self.acceptor.close();
    }

    /// Ends its reduction within the site like a failure: afterwards it sends and does nothing any more.
    pub fn end_site(&mut self) {
        if let Stage::Running(running) = &mut self.sync.stage {
            running.site.end();
        }
        if let Some(thread) = self.site.lock().unwrap().take() {
            thread.join().unwrap();
        }
    }

    /// Reports whether its device has built its model.
    pub fn is_built(&self) -> bool {
        self.sync.part.prepared.is_some()
    }

    /// Sets the folder of its checkpoints.
    pub fn set_checkpoint_dir(&mut self, folder: PathBuf) {
        self.sync.checkpoints.folder = folder;
    }

    /// Returns the synchronised parameters, and the first round not contained in them; `None` before it has a state.
    pub fn synchronised(&self) -> Option<(Round, Arc<Vec<f32>>)> {
        let replica = &self.try_running()?.replica;
        Some((replica.next_round(), Arc::clone(replica.parameters())))
    }

    /// Returns the result of a fragment in a round, if present.
    pub fn result(&self, round: Round, fragment: FragmentId) -> Option<FragmentResult> {
        let (bytes, _) = self.running().member.lookup(round, fragment)?;
        FragmentResult::decode(&bytes).ok()
    }

    /// Plays the device.
    fn play_device(&mut self) {
        self.build(vec![0.0; VALUES]);
    }

    /// Plays a device that has built a model with these parameters.
    pub fn build(&mut self, parameters: Vec<f32>) {
        self.local.clone_from(&parameters);
        self.handle(SyncEvent::Device(FromDevice::Prepared(Box::new(Prepared {
            gpu: None,
            rank: 0,
            exchanges: None,
            spec: longhaul_common::model::tiny::tiny_gpt2(),
            companions: Default::default(),
            parameters,
            samples: 100,
            data_hash: [0; 32],
            evaluation: Default::default(),
            cores: 1,
        }))));
    }

    fn fragment_values(&self) -> u32 {
        self.sync.config.sync.fragment_values
    }

    #[allow(clippy::disallowed_methods, reason = "the time of the work itself")]
    pub fn handle(&mut self, event: SyncEvent) {
        let began = Instant::now();
        self.sync.handle(event).unwrap();
        self.sync.carry_out().unwrap();
        self.busy += began.elapsed();
    }

    pub fn hear(&mut self, message: ToWorker) {
        self.handle(SyncEvent::Coordinator(message));
    }

    pub fn prepare(&mut self) {
        self.hear(ToWorker::Prepare(Start::Fresh));
    }

    pub(crate) fn running(&self) -> &Running {
        self.try_running().expect("the worker is prepared")
    }

    pub(crate) fn try_running(&self) -> Option<&Running> {
        match &self.sync.stage {
            Stage::Running(running) => Some(running),
            Stage::Preparing => None,
        }
    }

    /// Takes the device's next message, which is an entry, and loads it.
    pub fn entry(&mut self) -> Enter {
        let enter = loop {
            match self.device.try_recv().unwrap() {
                ToDevice::Enter(enter) => break *enter,
                ToDevice::Apply { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        self.epoch = enter.epoch;
        if let Load::Parameters(parameters) = &enter.load {
            self.local.clone_from(parameters);
        }
        enter
    }

    /// Begins the device's permitted round.
    pub fn begin(&mut self, round: u64) {
        assert_eq!(self.running().device.named, Some(Round(round)));
        assert_eq!(self.barrier.enter(self.epoch), Entry::Begun(Round(round)));
        self.handle(SyncEvent::Device(FromDevice::Begun(Round(round))));
    }

    /// Ends the device's round with an update of its own.
    pub fn contribute(&mut self, round: u64) {
        let seed = (self.member.worker.0 as usize * 31 + round as usize * 17) % 23;
        for (index, local) in self.local.iter_mut().enumerate() {
            *local -= ((index * 7 + seed) % 13) as f32 * 0.125 - 0.6;
        }
        let global = Arc::clone(self.running().replica.parameters());
        let learnt = global.iter().zip(&self.local).map(|(global, local)| f64::from(global - local));
        self.learnt.iter_mut().zip(learnt).for_each(|(sum, learnt)| *sum += learnt);
        self.send(round, self.local.clone());
    }

    pub fn send(&mut self, round: u64, values: Vec<f32>) {
        self.send_weighted(round, values, 4);
    }

    pub fn send_weighted(&mut self, round: u64, values: Vec<f32>, weight: u32) {
        self.send_repeated(round, values, Vec::new(), weight);
    }

    /// Contributes `values`, of which the next contribution repeats `repeated`.
    pub fn send_repeated(&mut self, round: u64, values: Vec<f32>, repeated: Vec<f32>, weight: u32) {
        self.send_stretches(round, SparseRanges::whole(values), repeated, weight);
    }

    /// The same for some stretches.
    pub fn send_stretches(&mut self, round: u64, values: SparseRanges, repeated: Vec<f32>, weight: u32) {
        let update = LocalUpdate {
            repeated,
            steps: 0,
            compute: Duration::ZERO,
            round: Round(round),
            values,
            columns: None,
            weight,
            loss: Some(1.0),
            gradient_norm: Some(1.0),
            spare_cores: 0.0,
        };
        self.handle(SyncEvent::Device(FromDevice::Contribute(update)));
    }

    pub fn applied(&mut self, round: u64, parameters: Option<Vec<f32>>) {
        self.handle(SyncEvent::Device(FromDevice::Applied(Applied {
            round: Round(round),
            validation: None,
            parameters,
            state: None,
            trained: Vec::new(),
        })));
    }

    /// Adds up this worker's part in the results of a round.
    pub fn count(&mut self, round: Round) {
        let Stage::Running(running) = &mut self.sync.stage else { return };
        for fragment in running.rounds.layout.fragments() {
            let (bytes, _) = running.member.lookup(round, fragment).unwrap();
            let mut result = FragmentResult::decode(&bytes).unwrap();
            let Some(at) = result.sites().position(|site| site == self.member.site) else { continue };
            let longhaul_proto::round::Content::Bundle(parts) = &mut result.content else { continue };
            let range = running.rounds.layout.range(fragment);
            let mut part = vec![0.0; range.len()];
            running.codec.decoder.decode_add(&parts[at], range.len(), 1.0, &mut part).unwrap();
            let counted = &mut self.counted[range];
            counted.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(part));
        }
    }

    /// Returns the values that are neither lost nor in a result: residuals and the carry.
    pub fn kept(&self) -> Vec<f64> {
        let running = self.running();
        let mut kept = vec![0.0; VALUES];
        for (fragment, residual) in running.codec.compressor.memories() {
            let kept = &mut kept[running.rounds.layout.range(*fragment)];
            kept.iter_mut().zip(&residual.residual).for_each(|(sum, rest)| *sum += f64::from(*rest));
        }
        if let Some(carry) = &running.contributions.carry {
            kept.iter_mut().zip(carry).for_each(|(sum, carry)| *sum += f64::from(*carry));
        }
        kept
    }

    pub fn settle(&mut self, generation: u64) -> Settled {
        self.hear(ToWorker::Settle { generation: Generation(generation) });
        loop {
            if let ToCoordinator::Settled(settled) = self.reports.try_recv().unwrap() {
                return settled;
            }
        }
    }

    /// Takes the pending reports on rounds.
    pub fn round_reports(&mut self) -> Vec<RoundReport> {
        let mut reports = Vec::new();
        while let Ok(report) = self.reports.try_recv() {
            if let ToCoordinator::RoundApplied(report) = report {
                reports.push(report);
            }
        }
        reports
    }

    pub fn owns_everything_in(&self, start: &GenerationStart) -> bool {
        let fragments = (0..(VALUES as u32).div_ceil(self.fragment_values())).map(FragmentId);
        fragments.into_iter().all(|fragment| start.membership.owner(fragment) == Some(self.member.worker))
    }
}
