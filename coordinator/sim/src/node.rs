//! A worker's machine: its disk, and the process that runs on it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_checkpoint::CheckpointStore;
use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::schedule::RoundSchedule;
use longhaul_member::step_barrier::StepBarrier;
use longhaul_member::{SyncEvent, Synchroniser};
use longhaul_proto::control::message::{
    CheckpointOffer, CheckpointReport, Join, ToCoordinator, ToWorker, Welcome,
};
use longhaul_run::ConnectionId;

use crate::atoms::Atoms;
use crate::bus::{Bus, Process};
use crate::copies::{Disks, KEPT};
use crate::device::Device;
use crate::wires::Wires;

/// Reports repeated over a new connection.
const REPORTS_REPEATED: usize = 128;

/// Duration of a late state's transfer, in milliseconds.
const STATE_TOOK_MS: u32 = 700;

/// A machine that stays as it is while processes on it come and go.
pub struct Node {
    pub worker: WorkerId,
    site: String,
    /// Its folder, which the first checkpoint makes.
    disk: PathBuf,
    /// Memory of its device and of its host, in bytes.
    pub memory: (u64, Option<u64>),
    /// Processes started here so far.
    pub started: u64,
    pub running: Option<Running>,
    /// It was dismissed, and is not started again.
    pub is_dismissed: bool,
    /// What has happened to it so far.
    pub suffered: Suffered,
    /// It has asked to leave, and comes back this long after its dismissal.
    pub returns_after: Option<Duration>,
    /// How often its address has changed.
    pub moves: u16,
    /// Its next first message reports that a state came too late.
    pub was_too_late: bool,
    /// Events that its synchronisers have handled.
    pub handled: u64,
    /// Its process ends before the event of this number, and is started again after so long.
    pub ends_before: Option<(u64, Duration)>,
    /// How many times as long its device takes.
    pub slowness: u32,
    /// Fragments leave before the end of the step, where rounds exchange gradients.
    pub streams: bool,
}

/// Faults that a machine has gone through.
#[derive(Default)]
pub struct Suffered {
    pub was_killed: bool,
    /// It could not be reached for a while.
    pub was_away: bool,
    pub had_full_disk: bool,
}

/// A process.
pub struct Running {
    pub process: Process,
    pub connection: Option<ConnectionId>,
    /// Whether the coordinator has let it in over this connection.
    pub is_welcome: bool,
    pub session: Option<Session>,
    /// Stopped by a signal, with its inputs since.
    pub frozen: Option<Vec<Held>>,
}

/// An input that a stopped process receives when it goes on.
pub enum Held {
    Event(SyncEvent),
    Message(ConnectionId, ToWorker),
}

/// Common data of all members of a world.
#[derive(Clone)]
pub struct Members {
    /// The run as members compute it.
    pub config: Arc<RunConfig>,
    /// The run's rounds.
    pub schedule: RoundSchedule,
    /// Models, by rank.
    pub specs: Arc<[ModelSpec]>,
    pub disks: Disks,
    /// `None`: nobody keeps accounts.
    pub atoms: Option<Atoms>,
    /// The longest round trip to another site.
    pub round_trip: Duration,
}

/// Seconds and tokens of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Computing, without the present step.
    pub compute: Duration,
    /// Waiting for results, without the present wait.
    pub wait: Duration,
    /// Tokens trained on; of a copy of the model, its first rank counts them.
    pub tokens: u64,
    /// The present step: its end, its duration, and its tokens.
    pub computes: Option<(Duration, Duration, u64)>,
    /// Since when it waits for a result.
    pub waits_since: Option<Duration>,
    /// Sequences of its last step.
    pub sequences: usize,
}

/// Its state of the run, from the first welcome on.
pub struct Session {
    pub sync: Synchroniser,
    pub device: Device,
    /// Reports that wait for a connection, and the last ones sent.
    waiting: VecDeque<ToCoordinator>,
    said: VecDeque<ToCoordinator>,
    held: Option<(Generation, Round)>,
    offers: Vec<CheckpointOffer>,
    /// When the synchroniser is woken.
    pub timer: Option<Duration>,
    /// Parts of the model.
    parts: u32,
    /// The device's time.
    pub work: Work,
    /// The last round whose result another worker sent.
    pub fetched: Option<Round>,
    /// Its own result reaches the device then.
    pub results_at: Duration,
}

impl Node {
    /// A machine with an empty disk at this path.
    pub fn new(worker: WorkerId, site: String, disk: PathBuf) -> Self {
        Self {
            worker,
            site,
            disk,
            memory: (1 << 34, None),
            started: 0,
            running: None,
            is_dismissed: false,
            suffered: Suffered::default(),
            returns_after: None,
            moves: 0,
            was_too_late: false,
            handled: 0,
            ends_before: None,
            slowness: 1,
            streams: false,
        }
    }

    pub fn site_name(&self) -> String {
        self.site.clone()
    }

    /// Its disk.
    pub fn folder(&self) -> &Path {
        &self.disk
    }

    /// Whether its disk has an intact checkpoint.
    pub fn has_checkpoint(&self, run: RunId) -> bool {
        !self.checkpoints(run).is_empty()
    }

    /// A new process.
    pub fn start(&mut self) {
        self.started += 1;
        let process =
            Process { worker: self.worker, incarnation: u64::from(self.worker.0) << 32 | self.started };
        let (connection, is_welcome, session, frozen) = (None, false, None, None);
        self.running = Some(Running { process, connection, is_welcome, session, frozen });
    }

    pub fn is(&self, process: Process) -> bool {
        self.running.as_ref().is_some_and(|running| running.process == process)
    }

    /// Its first message over a connection.
    pub fn join(&self, run: RunId) -> Option<Join> {
        let running = self.running.as_ref()?;
        let port = 7000_u16.wrapping_add(100 * self.moves).wrapping_add(self.worker.0 as u16);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let (held, checkpoints) = match &running.session {
            Some(session) => (session.held, session.offers.clone()),
            None => (None, self.checkpoints(run)),
        };
        Some(Join {
            incarnation: running.process.incarnation,
            site: self.site_name(),
            lan_address: address,
            wan_address: address,
            device: "virtual".to_owned(),
            memory_bytes: self.memory.0,
            host_memory_bytes: self.memory.1,
            held,
            too_late_ms: self.was_too_late.then_some(STATE_TOOK_MS),
            checkpoints,
        })
    }

    /// Whether there is room for checkpoints.
    pub fn set_room(&mut self, run: RunId, has_room: bool) {
        self.suffered.had_full_disk |= !has_room;
        let _ = std::fs::create_dir_all(&self.disk);
        let (folder, aside) = (self.disk.join(run.to_string()), self.disk.join("aside"));
        // A file stands where the folder is to be.
        if has_room {
            let _ = std::fs::remove_file(&folder);
            let _ = std::fs::rename(&aside, &folder);
        } else if !folder.is_file() {
            let _ = std::fs::rename(&folder, &aside);
            let _ = std::fs::write(&folder, "");
        }
    }

    /// Intact checkpoints on its disk, newest first.
    pub fn checkpoints(&self, run: RunId) -> Vec<CheckpointOffer> {
        let store = CheckpointStore::new(&self.disk, run, self.worker, KEPT);
        let mut offers = Vec::new();
        for ((rank, parts), store) in store.all_parts() {
            for listed in store.examine().unwrap_or_default().into_iter().flatten() {
                let (next_round, state_hash, generation) =
                    (listed.next_round, listed.state_hash, listed.generation);
                let private = listed.private;
                offers.push(CheckpointOffer { next_round, state_hash, private, rank, parts, generation });
            }
        }
        offers.sort_by_key(|offer| std::cmp::Reverse(offer.next_round));
        offers
    }

    /// Handles its welcome: its session begins, unless the coordinator counts on the present one. Returns whether it
    /// begins.
    pub fn welcome(&mut self, welcome: &Welcome, members: &Members, bus: &Bus) -> bool {
        let offers = self.checkpoints(welcome.run);
        let Some(running) = &mut self.running else { return false };
        running.is_welcome = true;
        self.was_too_late = false;
        if welcome.resumed && running.session.is_some() {
            return false;
        }
        let config = Arc::clone(&members.config);
        let barrier = Arc::new(StepBarrier::new(u64::from(config.train.batch), members.schedule));
        let wires = Wires {
            bus: bus.clone(),
            run: welcome.run,
            process: running.process,
            disks: members.disks.clone(),
            atoms: members.atoms.clone(),
            round_trip: members.round_trip,
            began: bus.now(),
            barrier: Arc::clone(&barrier),
            members: Mutex::default(),
        };
        let (folder, outside) = (self.disk.clone(), Box::new(wires));
        let sync =
            Synchroniser::new(self.worker, welcome.run, welcome.site, Arc::clone(&config), folder, outside);
        let parts = config.parallel.ranks_per_replica();
        let device = Device::new(self.worker, config, Arc::clone(&members.specs), barrier);
        let (waiting, said, held, timer) = (VecDeque::new(), VecDeque::new(), None, None);
        let (work, fetched, results_at) = (Work::default(), None, Duration::ZERO);
        running.session = Some(Session {
            sync,
            device,
            waiting,
            said,
            held,
            offers,
            timer,
            parts,
            work,
            fetched,
            results_at,
        });
        true
    }
}

impl Session {
    /// Begins a generation that includes it.
    pub fn begins(&mut self, generation: Generation, first: Round) {
        self.held = self.held.max(Some((generation, first)));
    }

    /// Queues a report for the coordinator.
    pub fn report(&mut self, message: ToCoordinator) {
        match &message {
            ToCoordinator::RoundApplied(report) => {
                self.held = self.held.max(Some((report.generation, report.round.next())));
            }
            ToCoordinator::Checkpoint(report) => self.note(report),
            // Of settlements, only the newest counts.
            ToCoordinator::Settled(_) => {
                self.waiting.retain(|old| !matches!(old, ToCoordinator::Settled(_)));
            }
            _ => {}
        }
        self.waiting.push_back(message);
    }

    fn note(&mut self, report: &CheckpointReport) {
        let Ok(state_hash) = report.outcome else { return };
        let CheckpointReport { next_round, generation, .. } = *report;
        let (rank, parts) = (self.device.rank(), self.parts);
        let offer = CheckpointOffer { next_round, state_hash, private: true, rank, parts, generation };
        self.offers.retain(|old| old.next_round != next_round);
        self.offers.insert(0, offer);
        self.offers.truncate(2);
    }

    /// Takes all waiting reports, over an open connection.
    pub fn say(&mut self) -> Vec<ToCoordinator> {
        let said: Vec<ToCoordinator> = self.waiting.drain(..).collect();
        let is_kept = |report: &&ToCoordinator| {
            matches!(report, ToCoordinator::RoundApplied(_) | ToCoordinator::Finished { .. })
        };
        self.said.extend(said.iter().filter(is_kept).cloned());
        while self.said.len() > REPORTS_REPEATED {
            self.said.pop_front();
        }
        said
    }

    /// The last reports may have been lost with their connection.
    pub fn repeat(&mut self) {
        while let Some(report) = self.said.pop_back() {
            self.waiting.push_front(report);
        }
    }
}

impl Work {
    /// A step begins.
    pub fn begins(&mut self, now: Duration, takes: Duration, sequences: usize, tokens: u64) {
        self.sequences = sequences;
        self.computes = Some((now + takes, takes, tokens));
    }

    /// The present step is over.
    pub fn ends(&mut self) {
        if let Some((_, takes, tokens)) = self.computes.take() {
            self.compute += takes;
            self.tokens += tokens;
        }
    }

    /// Sets whether it waits for a result from now on.
    pub fn waits(&mut self, is_waiting: bool, now: Duration) {
        match (is_waiting, self.waits_since) {
            (true, None) => self.waits_since = Some(now),
            (false, Some(since)) => {
                self.wait += now - since;
                self.waits_since = None;
            }
            _ => {}
        }
    }

    /// Seconds and tokens so far, with part of the present step.
    pub fn by(&self, now: Duration) -> Self {
        let mut work = *self;
        if let Some((end, takes, tokens)) = work.computes.take() {
            let left = end.saturating_sub(now).min(takes);
            let done = if takes.is_zero() { 1.0 } else { 1.0 - left.as_secs_f64() / takes.as_secs_f64() };
            work.compute += takes - left;
            work.tokens += (tokens as f64 * done).round() as u64;
        }
        work.waits(false, now);
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three seconds and three hundred tokens, of which two seconds have passed.
    #[test]
    fn work_counts_the_present_step_as_far_as_it_is_done() {
        let seconds = Duration::from_secs;
        let mut work = Work::default();
        let told = |work: &Work, now| (work.by(now).tokens, work.by(now).compute);
        assert_eq!(told(&work, seconds(9)), (0, seconds(0)));
        work.begins(seconds(10), seconds(3), 4, 300);
        assert_eq!(told(&work, seconds(10)), (0, seconds(0)));
        assert_eq!(told(&work, seconds(12)), (200, seconds(2)));
        work.ends();
        assert_eq!(told(&work, seconds(20)), (300, seconds(3)));
    }
}
