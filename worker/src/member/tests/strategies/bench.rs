//! Real runs: device threads and synchronisers with connections between them. The test acts as the coordinator.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use bytes::Bytes;
use longhaul_common::config::{RunConfig, SelectionRule};
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::SynchronisedLayout;
use longhaul_engine::{LowRank, read_ahead};
use longhaul_flight::Progress;
use longhaul_member::SyncEvent;
use longhaul_member::message::{DeviceState, FromDevice, Prepared, ToDevice};
use longhaul_member::sparse_ranges::SparseRanges;
use longhaul_member::step_barrier::StepBarrier;
use longhaul_member::testing::{DeviceQueue, Rig, Worker};
use longhaul_proto::codec::{Decoder, Update};
use longhaul_proto::control::message::{ToCoordinator, ToWorker};
use longhaul_proto::round::Content;

use super::reference::KeptIndices;
use super::toy;
use crate::train::device::{Device, DeviceSender};

/// The record of a run.
#[derive(Default)]
pub struct Trace {
    /// The synchronised parameters after each round, bit-identical on all members.
    pub synchronised: Vec<Arc<Vec<f32>>>,
    /// The devices' contributions, by member and round.
    pub contributed: Vec<Vec<SparseRanges>>,
    /// The devices' final state, by member.
    pub ended: Vec<DeviceState>,
    /// With a threshold: the number of values that each member sent of each fragment.
    pub kept: KeptIndices,
}

/// Data collected from a run's events.
#[derive(Default)]
struct Events {
    contributed: Vec<Vec<SparseRanges>>,
    ended: Vec<Option<DeviceState>>,
    written: usize,
}

impl Events {
    fn note(&mut self, at: usize, event: &SyncEvent) {
        match event {
            SyncEvent::Device(FromDevice::Contribute(update)) => {
                assert_eq!(update.round, Round(self.contributed[at].len() as u64), "no round is left out");
                self.contributed[at].push(update.values.clone());
            }
            SyncEvent::Device(FromDevice::Ended { state, .. }) => self.ended[at] = Some(state.clone()),
            SyncEvent::Device(FromDevice::Failed(reason)) => panic!("member {at}: {reason}"),
            SyncEvent::CheckpointWritten(report, _) => {
                report.outcome.as_ref().unwrap();
                self.written += 1;
            }
            _ => {}
        }
    }
}

/// A state to start from.
#[derive(Clone, Default)]
pub struct Start {
    pub parameters: Vec<f32>,
    /// First factors Q of low-rank gradients.
    pub factors: Vec<f32>,
}

/// Trains a run to its end, with each member at its own site. `None`: from the state drawn from the seed.
pub fn train<const N: usize>(config: &RunConfig, folder: &Path, start: Option<&Start>) -> Trace {
    let mut rig: Rig<N> = Rig::without_devices(
        std::array::from_fn(|at| at as u32 + 1),
        std::array::from_fn(|at| at as u32),
        config,
    );
    let events =
        Rc::new(RefCell::new(Events { contributed: vec![Vec::new(); N], ended: vec![None; N], written: 0 }));
    rig.tap({
        let events = Rc::clone(&events);
        move |at, event| {
            events.borrow_mut().note(at, &event);
            event
        }
    });
    let devices = start_devices(&mut rig, config, folder, start);
    begin(&mut rig);
    let trace = RefCell::new(Trace::default());
    rig.pump(|workers| {
        trace.borrow_mut().note_rounds(workers, config);
        events.borrow().written == N
    });
    rig.workers.iter_mut().for_each(assert_all_went_well);
    rig.workers.iter().for_each(|worker| worker.barrier.stop());
    drop(rig);
    devices.into_iter().for_each(|device| device.join().unwrap());
    let events = events.take();
    let ended = events.ended.into_iter().map(Option::unwrap).collect();
    Trace { contributed: events.contributed, ended, ..trace.into_inner() }
}

fn start_devices<const N: usize>(
    rig: &mut Rig<N>,
    config: &RunConfig,
    folder: &Path,
    from: Option<&Start>,
) -> Vec<JoinHandle<()>> {
    let queues: [DeviceQueue; N] = std::array::from_fn(|at| rig.device_queue(at));
    let start = |((at, worker), queue): ((usize, &mut Worker), DeviceQueue)| {
        let folder = folder.join(at.to_string());
        std::fs::create_dir(&folder).unwrap();
        worker.set_checkpoint_dir(folder.join("checkpoints"));
        let thread = DeviceThread {
            worker: worker.member.worker,
            config: config.clone(),
            start: from.cloned(),
            barrier: Arc::clone(&worker.barrier),
            inbox: std::mem::replace(&mut worker.device, sync_channel(1).1),
            queue,
        };
        std::thread::spawn(move || thread.run(&folder))
    };
    rig.workers.iter_mut().enumerate().zip(queues).map(start).collect()
}

/// Begins the run; all rounds are in one generation.
fn begin<const N: usize>(rig: &mut Rig<N>) {
    rig.pump(|workers| workers.iter().all(|worker| worker.is_built()));
    rig.workers.iter_mut().for_each(Worker::prepare);
    let all: Vec<usize> = (0..N).collect();
    let mut start = rig.begin(1, &all, 0, &[], None);
    start.until = Round(rig.schedule().rounds());
    rig.workers.iter_mut().for_each(|worker| worker.hear(ToWorker::Begin(Arc::new(start.clone()))));
}

fn assert_all_went_well(worker: &mut Worker) {
    while let Ok(report) = worker.reports.try_recv() {
        if let ToCoordinator::RoundApplied(report) = report {
            assert!(report.refused.is_empty() && report.skipped.is_empty(), "{report:?}");
        }
    }
}

impl Trace {
    /// Records the members' progress since the last call.
    fn note_rounds(&mut self, workers: &[Worker], config: &RunConfig) {
        let Some(states) = workers.iter().map(Worker::synchronised).collect::<Option<Vec<_>>>() else {
            return;
        };
        for (next_round, parameters) in states {
            let (next, known) = (next_round.0 as usize, self.synchronised.len());
            if next > known {
                assert_eq!(next, known + 1, "no round is left out");
                self.synchronised.push(parameters);
            } else if next > 0 {
                assert!(self.synchronised[next - 1] == parameters, "members agree");
            }
        }
        if config.sync.selection == SelectionRule::Threshold {
            self.note_numbers(&workers[0], self.synchronised.len() as u64);
        }
    }

    /// Records the number of values kept in the round before `next`.
    fn note_numbers(&mut self, worker: &Worker, next: u64) {
        let ((layout, schedule), Some(round)) = (worker.layout_and_schedule(), next.checked_sub(1)) else {
            return;
        };
        if schedule.is_warmup(Round(round)) {
            return;
        }
        for fragment in layout.fragments() {
            let number = |part: &Bytes| match Decoder::new().decode(part, layout.range(fragment).len()) {
                Ok(Update::Sparse { positions, .. }) => positions.len(),
                other => panic!("{other:?}"),
            };
            let Some(result) = worker.result(Round(round), fragment) else { continue };
            if let Content::Bundle(parts) = result.content {
                self.kept.entry((round, fragment.0)).or_insert_with(|| parts.iter().map(number).collect());
            }
        }
    }
}

/// Sets the first Q; P̂ of the step before has no effect.
fn load_factors(low_rank: &mut LowRank, start: &Start) {
    let mut shared = vec![0.0; low_rank.lengths()[0]];
    shared.extend(&start.factors);
    shared.resize(start.parameters.len(), 0.0);
    low_rank.load_shared(&shared);
}

/// Stands in for `agent::device_thread`, with the toy model and text.
struct DeviceThread {
    worker: WorkerId,
    config: RunConfig,
    start: Option<Start>,
    barrier: Arc<StepBarrier>,
    inbox: Receiver<ToDevice>,
    queue: DeviceQueue,
}

impl DeviceThread {
    fn run(self, folder: &Path) {
        let Self { worker, config, start, barrier, inbox, queue } = self;
        let (mut engine, data) = (toy::engine(&config), Arc::new(toy::dataset(&config, folder)));
        let read_ahead = read_ahead(Arc::clone(&data), config.run.seed, engine.device()).unwrap();
        let rank = config.sync.rank;
        let mut low_rank = (rank > 0).then(|| LowRank::new(engine.spec(), rank, config.run.seed));
        if let Some(start) = start {
            engine.load_parameters(&start.parameters).unwrap();
            low_rank.iter_mut().for_each(|low_rank| load_factors(low_rank, &start));
        }
        let mut parameters = Vec::new();
        engine.parameters_to_host(&mut parameters).unwrap();
        let prepared = Prepared {
            rank: 0,
            gpu: None,
            spec: engine.spec().clone(),
            companions: Default::default(),
            parameters,
            samples: data.samples(),
            data_hash: data.data_hash(),
            evaluation: Default::default(),
            cores: 1,
            exchanges: low_rank.as_ref().map(LowRank::lengths),
        };
        let outbox: DeviceSender = Box::new(move |message| queue.say(message));
        let progress = Arc::new(Progress::default());
        if outbox(FromDevice::Prepared(Box::new(prepared))) {
            let next_round = Round(0);
            let (data, inbox, outbox) = (&data, &inbox, &outbox);
            let share = SynchronisedLayout::new(engine.spec());
            let device = Device {
                tasks: None,
                worker,
                config,
                engine,
                share,
                low_rank,
                selector: None,
                data,
                read_ahead: &read_ahead,
                network: None,
                barrier,
                progress,
                inbox,
                outbox,
                next_round,
            };
            device.run();
        }
    }
}
