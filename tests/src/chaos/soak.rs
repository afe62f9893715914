//! Lets faults happen to a run of real processes, and watches it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use longhaul_proto::identity::CLOCK_SKEW_S;
use serde_json::Value;

use crate::cluster::{Cluster, ClusterConfig, FullDisk, Process, now, training};
use crate::interrupt;
use longhaul_emulator::LinkConfig;

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
/// A slow link has this part of its rate.
const SLOW: u64 = 20;
/// The share of packets that a bad link loses, and how many in a row.
const LOSS: (f64, f64) = (0.3, 10.0);
/// By how much a calendar jumps: a certificate that was made meanwhile is good everywhere, as certificates begin an hour before they are made.
const JUMP_S: i64 = CLOCK_SKEW_S as i64 - 600;
/// By how much the calendar is further when all wake up: they renew their certificates at twelve hours.
const SLEPT_S: i64 = 3 * 3600;
/// A clock that is set wrong.
const DAY_S: i64 = 86_400;

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
        let mut cluster = Cluster::start(config.cluster.clone())?;
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
        let until = now + event.lasts;
        let round = self.checker.round();
        self.active.push(Active { fault: event.fault, began: now, until, round, went_on: false });
        Ok(())
    }

    /// Nobody is hit twice at a time, and half of the workers are left, unless all are hit at once.
    fn may_begin(&self, fault: Fault) -> bool {
        if matches!(fault, Fault::Everybody(_)) {
            let is_up = fault.kind() != Kind::LeaveAll || self.training >= self.workers();
            return is_up && self.active.is_empty();
        }
        let sites = &self.config.cluster.sites;
        let out: Vec<_> = self.active.iter().flat_map(|active| active.fault.takes_out(sites)).collect();
        let more = fault.takes_out(sites);
        let same = |active: &Active| match (active.fault, fault) {
            (Fault::Worker(_, a), Fault::Worker(_, b)) | (Fault::Site(_, a), Fault::Site(_, b)) => a == b,
            (Fault::Coordinator(_), Fault::Coordinator(_)) => true,
            _ => false,
        };
        let is_hit = self.active.iter().any(same) || more.iter().any(|worker| out.contains(worker));
        let workers = self.workers();
        // A process that has hardly started ends at SIGTERM like any other.
        let is_up = fault.kind() != Kind::Leave || self.training + out.len() >= workers;
        // The first fault of all may take more out: a site of most workers would never be cut off otherwise.
        is_up && !is_hit && (out.is_empty() || 2 * (out.len() + more.len()) <= workers)
    }

    fn begin(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Worker(Kind::Kill, worker) => self.cluster.kill_worker(worker),
            Fault::Worker(Kind::Freeze, worker) => self.process(worker)?.signal("STOP")?,
            Fault::Worker(Kind::Leave, worker) => self.process(worker)?.signal("TERM")?,
            Fault::Worker(Kind::Calendar, worker) => {
                let jump = if worker.is_multiple_of(2) { JUMP_S } else { -JUMP_S };
                self.cluster.set_calendar(worker, self.calendar_s + jump)?;
            }
            Fault::Worker(Kind::FullDisk, worker) => {
                let (folder, _) = self.checkpoints(worker);
                std::fs::create_dir_all(&folder)?;
                let disk = FullDisk::mount(&folder)?;
                self.full_disks.insert(worker, disk);
            }
            Fault::Worker(_, worker) => {
                let (folder, away) = self.checkpoints(worker);
                // It may have written none yet.
                std::fs::create_dir_all(&folder)?;
                std::fs::rename(&folder, away)?;
                std::fs::write(folder, "")?;
            }
            Fault::Site(kind, site) => self.bend(site, kind)?,
            Fault::Coordinator(Kind::HeadCalendar) => {
                self.cluster.set_head_calendar(self.calendar_s + DAY_S)?;
            }
            Fault::Coordinator(_) => self.cluster.kill_coordinator(),
            Fault::Nobody => {}
            Fault::Everybody(Kind::LeaveAll) => {
                (0..self.workers()).try_for_each(|worker| self.process(worker)?.signal("TERM"))?;
            }
            Fault::Everybody(Kind::Sleep) => self.signal_all("STOP")?,
            Fault::Everybody(_) => {
                self.cluster.kill_coordinator();
                (0..self.workers()).for_each(|worker| self.cluster.kill_worker(worker));
            }
        }
        Ok(())
    }

    fn heal_due(&mut self, tell: &mut impl FnMut(&str)) -> Result<()> {
        let now = self.now();
        let due = self.active.iter().position(|active| active.until <= now);
        let Some(at) = due else { return Ok(()) };
        if !self.is_ready_to_heal(at)? {
            return Ok(());
        }
        let Active { fault, began, .. } = self.active.swap_remove(at);
        tell(&format!("{:7.1} s  {fault} is over", now.as_secs_f64()));
        self.heal(fault).with_context(|| format!("heal {fault}"))?;
        let out = fault.keeps_away(&self.config.cluster.sites);
        self.report.kept_away(fault.kind(), out, self.now() - began);
        self.changed = (self.now(), format!("{fault} being over"));
        self.report.healed(fault.kind(), self.now());
        Ok(())
    }

    /// Who was asked to leave has left, with success.
    fn is_ready_to_heal(&mut self, at: usize) -> Result<bool> {
        let Active { fault, began, .. } = self.active[at];
        match fault {
            Fault::Worker(Kind::Leave, worker) => self.has_left(worker, began),
            Fault::Everybody(Kind::LeaveAll) => {
                let workers: Vec<bool> =
                    (0..self.workers()).map(|worker| self.has_left(worker, began)).collect::<Result<_>>()?;
                Ok(workers.into_iter().all(|has_left| has_left))
            }
            _ => Ok(true),
        }
    }

    fn has_left(&mut self, worker: usize, asked: Duration) -> Result<bool> {
        match self.process(worker)?.ended() {
            Some(status) if status.success() => Ok(true),
            Some(status) => {
                bail!(Violation::Ended(format!(
                    "worker {worker} was asked to leave, and ended with {status}"
                )))
            }
            None if self.now() > asked + END_MAX => {
                bail!(Violation::Ended(format!("worker {worker} was asked to leave, and did not")))
            }
            None => Ok(false),
        }
    }

    fn heal(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Worker(Kind::Kill | Kind::Leave, worker) => {
                self.check_checkpoints(worker)?;
                self.cluster.start_worker(worker)?;
            }
            Fault::Worker(Kind::Freeze, worker) => self.process(worker)?.signal("CONT")?,
            Fault::Worker(Kind::Calendar, worker) => self.cluster.set_calendar(worker, self.calendar_s)?,
            Fault::Worker(Kind::FullDisk, worker) => {
                self.check_checkpoints(worker)?;
                self.full_disks.remove(&worker).map_or(Ok(()), FullDisk::unmount)?;
            }
            Fault::Worker(_, worker) => {
                let (folder, away) = self.checkpoints(worker);
                std::fs::remove_file(&folder)?;
                std::fs::rename(away, folder)?;
            }
            Fault::Site(_, site) => self.mend(site)?,
            Fault::Coordinator(Kind::HeadCalendar) => self.cluster.set_head_calendar(self.calendar_s)?,
            Fault::Coordinator(_) => {
                self.checker.coordinator_restarted();
                self.cluster.start_coordinator()?;
            }
            Fault::Nobody => {}
            // They have left in order, and nothing may be lost.
            Fault::Everybody(Kind::LeaveAll) => {
                (0..self.workers()).try_for_each(|worker| self.check_checkpoints(worker))?;
                (0..self.workers()).try_for_each(|worker| self.cluster.start_worker(worker))?;
            }
            Fault::Everybody(Kind::Sleep) => {
                self.calendar_s += SLEPT_S;
                self.cluster.set_head_calendar(self.calendar_s)?;
                (0..self.workers())
                    .try_for_each(|worker| self.cluster.set_calendar(worker, self.calendar_s))?;
                self.signal_all("CONT")?;
            }
            Fault::Everybody(_) => {
                (0..self.workers()).try_for_each(|worker| self.check_checkpoints(worker))?;
                self.checker.everybody_restarted();
                self.cluster.start_coordinator()?;
                (0..self.workers()).try_for_each(|worker| self.cluster.start_worker(worker))?;
            }
        }
        Ok(())
    }

    fn signal_all(&mut self, signal: &str) -> Result<()> {
        self.cluster.coordinator().context("there is no coordinator")?.signal(signal)?;
        (0..self.workers()).try_for_each(|worker| self.process(worker)?.signal(signal))
    }

    fn bend(&self, site: usize, kind: Kind) -> Result<()> {
        let (into, out) = (self.cluster.wan().into_site(site), self.cluster.wan().out_of_site(site));
        if matches!(kind, Kind::Cut | Kind::CutIn) {
            into.partition();
        }
        if matches!(kind, Kind::Cut | Kind::CutOut) {
            out.partition();
        }
        let healthy = self.cluster.wan().link();
        let worse = match kind {
            Kind::Slow => LinkConfig {
                rate_bytes_per_s: (healthy.rate_bytes_per_s / SLOW).max(1),
                queue_limit_bytes: None,
                ..healthy.clone()
            },
            Kind::Loss => LinkConfig { loss: LOSS.0, loss_burst_packets: Some(LOSS.1), ..healthy.clone() },
            _ => return Ok(()),
        };
        into.reconfigure(worse.clone())?;
        Ok(out.reconfigure(worse)?)
    }

    fn mend(&self, site: usize) -> Result<()> {
        for link in [self.cluster.wan().into_site(site), self.cluster.wan().out_of_site(site)] {
            link.heal();
            link.reconfigure(self.cluster.wan().link().clone())?;
        }
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
        let leaving = |worker| {
            let asked = [Fault::Worker(Kind::Leave, worker), Fault::Everybody(Kind::LeaveAll)];
            self.active.iter().any(|active| asked.contains(&active.fault))
        };
        let workers = self.workers();
        let watched: Vec<_> = (0..workers).filter(|&worker| !leaving(worker)).collect();
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
