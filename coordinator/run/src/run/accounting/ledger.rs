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
mod tests;
