//! What each worker did lately.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::done::Done;

/// How long an interval is, in milliseconds: a worker for which another one speaks tells its counts each 2.5 s.
pub const INTERVAL_MS: u64 = 3000;
/// Intervals that are kept: twelve minutes.
pub const INTERVALS_KEPT: usize = 240;
/// Workers that are told apart: enough to look at, and half a megabyte as JSON.
pub const WORKERS_MAX: usize = 256;

/// An interval. In JSON: `{"at_ms": …, "workers": {"w0": [compute, wait, data, checkpoint], …}}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its end: Unix time in milliseconds.
    pub at_ms: u64,
    /// By worker that was here: milliseconds of computing, of waiting for others, for data, and for checkpoints.
    pub workers: BTreeMap<String, [u64; 4]>,
    /// Workers that were here beyond those that are told apart.
    #[serde(default, skip_serializing_if = "is_none")]
    pub left_out: u32,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// The newest intervals, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Activity {
    intervals: VecDeque<Interval>,
}

impl Activity {
    /// The intervals.
    #[must_use]
    pub fn intervals(&self) -> &VecDeque<Interval> {
        &self.intervals
    }

    /// Whether an interval has passed.
    #[must_use]
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.intervals.back().is_none_or(|last| now_ms >= last.at_ms.saturating_add(INTERVAL_MS))
    }

    /// Those that end later than this go: their clock was ahead.
    pub fn cut_after(&mut self, now_ms: u64) {
        self.intervals.retain(|interval| interval.at_ms <= now_ms);
    }

    /// Adds one; the oldest goes where there are too many.
    pub fn push(&mut self, now_ms: u64, mut workers: impl Iterator<Item = (String, Done)>) {
        let kinds = |done: Done| [done.compute_ms, done.wait_ms, done.data_wait_ms, done.checkpoint_ms];
        let told = workers.by_ref().take(WORKERS_MAX).map(|(worker, done)| (worker, kinds(done))).collect();
        let left_out = u32::try_from(workers.count()).unwrap_or(u32::MAX);
        if self.intervals.len() == INTERVALS_KEPT {
            self.intervals.pop_front();
        }
        self.intervals.push_back(Interval { at_ms: now_ms, workers: told, left_out });
    }

    /// Those that ended after this time.
    pub fn after(&self, at_ms: u64) -> impl Iterator<Item = &Interval> {
        self.intervals.iter().filter(move |interval| interval.at_ms > at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_are_too_many_are_counted_and_intervals_of_a_clock_that_was_ahead_go() {
        let mut activity = Activity::default();
        let all = (0..WORKERS_MAX + 3).map(|number| (format!("w{number}"), Done::default()));
        activity.push(9_000, all);
        let interval = &activity.intervals()[0];
        assert_eq!((interval.workers.len(), interval.left_out), (WORKERS_MAX, 3));
        assert!(!activity.is_due(5_000));
        activity.cut_after(5_000);
        assert!(activity.is_due(5_000) && activity.intervals().is_empty());
    }
}
