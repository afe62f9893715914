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

    // ---- connections

    fn connect(&mut self, worker: WorkerId, incarnation: u64) {
        let node = &self.nodes[&worker];
        if node.incarnation != incarnation || !node.running || node.connection.is_some() || node.dismissed {
            return;
        }
        if self.run.is_none() || node.frozen || self.now < self.reachable_at {
            return self.at_ms(300, Happening::Connect(worker, incarnation));
        }
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections.insert(connection, (worker, self.now, self.now));
        let node = self.nodes.get_mut(&worker).unwrap();
        node.connection = Some(connection);
        node.welcomed = false;
        let join = self.join_of(worker);
        self.handle(Event::Opened { connection, worker, address: IpAddr::V4(Ipv4Addr::LOCALHOST) });
        self.say(worker, ToCoordinator::Join(join));
    }

    /// What it says first, as it is now.
    fn join_of(&mut self, worker: WorkerId) -> Join {
        let moves = self.moves.get(&worker).copied().unwrap_or_default();
        let address = SocketAddr::from(([0, 0, 0, 0], 7000 + moves));
        let too_late_ms = self.too_late.remove(&worker).then_some(STATE_TOOK_MS);
        let node = &self.nodes[&worker];
        Join {
            incarnation: node.incarnation,
            site: node.site_name.clone(),
            lan_address: address,
            wan_address: address,
            device: "model".to_owned(),
            memory_bytes: 1 << 34,
            host_memory_bytes: None,
            held: node.generation.as_ref().map(|start| (start.membership.generation, node.open_round())),
            too_late_ms,
            checkpoints: node.disk.iter().map(|saved| saved.offer.clone()).collect(),
        }
    }

    fn say(&mut self, worker: WorkerId, message: ToCoordinator) {
        let node = &self.nodes[&worker];
        let allowed = node.welcomed
            || matches!(
                message,
                ToCoordinator::Join(_) | ToCoordinator::Heartbeat(_) | ToCoordinator::SiteHeartbeat { .. }
            );
        if let Some(connection) = node.connection.filter(|_| allowed) {
            let at = self.delivery(connection, true);
            self.push(at, Happening::ToRun(connection, message));
        }
    }

    fn node_loses(&mut self, connection: ConnectionId) {
        let Some((worker, ..)) = self.connections.get(&connection).copied() else { return };
        let node = self.nodes.get_mut(&worker).unwrap();
        if node.frozen {
            return self.stopped.entry(worker).or_default().push(Happening::ClosedAtNode(connection));
        }
        if node.connection == Some(connection) {
            node.connection = None;
            let incarnation = node.incarnation;
            let delay = self.draw(50..900);
            self.at_ms(delay, Happening::Connect(worker, incarnation));
        }
    }

    fn node_hears(&mut self, connection: ConnectionId, message: ToWorker) {
        let Some((worker, ..)) = self.connections.get(&connection).copied() else { return };
        let node = self.nodes.get_mut(&worker).unwrap();
        if node.connection != Some(connection) {
            return;
        }
        if node.frozen {
            return self.stopped.entry(worker).or_default().push(Happening::ToNode(connection, message));
        }
        match message {
            ToWorker::Welcome(welcome) => {
                node.site = welcome.site;
                node.welcomed = true;
                if welcome.resumed {
                    let reports = node.reports.iter().cloned().map(ToCoordinator::RoundApplied);
                    let all: Vec<ToCoordinator> = reports.chain(node.written()).collect();
                    all.into_iter().for_each(|message| self.say(worker, message));
                    if self.nodes[&worker].finished {
                        self.say_finished(worker);
                    }
                } else {
                    node.reset();
                }
            }
            ToWorker::Prepare(start) => {
                node.reset();
                if let Start::Checkpoint(offer) = start {
                    let saved = node.disk.iter().find(|saved| saved.offer == offer).unwrap().clone();
                    (node.applied, node.corruption, node.carried) =
                        (saved.applied, saved.corruption, saved.carried);
                }
                self.say_ready(worker);
            }
            ToWorker::Heal { donors } => {
                // Who has loaded a state, and said so, keeps it until another one has come.
                if node.holds && node.generation.is_none() {
                    node.loads += 1;
                } else {
                    node.reset();
                }
                let loads = node.loads;
                let donors = donors.into_iter().map(|donor| donor.worker).collect();
                let delay = self.draw(100..1500);
                self.at_ms(delay, Happening::Healed(worker, loads, donors));
            }
            ToWorker::Settle { generation } => {
                node.settling = true;
                let settled = node.settled(generation);
                self.say(worker, ToCoordinator::Settled(settled));
            }
            ToWorker::Keep(part) => self.keep(worker, part),
            // Its plan is written.
            ToWorker::Probe { .. }
            | ToWorker::Revoked { .. }
            | ToWorker::DataHolders(_)
            | ToWorker::Handover => {}
            ToWorker::Speak => {
                node.speaks_until = self.now + REST;
                self.say_heartbeat(worker);
            }
            ToWorker::Begin(start) => {
                // One that still heals takes part when it has.
                if node.holds {
                    // A state that is on its way is not needed.
                    node.loads += 1;
                    node.begin(Arc::unwrap_or_clone(start));
                    self.pull_missing(worker);
                    self.go_on(worker);
                } else {
                    node.begin_later = Some(Arc::unwrap_or_clone(start));
                }
            }
            ToWorker::Dismiss { .. } => {
                node.dismissed = true;
                node.running = false;
                let carried = std::mem::take(&mut node.carried);
                node.dropped.extend(carried);
            }
            // As a process does that may not come back: it was kicked, or the memory of the worker that all compare with went bad after it had said what it holds.
            ToWorker::Refused { reason }
                if reason.contains("revoked") || self.was_corrupted && reason.contains("faulty memory") =>
            {
                node.dismissed = true;
                node.running = false;
                let carried = std::mem::take(&mut node.carried);
                node.dropped.extend(carried);
            }
            ToWorker::Refused { reason } => panic!("{worker} was refused: {reason}"),
            ToWorker::Seat { rank } => panic!("{worker} was given part {rank:?} of a model in one part"),
        }
    }

    fn say_ready(&mut self, worker: WorkerId) {
        let node = self.nodes.get_mut(&worker).unwrap();
        node.holds = true;
        let ready = Ready {
            next_round: node.next_round(),
            rank: 0,
            state_hash: state_hash(&node.applied, node.corruption),
            parameters: 100,
            samples: 10_000,
            data_hash: [3; 32],
        };
        self.say(worker, ToCoordinator::Ready(ready));
    }

    fn say_finished(&mut self, worker: WorkerId) {
        let next_round = self.nodes[&worker].next_round();
        self.say(
            worker,
            ToCoordinator::Finished { next_round, validation_loss: None, validation_accuracy: None },
        );
    }

    fn healed(&mut self, worker: WorkerId, loads: u64, donors: &[WorkerId]) {
        if self.nodes[&worker].loads != loads || !self.nodes[&worker].running {
            return;
        }
        let able = |donor: &&WorkerId| {
            let donor = &self.nodes[*donor];
            donor.running && !donor.frozen && donor.holds
        };
        if let Some(donor) = donors.iter().find(able) {
            let (applied, corruption) = (self.nodes[donor].applied.clone(), self.nodes[donor].corruption);
            let node = self.nodes.get_mut(&worker).unwrap();
            let begin_later = node.begin_later.take();
            node.reset();
            (node.applied, node.corruption) = (applied, corruption);
            if let Some(start) = begin_later {
                node.holds = true;
                node.begin(start);
                self.pull_missing(worker);
                return self.go_on(worker);
            }
            self.say_ready(worker);
        } else {
            self.at_ms(500, Happening::Healed(worker, loads, donors.to_vec()));
        }
    }
}
