//! A worker's machine: its disk, and the process that runs on it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_checkpoint::{CheckpointStore, Listed};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_member::step_barrier::StepBarrier;
use longhaul_member::{SyncEvent, Synchroniser};
use longhaul_proto::control::message::{
    CheckpointOffer, CheckpointReport, Join, ToCoordinator, ToWorker, Welcome,
};
use longhaul_run::ConnectionId;
use tempfile::TempDir;

use crate::bus::{Bus, Process};
use crate::device::Device;
use crate::wires::Wires;

/// Reports that are said again over a new connection.
const REPORTS_REPEATED: usize = 128;

/// What a state takes that comes too late, in milliseconds.
const STATE_TOOK_MS: u32 = 700;

/// A machine that stays as it is while processes on it come and go.
pub struct Node {
    pub worker: WorkerId,
    site: u32,
    disk: TempDir,
    /// Processes that were started here.
    pub started: u64,
    pub running: Option<Running>,
    /// It was let go, and is not started again.
    pub is_dismissed: bool,
    pub was_killed: bool,
    /// It could not be reached for a while.
    pub was_away: bool,
    had_full_disk: bool,
    /// It has asked to leave, and comes back so long after it was let go.
    pub returns_after: Option<Duration>,
    /// How often its address has changed.
    pub moves: u16,
    /// It says with its next first message that a state came too late.
    pub was_too_late: bool,
}

/// A process.
pub struct Running {
    pub process: Process,
    pub connection: Option<ConnectionId>,
    /// Whether the coordinator has let it in over this connection.
    pub is_welcome: bool,
    pub session: Option<Session>,
    /// Stopped by a signal, with what has reached it since.
    pub frozen: Option<Vec<Held>>,
}

/// Something that a stopped process hears when it goes on.
pub enum Held {
    Event(SyncEvent),
    Message(ConnectionId, ToWorker),
}

/// What it has of the run, from the first welcome on.
pub struct Session {
    pub sync: Synchroniser,
    pub device: Device,
    /// Reports that wait for a connection, and those that were said last.
    waiting: VecDeque<ToCoordinator>,
    said: VecDeque<ToCoordinator>,
    held: Option<(Generation, Round)>,
    offers: Vec<CheckpointOffer>,
    /// When the synchroniser is woken.
    pub timer: Option<Duration>,
}

impl Node {
    pub fn new(worker: WorkerId, site: u32) -> Self {
        let disk = tempfile::tempdir().unwrap();
        Self {
            worker,
            site,
            disk,
            started: 0,
            running: None,
            is_dismissed: false,
            was_killed: false,
            was_away: false,
            had_full_disk: false,
            returns_after: None,
            moves: 0,
            was_too_late: false,
        }
    }

    pub fn site_name(&self) -> String {
        format!("site-{}", self.site)
    }

    /// Whether there is something sound on its disk.
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
        let address = SocketAddr::from(([127, 0, 0, 1], 7000 + 100 * self.moves + self.worker.0 as u16));
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
            memory_bytes: 1 << 34,
            host_memory_bytes: None,
            held,
            too_late_ms: self.was_too_late.then_some(STATE_TOOK_MS),
            checkpoints,
        })
    }

    /// Whether there is room for checkpoints.
    pub fn set_room(&mut self, run: RunId, has_room: bool) {
        self.had_full_disk |= !has_room;
        let (folder, aside) = (self.disk.path().join(run.to_string()), self.disk.path().join("aside"));
        // A file stands where the folder is to be.
        if has_room {
            let _ = std::fs::remove_file(&folder);
            let _ = std::fs::rename(&aside, &folder);
        } else if !folder.is_file() {
            let _ = std::fs::rename(&folder, &aside);
            std::fs::write(&folder, "").unwrap();
        }
    }

    pub fn had_full_disk(&self) -> bool {
        self.had_full_disk
    }

    /// What is sound on its disk, the newest first.
    fn checkpoints(&self, run: RunId) -> Vec<CheckpointOffer> {
        let store = CheckpointStore::new(self.disk.path(), run, self.worker, 2);
        let sound = store.examine().unwrap_or_default().into_iter().flatten();
        let offer = |listed: Listed| CheckpointOffer {
            next_round: listed.next_round,
            state_hash: listed.state_hash,
            private: listed.private,
            rank: 0,
            parts: 1,
            generation: listed.generation,
        };
        let mut offers: Vec<CheckpointOffer> = sound.map(offer).collect();
        offers.sort_by_key(|offer| std::cmp::Reverse(offer.next_round));
        offers
    }

    /// It is let in: its session begins, unless the coordinator counts on the one that it has. Answers whether it begins.
    pub fn welcome(&mut self, welcome: &Welcome, bus: &Bus) -> bool {
        let offers = self.checkpoints(welcome.run);
        let Some(running) = &mut self.running else { return false };
        running.is_welcome = true;
        self.was_too_late = false;
        if welcome.resumed && running.session.is_some() {
            return false;
        }
        let config = Arc::new(RunConfig::parse(&welcome.config).unwrap());
        let barrier = Arc::new(StepBarrier::new(u64::from(config.train.batch), config.round_schedule()));
        let wires = Wires {
            bus: bus.clone(),
            process: running.process,
            began: bus.now(),
            barrier: Arc::clone(&barrier),
            members: Mutex::default(),
        };
        let (folder, outside) = (self.disk.path().to_owned(), Box::new(wires));
        let sync =
            Synchroniser::new(self.worker, welcome.run, welcome.site, Arc::clone(&config), folder, outside);
        let device = Device::new(self.worker, config, barrier);
        let (waiting, said, held, timer) = (VecDeque::new(), VecDeque::new(), None, None);
        running.session = Some(Session { sync, device, waiting, said, held, offers, timer });
        true
    }
}

impl Session {
    /// A generation begins, of which the coordinator counts on it.
    pub fn begins(&mut self, generation: Generation, first: Round) {
        self.held = self.held.max(Some((generation, first)));
    }

    /// Something for the coordinator, whenever it can be said.
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
        let offer = CheckpointOffer { next_round, state_hash, private: true, rank: 0, parts: 1, generation };
        self.offers.retain(|old| old.next_round != next_round);
        self.offers.insert(0, offer);
        self.offers.truncate(2);
    }

    /// All that waits, over a connection that is there.
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
