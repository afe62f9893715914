//! The world: one queue of what is due, and what becomes of it.

mod failing;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{RunId, WorkerId};
use longhaul_coordinator::run::{Command, ConnectionId, Event, Phase, Record, Run, State};
use longhaul_member::{Outcome, SyncEvent};
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, Heartbeat, ToCoordinator, ToWorker};
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
    Fault(Fault),
}

/// A coordinator with its store, and workers, in virtual time.
pub struct World {
    bus: Bus,
    config: RunConfig,
    run: Option<Run>,
    stored: State,
    nodes: BTreeMap<WorkerId, Node>,
    queue: BTreeMap<(Duration, u64), Due>,
    pushed: u64,
    run_timers: BTreeSet<Duration>,
    /// Whose each connection is, and when the last messages of both directions arrive.
    connections: BTreeMap<ConnectionId, (Process, [Duration; 2])>,
    next_connection: u64,
    /// Of two workers, by what more their messages take, and when the last one arrives.
    slow: BTreeMap<(WorkerId, WorkerId), Duration>,
    arrivals: BTreeMap<(WorkerId, WorkerId), Duration>,
    reachable_at: Duration,
    /// An operator waits until all have left.
    suspended_for: Option<Duration>,
    books: Books,
    log: Vec<String>,
    rng: ChaCha8Rng,
}

fn config(workers: u32, overlap: u64, fragment_values: u32) -> RunConfig {
    RunConfig::parse(&format!(
        "[run]\nname = \"sim\"\nworkers = {workers}\nsteps = {STEPS}\n\
         [model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n\
         [data]\npath = \"none\"\nsequence_length = 8\n[train]\nbatch = {}\n\
         [checkpoint]\nevery_rounds = 8\n\
         [sync]\npreset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 2\noverlap = {overlap}\nchunk = 16\nkeep = 4\nfragment_values = {fragment_values}\n\
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
        // One fragment, or several with owners of their own.
        let fragment_values = if seed % 4 < 2 { 1 << 20 } else { 256 };
        let config = config(workers, seed % 2, fragment_values);
        let stored = State::new(RUN, &config);
        let mut world = Self {
            bus: Bus::default(),
            run: None,
            stored,
            nodes: (1..=workers).map(WorkerId).map(|worker| (worker, Node::new(worker))).collect(),
            queue: BTreeMap::new(),
            pushed: 0,
            run_timers: BTreeSet::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            slow: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            reachable_at: Duration::ZERO,
            suspended_for: None,
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
            Due::Fault(fault) => self.fail(fault),
        }
        self.deliver();
    }

    /// What its program does once all have left, and who starts it and its workers again.
    fn end_if_suspended(&mut self) {
        let is_over = self.run.as_ref().is_some_and(|run| run.suspended().is_some());
        let Some(pause) = self.suspended_for.take_if(|_| is_over) else { return };
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
        for connection in self.connections.keys().copied().collect::<Vec<_>>() {
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
                    let at = self.arrival(connection, 0);
                    self.push(at, Due::ToNode(connection, message));
                }
                Command::Close { connection, .. } => {
                    let at = self.arrival(connection, 0);
                    self.push(at, Due::ClosedAtNode(connection));
                }
                Command::Persist(Record::State(state)) => self.stored = *state,
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
        let Some((_, last)) = self.connections.get_mut(&connection) else { return at };
        last[direction] = last[direction].max(at);
        last[direction]
    }

    // ---- connections

    fn connect(&mut self, process: Process) {
        let now = self.now();
        let Some(node) = self.nodes.get(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(running) = node.running.as_ref().filter(|running| running.connection.is_none()) else {
            return;
        };
        if self.run.is_none() || now < self.reachable_at || running.frozen.is_some() {
            return self.after(300, Due::Connect(process));
        }
        let Some(join) = node.join(RUN) else { return };
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections.insert(connection, (process, [now; 2]));
        if let Some(running) = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut()) {
            (running.connection, running.is_welcome) = (Some(connection), false);
        }
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.tell_run(Event::Opened { connection, worker: process.worker, address });
        self.say(connection, ToCoordinator::Join(join));
    }

    fn say(&mut self, connection: ConnectionId, message: ToCoordinator) {
        let at = self.arrival(connection, 1);
        self.push(at, Due::ToRun(connection, message));
    }

    /// The process that a connection is of, as long as it has it.
    fn of(&self, connection: ConnectionId) -> Option<Process> {
        let (process, _) = self.connections.get(&connection)?;
        let running = self.nodes.get(&process.worker)?.running.as_ref()?;
        (running.process == *process && running.connection == Some(connection)).then_some(*process)
    }

    fn lose(&mut self, connection: ConnectionId) {
        let Some(process) = self.of(connection) else { return };
        if let Some(running) = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut()) {
            running.connection = None;
        }
        let wait = self.draw(50..900);
        self.after(wait, Due::Connect(process));
    }

    fn hear(&mut self, connection: ConnectionId, message: ToWorker) {
        let Some(process) = self.of(connection) else { return };
        let Some(node) = self.nodes.get_mut(&process.worker) else { return };
        if let Some(held) = node.running.as_mut().and_then(|running| running.frozen.as_mut()) {
            return held.push(Held::Message(connection, message));
        }
        match &message {
            ToWorker::Welcome(welcome) => {
                let had_session = node.running.as_ref().is_some_and(|running| running.session.is_some());
                // A process whose session is over is started anew.
                if had_session && !welcome.resumed {
                    return self.restart(process.worker, 100);
                }
                if !node.welcome(welcome, &self.bus) {
                    return self.said_again(connection);
                }
                let prepared = node.running.as_ref().and_then(|running| running.session.as_ref());
                let prepared = prepared.map(|session| session.device.prepared());
                if let Some(prepared) = prepared {
                    self.after(50, Due::ToSync(process, SyncEvent::Device(prepared)));
                }
                return;
            }
            ToWorker::Speak => return self.say(connection, ToCoordinator::Heartbeat(Heartbeat::default())),
            ToWorker::Begin(start) => {
                let open = start.settlement.as_ref().map_or(start.first_round, |settled| settled.open_round);
                self.books.reopened(start.membership.generation, open);
                if let Some(session) = node.running.as_mut().and_then(|running| running.session.as_mut()) {
                    session.begins(start.membership.generation, start.first_round);
                }
            }
            ToWorker::Refused { reason } => panic!("{}: {reason}", process.worker),
            _ => {}
        }
        self.step(process, Some(SyncEvent::Coordinator(message)));
    }

    /// Reports that may have been lost, and those that have waited.
    fn said_again(&mut self, connection: ConnectionId) {
        let Some(process) = self.of(connection) else { return };
        let running = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut());
        let Some(session) = running.and_then(|running| running.session.as_mut()) else { return };
        session.repeat();
        session.say().into_iter().for_each(|report| self.say(connection, report));
    }

    fn beat(&mut self, process: Process) {
        let Some(node) = self.nodes.get(&process.worker).filter(|node| node.is(process)) else { return };
        let connection =
            node.running.as_ref().filter(|running| running.frozen.is_none() && running.is_welcome);
        if let Some(connection) = connection.and_then(|running| running.connection) {
            self.say(connection, ToCoordinator::Heartbeat(Heartbeat::default()));
        }
        self.after(HEARTBEAT_INTERVAL_MS, Due::Heartbeat(process));
    }

    // ---- members

    fn step(&mut self, process: Process, event: Option<SyncEvent>) {
        let Some(node) = self.nodes.get_mut(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(running) = &mut node.running else { return };
        if let Some(held) = &mut running.frozen {
            held.extend(event.map(Held::Event));
            return;
        }
        let Some(session) = &mut running.session else { return };
        match session.sync.step(event).unwrap() {
            None => self.follow(process),
            Some(Outcome::Dismissed(_)) => {
                let returns = node.returns_after.take();
                (node.is_dismissed, node.running) = (returns.is_none(), None);
                if let Some(pause) = returns {
                    self.after(pause.as_millis() as u64, Due::Start(process.worker));
                }
            }
            Some(Outcome::Rejoin(_) | Outcome::TooLate(..)) => self.restart(process.worker, 100),
        }
    }

    /// What the device does, and when the synchroniser is to be woken.
    fn follow(&mut self, process: Process) {
        let now = self.now();
        let Some(running) = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut()) else {
            return;
        };
        let Some(session) = &mut running.session else { return };
        let told = session.device.go_on();
        let wait = session.sync.wait().map(|wait| now + wait);
        let timer = wait.filter(|at| session.timer.is_none_or(|set| *at < set || set <= now));
        if timer.is_some() {
            session.timer = timer;
        }
        if let Some(at) = timer {
            self.push(at, Due::SyncTimer(process));
        }
        self.device_says(process, told);
    }

    fn device_says(&mut self, process: Process, Told { said, is_computing, trained }: Told) {
        for message in said {
            self.after(0, Due::ToSync(process, SyncEvent::Device(message)));
        }
        if let Some((round, positions)) = trained {
            self.books.trained(process.worker, round, positions);
        }
        if is_computing {
            let takes = self.draw(20..80);
            self.after(takes, Due::Computed(process));
        }
    }

    fn wake(&mut self, process: Process) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(session) = node.running.as_mut().and_then(|running| running.session.as_mut()) else {
            return;
        };
        match session.sync.wait() {
            Some(wait) if wait.is_zero() => {
                session.timer = None;
                self.step(process, None);
            }
            Some(wait) => {
                let at = now + wait;
                session.timer = Some(at);
                self.push(at, Due::SyncTimer(process));
            }
            None => session.timer = None,
        }
    }

    fn computed(&mut self, process: Process) {
        let Some(node) = self.nodes.get_mut(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(running) = &mut node.running else { return };
        if running.frozen.is_some() {
            return self.after(100, Due::Computed(process));
        }
        let Some(session) = &mut running.session else { return };
        let told = session.device.computed();
        self.device_says(process, told);
        self.follow(process);
    }

    /// Takes all that was said on its way.
    fn deliver(&mut self) {
        loop {
            let said = self.bus.take();
            if said.is_empty() {
                return;
            }
            said.into_iter().for_each(|said| self.send(said));
        }
    }

    fn send(&mut self, said: Said) {
        match said {
            Said::ToPeer { from, to, event } => {
                let at = self.way(from, to);
                self.push(at, Due::FromPeer(to, event));
            }
            Said::Answer { from, to, event } => {
                let at = self.way(from, to.worker);
                self.push(at, Due::ToSync(to, event));
            }
            Said::ToSelf { to, event } => self.after(1, Due::ToSync(to, event)),
            Said::ToDevice { to, message } => {
                let Some(node) = self.nodes.get_mut(&to.worker).filter(|node| node.is(to)) else { return };
                if let Some(session) = node.running.as_mut().and_then(|running| running.session.as_mut()) {
                    session.device.take(message);
                    self.follow(to);
                }
            }
            Said::ToCoordinator { from, message } => self.report(from, message),
        }
    }

    /// When something from one worker to another arrives: behind what was sent before.
    fn way(&mut self, from: WorkerId, to: WorkerId) -> Duration {
        let more = self.slow.get(&(from.min(to), from.max(to))).copied().unwrap_or_default();
        let at = self.now() + Duration::from_millis(self.draw(5..80)) + more;
        let last = self.arrivals.entry((from, to)).or_default();
        *last = at.max(*last);
        *last
    }

    fn report(&mut self, from: Process, message: ToCoordinator) {
        if let ToCoordinator::RoundApplied(report) = &message {
            self.books.applied(report);
        }
        let Some(node) = self.nodes.get_mut(&from.worker).filter(|node| node.is(from)) else { return };
        let Some(running) = &mut node.running else { return };
        let connection = running.connection.filter(|_| running.is_welcome);
        let Some(session) = &mut running.session else { return };
        session.report(message);
        if let Some(connection) = connection {
            session.say().into_iter().for_each(|report| self.say(connection, report));
        }
    }
}
