//! The world: one queue of what is due, and what becomes of it.

mod connections;
mod drawn;
mod failing;
mod members;
mod planned;
mod reporting;
mod strangers;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{FragmentId, Round, RunId, WorkerId};
use longhaul_member::message::ToDevice;
use longhaul_member::{Outcome, SyncEvent};
use longhaul_plan::Answer;
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, Heartbeat, ToCoordinator, ToWorker};
use longhaul_run::{Command, ConnectionId, Event, Notice, Phase, Record, Run, RunState};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

pub use self::drawn::Exchange;
pub(crate) use self::reporting::report_of;

use self::planned::Tally;
use self::watching::Watch;
use crate::agenda::{Agenda, Lane};
use crate::bus::{Bus, Process, Said};
use crate::churn::Faults;
use crate::copies::{Disks, temporary_folder};
use crate::device::Told;
use crate::faults::{Fault, FrameFault};
use crate::node::{Held, Members, Node};
use crate::pace::{Pace, Planned};
use crate::simulate::Control;
use crate::stand_in::{members_config, specs};
use crate::table::Table;

const RUN: RunId = RunId([7; 16]);

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
    /// A result reaches the device of its owner.
    ToDevice(Process, ToDevice),
    Computed(Process),
    /// A fragment of its gradient is final.
    Finished(Process, FragmentId),
    /// The data are open and the model is built.
    Built(Process),
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
    /// A process ends, and another one is started later: machines that come and go by themselves.
    Die(Process),
    /// All machines of a site are off for so long.
    Outage(usize, Duration),
    /// The planner has compared the present plan with others.
    Planned(Box<Answer>),
}

/// A coordinator with its store, and workers, in virtual time.
pub struct World {
    bus: Bus,
    config: RunConfig,
    run: Option<Run>,
    store: Store,
    nodes: Table<WorkerId, Node>,
    /// Made of the configuration with which workers were welcomed last, and the text of that.
    members: Option<(String, Members)>,
    disks: Disks,
    /// Of all disks.
    _folder: TempDir,
    agenda: Agenda<Due>,
    links: Links,
    operator: Operator,
    pace: Pace,
    tally: Tally,
    watch: Watch,
    rng: ChaCha8Rng,
}

/// What the coordinator has written down.
struct Store {
    state: RunState,
    longest: usize,
}

/// Connections to the coordinator, and what is between workers.
#[derive(Default)]
struct Links {
    /// Whose each connection is, and when the last messages of both directions arrive.
    connections: Table<ConnectionId, (Process, [Duration; 2])>,
    next_connection: u64,
    /// Nobody reaches the coordinator before.
    reachable_at: Duration,
    /// Of two workers, by what more their messages take, and when the last one arrives.
    slow: BTreeMap<(WorkerId, WorkerId), Duration>,
    arrivals: BTreeMap<(WorkerId, WorkerId), Duration>,
    /// Frames that were sent, and the faults of those to come.
    frames: u64,
    of_frames: BTreeMap<u64, FrameFault>,
    /// Workers that do not reach the coordinator before.
    alone: BTreeMap<WorkerId, Duration>,
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

impl World {
    /// A run on machines as the planner knows them.
    ///
    /// # Errors
    /// The model cannot be cut as the configuration says, or no temporary folder can be made.
    pub(crate) fn planned(config: RunConfig, planned: Planned, faults: &Faults, seed: u64) -> Result<Self> {
        let sites = planned.sites();
        let places = planned.workers().map(|(worker, site)| (worker, sites[site].clone())).collect();
        let mut world = Self::made_of(config, places, Pace::Planned(Box::new(planned)), seed)?;
        world.expect(faults);
        Ok(world)
    }

    fn made_of(config: RunConfig, places: Vec<(WorkerId, String)>, pace: Pace, seed: u64) -> Result<Self> {
        let state = RunState::new(RUN, &config);
        let folder = temporary_folder().context("make the machines' disks")?;
        let disk = |worker: WorkerId| folder.path().join(worker.to_string());
        let nodes = places
            .into_iter()
            .map(|(worker, site)| (worker, Node::new(worker, site, disk(worker))))
            .collect();
        let mut world = Self {
            bus: Bus::default(),
            run: None,
            store: Store { state, longest: 0 },
            nodes,
            _folder: folder,
            members: None,
            disks: Disks::default(),
            agenda: Agenda::default(),
            links: Links::default(),
            operator: Operator::default(),
            pace,
            tally: Tally::default(),
            watch: Watch::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            config,
        };
        world.start_run();
        for (turn, worker) in (1..).zip(world.nodes.keys().copied().collect::<Vec<_>>()) {
            let at = world.pace.start_every() * turn;
            world.push(at, Due::Start(worker));
        }
        Ok(world)
    }

    /// Something goes wrong then.
    pub fn fault_at(&mut self, at: Duration, fault: Fault) {
        self.push(at, Due::Fault(fault));
    }

    /// Something goes wrong with the frame of this number, from zero.
    pub fn fault_of_frame(&mut self, number: u64, fault: FrameFault) {
        self.links.of_frames.insert(number, fault);
    }

    /// A worker's process ends before its event of this number, from zero, and another one is started after so long.
    pub fn fault_before_event(&mut self, worker: WorkerId, number: u64, pause: Duration) {
        self.nodes.get_mut(&worker).into_iter().for_each(|node| node.ends_before = Some((number, pause)));
    }

    /// Events that members have handled so far.
    pub fn events(&self) -> impl Iterator<Item = (WorkerId, u64)> + '_ {
        self.nodes.values().map(|node| (node.worker, node.handled))
    }

    /// Rounds of a whole run.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.config.round_schedule().rounds()
    }

    /// Frames that were sent so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.links.frames
    }

    /// Until the run has finished, or the time is up.
    ///
    /// # Panics
    /// A member failed, or was told what it may not be told.
    pub fn run_until(&mut self, end: Duration) {
        if let Err(error) = self.try_until(end, &Control::default()) {
            panic!("{error:#}");
        }
    }

    fn try_until(&mut self, end: Duration, control: &Control) -> Result<()> {
        while let Some((at, due)) = self.agenda.pop(end) {
            self.pass(at);
            self.happen(due);
            self.end_if_suspended();
            ensure!(!control.stop.load(Ordering::Relaxed), "interrupted");
            control.steps.store(self.tally.steps, Ordering::Relaxed);
            control.virtual_ms.store(at.as_millis() as u64, Ordering::Relaxed);
            if let Some(failure) = self.watch.failure.take() {
                return Err(failure);
            }
            if self.run.as_ref().is_some_and(|run| run.state().phase == Phase::Finished) {
                break;
            }
        }
        Ok(())
    }

    /// What the coordinator has written down last.
    #[must_use]
    pub fn coordinator_state(&self) -> &RunState {
        &self.store.state
    }

    /// First rounds that the intact checkpoints on a worker's disk do not contain, newest first.
    #[must_use]
    pub fn checkpoints_of(&self, worker: WorkerId) -> Vec<Round> {
        let run = self.coordinator_state().run;
        let offers = self.nodes.get(&worker).map(|node| node.checkpoints(run)).unwrap_or_default();
        offers.into_iter().map(|offer| offer.next_round).collect()
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
        self.store.longest
    }

    /// Whether each worker was away at some time, and one was killed: then nobody may have the state.
    #[must_use]
    pub fn were_all_away(&self) -> bool {
        self.nodes.values().all(|node| node.suffered.was_away)
            && self.nodes.values().any(|node| node.suffered.was_killed)
    }

    /// Whether a disk had no room at some time.
    #[must_use]
    pub fn had_full_disk(&self) -> bool {
        self.nodes.values().any(|node| node.suffered.had_full_disk)
    }

    fn now(&self) -> Duration {
        self.bus.now()
    }

    fn push(&mut self, at: Duration, due: Due) {
        match due {
            Due::Heartbeat(_) => self.agenda.push_in(Lane::Heartbeats, at, due),
            Due::ToRun(..) => self.agenda.push_in(Lane::ToRun, at, due),
            due => self.agenda.push(at, due),
        }
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
                self.agenda.run_timers.remove(&now);
                self.tell_run(Event::Timer);
            }
            Due::ToNode(connection, message) => self.hear(connection, message),
            Due::ClosedAtNode(connection) => self.lose(connection),
            Due::ToSync(process, event) => self.step(process, Some(event)),
            Due::FromPeer(worker, event) => {
                // Where nobody is, an answer is none.
                let running = self.nodes.get(&worker).and_then(|node| node.running.as_ref());
                if let Some(process) = running.map(|running| running.process) {
                    self.note_result(process, &event);
                    self.step(process, Some(event));
                }
            }
            Due::SyncTimer(process) => self.wake(process),
            Due::ToDevice(process, message) => self.tell_device(process, message),
            Due::Computed(process) => self.computed(process),
            Due::Finished(process, fragment) => self.finished(process, fragment),
            Due::Built(process) => self.built(process),
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
            Due::Die(process) => self.die(process),
            Due::Outage(site, length) => self.end_site(site, length),
            Due::Planned(answer) => self.tell_run(Event::Planned(answer)),
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
        match Run::new(self.config.clone(), self.store.state.clone(), self.now()) {
            Ok(run) => self.run = Some(run),
            Err(error) => self.watch.failure = Some(error.into()),
        }
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
        let Some((commands, timeout)) = self.handle(event) else { return };
        commands.into_iter().for_each(|command| self.carry_out(command));
        if let Some(at) = timeout.filter(|at| self.agenda.run_timers.insert(*at)) {
            self.push(at, Due::RunTimer);
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Send { connection, message } => {
                self.tally.coordinator.told += 1;
                if self.pace.planned().is_none() {
                    self.check_told(connection, &message);
                }
                let at = self.arrival(connection, 0);
                self.push(at, Due::ToNode(connection, message));
            }
            Command::Close { connection, .. } => {
                let at = self.arrival(connection, 0);
                self.push(at, Due::ClosedAtNode(connection));
            }
            Command::Persist(Record::State(state)) => self.persist(&state),
            Command::Persist(Record::Round(_)) => {}
            Command::Plan(question) => self.after(0, Due::Planned(Box::new(question.answer()))),
            Command::Report(notice) => {
                let now = self.now();
                self.note(&notice);
                if self.pace.planned().is_none() {
                    let Notice { severity, worker, text, .. } = &notice;
                    self.watch.log.push(format!("{now:>8.3?} {severity:?} {worker:?} {text}"));
                }
            }
        }
    }

    /// As a store has it: bytes, and no memory.
    fn persist(&mut self, state: &RunState) {
        // Nothing takes up the state of a run that is simulated for its figures.
        if self.pace.planned().is_some() {
            return;
        }
        let bytes = postcard::to_stdvec(state).unwrap_or_default();
        self.store.longest = self.store.longest.max(bytes.len());
        match postcard::from_bytes(&bytes) {
            Ok(read) => self.store.state = read,
            Err(error) => self.watch.failure = Some(error.into()),
        }
        assert_eq!(self.store.state, *state, "a state is written as it is");
    }

    /// When the next message over a connection arrives: behind those before it.
    fn arrival(&mut self, connection: ConnectionId, direction: usize) -> Duration {
        let worker = self.links.connections.get(&connection).map(|(process, _)| process.worker);
        let at = self.now() + self.pace.control(worker, &mut self.rng);
        let Some((_, last)) = self.links.connections.get_mut(&connection) else { return at };
        last[direction] = last[direction].max(at);
        last[direction]
    }
}
