//! The world: one queue of what is due, and what becomes of it.

mod connections;
mod failing;
mod members;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{RunId, WorkerId};
use longhaul_member::{Outcome, SyncEvent};
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, Heartbeat, ToCoordinator, ToWorker};
use longhaul_run::{Command, ConnectionId, Event, Phase, Record, Run, State};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::books::Books;
use crate::bus::{Bus, Process, Said};
use crate::device::Told;
use crate::faults::Fault;
use crate::node::{Held, Node};

const RUN: RunId = RunId([7; 16]);
const STEPS: u64 = 80;

/// What happens at some time.
enum Due {
    ToRun(ConnectionId, ToCoordinator),
    ClosedAtRun(ConnectionId),
    ToNode(ConnectionId, ToWorker),
    ClosedAtNode(ConnectionId),
    RunTimer,
    /// To a process, or, from another worker, to whichever there is.
    ToSync(Process, SyncEvent),
    FromPeer(WorkerId, SyncEvent),
    SyncTimer(Process),
    Computed(Process),
    Connect(Process),
    Heartbeat(Process),
    Start(WorkerId),
    /// The same of one that was let go.
    Return(WorkerId),
    Thaw(Process),
    StartRun,
    Resume,
    Room(WorkerId),
    /// That another worker is out of its reach is over.
    InReach(WorkerId),
    Fault(Fault),
}

/// A coordinator with its store, and workers, in virtual time.
pub struct World {
    bus: Bus,
    config: RunConfig,
    run: Option<Run>,
    stored: State,
    longest_state: usize,
    nodes: BTreeMap<WorkerId, Node>,
    queue: BTreeMap<(Duration, u64), Due>,
    pushed: u64,
    run_timers: BTreeSet<Duration>,
    links: Links,
    operator: Operator,
    /// What each was told of who is out of the run.
    told: strangers::Told,
    books: Books,
    log: Vec<String>,
    rng: ChaCha8Rng,
}

/// Connections to the coordinator, and what is between workers.
#[derive(Default)]
struct Links {
    /// Whose each connection is, and when the last messages of both directions arrive.
    connections: BTreeMap<ConnectionId, (Process, [Duration; 2])>,
    next_connection: u64,
    /// Nobody reaches the coordinator before.
    reachable_at: Duration,
    /// Of two workers, by what more their messages take, and when the last one arrives.
    slow: BTreeMap<(WorkerId, WorkerId), Duration>,
    arrivals: BTreeMap<(WorkerId, WorkerId), Duration>,
}

/// What operators have asked for.
#[derive(Default)]
struct Operator {
    /// Workers that are out of the run for good.
    kicked: BTreeSet<WorkerId>,
    was_drained: bool,
    /// The coordinator and all workers are started again so long after all have left.
    suspended_for: Option<Duration>,
}

fn config(workers: u32, overlap: u64, fragment_values: u32) -> RunConfig {
    RunConfig::parse(&format!(
        "[run]\nname = \"sim\"\nworkers = {workers}\nsteps = {STEPS}\n\
         [model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n\
         [data]\npath = \"none\"\nsequence_length = 8\n[train]\nbatch = {}\n\
         [checkpoint]\nevery_rounds = 8\n\
         [sync]\npreset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\noverlap = {overlap}\nwithin_site = \"direct\"\nchunk = 16\nkeep = 4\nfragment_values = {fragment_values}\n\
         deadline_floor_ms = 100\ndeadline_ceiling_ms = 1000\n\
         [parallel]\nplan = \"fixed\"\n[faults]\nsilent_after_ms = 2000\nreconnect_grace_ms = 3000\n",
        workers * 3
    ))
    .unwrap()
}

impl World {
    /// A run of so many workers, each of which is a site.
    #[must_use]
    pub fn new(seed: u64, workers: u32) -> Self {
        Self::with_sites(seed, workers, workers)
    }

    /// A run of so many workers on so many sites. The members of a site send what they have by themselves.
    #[must_use]
    pub fn with_sites(seed: u64, workers: u32, sites: u32) -> Self {
        // One fragment, or several with owners of their own.
        let fragment_values = if seed % 4 < 2 { 1 << 20 } else { 256 };
        let config = config(workers, seed % 2, fragment_values);
        let stored = State::new(RUN, &config);
        let mut world = Self {
            bus: Bus::default(),
            run: None,
            stored,
            longest_state: 0,
            nodes: (1..=workers)
                .map(WorkerId)
                .map(|worker| (worker, Node::new(worker, worker.0 % sites)))
                .collect(),
            queue: BTreeMap::new(),
            pushed: 0,
            run_timers: BTreeSet::new(),
            links: Links::default(),
            operator: Operator::default(),
            told: strangers::Told::default(),
            books: Books::default(),
            log: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            config,
        };
        world.start_run();
        for worker in (1..=workers).map(WorkerId) {
            world.after(u64::from(worker.0) * 30, Due::Start(worker));
        }
        world
    }

    /// Something goes wrong then.
    pub fn fault_at(&mut self, at: Duration, fault: Fault) {
        self.push(at, Due::Fault(fault));
    }

    /// Until the run has finished, or the time is up.
    pub fn run_until(&mut self, end: Duration) {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((at, _), due) = entry.remove_entry();
            self.bus.set_now(at);
            self.happen(due);
            self.end_if_suspended();
            if self.run.as_ref().is_some_and(|run| run.state().phase == Phase::Finished) {
                break;
            }
        }
    }

    /// What the coordinator has written down last.
    #[must_use]
    pub fn coordinator_state(&self) -> &State {
        &self.stored
    }

    /// The name of the site that a worker is at.
    #[must_use]
    pub fn site_of(&self, worker: WorkerId) -> Option<String> {
        self.nodes.get(&worker).map(Node::site_name)
    }

    /// Whether an operator has asked for the run's end.
    #[must_use]
    pub fn was_drained(&self) -> bool {
        self.operator.was_drained
    }

    /// The longest state that was written down, in bytes.
    #[must_use]
    pub fn longest_state(&self) -> usize {
        self.longest_state
    }

    /// What devices have trained on, and what members have told.
    #[must_use]
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// What the coordinator has told, with faults between.
    #[must_use]
    pub fn log(&self) -> &[String] {
        &self.log
    }

    /// Whether each worker was away at some time, and one was killed: then nobody may have the state.
    #[must_use]
    pub fn were_all_away(&self) -> bool {
        self.nodes.values().all(|node| node.was_away) && self.nodes.values().any(|node| node.was_killed)
    }

    /// Whether a disk had no room at some time.
    #[must_use]
    pub fn had_full_disk(&self) -> bool {
        self.nodes.values().any(Node::had_full_disk)
    }

    fn now(&self) -> Duration {
        self.bus.now()
    }

    fn push(&mut self, at: Duration, due: Due) {
        self.pushed += 1;
        self.queue.insert((at, self.pushed), due);
    }

    fn after(&mut self, ms: u64, due: Due) {
        self.push(self.now() + Duration::from_millis(ms), due);
    }

    fn draw(&mut self, ms: std::ops::Range<u64>) -> u64 {
        self.rng.random_range(ms)
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::ToRun(connection, message) => self.tell_run(Event::Message { connection, message }),
            Due::ClosedAtRun(connection) => self.tell_run(Event::Closed { connection }),
            Due::RunTimer => {
                let now = self.now();
                self.run_timers.remove(&now);
                self.tell_run(Event::Timer);
            }
            Due::ToNode(connection, message) => self.hear(connection, message),
            Due::ClosedAtNode(connection) => self.lose(connection),
            Due::ToSync(process, event) => self.step(process, Some(event)),
            Due::FromPeer(worker, event) => {
                // Where nobody is, an answer is none.
                let running = self.nodes.get(&worker).and_then(|node| node.running.as_ref());
                if let Some(process) = running.map(|running| running.process) {
                    self.step(process, Some(event));
                }
            }
            Due::SyncTimer(process) => self.wake(process),
            Due::Computed(process) => self.computed(process),
            Due::Connect(process) => self.connect(process),
            Due::Heartbeat(process) => self.beat(process),
            Due::Start(worker) => self.start(worker),
            Due::Return(worker) => {
                if let Some(node) = self.nodes.get_mut(&worker) {
                    node.is_dismissed = false;
                }
                self.start(worker);
            }
            Due::Thaw(process) => self.thaw(process),
            Due::StartRun => self.start_run(),
            // Who wants a run to go on asks again.
            Due::Resume if self.run.is_none() => self.after(500, Due::Resume),
            Due::Resume => self.tell_run(Event::Resume),
            Due::Room(worker) => {
                if let Some(node) = self.nodes.get_mut(&worker) {
                    node.set_room(RUN, true);
                }
            }
            Due::InReach(worker) => self.tell_of_reach(worker, Vec::new()),
            Due::Fault(fault) => self.fail(fault),
        }
        self.deliver();
    }

    /// What its program does once all have left, and who starts it and its workers again.
    fn end_if_suspended(&mut self) {
        let is_over = self.run.as_ref().is_some_and(|run| run.suspended().is_some());
        let Some(pause) = self.operator.suspended_for.take_if(|_| is_over) else { return };
        self.end_run();
        let ms = pause.as_millis() as u64;
        self.after(ms, Due::StartRun);
        for worker in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.after(ms, Due::Return(worker));
        }
    }

    // ---- the coordinator

    fn start_run(&mut self) {
        let run = Run::new(self.config.clone(), self.stored.clone(), self.now()).unwrap();
        self.run = Some(run);
        self.tell_run(Event::Timer);
    }

    /// With the process go its connections.
    fn end_run(&mut self) {
        self.run = None;
        for connection in self.links.connections.keys().copied().collect::<Vec<_>>() {
            self.after(100, Due::ClosedAtNode(connection));
        }
    }

    fn tell_run(&mut self, event: Event) {
        let now = self.now();
        let Some(run) = &mut self.run else { return };
        let commands = run.handle(now, event);
        let timeout = run.next_timeout();
        for command in commands {
            match command {
                Command::Send { connection, message } => {
                    self.check_told(connection, &message);
                    let at = self.arrival(connection, 0);
                    self.push(at, Due::ToNode(connection, message));
                }
                Command::Close { connection, .. } => {
                    let at = self.arrival(connection, 0);
                    self.push(at, Due::ClosedAtNode(connection));
                }
                // As a store has it: bytes, and no memory.
                Command::Persist(Record::State(state)) => {
                    let bytes = postcard::to_stdvec(&*state).unwrap();
                    self.longest_state = self.longest_state.max(bytes.len());
                    self.stored = postcard::from_bytes(&bytes).unwrap();
                    assert_eq!(self.stored, *state);
                }
                Command::Persist(Record::Round(_)) => {}
                Command::Plan(_) => unreachable!("the plan of this run is given"),
                Command::Report(notice) => {
                    let line =
                        format!("{now:>8.3?} {:?} {:?} {}", notice.severity, notice.worker, notice.text);
                    self.log.push(line);
                }
            }
        }
        if let Some(at) = timeout.filter(|at| self.run_timers.insert(*at)) {
            self.push(at, Due::RunTimer);
        }
    }

    /// When the next message over a connection arrives: behind those before it.
    fn arrival(&mut self, connection: ConnectionId, direction: usize) -> Duration {
        let at = self.now() + Duration::from_millis(self.draw(1..60));
        let Some((_, last)) = self.links.connections.get_mut(&connection) else { return at };
        last[direction] = last[direction].max(at);
        last[direction]
    }
}
