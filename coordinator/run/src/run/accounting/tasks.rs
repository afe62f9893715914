//! Scores of `evaluate.tasks`, which the members share.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::config::TaskKind;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::timeline::place_in;
use longhaul_proto::control::message::TaskScore;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::peer::{Peer, Standing};

/// The scores of a state, as far as members have reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tasks {
    /// The newest that is closed: those of all members that were to answer and have not left, unless newer ones came first.
    whole: Option<Scored>,
    /// Those of some, while others are to come.
    open: Option<Scored>,
}

/// Scores of a state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// First round that the state does not contain.
    pub next_round: Round,
    /// Steps before it.
    pub step: u64,
    /// Scores by kind.
    pub kinds: BTreeMap<TaskKind, KindScore>,
    /// Members in it.
    members: BTreeSet<WorkerId>,
}

/// Right answers and questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindScore {
    /// Right answers by each of [`TaskKind::measures`].
    pub right: [u64; 2],
    /// Questions.
    pub questions: u64,
}

impl Scored {
    /// Returns names and shares of all measures.
    pub fn measures(&self) -> impl Iterator<Item = (TaskKind, &'static str, f64, u64)> {
        self.kinds.iter().flat_map(|(&kind, score)| {
            let shares = score.right.map(|right| right as f64 / score.questions.max(1) as f64);
            let named = kind.measures().iter().zip(shares);
            named.map(move |(&measure, share)| (kind, measure, share, score.questions))
        })
    }

    fn add(&mut self, worker: WorkerId, scores: &[TaskScore]) {
        if !self.members.insert(worker) {
            return;
        }
        let mut kinds = BTreeSet::new();
        // Impossible ones count for nothing.
        let sane = |score: &&TaskScore| score.right.iter().all(|right| *right <= score.questions);
        for score in scores.iter().filter(sane).filter(|score| score.questions > 0) {
            if kinds.insert(score.kind) {
                let sum = self.kinds.entry(score.kind).or_default();
                sum.questions += u64::from(score.questions);
                for (sum, right) in sum.right.iter_mut().zip(score.right) {
                    *sum += u64::from(right);
                }
            }
        }
    }
}

impl Tasks {
    /// Adds a member's scores. Those of a newer state close an open one, which is returned: it has the questions answered so far.
    fn add(
        &mut self,
        next_round: Round,
        step: u64,
        worker: WorkerId,
        scores: &[TaskScore],
    ) -> Option<&Scored> {
        let newest = self.open.as_ref().or(self.whole.as_ref()).map(|scored| scored.next_round);
        match newest {
            // Late, or whole without it.
            Some(newest) if next_round < newest || self.open.is_none() && next_round == newest => None,
            Some(newest) if next_round == newest => {
                self.open.iter_mut().for_each(|open| open.add(worker, scores));
                None
            }
            _ => {
                let mut open = Scored { next_round, step, ..Scored::default() };
                open.add(worker, scores);
                let left = self.open.replace(open).filter(|left| !left.kinds.is_empty())?;
                Some(self.whole.insert(left))
            }
        }
    }

    /// Closes the open scores once all of these have reported theirs.
    fn close(&mut self, scorers: &[WorkerId]) -> Option<&Scored> {
        let is_whole = |open: &mut Scored| scorers.iter().all(|scorer| open.members.contains(scorer));
        self.whole = Some(self.open.take_if(is_whole)?);
        self.whole.as_ref()
    }

    /// Goes back to the state before `round`.
    pub(crate) fn cut_back(&mut self, round: Round) {
        let stands = |of: &Scored| of.next_round <= round;
        self.open = self.open.take().filter(stands);
        self.whole = self.whole.take().filter(stands);
    }

    /// The newest closed scores. Members that left before they answered are not in them: [`KindScore::questions`] tells how many questions are.
    #[must_use]
    pub fn newest(&self) -> Option<&Scored> {
        self.whole.as_ref()
    }
}

impl Core {
    /// Records a member's scores of the state before a round, unless that state is not to be scored, or not by this member.
    pub(crate) fn note_scores(&mut self, worker: WorkerId, next_round: Round, scores: &[TaskScore]) {
        let is_present = self.peers.get(&worker).is_some_and(Peer::is_present_member);
        if !is_present || !self.is_scored(next_round) || !self.has_reached(worker, next_round) {
            return;
        }
        let last = Round(next_round.0.saturating_sub(1));
        if !self.scorers(last).contains(&worker) {
            return;
        }
        let workers = self.state.rounds.ledger.workers_in(last).len();
        let tasks = &self.config.evaluate.tasks;
        let is_possible =
            |score: &&TaskScore| u64::from(score.questions) <= tasks.share_max(score.kind, workers);
        let possible: Vec<TaskScore> = scores.iter().filter(is_possible).copied().collect();
        let step = self.state.rounds.schedule.steps_of(last).end;
        if let Some(left) = self.state.tasks.add(next_round, step, worker, &possible).cloned() {
            self.tell_scores(&left);
        }
        self.close_answered();
    }

    /// Closes the open scores once all that are to answer have: others may have left.
    pub(crate) fn close_answered(&mut self) {
        let Some(open) = &self.state.tasks.open else { return };
        let scorers = self.scorers(Round(open.next_round.0.saturating_sub(1)));
        if let Some(whole) = self.state.tasks.close(&scorers).cloned() {
            self.tell_scores(&whole);
            self.persist();
        }
    }

    /// Whether members score the state before a round.
    fn is_scored(&self, next_round: Round) -> bool {
        let until = self.until_round();
        next_round > Round(0)
            && !self.config.evaluate.tasks.are_none()
            && (next_round == until || next_round < until && self.config.evaluates_before(next_round))
    }

    /// Whether a member may have the state before a round, by its own reports: after a restart of the coordinator there are none yet.
    fn has_reached(&self, worker: WorkerId, next_round: Round) -> bool {
        let Some(progress) = self.peers.get(&worker).map(|peer| &peer.progress) else { return false };
        let Some(applied) = progress.next_round else { return true };
        let computing =
            progress.meter.latest().map(|heartbeat| self.state.rounds.schedule.round_of(heartbeat.step));
        next_round <= self.state.rounds.ledger.through().max(applied).max(computing.unwrap_or_default())
    }

    /// Members that have computed a round, and score the state after it. Those that became members later have no part of its questions.
    fn scorers(&self, round: Round) -> Vec<WorkerId> {
        let Some(lineup) = &self.state.generations.present else { return Vec::new() };
        let was_there = |worker: WorkerId| {
            round >= lineup.first_round || place_in(&lineup.active_before, worker).is_some()
        };
        let is_member =
            |worker: WorkerId| self.peers.get(&worker).is_some_and(|peer| peer.standing == Standing::Member);
        let workers = self.state.rounds.ledger.workers_in(round).iter().copied();
        workers.filter(|&worker| was_there(worker) && is_member(worker)).collect()
    }

    /// Takes the scores of the last state as they are: the run ends.
    pub(crate) fn close_scores(&mut self) {
        if let Some(left) = self.state.tasks.open.take() {
            self.tell_scores(&left);
            self.state.tasks.whole = Some(left);
        }
    }

    fn until_round(&self) -> Round {
        self.state.until().unwrap_or(Round(self.state.rounds.schedule.rounds()))
    }

    fn tell_scores(&mut self, scored: &Scored) {
        let mut words = Vec::new();
        for (kind, score) in &scored.kinds {
            let of_kind = scored.measures().filter(|(of, ..)| of == kind);
            let shares: Vec<String> =
                of_kind.map(|(_, name, share, _)| format!("{name} {share:.4}")).collect();
            words.push(format!("{kind} {} of {} questions", shares.join(", "), score.questions));
        }
        if !words.is_empty() {
            let text = format!("scores at step {}: {}", scored.step, words.join("; "));
            self.notice(Severity::Info, None, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(kind: TaskKind, right: [u32; 2], questions: u32) -> TaskScore {
        TaskScore { kind, right, questions }
    }

    #[test]
    fn parts_add_up_once_each_and_impossible_ones_count_for_nothing() {
        let mut tasks = Tasks::default();
        let members = [WorkerId(1), WorkerId(2)];
        let arc = |right, questions| vec![score(TaskKind::Arc, right, questions)];
        assert!(tasks.add(Round(4), 16, WorkerId(1), &arc([1, 2], 3)).is_none());
        assert!(tasks.close(&members).is_none() && tasks.newest().is_none());
        // Repeated; of the same kind again; impossible; of nothing.
        tasks.add(Round(4), 16, WorkerId(1), &arc([3, 3], 3));
        let scores = [
            score(TaskKind::Mmlu, [9, 0], 4),
            score(TaskKind::Arc, [2, 0], 2),
            score(TaskKind::Arc, [2, 2], 2),
            score(TaskKind::Piqa, [0, 0], 0),
        ];
        tasks.add(Round(4), 16, WorkerId(2), &scores);
        let whole = tasks.close(&members).unwrap();
        assert_eq!((whole.next_round, whole.step), (Round(4), 16));
        let measures: Vec<_> = whole.measures().collect();
        assert_eq!(measures, [(TaskKind::Arc, "acc", 0.6, 5), (TaskKind::Arc, "acc_norm", 0.4, 5)]);
        // Too late for it, and for an older one.
        tasks.add(Round(4), 16, WorkerId(3), &arc([1, 1], 1));
        tasks.add(Round(2), 8, WorkerId(1), &arc([1, 1], 1));
        assert_eq!(tasks.open, None);
        assert_eq!(tasks.newest().unwrap().kinds[&TaskKind::Arc].questions, 5);
    }

    #[test]
    fn a_newer_state_closes_one_that_lacks_a_member_and_a_run_that_goes_back_forgets_both() {
        let mut tasks = Tasks::default();
        let arc = [score(TaskKind::Arc, [1, 1], 2)];
        assert!(tasks.add(Round(4), 16, WorkerId(1), &arc).is_none());
        assert_eq!(tasks.add(Round(8), 32, WorkerId(1), &arc).unwrap().next_round, Round(4));
        assert_eq!(tasks.newest().unwrap().kinds[&TaskKind::Arc].questions, 2, "as many as were answered");
        assert_eq!(tasks.close(&[WorkerId(1)]).unwrap().next_round, Round(8));
        assert!(tasks.add(Round(12), 48, WorkerId(1), &[]).is_none());
        assert!(tasks.add(Round(16), 64, WorkerId(1), &arc).is_none(), "nothing was answered");
        tasks.cut_back(Round(8));
        assert_eq!((tasks.open.is_none(), tasks.newest().unwrap().next_round), (true, Round(8)));
        tasks.cut_back(Round(7));
        assert_eq!(tasks, Tasks::default());
        tasks.add(Round(4), 16, WorkerId(1), &arc);
        assert!(tasks.open.is_some());
    }
}
