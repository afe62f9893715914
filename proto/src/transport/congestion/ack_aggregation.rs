//! Acknowledgements that arrive in bursts (draft-ietf-ccwg-bbr, "Ack Aggregation").

use std::time::Instant;

use super::windowed_max::WindowedMax;

/// Rounds for which a burst is kept (BBRv3's ExtraAckedFilterLen).
const FILTER_ROUNDS: usize = 10;

/// Bytes acknowledged at once in excess of the estimated rate. As many extra bytes in flight keep the sender
/// going until the next burst.
#[derive(Debug, Clone)]
pub(super) struct AckAggregation {
    filter: WindowedMax<FILTER_ROUNDS>,
    epoch: Option<Instant>,
    epoch_acked: f64,
}

impl AckAggregation {
    pub(super) fn new() -> Self {
        Self { filter: WindowedMax::new(), epoch: None, epoch_acked: 0.0 }
    }

    /// Records `acked` bytes acknowledged at `now`, on a path of `rate` bytes/s.
    pub(super) fn handle_ack(&mut self, now: Instant, acked: u64, rate: f64) {
        let elapsed = self.epoch.map_or(0.0, |epoch| now.saturating_duration_since(epoch).as_secs_f64());
        let mut expected = rate * elapsed;
        if self.epoch.is_none() || self.epoch_acked <= expected {
            self.epoch = Some(now);
            self.epoch_acked = 0.0;
            expected = 0.0;
        }
        self.epoch_acked += acked as f64;
        self.filter.observe(self.epoch_acked - expected);
    }

    pub(super) fn handle_round(&mut self) {
        self.filter.advance();
    }

    /// Returns the largest recent burst, in bytes.
    pub(super) fn largest_burst(&self) -> f64 {
        self.filter.max()
    }

    /// Returns the burst that occurred in each round, in bytes: a property of the path, not a single drain of
    /// the other direction's queue.
    pub(super) fn usual_burst(&self) -> f64 {
        self.filter.min_closed()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "an arbitrary origin of virtual time")]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_is_measured_against_the_rate_and_forgotten_after_ten_rounds() {
        let start = Instant::now();
        let mut aggregation = AckAggregation::new();
        // 1 MB/s, acknowledged every 20 ms in bursts of 20 kB.
        for burst in 1..50 {
            aggregation.handle_ack(start + Duration::from_millis(20) * burst, 20_000, 1e6);
        }
        assert!((aggregation.largest_burst() - 20_000.0).abs() < 1.0, "{}", aggregation.largest_burst());
        for _ in 0..10 {
            aggregation.handle_round();
        }
        assert_eq!(aggregation.largest_burst(), 0.0);
    }
}
