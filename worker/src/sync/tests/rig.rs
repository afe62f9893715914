//! Real synchronisers, two unless told otherwise, with real connections between them. The test plays their devices and the coordinator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_common::config::RunConfig;
use longhaul_common::id::{FragmentId, Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::plan::{FragmentLayout, Member, Membership};
use longhaul_common::sampler::SampleFeed;
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::Assignment;
use longhaul_proto::control::message::{
    GenerationStart, RoundReport, Settled, Settlement, Start, ToCoordinator, ToWorker,
};
use longhaul_proto::identity::{Authority, Identity, WorkerKey, data_server};
use longhaul_proto::round::{Event, FragmentResult, Frame};
use longhaul_proto::transport;
use longhaul_proto::transport::bulk::ReceiveLimits;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::network::{self, Network};
use crate::sync::synchroniser::{Running, Stage};
use crate::sync::{Links, SYNC_QUEUE_EVENTS, SyncEvent, Synchroniser};
use crate::train::gate::{Entry, Gate};
use crate::train::message::{
    Applied, Enter, FromDevice, Load, LocalUpdate, Part, Prepared, RoundUpdate, ToDevice,
};
use crate::train::progress::Progress;
use crate::train::stretches::Stretches;

pub const VALUES: usize = 96;
pub const UNTIL: Round = Round(50);
pub const RUN: RunId = RunId([7; 16]);
/// Nothing here takes that long, unless it never happens.
const HANG: Duration = Duration::from_secs(60);

/// A worker without a device.
pub struct Worker {
    pub sync: Synchroniser,
    pub member: Member,
    pub device: Receiver<ToDevice>,
    pub reports: mpsc::Receiver<ToCoordinator>,
    pub gate: Arc<Gate>,
    life: u64,
    /// What is on the device.
    pub local: Vec<f32>,
    /// The sum of all that was learnt here, and of all that left for a result that names this worker's site.
    pub learnt: Vec<f64>,
    pub counted: Vec<f64>,
}

pub struct Rig<const N: usize = 2> {
    pub workers: [Worker; N],
    /// What happens to frames on their way, after their hash was verified: their sender may be bad.
    pub tamper: fn(&mut Frame),
    runtime: Runtime,
    tap: Tap,
}

/// Sees every event before the worker of this place has it, and may put another in its place.
pub type Tap = Box<dyn FnMut(usize, SyncEvent) -> SyncEvent>;

impl<const N: usize> Rig<N> {
    /// Workers of these numbers, each on a site of its own, with their models built. `sync`: lines of the configuration.
    pub fn new(numbers: [u32; N], sync: &str) -> Self {
        Self::at_sites(numbers, std::array::from_fn(|at| at as u32), sync)
    }

    /// The same, at these sites.
    pub fn at_sites(numbers: [u32; N], sites: [u32; N], sync: &str) -> Self {
        let mut rig = Self::without_devices(numbers, sites, &config(sync));
        rig.workers.iter_mut().for_each(Worker::play_device);
        rig
    }

    /// The same, of this run: nobody has built a model.
    pub fn without_devices(numbers: [u32; N], sites: [u32; N], config: &RunConfig) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        #[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let authority = Authority::create(RUN, now).unwrap();
        let mut sites = sites.into_iter();
        let workers = numbers.map(|number| {
            Worker::new(&authority, now, WorkerId(number), SiteId(sites.next().unwrap()), config.clone())
        });
        drop(_inside);
        Self { workers, tamper: |_| {}, runtime, tap: Box::new(|_, event| event) }
    }

    /// All of them in their first round.
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

    /// From now on, events go through this.
    pub fn tap(&mut self, tap: impl FnMut(usize, SyncEvent) -> SyncEvent + 'static) {
        self.tap = Box::new(tap);
    }

    pub fn layout(&self) -> FragmentLayout {
        self.workers[0].running().layout
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
        let parameters = self.workers[0].sync.prepared.as_ref().map_or(0, |model| model.parameters.len());
        let layout =
            FragmentLayout { values: parameters as u64, fragment_values: self.workers[0].fragment_values() };
        GenerationStart {
            membership: Membership::assign(Generation(generation), members, layout),
            settlement,
            first_round: Round(first_round),
            active_before: active_before.iter().map(|at| self.workers[*at].member.worker).collect(),
            assignments: vec![Assignment::evenly(SampleFeed::default(), workers)],
            until: UNTIL,
            schedule: self.schedule(),
            replica: None,
            checkpoint: false,
        }
    }

    /// Lets everything happen that happens by itself, until `done`.
    pub fn pump(&mut self, done: impl Fn(&[Worker; N]) -> bool) {
        while !done(&self.workers) {
            let due = |worker: &Worker| {
                let running = worker.try_running()?;
                Some(running.member.poll_timeout()?.saturating_sub(worker.sync.now()))
            };
            let wait = self.workers.iter().filter_map(due).min().unwrap_or(HANG);
            let workers = &mut self.workers;
            let next = std::future::poll_fn(|context| {
                for (at, worker) in workers.iter_mut().enumerate() {
                    if let Poll::Ready(event) = worker.sync.links.inbox.poll_recv(context) {
                        return Poll::Ready((at, event.unwrap()));
                    }
                }
                Poll::Pending
            });
            let came = self.runtime.block_on(async { tokio::time::timeout(wait, next).await.ok() });
            assert!(came.is_some() || wait < HANG, "nothing happens any more");
            match came {
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

    /// Waits for the result of `round` at a worker, and applies it on its device.
    pub fn apply(&mut self, at: usize, round: u64) {
        self.pump(|workers| workers[at].running().replica.next_round() > Round(round));
        let worker = &mut self.workers[at];
        match worker.device.try_recv().unwrap() {
            ToDevice::Apply { round: got, update: RoundUpdate::Parameters(parts), .. }
                if got == Round(round) =>
            {
                for Part { start, kept, values } in parts {
                    let local = worker.local[start..].iter_mut().zip(values);
                    local.for_each(|(local, value)| *local = kept * *local + value);
                }
            }
            other => panic!("{other:?}"),
        }
        worker.count(Round(round));
        worker.applied(round, None);
    }

    /// Takes the entry that a worker's device is told, once it is.
    pub fn enter(&mut self, at: usize, round: u64) -> Enter {
        self.pump(|workers| workers[at].running().named == Some(Round(round)));
        self.workers[at].entry()
    }
}

impl Worker {
    fn new(authority: &Authority, now: u64, worker: WorkerId, site: SiteId, config: RunConfig) -> Self {
        let key = WorkerKey::generate().unwrap();
        let certificate = authority.issue_worker(&key.request().unwrap(), worker, now).unwrap();
        let identity = Identity::new(certificate, authority.certificate().clone(), key.to_pkcs8()).unwrap();
        let (socket, _) = network::bind(Some(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
        let endpoint = transport::endpoint(socket, Some(data_server(&identity).unwrap())).unwrap();
        let address = endpoint.local_addr().unwrap();
        let (own_queue, inbox) = mpsc::channel(SYNC_QUEUE_EVENTS);
        let (to_device, device) = sync_channel(8);
        let (coordinator, reports) = mpsc::channel(256);
        let gate = Arc::new(Gate::new(u64::from(config.train.batch), config.round_schedule()));
        let progress = Arc::new(Progress::default());
        let (queue, counters, limits) = (own_queue.clone(), Arc::clone(&progress), ReceiveLimits::default());
        let network = Network::start(endpoint, &identity, site, queue, counters, limits).unwrap();
        let links = Links {
            inbox,
            own_queue,
            device: to_device,
            gate: Arc::clone(&gate),
            network,
            coordinator,
            progress,
            runtime: tokio::runtime::Handle::current(),
        };
        let sync = Synchroniser::new(worker, RUN, site, Arc::new(config), PathBuf::new(), links);
        let member = Member { worker, site, lan_address: address, wan_address: address, upload_weight: 1 };
        let zeros = vec![0.0; VALUES];
        Self {
            sync,
            member,
            device,
            reports,
            gate,
            life: 0,
            local: vec![0.0; VALUES],
            learnt: zeros.clone(),
            counted: zeros,
        }
    }

    /// The test is the device.
    fn play_device(&mut self) {
        self.handle(SyncEvent::Device(FromDevice::Prepared(Prepared {
            device: tch::Device::Cpu,
            rank: 0,
            exchanges: None,
            spec: longhaul_common::model::tiny::tiny_gpt2(),
            tokenizer: None,
            parameters: vec![0.0; VALUES],
            samples: 100,
            data_hash: [0; 32],
            cores: 1,
        })));
    }

    fn fragment_values(&self) -> u32 {
        self.sync.config.sync.fragment_values
    }

    pub fn handle(&mut self, event: SyncEvent) {
        self.sync.handle(event).unwrap();
        self.sync.carry_out().unwrap();
    }

    pub fn hear(&mut self, message: ToWorker) {
        self.handle(SyncEvent::Coordinator(message));
    }

    pub fn prepare(&mut self) {
        self.hear(ToWorker::Prepare(Start::Fresh));
    }

    pub fn running(&self) -> &Running {
        self.try_running().expect("the worker is prepared")
    }

    pub fn try_running(&self) -> Option<&Running> {
        match &self.sync.stage {
            Stage::Running(running) => Some(running),
            Stage::Preparing => None,
        }
    }

    /// The device's next message, which is an entry. Loads it.
    pub fn entry(&mut self) -> Enter {
        let enter = loop {
            match self.device.try_recv().unwrap() {
                ToDevice::Enter(enter) => break *enter,
                ToDevice::Apply { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        self.life = enter.life;
        if let Load::Parameters(parameters) = &enter.load {
            self.local.clone_from(parameters);
        }
        enter
    }

    /// The device begins the round that it may.
    pub fn begin(&mut self, round: u64) {
        assert_eq!(self.running().named, Some(Round(round)));
        assert_eq!(self.gate.enter(self.life), Entry::Begun(Round(round)));
        self.handle(SyncEvent::Device(FromDevice::Begun(Round(round))));
    }

    /// The device ends its round, in which it has learnt something of its own.
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

    /// Of `values`, the next contribution has `repeated` as well.
    pub fn send_repeated(&mut self, round: u64, values: Vec<f32>, repeated: Vec<f32>, weight: u32) {
        let update = LocalUpdate {
            repeated,
            steps: 0,
            compute: Duration::ZERO,
            round: Round(round),
            values: Stretches::whole(values),
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

    /// Notes what of this worker is in the results of a round.
    pub fn count(&mut self, round: Round) {
        let Stage::Running(running) = &mut self.sync.stage else { return };
        for fragment in running.layout.fragments() {
            let (bytes, _) = running.member.lookup(round, fragment).unwrap();
            let mut result = FragmentResult::decode(&bytes).unwrap();
            let Some(at) = result.sites().position(|site| site == self.member.site) else { continue };
            let longhaul_proto::round::Content::Bundle(parts) = &mut result.content else { continue };
            let range = running.layout.range(fragment);
            let mut part = vec![0.0; range.len()];
            running.decoder.decode_add(&parts[at], range.len(), 1.0, &mut part).unwrap();
            let counted = &mut self.counted[range];
            counted.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(part));
        }
    }

    /// What is neither lost nor in a result: residuals and what is carried over.
    pub fn kept(&self) -> Vec<f64> {
        let running = self.running();
        let mut kept = vec![0.0; VALUES];
        for (fragment, residual) in running.compressor.memories() {
            let kept = &mut kept[running.layout.range(*fragment)];
            kept.iter_mut().zip(&residual.residual).for_each(|(sum, rest)| *sum += f64::from(*rest));
        }
        if let Some(carry) = &running.carry {
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

    /// The reports on rounds that wait to be sent.
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

const EXACT: &str = "preset = \"sparse-local\"\nopening_share = 0.0\nvalues = \"f32\"";
/// All that is not sent waits.
const SPARSE: &str =
    "preset = \"sparse-local\"\nopening_share = 0.0\nvalues = \"f32\"\nkeep = 2\nerror_decay = 1.0";

fn config(sync: &str) -> RunConfig {
    let deadlines = match sync.contains("deadline_") {
        true => "",
        false => "deadline_floor_ms = 1\ndeadline_ceiling_ms = 200",
    };
    let strategy = match (sync.contains("preset"), sync.contains("selection")) {
        (true, _) => "",
        (false, true) => EXACT,
        (false, false) => SPARSE,
    };
    RunConfig::parse(&format!(
        r#"
        [run]
        name = "rig"
        workers = 2
        steps = 1000
        [model]
        kind = "gpt2"
        layers = 1
        width = 16
        heads = 2
        context = 16
        [data]
        path = "none.txt"
        sequence_length = 16
        [train]
        batch = 8
        [checkpoint]
        every_rounds = 0
        [sync]
        {strategy}
        chunk = 16
        {deadlines}
        {sync}
        "#
    ))
    .unwrap()
}
