//! Which samples count, in which round, and which must be given out again.

use std::collections::BTreeSet;
use std::sync::Arc;

use longhaul_common::id::{Round, WorkerId};
use longhaul_common::sampler::{Positions, SampleFeed};
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::{Assignment, Timeline};
use serde::{Deserialize, Serialize};

use crate::run::accounting::late::Late;
use crate::run::accounting::ranges::Ranges;

/// Assignments kept before the older half is forgotten: one is some hundred bytes, and each is a change of membership.
/// Checkpoints from before what is kept cannot be resumed from, so this is far more than any run keeps.
const ASSIGNMENTS_KEPT_MAX: usize = 1024;
/// Stands for the workers of another run.
const NOBODY: WorkerId = WorkerId(u32::MAX);

/// The books of the run's samples.
///
/// A position *counts* in the round whose steps it was given out for, unless the share that holds it was *lost* (its
/// worker departed before its contribution was in a result, or sat the round out). Lost shares go to the front of the
/// next feed. So what has counted follows from the timeline and the losses, and cutting the run back to a checkpoint
/// means forgetting both from there on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    schedule: RoundSchedule,
    timeline: Timeline,
    losses: Vec<Loss>,
    /// Rounds before this one are applied everywhere.
    through: Round,
    /// Positions that count in them.
    counted: Ranges,
    /// Positions that were counted when they counted already, in all: none, unless these books are wrong.
    duplicates: u64,
    /// The first step that the timeline still covers.
    known_from: u64,
    /// Positions below this one were given out by the run that this one is a fork of.
    inherited: u64,
}

/// The share of one worker in one round, when it did not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Loss {
    round: Round,
    worker: WorkerId,
    positions: Vec<Positions>,
    /// The first step of the feed that hands it out again.
    reissued_at: Option<u64>,
}

impl Ledger {
    /// Empty books of a run with steps of `batch` samples.
    #[must_use]
    pub fn new(schedule: RoundSchedule, batch: u64) -> Self {
        Self {
            schedule,
            timeline: Timeline::new(batch),
            losses: Vec::new(),
            through: Round(0),
            counted: Ranges::default(),
            duplicates: 0,
            known_from: 0,
            inherited: 0,
        }
    }

    /// The books of a run that goes on before this round with the samples of another one, whose books are unknown: as if it had
    /// trained on all samples that its steps before had room for.
    #[must_use]
    pub fn forked(schedule: RoundSchedule, batch: u64, round: Round) -> Self {
        let mut books = Self::new(schedule, batch);
        books.through = round;
        books.known_from = books.first_step(round);
        books.inherited = books.known_from.saturating_mul(batch);
        if books.inherited > 0 {
            books.counted.insert(0..books.inherited);
        }
        books
    }

    /// The books of a run that goes on before this round with the samples of another one, from that one's books before
    /// `round_there`. Contributions that wait in a residual there are lost. `None`: its books do not reach back, or the step there is another one.
    #[must_use]
    pub fn continuing(
        (schedule, batch, round): (RoundSchedule, u64, Round),
        (there, late, round_there): (&Self, &Late, Round),
    ) -> Option<Self> {
        let mut there = there.clone();
        if !there.cut_back(round_there) {
            return None;
        }
        there.count_through(round_there);
        for (late, worker) in late.clone().cut_back(round_there, &BTreeSet::new()) {
            there.lose(late, worker);
        }
        let mut books = Self::new(schedule, batch);
        (books.through, books.known_from) = (round, books.first_step(round));
        if there.first_step(round_there) != books.known_from {
            return None;
        }
        let positions: Vec<Positions> = there.waiting().iter().collect();
        // They are among the samples of the first assignment.
        if let Some(before) = round.0.checked_sub(1).filter(|_| !positions.is_empty()) {
            books.losses.push(Loss { round: Round(before), worker: NOBODY, positions, reissued_at: None });
        }
        books.inherited = there.given_out();
        (books.counted, books.duplicates) = (there.counted, there.duplicates);
        Some(books)
    }

    /// From now on, rounds are these. Those that anything is written of here are the same as before.
    pub fn follow(&mut self, schedule: RoundSchedule) {
        self.schedule = schedule;
    }

    /// Shares the steps from `round` on between `workers`, by these weights, or evenly without; pending losses come first. Replaces the assignments from
    /// `round` on.
    pub fn assign(&mut self, round: Round, workers: Vec<WorkerId>, weights: Vec<u32>) {
        let step = self.first_step(round);
        // Losses of rounds that are shared out anew are among their samples again, unless reissued before.
        self.losses.retain(|loss| loss.round < round || loss.reissued_at.is_some_and(|at| at < step));
        let mut redo = Ranges::default();
        for loss in &mut self.losses {
            // A feed that is replaced before it began has handed nothing out.
            if loss.reissued_at.is_none_or(|at| at >= step) {
                loss.reissued_at = Some(step);
                loss.positions.iter().cloned().for_each(|range| {
                    redo.insert(range);
                });
            }
        }
        let mut feed = self.feed_from(step);
        feed.backlog.splice(0..0, redo.iter());
        self.timeline.push(Assignment { feed, workers, weights: weights.into() });
        self.forget_old();
    }

    /// The share of `worker` in `round` does not count. Says whether that was news.
    pub fn lose(&mut self, round: Round, worker: WorkerId) -> bool {
        if self.losses.iter().any(|loss| (loss.round, loss.worker) == (round, worker)) {
            return false;
        }
        let positions = self.share(round, worker);
        if positions.is_empty() {
            return false;
        }
        if round < self.through {
            positions.iter().cloned().for_each(|range| self.counted.remove(range));
        }
        self.losses.push(Loss { round, worker, positions, reissued_at: None });
        true
    }

    /// All rounds before `round` are applied everywhere.
    pub fn count_through(&mut self, round: Round) {
        for q in (self.through.0..round.0).map(Round) {
            for range in self.counted_in(q) {
                let samples = range.end - range.start;
                self.duplicates += samples - self.counted.insert(range);
            }
        }
        self.through = self.through.max(round);
    }

    /// Forgets everything from `round` on, as the run goes back to the state before it. Says whether that is possible:
    /// timeline and schedule may no longer reach back so far.
    pub fn cut_back(&mut self, round: Round) -> bool {
        if !self.reaches(round) {
            return false;
        }
        self.undo(round, round);
        true
    }

    /// Rounds from `open` on are made anew: as they were assigned before `first`, and as they will be from there on. Nothing of them counts any more.
    pub fn undo(&mut self, open: Round, first: Round) {
        let step = self.first_step(first);
        for q in (open.0..self.through.0).map(Round) {
            for range in self.counted_in(q) {
                self.counted.remove(range);
            }
        }
        self.through = self.through.min(open);
        // Losses of these rounds are decided anew, unless already reissued before `first`.
        self.losses.retain(|loss| loss.round < open || loss.reissued_at.is_some_and(|at| at < step));
        for loss in &mut self.losses {
            loss.reissued_at = loss.reissued_at.filter(|&at| at < step);
        }
    }

    /// Whether the run can be cut back to `round`.
    #[must_use]
    pub fn reaches(&self, round: Round) -> bool {
        self.schedule.reaches(round) && self.first_step(round) >= self.known_from
    }

    /// Positions that count in `round`, as far as is known by now.
    #[must_use]
    pub fn counted_in(&self, round: Round) -> Vec<Positions> {
        let lost: BTreeSet<WorkerId> =
            self.losses.iter().filter(|loss| loss.round == round).map(|loss| loss.worker).collect();
        let steps = self.schedule.steps_of(round);
        steps.flat_map(|step| self.timeline.positions_without(step, &lost)).collect()
    }

    /// Positions that count in rounds that are applied everywhere.
    #[must_use]
    pub fn counted(&self) -> &Ranges {
        &self.counted
    }

    /// Of the positions that count, how many are of these shares.
    pub fn counted_of(&self, shares: impl Iterator<Item = (Round, WorkerId)>) -> u64 {
        let counted = |(round, worker): &(Round, WorkerId)| {
            let is_lost = || self.losses.iter().any(|loss| (loss.round, loss.worker) == (*round, *worker));
            *round < self.through && !is_lost()
        };
        let positions = shares.filter(counted).flat_map(|(round, worker)| self.share(round, worker));
        positions.map(|range| range.end - range.start).sum()
    }

    /// Positions that were counted although they had been already: more than 0 and a sample was trained on twice.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Rounds before this one are applied everywhere.
    #[must_use]
    pub fn through(&self) -> Round {
        self.through
    }

    /// Samples that wait to be given out again.
    #[must_use]
    pub fn pending(&self) -> u64 {
        let waiting = self.losses.iter().filter(|loss| loss.reissued_at.is_none());
        waiting.flat_map(|loss| &loss.positions).map(|range| range.end - range.start).sum()
    }

    /// Positions below this one, and no other, were given out for rounds that are applied everywhere.
    #[must_use]
    pub fn given_out(&self) -> u64 {
        self.feed_behind().cursor
    }

    /// Of the positions that [were given out](Self::given_out), those that are to be given out again. The others are those that count, or these books are wrong.
    #[must_use]
    pub fn waiting(&self) -> Ranges {
        let SampleFeed { first_step, backlog, cursor } = self.feed_behind();
        // A later feed has those of its losses in its backlog.
        let is_to_come = |loss: &&Loss| loss.reissued_at.is_none_or(|at| at >= first_step);
        let lost = self.losses.iter().filter(is_to_come).flat_map(|loss| &loss.positions);
        let mut waiting = Ranges::default();
        for range in backlog.iter().chain(lost) {
            waiting.insert(range.start..range.end.min(cursor));
        }
        waiting
    }

    /// The samples left after the rounds that are applied everywhere.
    fn feed_behind(&self) -> SampleFeed {
        self.feed_from(self.first_step(self.through))
    }

    fn feed_from(&self, step: u64) -> SampleFeed {
        let feed = self.timeline.feed_from(step, &[]);
        SampleFeed { cursor: feed.cursor.max(self.inherited), ..feed }
    }

    /// Workers that share the steps of `round`.
    #[must_use]
    pub fn workers_in(&self, round: Round) -> &[WorkerId] {
        self.timeline.at(self.first_step(round)).map_or(&[], |assignment| &assignment.workers)
    }

    /// The assignment of the newest steps.
    pub fn newest(&self) -> Option<&Assignment> {
        self.timeline.assignments().last().map(|newest| &**newest)
    }

    /// The assignments that cover `round` and later ones.
    #[must_use]
    pub fn assignments_from(&self, round: Round) -> Vec<Arc<Assignment>> {
        self.timeline.assignments_from(self.first_step(round)).to_vec()
    }

    fn share(&self, round: Round, worker: WorkerId) -> Vec<Positions> {
        self.schedule.steps_of(round).flat_map(|step| self.timeline.positions(step, worker)).collect()
    }

    fn first_step(&self, round: Round) -> u64 {
        self.schedule.steps_of(round).start
    }

    fn forget_old(&mut self) {
        let assignments = self.timeline.assignments();
        if assignments.len() <= ASSIGNMENTS_KEPT_MAX {
            return;
        }
        // Rounds that are not counted yet still need theirs.
        let step = assignments[ASSIGNMENTS_KEPT_MAX / 2].feed.first_step.min(self.first_step(self.through));
        // The assignment before `step` stays: a feed that begins there follows from it.
        self.timeline.forget_before(step.saturating_sub(1));
        self.known_from = step;
        let round = self.schedule.round_of(step);
        self.losses.retain(|loss| loss.round >= round || loss.reissued_at.is_none_or(|at| at >= step));
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::schedule::Changes;

    use super::*;

    const W1: WorkerId = WorkerId(1);
    const W2: WorkerId = WorkerId(2);

    /// Ten rounds of two steps, four samples a step, shared by two workers from round 0.
    fn books() -> Ledger {
        let schedule = RoundSchedule {
            warmup_rounds: 0,
            warmup_every: 1,
            every: 2,
            groups: 1,
            exchanges: 1,
            steps: 20,
            changes: Changes::NONE,
        };
        let mut ledger = Ledger::new(schedule, 4);
        ledger.assign(Round(0), vec![W1, W2], Vec::new());
        ledger
    }

    /// One share was lost and is given out again before the fork, one after it, and one waits in a residual.
    #[test]
    fn a_fork_that_goes_on_in_the_samples_gives_out_those_that_did_not_count() {
        let mut there = books();
        let mut late = Late::default();
        there.lose(Round(0), W2);
        there.assign(Round(2), vec![W1, W2], Vec::new());
        there.lose(Round(2), W2);
        late.applied(Round(3), &[(W1, true), (W2, false)]);
        there.count_through(Round(5));
        there.assign(Round(5), vec![W1], Vec::new());
        there.count_through(Round(7));
        let at = |round| (there.schedule, 4, Round(round));
        let mut fork = Ledger::continuing(at(4), (&there, &late, Round(4))).unwrap();
        assert_eq!((fork.counted().len(), fork.waiting().len(), fork.given_out()), (20, 8, 28));
        assert!(is_balanced(&fork));
        fork.assign(Round(4), vec![W1, W2], Vec::new());
        fork.count_through(Round(5));
        assert!(fork.counted().iter().eq(std::iter::once(0..28)), "{:?}", fork.counted());
        assert!(fork.cut_back(Round(4)) && is_balanced(&fork));
        fork.assign(Round(4), vec![W1], Vec::new());
        fork.count_through(Round(10));
        assert!(fork.counted().iter().eq(std::iter::once(0..28 + 5 * 8)));
        assert_eq!((fork.duplicates(), fork.pending()), (0, 0));
        // A fork of it, from where it began.
        let again = Ledger::continuing(at(4), (&fork, &Late::default(), Round(4))).unwrap();
        assert_eq!((again.counted().len(), again.waiting().len(), again.given_out()), (20, 8, 28));
        assert_eq!(Ledger::continuing(at(5), (&there, &late, Round(4))), None, "another step");
        assert_eq!(Ledger::continuing(at(3), (&fork, &late, Round(3))), None, "from before its books");
    }

    fn flat(positions: Vec<Positions>) -> Vec<u64> {
        let mut all: Vec<u64> = positions.into_iter().flatten().collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_lost_share_does_not_count_and_is_given_out_first_in_the_next_assignment() {
        let mut ledger = books();
        assert!(ledger.lose(Round(1), W2));
        assert!(!ledger.lose(Round(1), W2), "the same share is lost only once");
        assert_eq!(ledger.pending(), 4);
        assert_eq!(flat(ledger.counted_in(Round(1))), [8, 9, 12, 13]);
        ledger.assign(Round(2), vec![W1], Vec::new());
        assert_eq!(ledger.pending(), 0);
        assert_eq!(flat(ledger.counted_in(Round(2))), [10, 11, 14, 15, 16, 17, 18, 19]);
        ledger.count_through(Round(3));
        assert!(ledger.counted().iter().eq(std::iter::once(0..20)));
    }

    #[test]
    fn a_feed_that_is_replaced_before_it_began_loses_nothing() {
        let mut ledger = books();
        ledger.lose(Round(1), W2);
        ledger.assign(Round(3), vec![W1], Vec::new());
        ledger.assign(Round(2), vec![W1], Vec::new());
        ledger.count_through(Round(3));
        assert!(ledger.counted().iter().eq(std::iter::once(0..20)));
    }

    /// A generation that was to begin at round 3 goes with the only member that had the rounds before; another one makes them all.
    #[test]
    fn what_was_lost_of_rounds_that_are_assigned_anew_is_given_out_once() {
        let mut ledger = books();
        ledger.count_through(Round(1));
        ledger.lose(Round(0), W2);
        ledger.lose(Round(1), W2);
        ledger.lose(Round(2), W2);
        ledger.assign(Round(3), vec![W1], Vec::new());
        ledger.assign(Round(1), vec![W2], Vec::new());
        ledger.count_through(Round(4));
        assert_eq!((ledger.duplicates(), ledger.pending()), (0, 0));
        assert!(ledger.counted().iter().eq(std::iter::once(0..28)));
    }

    #[test]
    fn a_loss_that_is_learnt_of_late_is_taken_out_of_what_counted() {
        let mut ledger = books();
        ledger.count_through(Round(2));
        ledger.lose(Round(0), W1);
        assert_eq!(flat(ledger.counted().iter().collect()), [2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        ledger.assign(Round(2), vec![W1, W2], Vec::new());
        ledger.count_through(Round(3));
        assert!(ledger.counted().iter().eq(std::iter::once(0..20)));
    }

    #[test]
    fn a_position_that_is_given_out_twice_is_noticed() {
        let mut ledger = books();
        let feed = SampleFeed { first_step: 4, backlog: vec![0..2, 2..3], cursor: 16 };
        ledger.timeline.push(Assignment::evenly(feed, vec![W1]));
        ledger.count_through(Round(2));
        assert_eq!((ledger.duplicates(), ledger.counted().len()), (0, 16));
        ledger.count_through(Round(3));
        assert_eq!((ledger.duplicates(), ledger.counted().len()), (3, 16 + 5));
    }

    /// Whether each position that was given out counts or waits.
    fn is_balanced(ledger: &Ledger) -> bool {
        ledger.counted().len() + ledger.waiting().len() == ledger.given_out()
    }

    #[test]
    fn each_position_that_was_given_out_counts_or_waits_until_it_is_given_out_again() {
        let mut ledger = books();
        let told = |ledger: &Ledger| (ledger.counted().len(), ledger.waiting().len(), ledger.given_out());
        ledger.count_through(Round(2));
        ledger.lose(Round(1), W2);
        assert_eq!(told(&ledger), (12, 4, 16), "it waits for another assignment");
        ledger.lose(Round(2), W2);
        assert_eq!(told(&ledger), (12, 4, 16), "what is not applied was not given out for what is");
        ledger.assign(Round(4), vec![W1], Vec::new());
        assert_eq!(told(&ledger), (12, 4, 16), "it waits for the steps that it is assigned to");
        ledger.count_through(Round(4));
        assert_eq!(told(&ledger), (24, 8, 32));
        ledger.count_through(Round(5));
        assert_eq!(told(&ledger), (32, 0, 32));
        assert!(ledger.cut_back(Round(1)) && is_balanced(&ledger));
    }

    #[test]
    fn books_with_a_gap_do_not_balance() {
        let mut ledger = books();
        ledger.lose(Round(1), W2);
        ledger.assign(Round(2), vec![W1], Vec::new());
        ledger.count_through(Round(3));
        assert!(is_balanced(&ledger));
        ledger.counted.remove(3..4);
        assert!(!is_balanced(&ledger));
    }

    #[test]
    fn cutting_back_restores_the_books_of_that_round() {
        let mut ledger = books();
        ledger.lose(Round(0), W1);
        ledger.assign(Round(4), vec![W1], Vec::new());
        ledger.count_through(Round(4));
        let reference = ledger.counted().clone();
        ledger.lose(Round(5), W1);
        ledger.assign(Round(6), vec![W2], Vec::new());
        ledger.count_through(Round(8));
        assert!(ledger.cut_back(Round(4)));
        assert_eq!(*ledger.counted(), reference);
        assert_eq!(ledger.pending(), 4, "the feed that began at round 4 handed nothing out after all");
        ledger.assign(Round(4), vec![W2], Vec::new());
        ledger.count_through(Round(5));
        assert!(ledger.counted().iter().eq(std::iter::once(0..36)));
    }

    #[test]
    fn old_assignments_are_forgotten_and_old_checkpoints_with_them() {
        let schedule = RoundSchedule {
            warmup_rounds: 0,
            warmup_every: 1,
            every: 1,
            groups: 1,
            exchanges: 1,
            steps: 5000,
            changes: Changes::NONE,
        };
        let mut ledger = Ledger::new(schedule, 2);
        for round in (0..3000).map(Round) {
            ledger.count_through(round);
            ledger.assign(round, vec![W1, W2], Vec::new());
            ledger.lose(round, W2);
        }
        assert!(ledger.timeline.assignments().len() <= ASSIGNMENTS_KEPT_MAX);
        assert!(ledger.losses.len() <= ASSIGNMENTS_KEPT_MAX);
        assert!(!ledger.reaches(Round(3)) && !ledger.cut_back(Round(3)));
        assert!(ledger.reaches(Round(2900)) && ledger.cut_back(Round(2900)));
        assert!(ledger.counted().iter().eq(std::iter::once(0..2900)));
    }
}
