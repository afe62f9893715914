//! Scores of `evaluate.tasks`, which the members share.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::config::TaskKind;
use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::TaskScore;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;

/// The scores of a state, as far as members have reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tasks {
    /// Those of all members.
    whole: Option<Scored>,
    /// Those of some.
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
    /// Adds a member's scores. Returns whether the state is new.
    fn add(&mut self, next_round: Round, step: u64, worker: WorkerId, scores: &[TaskScore]) -> bool {
        let newest = self.open.as_ref().or(self.whole.as_ref()).map(|scored| scored.next_round);
        match newest {
            // Late, or whole without it.
            Some(newest) if next_round < newest || self.open.is_none() && next_round == newest => false,
            Some(newest) if next_round == newest => {
                self.open.iter_mut().for_each(|open| open.add(worker, scores));
                false
            }
            _ => {
                let mut open = Scored { next_round, step, ..Scored::default() };
                open.add(worker, scores);
                self.open = Some(open);
                true
            }
        }
    }

    /// Closes the scores of a state that all of these have reported.
    fn close(&mut self, members: &[WorkerId]) -> Option<&Scored> {
        let is_whole = |open: &mut Scored| members.iter().all(|member| open.members.contains(member));
        self.whole = Some(self.open.take_if(is_whole)?);
        self.whole.as_ref()
    }

    /// Goes back to the state before `round`.
    pub(crate) fn cut_back(&mut self, round: Round) {
        let stands = |of: &Scored| of.next_round <= round;
        self.open = self.open.take().filter(stands);
        self.whole = self.whole.take().filter(stands);
    }

    /// The newest scores of all members.
    #[must_use]
    pub fn newest(&self) -> Option<&Scored> {
        self.whole.as_ref()
    }
}

impl Core {
    /// Records a member's scores of the state before a round.
    pub(crate) fn note_scores(&mut self, worker: WorkerId, next_round: Round, scores: &[TaskScore]) {
        if self.config.evaluate.tasks.are_none() || next_round > self.until_round() {
            return;
        }
        let members = self.present_members();
        if !members.contains(&worker) {
            return;
        }
        let last = Round(next_round.0.saturating_sub(1));
        let step = self.state.rounds.schedule.steps_of(last).end;
        // Members that left take their part of the older state with them.
        let open = self.state.tasks.open.clone();
        if self.state.tasks.add(next_round, step, worker, scores)
            && let Some(left) = open
        {
            self.tell_scores(&left);
        }
        if let Some(whole) = self.state.tasks.close(&members).cloned() {
            self.tell_scores(&whole);
            self.persist();
        }
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
        assert!(tasks.add(Round(4), 16, WorkerId(1), &arc([1, 2], 3)));
        assert!(tasks.close(&members).is_none() && tasks.newest().is_none());
        // Repeated; of the same kind again; impossible; of nothing.
        assert!(!tasks.add(Round(4), 16, WorkerId(1), &arc([3, 3], 3)));
        let scores = [
            score(TaskKind::Mmlu, [9, 0], 4),
            score(TaskKind::Arc, [2, 0], 2),
            score(TaskKind::Arc, [2, 2], 2),
            score(TaskKind::Piqa, [0, 0], 0),
        ];
        assert!(!tasks.add(Round(4), 16, WorkerId(2), &scores));
        let whole = tasks.close(&members).unwrap();
        assert_eq!((whole.next_round, whole.step), (Round(4), 16));
        let measures: Vec<_> = whole.measures().collect();
        assert_eq!(measures, [(TaskKind::Arc, "acc", 0.6, 5), (TaskKind::Arc, "acc_norm", 0.4, 5)]);
        // Too late for it, and for an older one.
        assert!(!tasks.add(Round(4), 16, WorkerId(3), &arc([1, 1], 1)));
        assert!(!tasks.add(Round(2), 8, WorkerId(1), &arc([1, 1], 1)));
        assert_eq!(tasks.newest().unwrap().kinds[&TaskKind::Arc].questions, 5);
    }

    #[test]
    fn a_newer_state_replaces_one_that_lacks_a_member_and_a_run_that_goes_back_forgets_both() {
        let mut tasks = Tasks::default();
        let arc = [score(TaskKind::Arc, [1, 1], 2)];
        assert!(tasks.add(Round(4), 16, WorkerId(1), &arc));
        assert!(tasks.add(Round(8), 32, WorkerId(1), &arc));
        assert_eq!(tasks.close(&[WorkerId(1)]).unwrap().next_round, Round(8));
        assert!(tasks.add(Round(12), 48, WorkerId(1), &arc));
        tasks.cut_back(Round(8));
        assert_eq!((tasks.open.is_none(), tasks.newest().unwrap().next_round), (true, Round(8)));
        tasks.cut_back(Round(7));
        assert_eq!(tasks, Tasks::default());
        assert!(tasks.add(Round(4), 16, WorkerId(1), &arc));
    }
}
