//! Lets faults happen to a run of real processes, and watches it.

mod faults;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, ClusterConfig, FullDisk, Process, now, training};
use crate::interrupt;

use super::disks::damaged_checkpoint;
use super::schedule::{Event, Fault, Kind, Shape, schedule};
use super::{Checker, Report, Violation};

/// Between looks at a run.
const LOOK: Duration = Duration::from_millis(200);
/// A time without a new round that is worth telling,
const STOOD: Duration = Duration::from_secs(1);
/// and how many times as long as a round takes in calm.
const STOOD_ROUNDS: u32 = 2;
/// For what comes at a soak's end, and for a worker to leave.
const END_MAX: Duration = Duration::from_secs(240);
/// Longer than calendars go on in a soak in which all sleep now and then.
const TOKEN_LIFE: &str = "366d";

/// What is to happen to a run.
#[derive(Clone, Debug)]
pub struct SoakConfig {
    /// The run. Each of its workers is to have a folder of its own for checkpoints and its own calendar, and the run more steps than it can make.
    pub cluster: ClusterConfig,
    /// Samples of each of its steps.
    pub batch: u64,
    /// Draws the faults.
    pub seed: u64,
    /// What may happen.
    pub kinds: Vec<Kind>,
    /// How long the run is watched before anything happens.
    pub calm: Duration,
    /// After so many faults there is a break as long as the gap between two, with which throughput is compared then; none: with the calm before.
    pub break_after: Option<NonZeroUsize>,
    /// How long things happen.
    pub duration: Duration,
    /// From one fault to the next.
    pub gap: Duration,
    /// A run that applies no new round for so long after a fault has begun or ended stands still.
    pub progress_max: Duration,
}

/// A run, its faults, and what was seen.
pub struct Soak {
    config: SoakConfig,
    cluster: Cluster,
    began: Instant,
    checker: Checker,
    report: Report,
    /// Those to come, the next one last.
    to_come: Vec<Event>,
    active: Vec<Active>,
    /// By worker: the disk that its checkpoints go to, where that is full.
    full_disks: BTreeMap<usize, FullDisk>,
    /// By worker: who reads its output, and goes away, where that is in a pipe.
    readers: BTreeMap<usize, JoinHandle<()>>,
    /// What calendars that are right are ahead of the machine's, as all have slept, in seconds.
    calendar_s: i64,
    /// The newest change, and what it was.
    changed: (Duration, String),
    /// Workers that train, as the newest status tells.
    training: usize,
    /// When the newest round was seen that was told of, and how long one takes in calm.
    told_of: Duration,
    usual: Duration,
    /// The newest fault, when it began, and what counted then.
    begun: Option<(Kind, Duration, u64)>,
}

/// Those of these faults that this user may cause.
///
/// # Errors
/// None is left.
#[allow(clippy::print_stderr, reason = "whoever reads a record should know what did not happen")]
fn possible(mut kinds: Vec<Kind>) -> Result<Vec<Kind>> {
    if kinds.contains(&Kind::FullDisk) && !FullDisk::is_possible()? {
        eprintln!("left out: {}, as this user may not mount; run it as root", Kind::FullDisk.word());
        kinds.retain(|kind| *kind != Kind::FullDisk);
    }
    ensure!(!kinds.is_empty(), "nothing is left that could happen");
    Ok(kinds)
}

/// A fault that goes on.
struct Active {
    fault: Fault,
    began: Duration,
    until: Duration,
    /// The newest round when it began.
    round: u64,
    /// Whether the others have gone on since.
    went_on: bool,
    /// When the process that is to leave in the end was asked to.
    asked: Option<Duration>,
    /// The generation when it began, how many faults there had been, with it, and how many others went on.
    generation: u64,
    faults: u32,
    others: usize,
}

impl Soak {
    /// Starts the run and waits until everybody trains.
    ///
    /// # Errors
    /// What could not be started, and the end of its log.
    pub fn start(mut config: SoakConfig) -> Result<Self> {
        config.kinds = possible(config.kinds)?;
        let workers: usize = config.cluster.sites.iter().sum();
        ensure!(workers >= 2, "chaos needs two workers at least: one is always left alone");
        ensure!(config.cluster.own_checkpoints, "chaos needs a checkpoint folder for each worker");
        ensure!(config.cluster.own_calendars, "chaos needs a calendar for each worker");
        let mut cluster = Cluster::start_coordinator_only(config.cluster.clone())?;
        cluster.make_token(TOKEN_LIFE)?;
        (0..workers).try_for_each(|worker| cluster.start_worker(worker))?;
        cluster.wait_for("everybody to train", END_MAX, |status| training(status) == workers)?;
        let shape = Shape {
            sites: config.cluster.sites.clone(),
            kinds: config.kinds.clone(),
            break_after: config.break_after,
        };
        let mut to_come = schedule(config.seed, &shape, config.duration, config.gap);
        to_come.reverse();
        let report = Report::new(config.seed, workers);
        let changed = (Duration::ZERO, "and nothing had happened".to_owned());
        let (checker, active) = (Checker::default(), Vec::new());
        Ok(Self {
            config,
            cluster,
            began: now(),
            checker,
            report,
            to_come,
            active,
            full_disks: BTreeMap::new(),
            readers: BTreeMap::new(),
            calendar_s: 0,
            changed,
            training: workers,
            told_of: Duration::ZERO,
            usual: Duration::MAX,
            begun: None,
        })
    }

    /// Watches it in calm, lets everything happen, and ends it. `tell` is told of each fault.
    ///
    /// # Errors
    /// A promise that was broken, with the seed, the newest status and the logs.
    pub fn run(mut self, mut tell: impl FnMut(&str)) -> Result<Report> {
        let seed = self.config.seed;
        self.go_through(&mut tell).with_context(|| {
            format!("seed {seed}; the newest status is {:#}\n{}", self.cluster.status(), self.cluster.logs())
        })?;
        Ok(self.report)
    }

    fn go_through(&mut self, tell: &mut impl FnMut(&str)) -> Result<()> {
        self.look()?;
        // In calm none is to come, however long it is.
        let mut to_come = std::mem::take(&mut self.to_come);
        let (before, first) = (self.checker.counted(), self.checker.round());
        self.watch_until(self.config.calm, tell)?;
        let rounds = u32::try_from(self.checker.round() - first).unwrap_or(u32::MAX);
        self.usual = self.config.calm / rounds.max(1);
        self.report.calm(self.checker.counted() - before, self.config.calm);
        let (began, before) = (self.now(), self.checker.counted());
        to_come.iter_mut().for_each(|event| event.at += began);
        self.to_come = to_come;
        self.watch_until(began + self.config.duration, tell)?;
        // What could not begin in time does not happen.
        self.to_come.clear();
        while !self.active.is_empty() {
            self.watch_until(self.now() + LOOK, tell)?;
        }
        self.report.stormy(self.checker.counted() - before, self.now() - began);
        self.end_of_newest();
        self.rejoin(tell)?;
        self.end()
    }

    /// Looks, begins and ends faults until then.
    fn watch_until(&mut self, end: Duration, tell: &mut impl FnMut(&str)) -> Result<()> {
        while self.now() < end {
            interrupt::check()?;
            let status = self.look()?;
            self.tell_of_standing(tell);
            self.note_recoveries(&status);
            self.heal_due(tell)?;
            self.begin_due(tell)?;
            self.check_processes()?;
            self.check_progress()?;
            // Other processes are watched: nothing wakes this one when they change.
            std::thread::park_timeout(LOOK);
        }
        Ok(())
    }

    fn look(&mut self) -> Result<Value> {
        let status = self.cluster.status();
        let now = self.now();
        self.checker.look(&status, now)?;
        self.training = training(&status);
        Ok(status)
    }

    fn begin_due(&mut self, tell: &mut impl FnMut(&str)) -> Result<()> {
        let now = self.now();
        let Some(event) = self.to_come.last().copied().filter(|event| event.at <= now) else { return Ok(()) };
        if !self.may_begin(event.fault) {
            return Ok(());
        }
        self.to_come.pop();
        tell(&format!(
            "{:7.1} s  {}, for {:.1} s",
            now.as_secs_f64(),
            event.fault,
            event.lasts.as_secs_f64()
        ));
        self.end_of_newest();
        self.begin(event.fault).with_context(|| format!("begin {}", event.fault))?;
        self.begun = Some((event.fault.kind(), now, self.checker.counted()));
        self.report.began(event.fault.kind());
        self.changed = (now, format!("{} having begun", event.fault));
        self.active.push(Active {
            fault: event.fault,
            began: now,
            until: now + event.lasts,
            round: self.checker.round(),
            went_on: false,
            asked: None,
            generation: self.checker.generation(),
            faults: self.report.faults(),
            others: self.active.len(),
        });
        Ok(())
    }

    fn heal_due(&mut self, tell: &mut impl FnMut(&str)) -> Result<()> {
        let now = self.now();
        let mut due = None;
        for at in 0..self.active.len() {
            // One that has to wait may wait for another one to be healed.
            if self.active[at].until <= now && self.is_ready_to_heal(at)? {
                due = Some(at);
                break;
            }
        }
        let Some(at) = due else { return Ok(()) };
        let active = self.active.swap_remove(at);
        let Active { fault, began, .. } = active;
        tell(&format!("{:7.1} s  {fault} is over", now.as_secs_f64()));
        self.heal(&active).with_context(|| format!("heal {fault}"))?;
        let out = fault.keeps_away(&self.config.cluster.sites);
        self.report.kept_away(fault.kind(), out, self.now() - began);
        self.changed = (self.now(), format!("{fault} being over"));
        self.report.healed(fault.kind(), self.now());
        Ok(())
    }

    /// When others had a round that is newer than a fault, and when all train after it.
    fn note_recoveries(&mut self, status: &Value) {
        let (round, since) = (self.checker.round(), self.checker.since());
        for active in self.active.iter_mut().filter(|active| !active.went_on && round > active.round) {
            active.went_on = true;
            self.report.went_on(active.fault.kind(), since.saturating_sub(active.began));
        }
        let workers = self.workers();
        if self.active.is_empty() && training(status) == workers {
            self.report.all_train(self.began.elapsed());
        }
    }

    /// What counted since the newest fault began is put down to it.
    fn end_of_newest(&mut self) {
        if let Some((kind, began, before)) = self.begun.take() {
            self.report.passed(kind, self.checker.counted() - before, self.now().saturating_sub(began));
        }
    }

    fn tell_of_standing(&mut self, tell: &mut impl FnMut(&str)) {
        let before = std::mem::replace(&mut self.told_of, self.checker.since());
        let stood = self.told_of.saturating_sub(before);
        if stood >= STOOD.max(self.usual.saturating_mul(STOOD_ROUNDS)) && !before.is_zero() {
            let (at, stood) = (self.told_of.as_secs_f64(), stood.as_secs_f64());
            tell(&format!("{at:7.1} s  the next round, after {stood:.1} s"));
        }
    }

    fn check_processes(&mut self) -> Result<()> {
        let may_end = |worker: usize| {
            self.active.iter().any(|active| match active.fault {
                Fault::Worker(Kind::Leave | Kind::MemoryLimit, of) => of == worker,
                Fault::Worker(Kind::ClosedLog, of) => of == worker && active.asked.is_some(),
                Fault::Everybody(Kind::LeaveAll) => true,
                _ => false,
            })
        };
        let copies = self.active.iter().filter_map(|active| match active.fault {
            Fault::Worker(Kind::CopiedCache, of) if active.asked.is_none() => Some(self.cluster.copy_of(of)),
            _ => None,
        });
        let workers = (0..self.workers()).filter(|&worker| !may_end(worker));
        let watched: Vec<_> = workers.chain(copies).collect();
        for worker in watched {
            if let Some(status) = self.cluster.worker(worker).and_then(Process::ended) {
                bail!(Violation::Ended(format!("worker {worker} ended by itself with {status}")));
            }
        }
        match self.cluster.coordinator().and_then(Process::ended) {
            Some(status) => bail!(Violation::Ended(format!("the coordinator ended by itself with {status}"))),
            None => Ok(()),
        }
    }

    /// While the coordinator is away nobody tells of rounds.
    fn check_progress(&self) -> Result<()> {
        let is_told = !self.active.iter().any(|active| {
            matches!(active.fault, Fault::Coordinator(Kind::Coordinator) | Fault::Everybody(_))
        });
        let (changed, what) = &self.changed;
        let stood = self.now().saturating_sub((*changed).max(self.checker.since()));
        if is_told && stood > self.config.progress_max {
            bail!(Violation::Stalled { round: self.checker.round(), stood, what: what.clone() });
        }
        Ok(())
    }

    /// Everybody trains again, and some rounds are applied after that.
    fn rejoin(&mut self, tell: &mut impl FnMut(&str)) -> Result<()> {
        let workers = self.workers();
        let until = self.now() + END_MAX;
        while training(&self.look()?) < workers {
            ensure!(self.now() < until, "not everybody trains again");
            self.watch_until(self.now() + LOOK, tell)?;
        }
        let round = self.checker.round();
        while self.checker.round() < round + 3 {
            self.watch_until(self.now() + LOOK, tell)?;
        }
        Ok(())
    }

    /// Ends the run in an orderly way, and compares its books.
    fn end(&mut self) -> Result<()> {
        let folder = self.cluster.folder().to_owned();
        let mut stop = Process::start_as("coordinator", "stop", &folder, |command| {
            command.args(["stop", "--wait", "--state-dir", "state"]);
        })?;
        let stopped = stop.wait(END_MAX)?;
        ensure!(stopped.success(), "`coordinator stop` ended with {stopped}\n{}", stop.log_tail());
        let status = self.look()?;
        self.checker.ended(&status, self.config.batch)?;
        for worker in 0..self.workers() {
            let ended = self.process(worker)?.wait(END_MAX)?;
            ensure!(ended.success(), "worker {worker} ended with {ended}");
            self.check_checkpoints(worker)?;
        }
        self.report.loss(status["loss"].as_f64());
        Ok(())
    }

    fn check_checkpoints(&self, worker: usize) -> Result<()> {
        match damaged_checkpoint(&self.checkpoints(worker).0)? {
            Some(what) => bail!(Violation::Damaged { worker, what }),
            None => Ok(()),
        }
    }

    fn process(&mut self, worker: usize) -> Result<&mut Process> {
        self.cluster.worker(worker).with_context(|| format!("worker {worker} has no process"))
    }

    /// Where a worker's checkpoints are, and where they are meanwhile.
    fn checkpoints(&self, worker: usize) -> (PathBuf, PathBuf) {
        let name = |suffix| self.cluster.folder().join(format!("checkpoints-{worker}{suffix}"));
        (name(""), name(".away"))
    }

    fn workers(&self) -> usize {
        self.config.cluster.sites.iter().sum()
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}
