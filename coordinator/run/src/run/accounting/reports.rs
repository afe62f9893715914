//! The members' round reports: when a round counts, the fate of shares that do not, and whether all states are equal.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use longhaul_common::learning_rate::LearningRate;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::{NOT_COMPARED, RoundReport};
use serde::{Deserialize, Serialize};

use crate::run::accounting::late::LateShare;
use crate::run::accounting::parity::Verdict;
use crate::run::accounting::progress::RoundSummary;
use crate::run::command::{Command, Record, Severity};
use crate::run::core::Core;
use crate::run::event::ConnectionId;
use crate::run::machine::Run;
use crate::run::peer::{Peer, Standing};

/// Skipped rounds taken from one report: a member that sat out more than this has no generation in common any more.
const SKIPPED_MAX: usize = 1024;
/// Rounds whose states are remembered: workers keep fewer checkpoints.
const MILESTONES_KEPT: usize = 64;
/// How stale the durable progress may be, in milliseconds: a restarted coordinator learns the rest from reports.
const PROGRESS_PERSIST_INTERVAL_MS: u64 = 5_000;
/// Lines about progress in a whole run, about.
const PROGRESS_NOTICES: u64 = 40;

/// The members that are waited for, counted, so that a report of one of ten thousand costs as much as one of two.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Roll {
    /// By rank: those that are here.
    present: BTreeMap<u32, usize>,
    /// Those that have not applied the first round that does not count yet.
    behind: usize,
}

impl Run {
    /// Whether decisions may be due: all members have applied the first round that did not count, or the worker has caught up.
    pub(crate) fn handle_round_applied(
        &mut self,
        connection: ConnectionId,
        worker: WorkerId,
        mut report: RoundReport,
    ) -> bool {
        let through = self.core.state.rounds.ledger.through();
        let mut roll = self.core.roll.take().unwrap_or_else(|| self.core.call_roll());
        // One that heals may still have reports on their way.
        let Some(peer) = self.core.peers.get_mut(&worker).filter(|peer| peer.standing == Standing::Member)
        else {
            self.core.roll = Some(roll);
            return false;
        };
        if self.core.state.until().is_none_or(|until| {
            report.round >= until || report.generation > self.core.state.generations.announced
        }) {
            self.violation(connection, "reported a round that has not begun");
            return true;
        }
        let (was_behind, caught_up_before) = (peer.is_behind(through), peer.has_caught_up(through));
        peer.progress.next_round = peer.progress.next_round.max(Some(report.round.next()));
        if was_behind && !peer.is_behind(through) {
            roll.behind = roll.behind.saturating_sub(1);
        }
        // A leaver may have waited for it.
        let has_caught_up = caught_up_before != Some(true) && peer.has_caught_up(through) == Some(true);
        peer.progress.state_hash = (report.state_hash != NOT_COMPARED).then_some(report.state_hash);
        self.accounting.slow_joiners.takes_part(worker);
        let rank = peer.slot.map_or(0, |slot| slot.rank);
        if rank > 0 {
            (report.samples, report.loss) = (0, None);
        }
        self.accounting.watch.note(worker, report.round, report.measured);
        self.core.state.releases.applied(report.round);
        let first = self.core.first_of(worker);
        let lost = report.skipped.iter().take(SKIPPED_MAX).map(|&round| (round, first)).collect();
        self.core.lose(lost);
        // The same report may come again from a worker without confirmation.
        if self.accounting.refusals.is_new(worker, report.round) {
            self.accounting.note_refusals(&mut self.core, worker, &report);
            self.accounting.note_audit(&mut self.core, worker, report.audit);
        }
        report.refused.clear();
        self.accounting.summaries.push(worker, rank, &report);
        let present = roll.present.get(&rank).copied().unwrap_or_default();
        let is_last = roll.behind == 0;
        self.core.roll = Some(roll);
        let reported =
            self.accounting.parity.entry(rank).or_default().report(report.round, worker, report.state_hash);
        if reported.is_some_and(|reported| reported >= present) {
            let of_rank = |peer: &Peer| peer.is_present_member() && peer.slot.is_some_and(|s| s.rank == rank);
            let members: Vec<WorkerId> =
                self.core.peers.iter().filter(|(_, peer)| of_rank(peer)).map(|(&worker, _)| worker).collect();
            let verdict = self.accounting.parity.entry(rank).or_default().judge(report.round, &members);
            if let Some(verdict) = verdict {
                self.core.note_milestone(rank, &verdict);
                self.mend_parity(&verdict);
            }
        }
        if is_last || self.accounting.summaries.are_too_many() {
            self.count_rounds();
        }
        if self.core.now >= self.core.persisted_at + Duration::from_millis(PROGRESS_PERSIST_INTERVAL_MS) {
            self.core.persist();
        }
        is_last || has_caught_up
    }

    /// Counts the rounds that all members have applied.
    pub(crate) fn count_rounds(&mut self) {
        let through = self.core.state.rounds.ledger.through();
        let members = self.core.peers.values().filter(|peer| peer.standing == Standing::Member);
        let applied =
            members.map(|peer| peer.progress.next_round.unwrap_or(through)).min().unwrap_or(through);
        let (mut lost, mut evaluated) = (Vec::new(), Vec::new());
        for mut summary in self.accounting.summaries.take_through(applied) {
            summary.learning_rate = self.core.learning_rate_of(summary.round);
            let share_of = |&first: &WorkerId| Some((first, self.core.is_in(&summary, first)?));
            let workers: Vec<_> =
                self.core.state.rounds.ledger.workers_in(summary.round).iter().filter_map(share_of).collect();
            // A round without names proves nothing about any worker: where contributions are masked and one is missing, all wait for a later
            // round.
            if workers.iter().any(|&(_, is_in_it)| is_in_it) {
                workers.iter().for_each(|&(worker, is_in_it)| self.core.note_punctuality(worker, is_in_it));
            }
            lost.extend(self.core.state.rounds.late.applied(summary.round, &workers));
            for (worker, _) in workers.iter().filter(|(_, is_in_it)| *is_in_it) {
                self.core
                    .peers
                    .entry(*worker)
                    .and_modify(|peer| peer.progress.contributed = Some(summary.round));
            }
            let rounds = self.core.state.rounds.schedule.rounds();
            let (done, every) = (summary.round.0 + 1, rounds.div_ceil(PROGRESS_NOTICES));
            if done.is_multiple_of(every) || done == rounds || summary.validation_loss.is_some() {
                self.core.notice(
                    Severity::Info,
                    None,
                    progress_line(&self.core.state.rounds.schedule, &summary),
                );
            }
            if self.core.config.evaluates_before(summary.round.next()) {
                evaluated.push((summary.round.next(), summary.validation_loss));
            }
            self.core.commands.push(Command::Persist(Record::Round(summary)));
        }
        // Only now, so that no persisted state counts a round without its late shares.
        self.core.state.rounds.ledger.count_through(applied);
        self.core.roll = None;
        self.core.lose(lost);
        for (next_round, loss) in evaluated {
            self.core.judge_evaluation(next_round, loss);
        }
        self.watch_pace();
    }
}

impl Core {
    /// Remembers the hash of a part of the model at a checkpoint.
    fn note_milestone(&mut self, rank: u32, verdict: &Verdict) {
        let next = verdict.round.next();
        let is_last = self.state.until() == Some(next);
        let is_asked = self.state.generations.present.as_ref().is_some_and(|lineup| {
            self.state.checkpoints.due_in == Some(lineup.generation) && lineup.first_round == verdict.round
        });
        if is_last || is_asked || self.config.checkpoints_before(next) {
            self.state.lineage.milestones.entry(next).or_default().insert(rank, verdict.hash);
            if self.state.lineage.milestones.len() > MILESTONES_KEPT {
                self.state.lineage.milestones.pop_first();
            }
        }
    }

    fn call_roll(&self) -> Roll {
        let through = self.state.rounds.ledger.through();
        let mut roll = Roll::default();
        for peer in self.peers.values().filter(|peer| peer.standing == Standing::Member) {
            roll.behind += usize::from(peer.is_behind(through));
            if let Some(slot) = peer.slot.filter(|_| peer.connection.is_some()) {
                *roll.present.entry(slot.rank).or_default() += 1;
            }
        }
        roll
    }

    /// That of its last step, as workers have it now.
    fn learning_rate_of(&self, round: Round) -> f64 {
        let schedule = &self.state.rounds.schedule;
        let last = schedule.steps_of(round).end.saturating_sub(1);
        LearningRate::new(&self.config.train, schedule.steps).at(last)
    }

    /// Reports members that fall behind, and those that catch up.
    fn note_punctuality(&mut self, worker: WorkerId, is_in_time: bool) {
        let Some(peer) = self.peers.get_mut(&worker) else { return };
        let Some(is_slow) = peer.progress.punctuality.note(is_in_time) else { return };
        let late = peer.progress.punctuality.describe();
        let (severity, text) = match is_slow {
            true => (Severity::Warning, format!("is slow: {late} were not in their round's result")),
            false => (Severity::Info, "keeps up again".to_owned()),
        };
        self.notice(severity, Some(worker), text);
    }

    /// Whether the samples that are assigned to this worker are in a round's results, of all parts of the model. None: it is not known.
    fn is_in(&self, summary: &RoundSummary, first: WorkerId) -> Option<bool> {
        let names =
            |rank: u32, site| summary.sites_by_rank.get(&rank).is_some_and(|named| named.contains(&site));
        let replica = self.state.generations.present.as_ref().and_then(|lineup| lineup.replica_of(first));
        match replica {
            Some(replica) => Some((0..).zip(&replica.ranks).all(|(rank, member)| names(rank, member.site))),
            None => Some(names(0, self.state.roster.workers.get(&first)?.site)),
        }
    }

    /// The worker that a member's samples are assigned to.
    pub(crate) fn first_of(&self, worker: WorkerId) -> WorkerId {
        if self.ranks() == 1 {
            return worker;
        }
        let replica = self.state.generations.present.as_ref().and_then(|lineup| lineup.replica_of(worker));
        replica.and_then(|replica| replica.ranks.first()).map_or(worker, |first| first.worker)
    }

    /// Records shares that do not count; durable at once, as the reports are not repeated.
    pub(crate) fn lose(&mut self, shares: Vec<LateShare>) {
        let lost = shares
            .into_iter()
            .filter(|&(round, worker)| self.state.rounds.ledger.lose(round, worker))
            .count();
        if lost > 0 {
            self.persist();
        }
    }
}

fn progress_line(schedule: &RoundSchedule, summary: &RoundSummary) -> String {
    let mut line = format!(
        "round {} of {}, step {} of {}",
        summary.round.0 + 1,
        schedule.rounds(),
        schedule.steps_of(summary.round).end,
        schedule.steps
    );
    if let Some(loss) = summary.loss {
        line += &format!(", loss {loss:.4}");
    }
    if let Some(norm) = summary.gradient_norm {
        line += &format!(", gradient norm {norm:.3}");
    }
    if let Some(loss) = summary.validation_loss {
        line += &format!(", validation loss {loss:.4}");
    }
    if let Some(accuracy) = summary.validation_accuracy {
        line += &format!(", accuracy {:.2} %", 100.0 * accuracy);
    }
    if let Some(ratio) = summary.residual_ratio {
        line += &format!(", a backlog of {ratio:.1} exchanges");
    }
    line
}
