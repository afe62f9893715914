//! A coordinator, its disk, and model workers, in virtual time: one queue of events, and faults among them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_proto::control::message::{
    HEARTBEAT_INTERVAL_MS, Heartbeat, HeldPart, Join, OUT_OF_REACH_REPEATED_MS, OWN_WORD_EVERY, Ready,
    SignOfLife, Start, ToCoordinator, ToWorker,
};
use rand::Rng as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::super::{Command, ConnectionId, Event, Phase, Record, Run, State};
use super::node::{Node, RoundResult, Share, state_hash};

mod connections;
mod faults;
mod heartbeats;
mod keeping;
mod rounds;
mod strangers;

/// Who was shown a sign of life and does not answer is given up after so long,
const ANSWER_MAX_MS: u64 = 300;
/// and not used for so long.
const REST: Duration = Duration::from_secs(5);

/// What a state takes that comes too late.
const STATE_TOOK_MS: u32 = 700;

/// What happens at some time.
#[derive(Clone, Debug)]
enum Happening {
    ToRun(ConnectionId, ToCoordinator),
    ClosedAtRun(ConnectionId),
    ToNode(ConnectionId, ToWorker),
    ClosedAtNode(ConnectionId),
    Timer,
    Connect(WorkerId, u64),
    Heartbeat(WorkerId, u64),
    /// Who was to speak for it has not answered.
    Unanswered(WorkerId, u64),
    Computed(WorkerId, u64, Round),
    Healed(WorkerId, u64, Vec<WorkerId>),
    /// A process has the copy that it was asked for.
    Kept(WorkerId, u64, HeldPart),
    Contribution {
        to: WorkerId,
        from: WorkerId,
        generation: Generation,
        round: Round,
        shares: Vec<Share>,
    },
    Deadline(WorkerId, Generation, Round),
    Result {
        to: WorkerId,
        generation: Generation,
        result: Arc<RoundResult>,
    },
    /// The rest of a result that is here in part, for a process and what it was told to load.
    Whole(WorkerId, (u64, u64), Round),
    Pull(WorkerId, u64, Round),
    Fault(Fault),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Kill(WorkerId),
    Start(WorkerId),
    Freeze(WorkerId),
    Thaw(WorkerId),
    Disconnect(WorkerId),
    Corrupt(WorkerId),
    Leave(WorkerId),
    /// It asks to leave, whoever has a state, and is started again after so many milliseconds.
    LeaveFor(WorkerId, u64),
    Return(WorkerId),
    StopRun,
    StartRun,
    /// Nobody reaches the coordinator for so many milliseconds; workers reach each other.
    CutOff(u64),
    Drain,
    /// An operator has all leave, and starts the coordinator again when it has ended and so many milliseconds have passed.
    Suspend(u64),
    Pause,
    Resume,
    /// An operator asks it to leave.
    Dismiss(WorkerId),
    /// Its certificate is revoked.
    Kick(WorkerId),
    /// Its checkpoints have nowhere to go, for so many milliseconds.
    NoDisk(WorkerId, u64),
    Disk(WorkerId),
    /// It says for so many milliseconds that the other one is out of its reach, or that it hears nothing, where that is itself.
    OutOfReach(WorkerId, WorkerId, u64),
    /// Another process of it says that the one before was too far behind when it came in.
    TooLate(WorkerId),
    /// It loses its connection, and has another address when it is back.
    Move(WorkerId),
    /// Who was kicked comes again over another connection, and says whatever a member says.
    Intrude(WorkerId),
}

pub struct World {
    pub now: Duration,
    pub run: Option<Run>,
    pub stored: State,
    /// The longest state that was written down.
    pub stored_bytes_most: usize,
    pub nodes: BTreeMap<WorkerId, Node>,
    /// Nobody gets through to the coordinator before.
    pub reachable_at: Duration,
    /// Whether a worker's memory has gone bad.
    was_corrupted: bool,
    /// Those who say with their next word that they were too late, and how often workers have moved.
    too_late: BTreeSet<WorkerId>,
    /// An operator waits until all have left, to start them again so much later.
    suspended_for: Option<u64>,
    /// Workers that the run begins with.
    wanted: u32,
    moves: BTreeMap<WorkerId, u16>,
    /// Whether owners close a round without those who are late.
    pub lateness: bool,
    /// Of rounds that everyone finished: the final states.
    pub log: Vec<String>,
    queue: BTreeMap<(Duration, u64), Happening>,
    /// Times at which the run is woken.
    timers: BTreeSet<Duration>,
    sequence: u64,
    connections: BTreeMap<ConnectionId, (WorkerId, Duration, Duration)>,
    next_connection: u64,
    said: strangers::Said,
    next_result: u64,
    /// What reached a stopped process, in order.
    stopped: BTreeMap<WorkerId, Vec<Happening>>,
    rng: ChaCha8Rng,
}

impl World {
    pub fn new(seed: u64, workers: u32, lateness: bool) -> Self {
        Self::wanting(workers, seed, workers, lateness)
    }

    /// A run that begins with fewer workers than there are.
    pub fn wanting(wanted: u32, seed: u64, workers: u32, lateness: bool) -> Self {
        let config = super::config(wanted);
        let stored = State::new(RunId([7; 16]), &config);
        let run = Run::new(config.clone(), stored.clone(), Duration::ZERO).unwrap();
        let nodes = (1..=workers)
            .map(|w| (WorkerId(w), Node::new(w, &format!("site-{}", w % 2), u64::from(config.train.batch))))
            .collect();
        let mut world = Self {
            now: Duration::ZERO,
            run: Some(run),
            stored,
            stored_bytes_most: 0,
            nodes,
            reachable_at: Duration::ZERO,
            was_corrupted: false,
            too_late: BTreeSet::new(),
            suspended_for: None,
            wanted,
            moves: BTreeMap::new(),
            lateness,
            log: Vec::new(),
            queue: BTreeMap::new(),
            timers: BTreeSet::new(),
            sequence: 0,
            connections: BTreeMap::new(),
            next_connection: 0,
            said: strangers::Said::default(),
            next_result: 0,
            stopped: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        for worker in (1..=workers).map(WorkerId) {
            world.at_ms(u64::from(worker.0) * 30, Happening::Fault(Fault::Start(worker)));
        }
        world
    }

    pub fn fault_at_ms(&mut self, at_ms: u64, fault: Fault) {
        self.at_ms(at_ms, Happening::Fault(fault));
    }

    /// Runs until the run is finished or the time is up.
    pub fn run_until_ms(&mut self, end_ms: u64) {
        let is_due = |at: &(Duration, u64)| at.0 <= Duration::from_millis(end_ms);
        while let Some(entry) = self.queue.first_entry().filter(|entry| is_due(entry.key())) {
            let ((at, _), happening) = entry.remove_entry();
            self.now = at;
            self.happen(happening);
            self.end_if_suspended();
            if self.phase() == Phase::Finished {
                break;
            }
        }
    }

    /// What a coordinator does, and who starts it and its workers again.
    fn end_if_suspended(&mut self) {
        let is_over = self.run.as_ref().is_some_and(|run| run.suspended().is_some());
        if let Some(for_ms) = self.suspended_for.take_if(|_| is_over) {
            self.end_coordinator();
            self.at_ms(for_ms, Happening::Fault(Fault::StartRun));
            for worker in self.nodes.keys().copied().collect::<Vec<_>>() {
                self.at_ms(for_ms, Happening::Fault(Fault::Return(worker)));
            }
        }
    }

    /// With the process go its connections.
    fn end_coordinator(&mut self) {
        self.run = None;
        for connection in self.connections.keys().copied().collect::<Vec<_>>() {
            self.at_ms(100, Happening::ClosedAtNode(connection));
        }
    }

    pub fn phase(&self) -> Phase {
        self.run.as_ref().map_or(Phase::Gathering, |run| run.state().phase)
    }

    /// Whether somebody asked for the end.
    pub fn was_drained(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.state().drain)
    }

    /// Whether the run has, or had at its end, members.
    pub fn has_generation(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.state().generation.is_some())
    }

    fn at_ms(&mut self, delay_ms: u64, happening: Happening) {
        self.push(self.now + Duration::from_millis(delay_ms), happening);
    }

    fn push(&mut self, at: Duration, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), happening);
    }

    fn draw(&mut self, range: std::ops::Range<u64>) -> u64 {
        self.rng.random_range(range)
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToRun(connection, message) => self.handle(Event::Message { connection, message }),
            Happening::ClosedAtRun(connection) => self.handle(Event::Closed { connection }),
            Happening::Timer => {
                self.timers.remove(&self.now);
                self.handle(Event::Timer);
            }
            Happening::ToNode(connection, message) => self.node_hears(connection, message),
            Happening::ClosedAtNode(connection) => self.node_loses(connection),
            Happening::Connect(worker, incarnation) => self.connect(worker, incarnation),
            Happening::Heartbeat(worker, incarnation) => self.heartbeat(worker, incarnation),
            Happening::Unanswered(worker, incarnation) => {
                let node = self.nodes.get_mut(&worker).unwrap();
                if node.incarnation == incarnation && node.running && !node.frozen {
                    node.speaks_until = self.now + REST;
                    self.say_heartbeat(worker);
                }
            }
            Happening::Computed(worker, incarnation, round) => self.computed(worker, incarnation, round),
            Happening::Healed(worker, loads, donors) => self.healed(worker, loads, &donors),
            Happening::Kept(worker, incarnation, part) => self.kept(worker, incarnation, part),
            Happening::Contribution { to, from, generation, round, shares } => {
                self.contribution(to, from, generation, round, shares);
            }
            Happening::Deadline(worker, generation, round) => {
                self.close_round(worker, generation, round, true)
            }
            Happening::Result { to, generation, result } => {
                if self.must_wait(to, generation) {
                    self.at_ms(100, Happening::Result { to, generation, result });
                } else if self.accepts(to, generation) {
                    self.receive(to, result);
                }
            }
            Happening::Whole(worker, process, round) => self.whole(worker, process, round),
            Happening::Pull(worker, incarnation, round) => self.pull(worker, incarnation, round),
            Happening::Fault(fault) => self.fault(fault),
        }
    }

    // ---- the coordinator's side

    fn handle(&mut self, event: Event) {
        let Some(run) = &mut self.run else { return };
        let commands = run.handle(self.now, event);
        for command in commands {
            match command {
                Command::Send { connection, message } => {
                    self.check_sent(connection, &message);
                    let at = self.delivery(connection, false);
                    self.push(at, Happening::ToNode(connection, message));
                }
                Command::Close { connection, .. } => {
                    let at = self.delivery(connection, false);
                    self.push(at, Happening::ClosedAtNode(connection));
                }
                // What a real store does: bytes, not memory.
                Command::Persist(Record::State(state)) => {
                    let bytes = postcard::to_stdvec(&*state).unwrap();
                    self.stored_bytes_most = self.stored_bytes_most.max(bytes.len());
                    self.stored = postcard::from_bytes(&bytes).unwrap();
                    assert_eq!(self.stored, *state);
                }
                Command::Persist(Record::Round(_)) => {}
                Command::Plan(_) => unreachable!("its plan is written"),
                Command::Report(notice) => {
                    self.log.push(format!("{:>8?} {:?} {}", self.now, notice.worker, notice.text));
                }
            }
        }
        let timeout = self.run.as_ref().and_then(Run::next_timeout);
        if let Some(at) = timeout.filter(|at| self.timers.insert(*at)) {
            self.push(at, Happening::Timer);
        }
    }

    /// When the next message of a connection arrives: after those before it.
    fn delivery(&mut self, connection: ConnectionId, to_run: bool) -> Duration {
        let at = self.now + Duration::from_millis(self.draw(1..60));
        let Some((_, to_node_last, to_run_last)) = self.connections.get_mut(&connection) else { return at };
        let last = if to_run { to_run_last } else { to_node_last };
        *last = at.max(*last);
        *last
    }
}
