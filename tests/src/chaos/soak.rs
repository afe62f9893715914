//! Injects faults into a run of real processes, and checks it.

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

/// Polling interval of a run.
const LOOK: Duration = Duration::from_millis(200);
/// Minimum time without a new round worth reporting.
const STOOD: Duration = Duration::from_secs(1);
/// The same as a multiple of a round's usual duration.
const STOOD_ROUNDS: u32 = 2;
/// Timeout of the end of a soak, and of a worker's departure.
const END_MAX: Duration = Duration::from_secs(240);
/// Longer than calendars advance in a soak with sleeps.
const TOKEN_LIFE: &str = "366d";

/// Configuration of a soak.
#[derive(Clone, Debug)]
pub struct SoakConfig {
    /// The run. Each worker needs its own checkpoint folder and calendar, and the run more steps than it can
    /// make.
    pub cluster: ClusterConfig,
    /// Samples per step.
    pub batch: u64,
    /// Seed of the faults.
    pub seed: u64,
    /// Possible kinds.
    pub kinds: Vec<Kind>,
    /// Time before the first fault.
    pub calm: Duration,
    /// After this many faults a break as long as the gap follows, as reference of the throughput; `None`: the
    /// reference is the time before the first fault.
    pub break_after: Option<NonZeroUsize>,
    /// Duration of the faults.
    pub duration: Duration,
    /// Time from one fault to the next.
    pub gap: Duration,
    /// Maximum time without a new round after the start or end of a fault.
    pub progress_max: Duration,
}

/// A run, its faults, and its results.
pub struct Soak {
    config: SoakConfig,
    cluster: Cluster,
    began: Instant,
    checker: Checker,
    report: Report,
    /// Future faults, the next one last.
    to_come: Vec<Event>,
    active: Vec<Active>,
    /// By worker: the full disk of its checkpoints.
    full_disks: BTreeMap<usize, FullDisk>,
    /// By worker: the reader of its output, which closes, if that is a pipe.
    readers: BTreeMap<usize, JoinHandle<()>>,
    /// Seconds by which right calendars are ahead of the machine's, after sleeps.
    calendar_s: i64,
    /// Time and description of the newest change.
    changed: (Duration, String),
    /// Training workers, by the newest status.
    training: usize,
    /// Time of the newest reported round, and the usual duration of one.
    told_of: Duration,
    usual: Duration,
    /// The newest fault, its start, and the samples counted then.
    begun: Option<(Kind, Duration, u64)>,
}

/// Returns those of these faults that this user can cause.
///
/// # Errors
/// None is left.
#[allow(clippy::print_stderr, reason = "readers of a record should know which faults were left out")]
fn possible(mut kinds: Vec<Kind>) -> Result<Vec<Kind>> {
    if kinds.contains(&Kind::FullDisk) && !FullDisk::is_possible()? {
        eprintln!(
            "skipped: {}, as this user may not mount file systems; run it as root",
            Kind::FullDisk.word()
        );
        kinds.retain(|kind| *kind != Kind::FullDisk);
    }
    ensure!(!kinds.is_empty(), "no possible fault is left");
    Ok(kinds)
}

/// A fault in progress.
struct Active {
    fault: Fault,
    began: Duration,
    until: Duration,
    /// Newest round at its start.
    round: u64,
    /// Whether the others have continued since.
    went_on: bool,
    /// Time at which the process that leaves last was asked to.
    asked: Option<Duration>,
    /// Generation at its start, number of faults including it, and number of other active ones.
    generation: u64,
    faults: u32,
    others: usize,
}

impl Soak {
    /// Starts the run and waits until all workers train.
    ///
    /// # Errors
    /// A process could not be started; the error ends with its log.
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

    /// Measures the run without faults, injects the faults, and ends it. `tell` receives each fault.
    ///
    /// # Errors
    /// The violated invariant, with the seed, the newest status and the logs.
    pub fn run(mut self, mut tell: impl FnMut(&str)) -> Result<Report> {
        let seed = self.config.seed;
        self.go_through(&mut tell).with_context(|| {
            format!("seed {seed}; the newest status is {:#}\n{}", self.cluster.status(), self.cluster.logs())
        })?;
        Ok(self.report)
    }

    fn go_through(&mut self, tell: &mut impl FnMut(&str)) -> Result<()> {
        self.look()?;
        // No fault begins before, however long this takes.
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
        // Faults that could not begin in time are dropped.
        self.to_come.clear();
        while !self.active.is_empty() {
            self.watch_until(self.now() + LOOK, tell)?;
        }
        self.report.stormy(self.checker.counted() - before, self.now() - began);
        self.end_of_newest();
        self.rejoin(tell)?;
        self.end()
    }

    /// Polls, begins and ends faults until then.
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
            // Polls, as changes of other processes do not wake this one.
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
            // One that has to wait may wait for another one to end.
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

    /// Records the times of the others' first round after a fault, and of all workers training again.
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

    /// Assigns the samples counted since its start to the newest fault.
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

    /// While the coordinator is down no rounds are reported.
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

    /// Waits until all workers train again and have applied some rounds.
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

    /// Ends the run in order, and compares its counts.
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

    /// Returns the folder of a worker's checkpoints, and its place while moved away.
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
