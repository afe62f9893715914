//! Sums of what was done, and how they go on when a process counts from zero again.

use longhaul_proto::control::message::Heartbeat;
use serde::{Deserialize, Serialize};

/// What a worker, a site or the run has done since the history began. In JSON: its numbers in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 7]", into = "[u64; 7]")]
pub struct Done {
    /// Tokens of samples that were worked on.
    pub tokens: u64,
    /// Milliseconds of devices in forward, backward and optimiser,
    pub compute_ms: u64,
    /// waiting for the network, or for other parts of a pipeline,
    pub wait_ms: u64,
    /// waiting for training data,
    pub data_wait_ms: u64,
    /// and standing still for checkpoints.
    pub checkpoint_ms: u64,
    /// Bytes sent to other sites.
    pub wan_bytes: u64,
    /// What the same rounds would have sent as dense f32.
    pub dense_bytes: u64,
}

impl From<[u64; 7]> for Done {
    fn from(numbers: [u64; 7]) -> Self {
        let [tokens, compute_ms, wait_ms, data_wait_ms, checkpoint_ms, wan_bytes, dense_bytes] = numbers;
        Self { tokens, compute_ms, wait_ms, data_wait_ms, checkpoint_ms, wan_bytes, dense_bytes }
    }
}

impl From<Done> for [u64; 7] {
    fn from(done: Done) -> Self {
        let Done { tokens, compute_ms, wait_ms, data_wait_ms, checkpoint_ms, wan_bytes, dense_bytes } = done;
        [tokens, compute_ms, wait_ms, data_wait_ms, checkpoint_ms, wan_bytes, dense_bytes]
    }
}

impl Done {
    /// What a process has done by the time of a heartbeat. Negative times, and those that are no number, count as none.
    #[must_use]
    pub fn of(heartbeat: &Heartbeat) -> Self {
        let ms = |seconds: f64| (1e3 * seconds) as u64;
        Self {
            tokens: heartbeat.tokens,
            compute_ms: ms(heartbeat.compute_s),
            wait_ms: ms(heartbeat.wait_s),
            data_wait_ms: ms(heartbeat.data_wait_s),
            checkpoint_ms: ms(heartbeat.checkpoint_s),
            wan_bytes: heartbeat.wan_sent_bytes,
            dense_bytes: heartbeat.dense_bytes,
        }
    }

    /// Adds it.
    pub fn add(&mut self, other: Self) {
        let (sum, other): ([u64; 7], [u64; 7]) = ((*self).into(), other.into());
        *self = std::array::from_fn(|at| sum[at].saturating_add(other[at])).into();
    }

    /// What has become more since `before`. Where something has become less, the process counts from zero again, and all of it is new.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let (now, then): ([u64; 7], [u64; 7]) = (self.into(), before.into());
        let goes_on = now.iter().zip(&then).all(|(now, then)| now >= then);
        if goes_on { std::array::from_fn(|at| now[at] - then[at]).into() } else { self }
    }
}

#[cfg(test)]
mod tests {
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
        let odd = Heartbeat {
            compute_s: f64::NAN,
            wait_s: -3.0,
            data_wait_s: 0.5,
            tokens: 7,
            ..Heartbeat::default()
        };
        let done = Done::of(&odd);
        assert_eq!((done.compute_ms, done.wait_ms, done.data_wait_ms), (0, 0, 500));
        assert_eq!(serde_json::to_string(&done).unwrap(), "[7,0,0,500,0,0,0]");
    }
}
