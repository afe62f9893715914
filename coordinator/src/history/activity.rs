//! Recent activity of each worker.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::done::{Done, TooMany, filled};

/// Length of an interval, in milliseconds: a worker that another one reports for sends its counts each 2.5 s.
pub const INTERVAL_MS: u64 = 3000;
/// Intervals that are kept: twelve minutes.
pub const INTERVALS_KEPT: usize = 240;
/// Workers that are told apart: enough to look at, and half a megabyte as JSON.
pub const WORKERS_MAX: usize = 256;

/// How many numbers [`Spent`] has.
const KINDS: usize = 7;

/// Milliseconds of a worker's device by activity, without overlap, and of encoding besides. In JSON: its numbers in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "[u64; KINDS]")]
pub struct Spent {
    /// In forward, backward and optimiser,
    pub compute_ms: u64,
    /// waiting for other workers, beyond the kinds below,
    pub wait_ms: u64,
    /// waiting for training data,
    pub data_ms: u64,
    /// standing still for checkpoints,
    pub checkpoint_ms: u64,
    /// waiting for a result while updates were encoded or decoded here,
    pub encode_ms: u64,
    /// and in a pipeline's bubble.
    pub bubble_ms: u64,
    /// Encoding and decoding that the device did not wait for.
    pub beside_ms: u64,
}

impl From<Done> for Spent {
    fn from(done: Done) -> Self {
        Self {
            compute_ms: done.compute_ms,
            wait_ms: done.other_wait_ms(),
            data_ms: done.data_wait_ms,
            checkpoint_ms: done.checkpoint_ms,
            encode_ms: done.encode_wait_ms,
            bubble_ms: done.bubble_ms,
            beside_ms: done.encode_ms.saturating_sub(done.encode_wait_ms),
        }
    }
}

impl From<Spent> for [u64; KINDS] {
    fn from(spent: Spent) -> Self {
        let Spent { compute_ms, wait_ms, data_ms, checkpoint_ms, encode_ms, bubble_ms, beside_ms } = spent;
        [compute_ms, wait_ms, data_ms, checkpoint_ms, encode_ms, bubble_ms, beside_ms]
    }
}

impl TryFrom<Vec<u64>> for Spent {
    type Error = TooMany;

    fn try_from(numbers: Vec<u64>) -> Result<Self, TooMany> {
        let numbers = filled::<KINDS>(&numbers)?;
        let [compute_ms, wait_ms, data_ms, checkpoint_ms, encode_ms, bubble_ms, beside_ms] = numbers;
        Ok(Self { compute_ms, wait_ms, data_ms, checkpoint_ms, encode_ms, bubble_ms, beside_ms })
    }
}

/// An interval. In JSON: `{"at_ms": …, "workers": {"w0": [compute, wait, data, checkpoint, encode, bubble, beside], …}}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its end: Unix time in milliseconds.
    pub at_ms: u64,
    /// By worker that was here.
    pub workers: BTreeMap<String, Spent>,
    /// Workers beyond the listed ones.
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
        let told = workers.by_ref().take(WORKERS_MAX).map(|(worker, done)| (worker, done.into())).collect();
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
    fn waiting_is_divided_and_no_moment_counts_twice() {
        let done = Done {
            compute_ms: 2000,
            wait_ms: 900,
            encode_ms: 700,
            encode_wait_ms: 300,
            bubble_ms: 400,
            data_wait_ms: 50,
            checkpoint_ms: 20,
            ..Done::default()
        };
        let told = serde_json::to_string(&Spent::from(done)).unwrap();
        assert_eq!(told, "[2000,200,50,20,300,400,400]");
        let before = serde_json::from_str::<Spent>("[2000,900,50,20]").unwrap();
        assert_eq!(before, Spent { encode_ms: 0, bubble_ms: 0, beside_ms: 0, wait_ms: 900, ..done.into() });
        let nonsense = Done { wait_ms: 1, bubble_ms: 5, ..Done::default() };
        assert_eq!(Spent::from(nonsense).wait_ms, 0);
    }

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
