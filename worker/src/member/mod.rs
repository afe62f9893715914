//! The synchroniser's thread and its effects; [`longhaul_member`] decides on them.

mod site;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use longhaul_checkpoint::CheckpointStore;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::{Member, Membership};
use longhaul_member::activity::Activity;
use longhaul_member::message::ToDevice;
use longhaul_member::step_barrier::StepBarrier;
use longhaul_member::{Background, Ongoing, Outcome, Outside, SiteJob, SyncEvent, Synchroniser};
use longhaul_proto::control::message::{Encoding, Hash, Heartbeat, HeldPart, ToCoordinator};
use longhaul_proto::round::FrameHeader;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use self::site::NetworkSite;
use longhaul_flight::Progress;
use longhaul_peer::{Network, StageGroup};

/// The synchroniser's connections.
pub struct Links {
    /// The synchroniser's queue, for answers.
    pub queue: mpsc::Sender<SyncEvent>,
    /// Messages to the device.
    pub device: SyncSender<ToDevice>,
    /// The device's barrier.
    pub barrier: Arc<StepBarrier>,
    /// The network to peers.
    pub network: Arc<Network>,
    /// Reports to the coordinator.
    pub coordinator: mpsc::Sender<ToCoordinator>,
    /// Counters.
    pub progress: Arc<Progress>,
    began: Instant,
    /// The thread of the reduction within the site, of this generation or an earlier one.
    site: Mutex<Option<JoinHandle<()>>>,
}

impl Links {
    /// Creates the links of a session that begins now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the protocol's time is measured from here")]
    pub fn new(
        queue: mpsc::Sender<SyncEvent>,
        device: SyncSender<ToDevice>,
        barrier: Arc<StepBarrier>,
        network: Arc<Network>,
        coordinator: mpsc::Sender<ToCoordinator>,
        progress: Arc<Progress>,
    ) -> Self {
        let (began, site) = (Instant::now(), Mutex::new(None));
        Self { queue, device, barrier, network, coordinator, progress, began, site }
    }
}

/// The synchroniser's thread, and the outcome of its session.
pub type SyncThread = (JoinHandle<()>, oneshot::Receiver<Result<Outcome>>);

/// Starts the thread. Requires a runtime.
///
/// # Errors
/// The system cannot create a thread.
pub fn start(
    synchroniser: Synchroniser,
    inbox: mpsc::Receiver<SyncEvent>,
    barrier: Arc<StepBarrier>,
) -> io::Result<SyncThread> {
    let (said, outcome) = oneshot::channel();
    let runtime = Handle::current();
    let thread = std::thread::Builder::new().name("synchroniser".into()).spawn(move || {
        // The receiver is dropped when the process exits.
        let _ = said.send(run(synchroniser, inbox, &barrier, &runtime));
    })?;
    Ok((thread, outcome))
}

/// Runs a synchroniser until the session ends.
///
/// # Errors
/// This worker cannot continue: the device failed, training diverged, or a thread has stopped.
fn run(
    mut synchroniser: Synchroniser,
    mut inbox: mpsc::Receiver<SyncEvent>,
    barrier: &StepBarrier,
    runtime: &Handle,
) -> Result<Outcome> {
    loop {
        let event = next_event(&synchroniser, &mut inbox, runtime)?;
        if let Some(outcome) = synchroniser.step(event)? {
            barrier.stop();
            return Ok(outcome);
        }
    }
}

/// Waits for the next event; `None`: the protocol's timer is due.
fn next_event(
    synchroniser: &Synchroniser,
    inbox: &mut mpsc::Receiver<SyncEvent>,
    runtime: &Handle,
) -> Result<Option<SyncEvent>> {
    let wait = synchroniser.wait();
    let received = runtime.block_on(async {
        match wait {
            Some(wait) => tokio::time::timeout(wait, inbox.recv()).await.ok(),
            None => Some(inbox.recv().await),
        }
    });
    received.map(|event| event.context("all threads of this worker have ended")).transpose()
}

impl Outside for Links {
    #[allow(clippy::disallowed_methods, reason = "the protocol's time")]
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn set_members(&self, members: &Membership, others: &[Member], model_bytes: usize) {
        let all: Vec<Member> = members.members().iter().chain(others).cloned().collect();
        self.network.set_members(&all, model_bytes);
    }

    fn join_replica(&self, session: Generation, workers: Vec<WorkerId>) {
        self.network.join_replica(Some(StageGroup { session, workers }));
    }

    fn send(&self, to: WorkerId, header: FrameHeader, body: Bytes, hash: Option<Hash>) {
        self.network.send(to, header, body, hash);
    }

    fn pull(&self, from: WorkerId, round: Round, fragment: FragmentId, hash: Option<Hash>) {
        self.network.pull(from, round, fragment, hash);
    }

    fn heal(&self, attempt: u64, donors: Vec<Member>, buffers: usize, values: usize) {
        self.network.heal(attempt, donors, buffers, values);
    }

    fn stop_healing(&self) {
        self.network.stop_healing();
    }

    fn fetch_parts(&self, attempt: u64, store: CheckpointStore, parts: Vec<HeldPart>, wanted: ModelSpec) {
        self.network.fetch_parts(attempt, store, parts, wanted);
    }

    fn keep(&self, store: CheckpointStore, part: HeldPart) {
        self.network.keep(store, part);
    }

    fn fetch_mask_secrets(&self, generation: Generation, from: Vec<WorkerId>) {
        self.network.fetch_mask_secrets(generation, from.into_iter());
    }

    fn round_trip(&self) -> Duration {
        self.network.round_trip()
    }

    fn start_site(&self, job: SiteJob) -> io::Result<()> {
        let mut site = self.site.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, link) = (site.take(), NetworkSite::of(self));
        let thread = std::thread::Builder::new().name("site".into()).spawn(move || {
            // Both listen at one address. A panic has been reported on standard error.
            before.map(JoinHandle::join);
            job.run(&link);
        })?;
        *site = Some(thread);
        Ok(())
    }

    fn tell_device(&self, message: ToDevice) -> Result<()> {
        self.device.try_send(message).map_err(|error| anyhow!("tell the device: {error}"))
    }

    fn barrier(&self) -> &StepBarrier {
        &self.barrier
    }

    /// Queues a report; the agent keeps reports while the coordinator is away.
    fn report(&self, message: ToCoordinator) {
        if self.coordinator.try_send(message).is_err() {
            tracing::warn!("a report to the coordinator was dropped: the queue is full");
        }
    }

    fn heartbeat(&self) -> Heartbeat {
        self.progress.heartbeat()
    }

    fn in_background(&self, name: &str, job: Background) -> io::Result<()> {
        let queue = self.queue.clone();
        let work = move || {
            // The session may be over.
            let _ = queue.blocking_send(job());
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }

    fn begin(&self, activity: Activity) -> Ongoing {
        Box::new(self.progress.begin(activity))
    }

    fn begin_coding(&self, activity: Activity) -> Ongoing {
        Box::new(self.progress.begin_coding(activity))
    }

    fn encodes(&self, encoding: Option<Encoding>) {
        self.progress.encodes(encoding);
    }

    fn dense_equivalent(&self, bytes: u64) {
        self.progress.dense_equivalent(bytes);
    }
}
