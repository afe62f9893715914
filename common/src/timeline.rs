//! Assignment of samples to workers and steps over the generations of a run.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::WorkerId;
use crate::sampler::{Positions, SampleFeed, share};
use crate::weights::Weights;

/// From one step on: this feed, shared in this order by these workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Positions; its `first_step` is the start of the assignment.
    pub feed: SampleFeed,
    /// Workers, in order.
    pub workers: Vec<WorkerId>,
    /// Weights of the workers; empty: even shares.
    pub weights: Weights,
}

impl Assignment {
    /// Creates an assignment with even shares.
    #[must_use]
    pub fn evenly(feed: SampleFeed, workers: Vec<WorkerId>) -> Self {
        Self { feed, workers, weights: Weights::default() }
    }

    /// Returns the samples of a step of `batch` for the worker at this index of [`Self::workers`].
    #[must_use]
    pub fn share(&self, batch: u64, rank: usize) -> Range<u64> {
        // An assignment from the network may have any number of weights.
        if self.weights.are_for(self.workers.len()) {
            return self.weights.share(batch, rank);
        }
        share(batch, self.workers.len(), rank)
    }
}

/// All assignments of a run so far. The coordinator appends, workers follow; both compute the same positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Samples per step over all workers.
    pub batch: u64,
    /// By first step, ascending.
    assignments: Vec<Arc<Assignment>>,
}

impl Timeline {
    /// Creates an empty timeline of steps of `batch` samples.
    #[must_use]
    pub fn new(batch: u64) -> Self {
        Self { batch, assignments: Vec::new() }
    }

    /// Returns the assignment of a step; `None`: it precedes all known ones.
    #[must_use]
    pub fn at(&self, step: u64) -> Option<&Assignment> {
        self.index_at(step).map(|at| &*self.assignments[at])
    }

    /// Returns the assignments from that of a step on; all, if none is known for it.
    #[must_use]
    pub fn assignments_from(&self, step: u64) -> &[Arc<Assignment>] {
        &self.assignments[self.index_at(step).unwrap_or(0)..]
    }

    /// Returns the assignments, by first step.
    #[must_use]
    pub fn assignments(&self) -> &[Arc<Assignment>] {
        &self.assignments
    }

    /// Adds an assignment. It replaces those from its first step on.
    pub fn push(&mut self, assignment: impl Into<Arc<Assignment>>) {
        let assignment = assignment.into();
        self.assignments.retain(|old| old.feed.first_step < assignment.feed.first_step);
        self.assignments.push(assignment);
    }

    /// Drops assignments that ended before `step`.
    pub fn forget_before(&mut self, step: u64) {
        let current = self.index_at(step).unwrap_or(0);
        self.assignments.drain(..current);
    }

    /// Returns the positions of `worker` at `step`, in order; empty if it has no part in that step.
    #[must_use]
    pub fn positions(&self, step: u64, worker: WorkerId) -> Vec<Positions> {
        let Some(assignment) = self.at(step) else { return Vec::new() };
        let Some(rank) = place_in(&assignment.workers, worker) else { return Vec::new() };
        assignment.feed.positions(step, self.batch, &assignment.share(self.batch, rank))
    }

    /// Returns the positions of all but these workers at `step`, in order.
    #[must_use]
    pub fn positions_without(&self, step: u64, without: &BTreeSet<WorkerId>) -> Vec<Positions> {
        let Some(assignment) = self.at(step) else { return Vec::new() };
        let workers = &assignment.workers;
        let mut positions = Vec::new();
        let mut begun = 0;
        // From one excluded worker to the next: adjacent shares are one range.
        let left_out = workers.iter().enumerate().filter(|(_, worker)| without.contains(worker));
        for next in left_out.map(|(rank, _)| rank).chain([workers.len()]) {
            if begun < next {
                let first = assignment.share(self.batch, begun);
                let last = assignment.share(self.batch, next - 1);
                positions.extend(assignment.feed.positions(step, self.batch, &(first.start..last.end)));
            }
            begun = next + 1;
        }
        positions
    }

    /// Returns the feed from `step` on: positions not assigned by then, after the `undone` shares, each with
    /// the steps in which a worker's part did not count.
    #[must_use]
    pub fn feed_from(&self, step: u64, undone: &[(WorkerId, Range<u64>)]) -> SampleFeed {
        let redo = undone
            .iter()
            .flat_map(|(worker, steps)| steps.clone().map(|s| (*worker, s)))
            .flat_map(|(worker, s)| self.positions(s, worker))
            .collect();
        match self.at(step.saturating_sub(1)) {
            Some(before) if before.feed.first_step < step => before.feed.advance(step, self.batch, redo),
            _ => SampleFeed { first_step: step, backlog: redo, cursor: 0 },
        }
    }

    fn index_at(&self, step: u64) -> Option<usize> {
        // `push` keeps them ascending.
        self.assignments.partition_point(|assignment| assignment.feed.first_step <= step).checked_sub(1)
    }
}

/// Returns the place of a worker among these: soon where they are sorted, as the coordinator has them.
#[must_use]
pub fn place_in(workers: &[WorkerId], worker: WorkerId) -> Option<usize> {
    workers.binary_search(&worker).ok().or_else(|| workers.iter().position(|other| *other == worker))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Four workers, one leaves: its undone positions come first, and every position is trained on exactly
    /// once.
    #[test]
    fn a_departed_workers_share_is_done_again_and_nothing_else_is() {
        let workers: Vec<_> = (1..=4).map(WorkerId).collect();
        let mut timeline = Timeline::new(8);
        timeline.push(Assignment::evenly(timeline.feed_from(0, &[]), workers.clone()));
        // w2 leaves; its steps 5 and 6 did not count; the others continue alone from step 7.
        let feed = timeline.feed_from(7, &[(WorkerId(2), 5..7)]);
        timeline.push(Assignment::evenly(feed, vec![WorkerId(1), WorkerId(3), WorkerId(4)]));

        let mut trained = Vec::new();
        for step in 0..20 {
            for &worker in &workers {
                let counts = worker != WorkerId(2) || step < 5;
                let given = timeline.positions(step, worker).into_iter().flatten();
                trained.extend(given.filter(|_| counts));
            }
        }
        trained.sort_unstable();
        assert_eq!(trained, (0..trained.len() as u64).collect::<Vec<_>>());
        assert_eq!(trained.len(), 7 * 8 - 4 + 13 * 8);
    }

    #[test]
    fn who_is_slower_has_less_to_do_and_weights_of_another_number_count_for_nothing() {
        let workers: Vec<WorkerId> = (1..=3).map(WorkerId).collect();
        let share_of = |weights: Vec<u32>| {
            let mut timeline = Timeline::new(16);
            let weights = weights.into();
            timeline.push(Assignment { feed: SampleFeed::default(), workers: workers.clone(), weights });
            [1, 2, 3].map(|worker| timeline.positions(0, WorkerId(worker)).into_iter().flatten().count())
        };
        assert_eq!(share_of(vec![64, 16, 48]), [8, 2, 6]);
        assert_eq!([share_of(vec![]), share_of(vec![1, 2]), share_of(vec![0, 0, 0])], [[5, 5, 6]; 3]);
    }

    #[test]
    fn all_but_some_are_all_the_others() {
        let mut timeline = Timeline::new(10);
        let feed = SampleFeed { first_step: 0, backlog: vec![100..103, 103..104], cursor: 50 };
        let workers: Vec<WorkerId> = (1..=4).map(WorkerId).collect();
        for weights in [vec![], vec![1_u32, 4, 0, 2]] {
            let weights = weights.into();
            timeline.push(Assignment { feed: feed.clone(), workers: workers.clone(), weights });
            for without in [vec![], vec![2], vec![1, 4], vec![2, 3], vec![1, 2, 3, 4], vec![9]] {
                let without: BTreeSet<WorkerId> = without.into_iter().map(WorkerId).collect();
                for step in 0..3 {
                    let others = workers.iter().filter(|worker| !without.contains(worker));
                    let expected: Vec<u64> =
                        others.flat_map(|&worker| timeline.positions(step, worker)).flatten().collect();
                    let found: Vec<u64> =
                        timeline.positions_without(step, &without).into_iter().flatten().collect();
                    assert_eq!(found, expected, "{without:?} at {step}");
                }
            }
        }
    }

    proptest! {
        /// After any replacements and removals.
        #[test]
        fn a_step_is_handed_out_by_the_last_assignment_that_has_begun(
            first_steps in prop::collection::vec(0..40_u64, 0..12),
            forgotten in prop::option::of(0..40_u64),
        ) {
            let mut timeline = Timeline::new(4);
            for (worker, first_step) in (0..).zip(first_steps) {
                let feed = SampleFeed { first_step, cursor: 100 * first_step, ..SampleFeed::default() };
                timeline.push(Assignment::evenly(feed, vec![WorkerId(worker)]));
            }
            if let Some(step) = forgotten {
                timeline.forget_before(step);
            }
            for step in 0..45 {
                let known = timeline.assignments();
                let begun = known.iter().rposition(|assignment| assignment.feed.first_step <= step);
                prop_assert_eq!(timeline.at(step), begun.map(|at| &*known[at]));
                prop_assert_eq!(timeline.assignments_from(step), &known[begun.unwrap_or(0)..]);
                let Some(assignment) = timeline.at(step) else { continue };
                let positions = assignment.feed.positions(step, 4, &(0..4));
                prop_assert_eq!(timeline.positions(step, assignment.workers[0]), positions);
            }
        }
    }

    #[test]
    fn a_worker_is_found_among_others_in_any_order() {
        for workers in [[1, 3, 5], [5, 1, 3]] {
            let workers = workers.map(WorkerId);
            for worker in (0..7).map(WorkerId) {
                let place = workers.iter().position(|other| *other == worker);
                assert_eq!(place_in(&workers, worker), place, "{worker} of {workers:?}");
            }
        }
    }

    #[test]
    fn a_later_assignment_for_the_same_step_replaces_the_first() {
        let mut timeline = Timeline::new(4);
        timeline.push(Assignment::evenly(timeline.feed_from(0, &[]), vec![WorkerId(1), WorkerId(2)]));
        for members in [vec![WorkerId(1)], vec![WorkerId(2)]] {
            let feed = timeline.feed_from(3, &[]);
            timeline.push(Assignment::evenly(feed, members));
        }
        assert!(timeline.positions(3, WorkerId(1)).is_empty());
        let given = timeline.positions(3, WorkerId(2));
        assert_eq!(given.into_iter().flatten().collect::<Vec<_>>(), [12, 13, 14, 15]);
        timeline.forget_before(3);
        assert_eq!(timeline.assignments().len(), 1);
    }
}
