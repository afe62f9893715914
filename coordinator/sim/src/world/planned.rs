//! Machines as the planner knows them: they come and go, tell their speed, and count their time.

use std::collections::VecDeque;

use longhaul_common::config::RunConfig;
use longhaul_common::id::Generation;
use longhaul_common::model::tiny::tiny_mlp;
use longhaul_proto::control::message::{GenerationStart, Member, Profile, TimeSpent, Welcome};
use longhaul_proto::round::FrameKind;
use longhaul_run::Severity;

use super::*;
use crate::node::{Running, Work};

/// Measuring the link to one peer.
const PROBE: Duration = Duration::from_secs(1);
/// Warnings that are kept.
const WARNINGS_KEPT: usize = 10;

/// Figures of a run.
#[derive(Default)]
pub(super) struct Tally {
    pub coordinator: CoordinatorTally,
    /// Steps that count.
    pub steps: u64,
    pub generations: u64,
    pub killed: u64,
    /// From the start of a process that replaces another to its generation.
    pub back: Vec<Duration>,
    /// From a death to the generation without the worker.
    pub settled: Vec<Duration>,
    /// When the first generation began, and when the warm-up's steps counted.
    pub began: Option<Duration>,
    pub warmed_up: Option<Duration>,
    /// When a tenth of all steps counted, and how many did.
    pub tenth: Option<(Duration, u64)>,
    pub plan: Option<String>,
    pub warnings: VecDeque<String>,
    /// Of processes that ended.
    pub gone: Work,
    /// Sum over processes of their time since the first generation began.
    pub lived: Duration,
    /// Processes.
    pub alive: u32,
    pub churn: Churning,
}

/// The coordinator's load.
#[derive(Default)]
pub(super) struct CoordinatorTally {
    /// Messages from it, and events to it.
    pub told: u64,
    pub heard: u64,
    /// A core's time in its decisions.
    pub thinking: Duration,
}

/// Machines that come and go.
#[derive(Default)]
pub(super) struct Churning {
    faults: Faults,
    /// The last generation that anybody has begun.
    last: Generation,
    /// By site: it is off until then.
    out_until: BTreeMap<usize, Duration>,
    /// Deaths of members that no generation has begun without.
    deaths: BTreeMap<WorkerId, Duration>,
    /// Starts of processes that replace others and take no part yet.
    starts: BTreeMap<WorkerId, Duration>,
}

impl World {
    /// These faults are to come.
    pub(super) fn expect(&mut self, faults: &Faults) {
        self.tally.churn.faults = faults.clone();
        let Some(planned) = self.pace.planned() else { return };
        let sites = planned.sites();
        let memory = |worker| {
            let machine = planned.machine(worker)?;
            Some((machine.memory_bytes as u64, machine.host_memory_bytes.map(|bytes| bytes as u64)))
        };
        let memories: BTreeMap<WorkerId, (u64, Option<u64>)> =
            self.nodes.keys().filter_map(|worker| Some((*worker, memory(*worker)?))).collect();
        for (worker, node) in self.nodes.iter_mut() {
            node.memory = memories.get(&worker).copied().unwrap_or(node.memory);
        }
        for outage in &faults.outage {
            let Some(site) = sites.iter().position(|site| *site == outage.site) else { continue };
            let length = Duration::from_secs_f64(outage.for_s);
            self.push(Duration::from_secs_f64(outage.at_s), Due::Outage(site, length));
        }
    }

    /// Time passes for all processes, once a generation has begun.
    pub(super) fn pass(&mut self, at: Duration) {
        let passed = at.saturating_sub(self.now());
        if self.tally.began.is_some() && !passed.is_zero() && self.pace.planned().is_some() {
            self.tally.lived += passed * self.tally.alive;
        }
        self.bus.set_now(at);
    }

    /// The coordinator's answer to an event, and when it is to be woken.
    #[allow(clippy::disallowed_methods, reason = "measures the coordinator's decisions")]
    pub(super) fn handle(&mut self, event: Event) -> Option<(Vec<Command>, Option<Duration>)> {
        let now = self.now();
        let run = self.run.as_mut()?;
        self.tally.coordinator.heard += 1;
        let before = std::time::Instant::now();
        let answer = (run.handle(now, event), run.next_timeout());
        self.tally.coordinator.thinking += before.elapsed();
        self.note_progress();
        Some(answer)
    }

    // ---- processes

    /// A process has been started. However long its machine is up already: the distribution of lives has no memory.
    pub(super) fn started(&mut self, process: Process) {
        self.tally.alive += 1;
        if self.nodes.get(&process.worker).is_some_and(|node| node.started > 1) {
            self.tally.churn.starts.insert(process.worker, self.now());
        }
        if let Some(churn) = self.tally.churn.faults.churn {
            let at = self.now() + churn.life(&mut self.rng);
            self.push(at, Due::Die(process));
        }
    }

    pub(super) fn die(&mut self, process: Process) {
        let Some(churn) = self.tally.churn.faults.churn else { return };
        let worker = process.worker;
        if self.nodes.get(&worker).is_some_and(|node| node.is(process)) {
            let absence = churn.absence(&mut self.rng);
            self.end_without_a_word(worker);
            let off_for = self.off_for(worker);
            self.push(self.now() + absence.max(off_for), Due::Start(worker));
        }
    }

    pub(super) fn end_site(&mut self, site: usize, length: Duration) {
        let until = self.now() + length;
        let off = self.tally.churn.out_until.entry(site).or_default();
        *off = until.max(*off);
        let Some(planned) = self.pace.planned() else { return };
        let there: Vec<WorkerId> =
            planned.workers().filter(|(_, at)| *at == site).map(|(worker, _)| worker).collect();
        for worker in there {
            if self.nodes.get(&worker).is_some_and(|node| node.running.is_some()) {
                self.end_without_a_word(worker);
                self.push(until, Due::Start(worker));
            }
        }
    }

    /// How long the site of a worker is off from now on.
    pub(super) fn off_for(&self, worker: WorkerId) -> Duration {
        let site = self.pace.planned().and_then(|planned| planned.site_of(worker));
        let until = site.and_then(|site| self.tally.churn.out_until.get(&site)).copied();
        until.unwrap_or_default().saturating_sub(self.now())
    }

    /// The coordinator notices by silence alone.
    fn end_without_a_word(&mut self, worker: WorkerId) {
        self.tally.killed += 1;
        let run = self.run.as_ref();
        let generation = run.and_then(|run| run.state().generations.present.as_ref());
        if generation.is_some_and(|generation| generation.rank_of(worker).is_some()) {
            self.tally.churn.deaths.insert(worker, self.now());
        }
        self.tally.churn.starts.remove(&worker);
        self.disks.remove(worker);
        let running = self.nodes.get_mut(&worker).and_then(|node| node.running.take());
        running.iter().for_each(|running| self.bury(running));
    }

    /// The work of a process that ends counts on.
    pub(super) fn bury(&mut self, running: &Running) {
        self.tally.alive = self.tally.alive.saturating_sub(1);
        let Some(session) = &running.session else { return };
        let work = session.work.by(self.now());
        let gone = &mut self.tally.gone;
        gone.compute += work.compute;
        gone.wait += work.wait;
        gone.tokens += work.tokens;
    }

    // ---- messages

    /// A worker is let in. Where the plan is open, it tells its speed, and is welcomed again with a plan.
    pub(super) fn welcome(&mut self, process: Process, connection: ConnectionId, welcome: &Welcome) {
        let members = match self.members_of(welcome) {
            Ok(members) => members,
            Err(error) => {
                self.watch.failure = Some(error);
                return;
            }
        };
        if members.config.is_plan_open() {
            return self.tell_speed(process, connection);
        }
        let Some(node) = self.nodes.get_mut(&process.worker) else { return };
        if !node.welcome(welcome, &members, &self.bus) {
            return self.said_again(connection);
        }
        // The parts of a model are given out later.
        if !members.config.parallel.is_divided() {
            let at = self.now() + self.pace.build();
            self.push(at, Due::Built(process));
        }
    }

    /// Most workers are welcomed with the configuration of the last one.
    fn members_of(&mut self, welcome: &Welcome) -> Result<Members> {
        if let Some((_, members)) = self.members.as_ref().filter(|(text, _)| *text == welcome.config) {
            return Ok(members.clone());
        }
        let config = RunConfig::parse(&welcome.config)?;
        let round_trip = |planned: &Planned| {
            let trips = planned.workers().filter_map(|(worker, _)| planned.link(WorkerId(1), worker));
            Duration::from_secs_f64(trips.map(|link| link.round_trip_s).fold(0.0, f64::max).min(60.0))
        };
        let members = Members {
            schedule: config.round_schedule(),
            specs: if self.pace.planned().is_some() { specs(&config)?.into() } else { [tiny_mlp()].into() },
            disks: self.disks.clone(),
            atoms: self.watch.atoms.clone(),
            round_trip: self.pace.planned().map_or(Duration::from_millis(60), round_trip),
            // Nothing measures a link here.
            config: Arc::new(match self.pace.planned().is_some() || config.sync.adapt {
                true => members_config(&config),
                false => config,
            }),
        };
        self.members = Some((welcome.config.clone(), members.clone()));
        Ok(members)
    }

    fn tell_speed(&mut self, process: Process, connection: ConnectionId) {
        if let Some(running) = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut()) {
            running.is_welcome = true;
        }
        let Some(planned) = self.pace.planned() else { return };
        let Some(machine) = planned.machine(process.worker) else { return };
        let profile =
            Profile { flops_per_s: machine.flops_per_s, vocabulary: planned.vocabulary(), gradient_hash: 1 };
        self.say(connection, ToCoordinator::Profile(profile));
    }

    /// A worker measures its links to these peers, one after the other.
    pub(super) fn probe(&mut self, process: Process, connection: ConnectionId, peers: &[Member]) {
        let Some(planned) = self.pace.planned() else { return };
        let links: Vec<_> = peers.iter().map(|peer| planned.link(process.worker, peer.worker)).collect();
        let takes = PROBE * u32::try_from(links.len()).unwrap_or(u32::MAX);
        let at = self.arrival(connection, 1) + takes;
        self.push(at, Due::ToRun(connection, ToCoordinator::Links(links)));
    }

    /// A part of the model is built.
    pub(super) fn built(&mut self, process: Process) {
        let Some(node) = self.nodes.get(&process.worker).filter(|node| node.is(process)) else { return };
        let session = node.running.as_ref().and_then(|running| running.session.as_ref());
        if let Some(prepared) = session.map(|session| session.device.prepared()) {
            self.step(process, Some(SyncEvent::Device(prepared)));
        }
    }

    /// The figures that a worker reports.
    pub(super) fn heartbeat_of(&self, process: Process) -> Heartbeat {
        let running = self.nodes.get(&process.worker).and_then(|node| node.running.as_ref());
        let session = running.and_then(|running| running.session.as_ref());
        let Some(session) = session.filter(|_| self.pace.planned().is_some()) else {
            return Heartbeat::default();
        };
        let work = session.work.by(self.now());
        Heartbeat {
            step: session.device.step(),
            tokens: work.tokens,
            time: TimeSpent {
                compute_s: work.compute.as_secs_f64(),
                wait_s: work.wait.as_secs_f64(),
                ..TimeSpent::default()
            },
            ..Heartbeat::default()
        }
    }

    // ---- results

    /// A worker has a result from another one.
    pub(super) fn note_result(&mut self, process: Process, event: &SyncEvent) {
        let SyncEvent::Frame { frame, .. } = event else { return };
        let running = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut());
        if let Some(session) = running.and_then(|running| running.session.as_mut())
            && frame.header.kind == FrameKind::Result
        {
            session.fetched = Some(frame.header.round);
        }
    }

    /// When a device has what it is told, if that is later. A stand-in has one fragment, so its owner has the whole result before all others; real owners wait
    /// for each other's fragments.
    pub(super) fn own_result_at(&mut self, to: Process, message: &ToDevice) -> Option<Duration> {
        let now = self.now();
        let schedule = self.run.as_ref()?.state().rounds.schedule;
        let running = self.nodes.get_mut(&to.worker)?.running.as_mut()?;
        let session = running.session.as_mut()?;
        let planned = self.pace.planned()?;
        if let ToDevice::Apply { round, .. } = message
            && session.fetched != Some(*round)
        {
            session.results_at = now + planned.half_of(*round, schedule);
        }
        // In order: nothing overtakes a result.
        (session.results_at > now).then_some(session.results_at)
    }

    // ---- figures

    /// A worker begins a generation.
    pub(super) fn begins(&mut self, worker: WorkerId, start: &GenerationStart) {
        let now = self.now();
        if let Some(started) = self.tally.churn.starts.remove(&worker) {
            self.tally.back.push(now - started);
        }
        // The first one to begin stands for all.
        if start.membership.generation <= self.tally.churn.last {
            return;
        }
        let Some(generation) = self.run.as_ref().and_then(|run| run.state().generations.present.clone())
        else {
            return;
        };
        self.tally.churn.last = start.membership.generation;
        self.tally.generations += 1;
        self.tally.began.get_or_insert(now);
        for (worker, died) in std::mem::take(&mut self.tally.churn.deaths) {
            if generation.rank_of(worker).is_some() {
                self.tally.churn.deaths.insert(worker, died);
            } else {
                self.tally.settled.push(now - died);
            }
        }
        let config = self.members.as_ref().and_then(|(text, _)| RunConfig::parse(text).ok());
        let config = config.unwrap_or_else(|| self.config.clone());
        if let Some(planned) = self.pace.planned_mut()
            && let Err(unfit) = planned.plan(&config, &generation)
        {
            self.watch.failure = Some(unfit.into());
        }
    }

    /// A device begins a step.
    pub(super) fn note_step(&mut self, process: Process, takes: Duration, sequences: usize) {
        let (now, length) = (self.now(), u64::from(self.config.predictions_per_sample()));
        let running = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut());
        if let Some(session) = running.and_then(|running| running.session.as_mut()) {
            // The workers of a copy have the same sequences, which count once.
            let counts = u64::from(session.device.rank() == 0);
            session.work.begins(now, takes, sequences, counts * length * sequences as u64);
        }
    }

    /// A device may have begun or ended to wait.
    pub(super) fn note_waiting(&mut self, process: Process) {
        let now = self.now();
        let running = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut());
        if let Some(session) = running.and_then(|running| running.session.as_mut()) {
            let is_waiting = session.device.is_waiting();
            session.work.waits(is_waiting, now);
        }
    }

    fn note_progress(&mut self) {
        let (Some(planned), Some(run)) = (self.pace.planned(), self.run.as_ref()) else { return };
        let schedule = run.state().rounds.schedule;
        let counted = schedule.steps_of(run.state().rounds.ledger.through()).start;
        let now = self.bus.now();
        self.tally.steps = counted;
        if counted > 0 && counted >= planned.warmup_steps() {
            self.tally.warmed_up.get_or_insert(now);
        }
        if self.tally.tenth.is_none() && counted * 10 >= schedule.steps {
            self.tally.tenth = Some((now, counted));
        }
    }

    /// The coordinator reports something.
    pub(super) fn note(&mut self, notice: &Notice) {
        if notice.text.starts_with("the plan: ") {
            self.tally.plan = Some(notice.text.clone());
        }
        if notice.severity == Severity::Info || self.pace.planned().is_none() {
            return;
        }
        if self.tally.warnings.len() == WARNINGS_KEPT {
            self.tally.warnings.pop_front();
        }
        let worker = notice.worker.map_or_else(String::new, |worker| format!("{worker} "));
        self.tally.warnings.push_back(format!("{:.1} s: {worker}{}", self.now().as_secs_f64(), notice.text));
    }
}
