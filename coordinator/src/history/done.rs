//! Sums of work, and their continuation when a process counts from zero again.

use longhaul_proto::control::message::Heartbeat;
use serde::{Deserialize, Serialize};

/// How many numbers [`Done`] has.
const NUMBERS: usize = 10;

/// Work of a worker, a site or the run since the history began. In JSON: its numbers in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "[u64; NUMBERS]")]
pub struct Done {
    /// Tokens of samples that were worked on.
    pub tokens: u64,
    /// Milliseconds of devices in forward, backward and optimiser,
    pub compute_ms: u64,
    /// waiting for other workers, whatever for,
    pub wait_ms: u64,
    /// waiting for training data,
    pub data_wait_ms: u64,
    /// and standing still for checkpoints.
    pub checkpoint_ms: u64,
    /// Bytes sent to other sites.
    pub wan_bytes: u64,
    /// Bytes that the same rounds would take as dense f32.
    pub dense_bytes: u64,
    /// Milliseconds in which updates were encoded or decoded, whatever the device did;
    pub encode_ms: u64,
    /// of waiting, those of waiting for results meanwhile,
    pub encode_wait_ms: u64,
    /// and those in a pipeline's bubbles.
    pub bubble_ms: u64,
}

impl From<[u64; NUMBERS]> for Done {
    fn from(numbers: [u64; NUMBERS]) -> Self {
        let [tokens, compute_ms, wait_ms, data_wait_ms, checkpoint_ms, wan_bytes, dense_bytes, ..] = numbers;
        let [.., encode_ms, encode_wait_ms, bubble_ms] = numbers;
        Self {
            tokens,
            compute_ms,
            wait_ms,
            data_wait_ms,
            checkpoint_ms,
            wan_bytes,
            dense_bytes,
            encode_ms,
            encode_wait_ms,
            bubble_ms,
        }
    }
}

impl From<Done> for [u64; NUMBERS] {
    fn from(done: Done) -> Self {
        [
            done.tokens,
            done.compute_ms,
            done.wait_ms,
            done.data_wait_ms,
            done.checkpoint_ms,
            done.wan_bytes,
            done.dense_bytes,
            done.encode_ms,
            done.encode_wait_ms,
            done.bubble_ms,
        ]
    }
}

impl TryFrom<Vec<u64>> for Done {
    type Error = TooMany;

    fn try_from(numbers: Vec<u64>) -> Result<Self, TooMany> {
        filled::<NUMBERS>(&numbers).map(Self::from)
    }
}

/// A list of numbers in a file is of a later release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} numbers, more than this release knows")]
pub struct TooMany(usize);

/// Releases before had fewer kinds of numbers, and those that they did not know are nothing.
pub(super) fn filled<const N: usize>(numbers: &[u64]) -> Result<[u64; N], TooMany> {
    let mut all = [0; N];
    all.get_mut(..numbers.len()).ok_or(TooMany(numbers.len()))?.copy_from_slice(numbers);
    Ok(all)
}

impl Done {
    /// Returns a process's work at a heartbeat. Negative and non-finite times count as zero.
    #[must_use]
    pub fn of(heartbeat: &Heartbeat) -> Self {
        let ms = |seconds: f64| (1e3 * seconds) as u64;
        Self {
            tokens: heartbeat.tokens,
            compute_ms: ms(heartbeat.time.compute_s),
            wait_ms: ms(heartbeat.time.wait_s),
            data_wait_ms: ms(heartbeat.time.data_wait_s),
            checkpoint_ms: ms(heartbeat.time.checkpoint_s),
            wan_bytes: heartbeat.traffic.wan_sent_bytes,
            dense_bytes: heartbeat.traffic.dense_bytes,
            encode_ms: ms(heartbeat.time.encode_s),
            encode_wait_ms: ms(heartbeat.time.encode_wait_s),
            bubble_ms: ms(heartbeat.time.bubble_s),
        }
    }

    /// Adds it.
    pub fn add(&mut self, other: Self) {
        let (sum, other): ([u64; NUMBERS], [u64; NUMBERS]) = ((*self).into(), other.into());
        *self = std::array::from_fn(|at| sum[at].saturating_add(other[at])).into();
    }

    /// Milliseconds of waiting for other workers that are neither encoding nor bubble.
    #[must_use]
    pub fn other_wait_ms(&self) -> u64 {
        self.wait_ms.saturating_sub(self.encode_wait_ms).saturating_sub(self.bubble_ms)
    }

    /// Returns the increase since `before`. If a count has decreased, the process counts from zero again, and all of it is new.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let (now, then): ([u64; NUMBERS], [u64; NUMBERS]) = (self.into(), before.into());
        let goes_on = now.iter().zip(&then).all(|(now, then)| now >= then);
        if goes_on { std::array::from_fn(|at| now[at] - then[at]).into() } else { self }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_proto::control::message::TimeSpent;

    use super::*;

    #[test]
    fn sums_go_on_over_a_process_that_counts_from_zero() {
        let count = |tokens| Done { tokens, ..Done::default() };
        let mut sum = Done::default();
        for (before, now) in [(0, 5), (5, 9), (9, 2), (2, 3)] {
            sum.add(count(now).since(count(before)));
        }
        assert_eq!(sum, count(12));
    }

    #[test]
    fn what_is_no_time_counts_as_none_and_numbers_have_an_order() {
        let time = TimeSpent { compute_s: f64::NAN, wait_s: -3.0, data_wait_s: 0.5, ..TimeSpent::default() };
        let odd = Heartbeat { time, tokens: 7, ..Heartbeat::default() };
        let done = Done::of(&odd);
        assert_eq!((done.compute_ms, done.wait_ms, done.data_wait_ms), (0, 0, 500));
        assert_eq!(serde_json::to_string(&done).unwrap(), "[7,0,0,500,0,0,0,0,0,0]");
    }

    #[test]
    fn what_releases_before_did_not_count_is_nothing_and_what_later_ones_count_is_refused() {
        let read = |text: &str| serde_json::from_str::<Done>(text);
        let known = Done { tokens: 7, dense_bytes: 3, ..Done::default() };
        assert_eq!(read("[7,0,0,0,0,0,3]").unwrap(), known);
        assert_eq!(read("[7,0,0,0,0,0,3,0,0,9]").unwrap(), Done { bubble_ms: 9, ..known });
        let error = read("[7,0,0,0,0,0,3,0,0,9,1]").unwrap_err().to_string();
        assert!(error.starts_with("11 numbers, more than this release knows"), "{error}");
    }
}
