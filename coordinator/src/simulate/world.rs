//! The coordinator, the workers, and what happens between them.

mod computing;
mod generations;
mod heartbeats;
mod joining;
mod reporting;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, Join, Start, ToCoordinator, ToWorker};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use self::heartbeats::Speaker;
use super::exchanges::Exchanges;
use super::queue::{Happening, Queue};
use super::rounds::Group;
use super::shares::Shares;
use super::worker::{Stage, Stretch, Worker};
use super::{Report, Setup, SimulateError};
use longhaul_plan::Unfit;
use longhaul_run::{Command, ConnectionId, Event, Phase, Record, Run, Severity, State};

/// Workers are told apart by so many phases of their heartbeats, which are one after the other.
const HEARTBEAT_SLOTS: usize = 50;
/// Between the starts of two workers' processes.
const START_EVERY: Duration = Duration::from_millis(1);
/// What it takes to open the data and to build a model, or a second one.
const BUILD: Duration = Duration::from_secs(1);
/// What it takes to reach the coordinator.
const CONNECT: Duration = Duration::from_millis(200);
/// What a probe of a way takes.
const PROBE: Duration = Duration::from_secs(1);
/// A device takes as long as it should, or up to so much longer.
const JITTER: f64 = 0.05;
/// Samples in the training text: more than any run takes.
const SAMPLES: u64 = 1 << 40;
/// Buffers of a state that is fetched: the parameters and two moments, in f32.
const STATE_BYTES: f64 = 12.0;
/// Warnings that are kept.
const WARNINGS_KEPT: usize = 10;

pub(super) struct World {
    setup: Setup,
    run: Run,
    agenda: Agenda,
    rng: ChaCha8Rng,
    workers: Vec<Worker>,
    lines: Lines,
    /// As the workers were last welcomed with it, and the text of that.
    config: RunConfig,
    welcome: String,
    /// Processes that there are.
    alive: u32,
    /// By rank.
    groups: BTreeMap<u32, Group>,
    costs: Costs,
    last_generation: Generation,
    outages: Outages,
    tally: Tally,
    failure: Option<Unfit>,
}

#[derive(Default)]
struct Tally {
    generations: u64,
    killed: u64,
    back: Vec<Duration>,
    settled: Vec<Duration>,
    heard: u64,
    told: u64,
    thinking: Duration,
    began: Option<Duration>,
    /// When the warm-up's steps counted.
    opened: Option<Duration>,
    /// When a tenth of all steps counted, and how many did.
    tenth: Option<(Duration, u64)>,
    plan: Option<String>,
    warnings: VecDeque<String>,
    gone: Gone,
}

/// Of processes that are gone.
#[derive(Default)]
struct Gone {
    compute: Duration,
    wait: Duration,
    /// What they trained on.
    tokens: u64,
    /// Since the first generation, how long all have lived.
    lived: Duration,
}

/// What steps and exchanges take.
struct Costs {
    /// Parameters of each part of the model.
    parameters: Vec<u64>,
    /// By worker: seconds of each sequence of a step.
    sequence_s: BTreeMap<WorkerId, f64>,
    /// How much of a step each has.
    shares: Shares,
    /// What exchanges take, by the phase of the run.
    exchanges: Exchanges,
}

/// Outages that are not over, or not settled.
struct Outages {
    /// By site: its workers are away until then.
    out_until: Vec<Duration>,
    /// When those died that no generation has begun without yet.
    deaths: BTreeMap<WorkerId, Duration>,
    /// When those started that have not taken part yet.
    starts: BTreeMap<WorkerId, Duration>,
}

/// Connections, and who speaks for others.
struct Lines {
    connections: BTreeMap<ConnectionId, usize>,
    last_connection: u64,
    /// By site: the place of who speaks for it, and what it was shown.
    speakers: Vec<Speaker>,
}

/// Virtual time, and what is due.
struct Agenda {
    now: Duration,
    queue: Queue,
    timer_at: Option<Duration>,
}

impl World {
    pub fn new(setup: Setup) -> Result<Self, SimulateError> {
        let state = State::new(RunId([0; 16]), &setup.config);
        let run = Run::new(setup.config.clone(), state, Duration::ZERO)?;
        let devices = setup.topology.devices();
        let workers: Vec<Worker> =
            (1..).zip(devices).map(|(number, device)| Worker::new(WorkerId(number), device)).collect();
        let sites = setup.topology.sites.len();
        let (out_until, speakers) = (vec![Duration::ZERO; sites], vec![Speaker::default(); sites]);
        let mut queue = Queue::default();
        for place in 0..workers.len() {
            queue.push(START_EVERY * u32::try_from(place).unwrap_or(u32::MAX), Happening::Start(place));
        }
        for slot in 0..HEARTBEAT_SLOTS {
            let period = Duration::from_millis(HEARTBEAT_INTERVAL_MS);
            queue.push(period * slot as u32 / HEARTBEAT_SLOTS as u32, Happening::Heartbeats(slot));
        }
        for outage in &setup.faults.outage {
            let site = setup.topology.sites.iter().position(|site| site.name == outage.site);
            let gone = Happening::Outage(site.unwrap_or_default(), Duration::from_secs_f64(outage.for_s));
            queue.push(Duration::from_secs_f64(outage.at_s), gone);
        }
        let (connections, deaths, starts) = Default::default();
        Ok(Self {
            rng: ChaCha8Rng::seed_from_u64(setup.seed),
            config: setup.config.clone(),
            welcome: String::new(),
            alive: 0,
            setup,
            run,
            agenda: Agenda { now: Duration::ZERO, queue, timer_at: None },
            workers,
            lines: Lines { connections, last_connection: 0, speakers },
            groups: BTreeMap::new(),
            costs: Costs {
                parameters: Vec::new(),
                sequence_s: BTreeMap::new(),
                shares: Shares::default(),
                exchanges: Exchanges::default(),
            },
            last_generation: Generation(0),
            outages: Outages { out_until, deaths, starts },
            tally: Tally::default(),
            failure: None,
        })
    }

    #[allow(clippy::disallowed_methods, reason = "measures what the simulation takes")]
    pub fn run(mut self) -> Result<Report, SimulateError> {
        let began = Instant::now();
        while let Some((at, happening)) = self.agenda.queue.pop(self.setup.until) {
            self.live(at - self.agenda.now);
            self.agenda.now = at;
            self.happen(happening);
            if let Some(failure) = self.failure.take() {
                return Err(failure.into());
            }
            if self.run.state().phase == Phase::Finished {
                break;
            }
        }
        Ok(self.report(began.elapsed()))
    }

    /// Time passes for all processes, once there is a generation.
    fn live(&mut self, passed: Duration) {
        if self.tally.began.is_some() && !passed.is_zero() {
            self.tally.gone.lived += passed * self.alive;
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Start(place) => self.start(place),
            Happening::Kill(place, life) if self.workers[place].process.life == life => self.kill(place),
            Happening::Connect(place, life) if self.workers[place].process.life == life => {
                self.connect(place)
            }
            Happening::Kill(..) | Happening::Connect(..) => {}
            Happening::Outage(site, length) => self.end_site(site, length),
            Happening::ToRun(connection, message) => self.tell_run(Event::Message { connection, message }),
            Happening::ToWorker(place, connection, message) => {
                if self.workers[place].process.connection == Some(connection) {
                    self.hear(place, message);
                }
            }
            Happening::Closed(place, connection) => {
                // It does not know yet why, and comes back as a new one.
                if self.workers[place].process.connection == Some(connection) && self.workers[place].is_on() {
                    self.restart(place);
                }
            }
            Happening::Loaded(place, task, from) => {
                if self.workers[place].work.task == task {
                    self.loaded(place, from);
                }
            }
            Happening::HeadDone(place, task) if self.workers[place].work.task == task => {
                self.head_done(place)
            }
            Happening::RoundDone(place, task) if self.workers[place].work.task == task => {
                self.round_done(place)
            }
            Happening::HeadDone(..) | Happening::RoundDone(..) => {}
            Happening::Result(generation, rank, round) => self.result(generation, rank, round),
            Happening::Heartbeats(slot) => self.heartbeats(slot),
            Happening::Planned(answer) => self.tell_run(Event::Planned(answer)),
            // Another that was planned before an earlier one was.
            Happening::Timer if self.agenda.timer_at != Some(self.agenda.now) => {}
            Happening::Timer => {
                self.agenda.timer_at = None;
                self.tell_run(Event::Timer);
            }
        }
    }

    // ---- processes

    fn start(&mut self, place: usize) {
        if self.workers[place].is_on() || self.run.state().phase == Phase::Finished {
            return;
        }
        let out_until = self.outages.out_until[self.workers[place].device.site];
        if out_until > self.agenda.now {
            return self.agenda.queue.push(out_until, Happening::Start(place));
        }
        self.alive += 1;
        if self.workers[place].process.life > 0 {
            self.outages.starts.insert(self.workers[place].id, self.agenda.now);
        }
        self.join(place);
    }

    /// The same process, which has lost the thread, joins anew.
    fn restart(&mut self, place: usize) {
        self.bury(place);
        self.join(place);
    }

    fn join(&mut self, place: usize) {
        self.workers[place].restart();
        let life = self.workers[place].process.life;
        self.agenda.queue.push(self.agenda.now + CONNECT, Happening::Connect(place, life));
        if let Some(churn) = self.setup.faults.churn {
            // However long it has lived already: the distribution has no memory.
            let at = self.agenda.now + churn.life(&mut self.rng);
            self.agenda.queue.push(at, Happening::Kill(place, life));
        }
    }

    fn kill(&mut self, place: usize) {
        if !self.workers[place].is_on() {
            return;
        }
        self.end_process(place);
        let absence = self.setup.faults.churn.map(|churn| churn.absence(&mut self.rng));
        if let Some(absence) = absence {
            self.agenda.queue.push(self.agenda.now + absence, Happening::Start(place));
        }
    }

    fn end_site(&mut self, site: usize, length: Duration) {
        self.outages.out_until[site] = self.outages.out_until[site].max(self.agenda.now + length);
        for place in 0..self.workers.len() {
            if self.workers[place].device.site == site && self.workers[place].is_on() {
                self.end_process(place);
                self.agenda.queue.push(self.agenda.now + length, Happening::Start(place));
            }
        }
    }

    /// Without a word: the coordinator finds out by its silence.
    fn end_process(&mut self, place: usize) {
        self.tally.killed += 1;
        if self.workers[place].is_in_training() {
            self.outages.deaths.insert(self.workers[place].id, self.agenda.now);
        }
        self.outages.starts.remove(&self.workers[place].id);
        self.turn_off(place);
    }

    fn turn_off(&mut self, place: usize) {
        self.bury(place);
        if self.workers[place].is_on() {
            self.alive -= 1;
        }
        self.workers[place].stage = Stage::Off;
    }

    /// What it has done counts on.
    fn bury(&mut self, place: usize) {
        let worker = &mut self.workers[place];
        // What it was set to compute and will not.
        let undone = worker.work.busy_until.saturating_sub(self.agenda.now);
        let waits =
            if let Stage::Stalled(since) = worker.stage { self.agenda.now - since } else { Duration::ZERO };
        self.tally.gone.compute += worker.work.compute.saturating_sub(undone);
        self.tally.gone.wait += worker.work.wait + waits;
        (worker.work.compute, worker.work.wait, worker.work.busy_until) =
            (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        worker.work.stretch = Stretch::default();
        self.tally.gone.tokens += std::mem::take(&mut worker.work.tokens);
        worker.process.life += 1;
        worker.work.task += 1;
        if let Some(connection) = worker.process.connection.take() {
            self.lines.connections.remove(&connection);
        }
    }

    fn connect(&mut self, place: usize) {
        self.lines.last_connection += 1;
        let connection = ConnectionId(self.lines.last_connection);
        self.lines.connections.insert(connection, place);
        let worker = &mut self.workers[place];
        worker.process.connection = Some(connection);
        let (id, device, incarnation) = (worker.id, worker.device, worker.process.life);
        let checkpoints = worker.offers();
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.tell_run(Event::Opened { connection, worker: id, address });
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4801));
        let machine = self.setup.topology.device(device);
        self.say(
            place,
            ToCoordinator::Join(Join {
                incarnation,
                site: self.setup.topology.sites[device.site].name.clone(),
                lan_address: nowhere,
                wan_address: nowhere,
                device: "simulated".to_owned(),
                memory_bytes: machine.memory_bytes as u64,
                host_memory_bytes: machine.host_memory_bytes.map(|bytes| bytes as u64),
                held: None,
                too_late_ms: None,
                checkpoints,
            }),
        );
    }

    // ---- words

    /// From the coordinator's site to a worker's, or back.
    fn delay(&self, place: usize) -> Duration {
        let link = self.setup.topology.link(0, self.workers[place].device.site);
        Duration::from_secs_f64((link.round_trip_s / 2.0).min(1e9))
    }

    fn say(&mut self, place: usize, message: ToCoordinator) {
        if let Some(connection) = self.workers[place].process.connection {
            let at = self.agenda.now + self.delay(place);
            self.agenda.queue.push(at, Happening::ToRun(connection, message));
        }
    }

    #[allow(clippy::disallowed_methods, reason = "measures what the coordinator takes")]
    fn tell_run(&mut self, event: Event) {
        self.tally.heard += 1;
        let before = Instant::now();
        let commands = self.run.handle(self.agenda.now, event);
        self.tally.thinking += before.elapsed();
        for command in commands {
            self.follow(command);
        }
        let next = self.run.next_timeout();
        if let Some(at) = next.filter(|at| self.agenda.timer_at.is_none_or(|timer| *at < timer)) {
            self.agenda.timer_at = Some(at);
            self.agenda.queue.push(at, Happening::Timer);
        }
    }

    fn follow(&mut self, command: Command) {
        match command {
            Command::Send { connection, message } => {
                self.tally.told += 1;
                let Some(&place) = self.lines.connections.get(&connection) else { return };
                let at = self.agenda.now + self.delay(place);
                self.agenda.queue.push(at, Happening::ToWorker(place, connection, message));
            }
            Command::Close { connection, .. } => {
                let Some(&place) = self.lines.connections.get(&connection) else { return };
                let at = self.agenda.now + self.delay(place);
                self.agenda.queue.push(at, Happening::Closed(place, connection));
            }
            Command::Plan(question) => {
                self.agenda.queue.push(self.agenda.now, Happening::Planned(Box::new(question.answer())));
            }
            Command::Persist(Record::State(_) | Record::Round(_)) => {}
            Command::Report(notice) => {
                if notice.text.starts_with("the plan: ") {
                    self.tally.plan = Some(notice.text.clone());
                }
                if notice.severity != Severity::Info {
                    if self.tally.warnings.len() == WARNINGS_KEPT {
                        self.tally.warnings.pop_front();
                    }
                    let who = notice.worker.map_or_else(String::new, |worker| format!("{worker} "));
                    let at_s = self.agenda.now.as_secs_f64();
                    self.tally.warnings.push_back(format!("{at_s:.1} s: {who}{}", notice.text));
                }
            }
        }
    }

    fn hear(&mut self, place: usize, message: ToWorker) {
        match message {
            // The run goes on with another plan.
            ToWorker::Welcome(_) if self.workers[place].is_in_training() => self.restart(place),
            ToWorker::Welcome(welcome) => self.welcomed(place, &welcome),
            ToWorker::Probe { peers } => {
                let links = peers.iter().map(|peer| self.link_from(place, peer.worker)).collect::<Vec<_>>();
                let at = self.agenda.now
                    + PROBE * u32::try_from(links.len()).unwrap_or(u32::MAX)
                    + self.delay(place);
                if let Some(connection) = self.workers[place].process.connection {
                    self.agenda.queue.push(at, Happening::ToRun(connection, ToCoordinator::Links(links)));
                }
            }
            ToWorker::Seat { rank } if self.workers[place].is_in_training() => {
                // Its copy has come apart, and the device is somewhere in a round.
                if rank.is_none() {
                    self.restart(place);
                }
            }
            ToWorker::Seat { rank } => self.workers[place].rank = rank,
            ToWorker::Prepare(start) => {
                let from = match start {
                    Start::Fresh => Round(0),
                    Start::Checkpoint(offer) => offer.next_round,
                    Start::Held(parts) => parts.first().map_or(Round(0), |part| part.offer.next_round),
                };
                self.load(place, BUILD, Some(from));
            }
            ToWorker::Heal { donors } => {
                let bytes = STATE_BYTES * self.setup.spec.parameter_count() as f64
                    / f64::from(self.config.parallel.seats());
                let from = donors.first().and_then(|donor| self.link_from(place, donor.worker));
                let took_s = from.map_or(0.0, |link| bytes / link.bytes_per_s + 2.0 * link.round_trip_s);
                // Before a generation, a donor has what it has loaded.
                let donor = donors.first().and_then(|donor| self.place_of(donor.worker));
                let donor = donor.map(|place| &self.workers[place]).filter(|donor| !donor.is_in_training());
                let from = donor.map(|donor| donor.applied);
                self.load(place, BUILD + Duration::from_secs_f64(took_s.min(1e9)), from);
            }
            ToWorker::Revoked { .. } | ToWorker::DataHolders(_) | ToWorker::Handover => {}
            ToWorker::Speak => self.speak_up(place),
            ToWorker::Keep(part) => self.say(place, ToCoordinator::Kept(Some(part.offer))),
            ToWorker::Settle { generation } => self.settle(place, generation),
            ToWorker::Begin(start) => self.begin(place, &start),
            ToWorker::Dismiss { .. } | ToWorker::Refused { .. } => self.turn_off(place),
        }
    }

    fn place_of(&self, worker: WorkerId) -> Option<usize> {
        (worker.0 as usize).checked_sub(1).filter(|place| *place < self.workers.len())
    }
}
