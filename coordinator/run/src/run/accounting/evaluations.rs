//! Held-out losses: which checkpoint is the best, and when the run has stopped improving.

use std::collections::BTreeSet;

use longhaul_common::config::{BestCheckpoints, EvaluateConfig};
use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{CheckpointOffer, CheckpointReport, ToWorker};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;

/// The evaluation of a state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// First round that the state does not contain.
    pub next_round: Round,
    /// Steps before it.
    pub step: u64,
    /// Held-out loss, nats per token or image: the mean over the members.
    pub loss: f32,
}

/// Verdicts on the evaluations of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluations {
    /// The one with the lowest loss.
    best: Option<Evaluated>,
    /// The one with the lowest loss of those with a complete checkpoint.
    kept: Option<Evaluated>,
    /// Parts of the checkpoint of `best`, by rank, that a worker has written.
    written: BTreeSet<u32>,
    /// The last improvement that counts for `evaluate.patience`.
    improved: Option<Evaluated>,
    /// Evaluations since: first rounds that their states do not contain. At most `evaluate.patience`.
    without: BTreeSet<Round>,
    /// The last evaluation with a verdict.
    judged: Round,
    /// The reason of an early end.
    ended: Option<String>,
}

impl Evaluations {
    /// Judges the state before a round. `loss` is `None` if it is not finite. Returns whether it is the best so far.
    fn judge(&mut self, rule: &EvaluateConfig, next_round: Round, step: u64, loss: Option<f32>) -> bool {
        if next_round <= self.judged {
            return false;
        }
        self.judged = next_round;
        let evaluated = loss.map(|loss| Evaluated { next_round, step, loss });
        let least = self.improved.map(|improved| f64::from(improved.loss) - rule.min_delta);
        if let Some(new) = evaluated.filter(|new| least.is_none_or(|least| f64::from(new.loss) < least)) {
            self.improved = Some(new);
            self.without.clear();
        } else if rule.patience.is_some() && self.improved.is_some() {
            // A loss that is not finite is no improvement. Without any, there may be no held-out data.
            self.without.insert(next_round);
        }
        let is_best = |new: &Evaluated| self.best.is_none_or(|best| new.loss < best.loss);
        let Some(new) = evaluated.filter(is_best) else { return false };
        self.best = Some(new);
        self.written.clear();
        true
    }

    /// Records a written part of the best state's checkpoint; with all `parts`, it is the one to keep.
    fn wrote(&mut self, next_round: Round, rank: u32, parts: u32) -> bool {
        let Some(best) = self.best.filter(|best| best.next_round == next_round) else { return false };
        let is_new = self.written.insert(rank) && self.kept != Some(best);
        let is_complete = is_new && (0..parts).all(|rank| self.written.contains(&rank));
        if is_complete {
            self.kept = Some(best);
        }
        is_complete
    }

    /// Goes back to the state before `round`.
    pub(crate) fn cut_back(&mut self, round: Round) {
        let stands = |of: &Evaluated| of.next_round <= round;
        self.judged = self.judged.min(round);
        self.without.retain(|next_round| *next_round <= round);
        self.kept = self.kept.filter(stands);
        if !self.best.is_some_and(|best| stands(&best)) {
            (self.best, self.written) = (self.kept, BTreeSet::new());
        }
        self.improved = self.improved.filter(stands).or(self.best);
    }

    /// Forgets an early end, and waits for an improvement anew.
    pub(crate) fn go_on(&mut self) {
        self.ended = None;
        self.without.clear();
    }

    /// The evaluation with the lowest loss.
    #[must_use]
    pub fn best(&self) -> Option<Evaluated> {
        self.best
    }

    /// The evaluation with the lowest loss of those with a complete checkpoint.
    #[must_use]
    pub fn kept(&self) -> Option<Evaluated> {
        self.kept
    }

    /// Evaluations since the last improvement that counts for `evaluate.patience`.
    #[must_use]
    pub fn without_improvement(&self) -> usize {
        self.without.len()
    }

    /// The reason of an early end.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    fn checkpoints(&self) -> BestCheckpoints {
        let next_round = |of: Option<Evaluated>| of.map(|of| of.next_round);
        BestCheckpoints { rounds: [next_round(self.kept), next_round(self.best)], judged: self.judged }
    }
}

impl Core {
    /// Judges the state before a round after which the run has evaluated it. `loss` is `None` if it is not finite.
    pub(crate) fn judge_evaluation(&mut self, next_round: Round, loss: Option<f32>) {
        if !self.config.evaluate.judges() {
            return;
        }
        let last = Round(next_round.0.saturating_sub(1));
        let step = self.state.rounds.schedule.steps_of(last).end;
        let is_best = self.state.evaluations.judge(&self.config.evaluate, next_round, step, loss);
        if is_best {
            // Its writers may have been faster than the reports of the round.
            let reports = self.state.checkpoints.newest.iter().map(|of| (of.worker, of.report.clone()));
            for (worker, report) in reports.collect::<Vec<_>>() {
                self.note_best_written(worker, &report);
            }
        }
        if self.state.until().is_some_and(|until| next_round < until) {
            self.end_without_improvement();
        }
        self.persist();
        self.tell_best();
    }

    /// Records a checkpoint that may be that of the best state. Returns whether it is complete by that.
    pub(crate) fn note_best_written(&mut self, worker: WorkerId, report: &CheckpointReport) -> bool {
        // The part of a worker that has left is not known any more.
        let (Some(rank), Ok(state_hash)) = (self.rank_of(worker), report.outcome.as_ref()) else {
            return false;
        };
        let parts = self.ranks();
        let CheckpointReport { next_round, generation, .. } = *report;
        let offer =
            CheckpointOffer { next_round, state_hash: *state_hash, private: true, rank, parts, generation };
        !self.state.lineage.rewinds.have_undone(&offer)
            && self.state.evaluations.wrote(next_round, rank, parts)
    }

    /// Tells all workers which checkpoints to keep: also those that are not members have some.
    pub(crate) fn tell_best(&mut self) {
        for worker in self.peers.keys().copied().collect::<Vec<_>>() {
            self.tell_best_to(worker);
        }
    }

    /// Tells a worker which checkpoints to keep.
    pub(crate) fn tell_best_to(&mut self, worker: WorkerId) {
        if self.config.evaluate.keep_best {
            self.send(worker, ToWorker::Best(self.state.evaluations.checkpoints()));
        }
    }

    /// Ends the run in order after `evaluate.patience` evaluations without an improvement.
    fn end_without_improvement(&mut self) {
        let EvaluateConfig { patience: Some(patience), min_delta, .. } = self.config.evaluate else { return };
        let evaluations = &self.state.evaluations;
        let Some(Evaluated { step, loss, .. }) = evaluations.improved else { return };
        if self.state.requests.drain || evaluations.without.len() < patience as usize {
            return;
        }
        let by = if min_delta > 0.0 { format!(" by {min_delta}") } else { String::new() };
        let reason = format!(
            "the held-out loss has not improved{by} in {patience} evaluations since step {step} ({loss:.4})"
        );
        self.notice(Severity::Info, None, format!("{reason}: open rounds are finished, then the run ends"));
        self.state.evaluations.ended = Some(reason);
        self.state.requests.drain = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> EvaluateConfig {
        EvaluateConfig { keep_best: true, patience: Some(9), ..EvaluateConfig::default() }
    }

    /// Judges losses of rounds 10, 20 …
    fn judged(rule: &EvaluateConfig, losses: &[f32]) -> Evaluations {
        let mut evaluations = Evaluations::default();
        for (round, loss) in (1..).zip(losses) {
            evaluations.judge(
                rule,
                Round(10 * round),
                20 * round,
                Some(*loss).filter(|loss| loss.is_finite()),
            );
        }
        evaluations
    }

    #[test]
    fn the_lowest_loss_is_the_best_and_is_kept_once_all_parts_are_written() {
        let mut evaluations = judged(&rule(), &[3.0, 2.0, 2.5]);
        assert_eq!(evaluations.best(), Some(Evaluated { next_round: Round(20), step: 40, loss: 2.0 }));
        assert_eq!((evaluations.kept(), evaluations.without_improvement()), (None, 1));
        assert!(!evaluations.wrote(Round(30), 0, 2) && !evaluations.wrote(Round(20), 0, 2));
        assert!(evaluations.wrote(Round(20), 1, 2) && !evaluations.wrote(Round(20), 1, 2));
        assert_eq!(evaluations.kept(), evaluations.best());
        // The former best stays until the new one is written.
        assert!(evaluations.judge(&rule(), Round(40), 80, Some(1.0)));
        assert_eq!(evaluations.checkpoints().rounds, [Some(Round(20)), Some(Round(40))]);
        assert_eq!(evaluations.checkpoints().judged, Round(40));
    }

    #[test]
    fn small_improvements_add_up_and_a_loss_that_is_not_finite_is_none() {
        let rule = EvaluateConfig { min_delta: 0.1, ..rule() };
        let evaluations = judged(&rule, &[3.0, 2.95, 2.92]);
        assert_eq!(evaluations.without_improvement(), 2);
        assert_eq!(evaluations.best().unwrap().loss, 2.92, "the lowest is the best, however little it is");
        assert_eq!(judged(&rule, &[3.0, 2.95, 2.89]).without_improvement(), 0);
        assert_eq!(judged(&rule, &[3.0, f32::NAN, f32::NAN]).without_improvement(), 2);
        assert_eq!(judged(&rule, &[f32::NAN, f32::NAN]).without_improvement(), 0, "no held-out data");
    }

    #[test]
    fn a_verdict_stands_until_the_run_goes_back() {
        let mut evaluations = judged(&rule(), &[3.0, 2.0, 2.5, 2.6]);
        evaluations.wrote(Round(20), 0, 1);
        let before = evaluations.clone();
        assert!(!evaluations.judge(&rule(), Round(40), 80, Some(1.0)));
        assert_eq!(evaluations, before, "a report that is repeated");
        evaluations.cut_back(Round(10));
        assert_eq!(evaluations.without_improvement(), 0);
        // Its checkpoint will be overwritten.
        let mut diverged = evaluations.clone();
        assert!(!diverged.judge(&rule(), Round(20), 40, None));
        assert_eq!((diverged.best(), diverged.kept()), (None, None));
        for (round, loss) in [(20, 2.3), (30, 2.2), (40, 2.1)] {
            assert!(evaluations.judge(&rule(), Round(round), 2 * round, Some(loss)));
            assert_eq!(evaluations.without_improvement(), 0, "improvements of what is left");
        }
        assert_eq!((evaluations.best().unwrap().loss, evaluations.kept()), (2.1, None));
    }
}
