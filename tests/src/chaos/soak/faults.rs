//! Start and end of each fault.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use longhaul_emulator::LinkConfig;
use longhaul_proto::identity::CLOCK_SKEW_S;

use super::{Active, END_MAX, Soak};
use crate::chaos::{Fault, Kind, Violation};
use crate::cluster::FullDisk;
use crate::hostile::memory_of;

/// Divisor of a slow link's rate.
const SLOW: u64 = 20;
/// Share of packets that a bad link loses, and the number of consecutive losses.
const LOSS: (f64, f64) = (0.3, 10.0);
/// Jump of a calendar. Certificates made meanwhile are valid everywhere, as they begin an hour before they
/// are made.
const JUMP_S: i64 = CLOCK_SKEW_S as i64 - 600;
/// Advance of the calendar during sleep: certificates are renewed at twelve hours.
const SLEPT_S: i64 = 3 * 3600;
/// Error of a wrong clock.
const DAY_S: i64 = 86_400;
/// Divisor of a worker's memory, which is then too little: it ends after loading its libraries, or before
/// training.
const MEMORY_PART: u64 = 4;
/// A worker's message after joining.
const JOINED: &str = "this machine is part of the run";
/// Maximum additional time for that fault.
const MEMORY_MAX: Duration = Duration::from_secs(20);

impl Soak {
    /// Whether a fault may begin: no overlap on a target, and half of the workers are left, unless all are
    /// hit at once.
    pub(super) fn may_begin(&self, fault: Fault) -> bool {
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
        let is_excluded = |active: &Active| same(active) || active.fault.excludes(fault);
        let is_hit = self.active.iter().any(is_excluded) || more.iter().any(|worker| out.contains(worker));
        let workers = self.workers();
        // A process that has just started ends at SIGTERM like any other, has neither an identity nor memory,
        // and may have the only copy of the run's state on its disk.
        let needs_all = matches!(
            fault.kind(),
            Kind::Leave | Kind::CopiedCache | Kind::MemoryLimit | Kind::NoDisk | Kind::FullDisk
        );
        let is_up = !needs_all || self.training >= self.to_train();
        // The first fault may hit more: a site of most workers would never be cut off otherwise.
        is_up && !is_hit && (out.is_empty() || 2 * (out.len() + more.len()) <= workers)
    }

    pub(super) fn begin(&mut self, fault: Fault) -> Result<()> {
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
            Fault::Worker(Kind::CopiedCache, worker) => {
                self.cluster.set_calendar(self.cluster.copy_of(worker), self.calendar_s)?;
                self.cluster.start_copy_of(worker)?;
            }
            Fault::Worker(Kind::ClosedLog, worker) => {
                self.cluster.kill_worker(worker);
                self.check_checkpoints(worker)?;
                let output = self.cluster.start_worker_in_pipe(worker)?;
                self.readers.insert(worker, read_until_joined(output));
            }
            Fault::Worker(Kind::MemoryLimit, worker) => {
                let memory = memory_of(self.process(worker)?.id())?;
                self.cluster.kill_worker(worker);
                self.check_checkpoints(worker)?;
                self.cluster.start_worker_in_memory(worker, memory.data / MEMORY_PART)?;
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

    /// Whether the processes that must leave or end have done so, with success if they leave.
    pub(super) fn is_ready_to_heal(&mut self, at: usize) -> Result<bool> {
        let Active { fault, began, until, .. } = self.active[at];
        match fault {
            Fault::Worker(Kind::Leave, worker) => self.has_left(worker, began),
            Fault::Worker(Kind::CopiedCache, worker) => {
                self.trains_and_leaves(at, self.cluster.copy_of(worker))
            }
            Fault::Worker(Kind::ClosedLog, worker) => self.trains_and_leaves(at, worker),
            Fault::Worker(Kind::MemoryLimit, worker) => {
                // Otherwise the memory may suffice: it is then killed, like by a system out of memory.
                Ok(self.process(worker)?.ended().is_some() || self.now() > until + MEMORY_MAX)
            }
            Fault::Everybody(Kind::LeaveAll) => {
                let workers: Vec<bool> =
                    (0..self.workers()).map(|worker| self.has_left(worker, began)).collect::<Result<_>>()?;
                Ok(workers.into_iter().all(|has_left| has_left))
            }
            _ => Ok(true),
        }
    }

    /// Whether this process has left: it is asked to when all train, and, if so intended, when its output has
    /// no reader.
    fn trains_and_leaves(&mut self, at: usize, place: usize) -> Result<bool> {
        let Active { fault, until, asked, .. } = self.active[at];
        if let Some(asked) = asked {
            return self.has_left(place, asked);
        }
        // If its output is read, until it has reported that.
        let has_joined = match self.readers.get(&place) {
            Some(reader) => reader.is_finished(),
            None => self.process(place)?.log().contains(JOINED),
        };
        if has_joined && self.training >= self.to_train() {
            self.process(place)?.signal("TERM")?;
            self.active[at].asked = Some(self.now());
        } else if self.now() > until + END_MAX {
            bail!(Violation::Ended(format!("{fault}: not everybody trains")));
        }
        Ok(false)
    }

    /// Returns the number of workers that should train: all, and copies, except those kept away by faults.
    fn to_train(&self) -> usize {
        let (sites, faults) = (&self.config.cluster.sites, self.active.iter().map(|active| active.fault));
        let copies = faults.clone().filter(|fault| fault.kind() == Kind::CopiedCache).count();
        let away: usize = faults.map(|fault| fault.keeps_away(sites)).sum();
        (self.workers() + copies).saturating_sub(away)
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

    pub(super) fn heal(&mut self, active: &Active) -> Result<()> {
        match active.fault {
            Fault::Worker(Kind::Kill | Kind::Leave | Kind::ClosedLog | Kind::MemoryLimit, worker) => {
                self.readers.remove(&worker);
                self.cluster.kill_worker(worker);
                self.check_checkpoints(worker)?;
                self.cluster.start_worker(worker)?;
            }
            Fault::Worker(Kind::Freeze, worker) => self.process(worker)?.signal("CONT")?,
            Fault::Worker(Kind::Calendar, worker) => self.cluster.set_calendar(worker, self.calendar_s)?,
            Fault::Worker(Kind::FullDisk, worker) => {
                self.check_checkpoints(worker)?;
                self.full_disks.remove(&worker).map_or(Ok(()), FullDisk::unmount)?;
            }
            Fault::Worker(Kind::CopiedCache, worker) => {
                self.check_checkpoints(self.cluster.copy_of(worker))?;
                self.cluster.remove_copy_of(worker)?;
                // It came and left; another one may have just ended when it came.
                let others = active.others as u64 + u64::from(self.report.faults() - active.faults);
                self.checker.is_settled(active.generation, 2 + others)?;
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
            // They have left in order, without losses.
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
}

/// Reads a process's output until it has joined, then closes it.
fn read_until_joined(output: PipeReader) -> JoinHandle<()> {
    // On an error it is closed too.
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(std::io::Result::ok);
        lines.take_while(|line| !line.contains(JOINED)).for_each(drop);
    })
}
