//! The path's round trip without queues.

use std::time::{Duration, Instant};

/// Lifetime of a smallest round trip. Routes change within minutes; probing costs a fraction of a second
/// (BBRv3's MinRTTFilterLen).
const FILTER: Duration = Duration::from_secs(10);
/// Minimum round trip assumed. Between busy machines of one site packets take microseconds, but their threads
/// wait milliseconds to be scheduled: a window of rate × microseconds would lower the rate, and the lower
/// rate the window, down to a few packets at a time. A queue of twice this is harmless on any path.
const COUNTED_MIN: Duration = Duration::from_millis(10);
/// A sample this close above the minimum confirms it: exact equality would need a clock without jitter.
const CONFIRM_FACTOR: f64 = 1.0 / 16.0;

/// Minimum filter over [`FILTER`] that reports when the queue must be drained for a new measurement.
#[derive(Debug, Clone)]
pub(super) struct MinRtt {
    value: Option<Duration>,
    confirmed_at: Instant,
    /// The smallest sample since the queue was drained on purpose.
    probed: Option<Duration>,
}

impl MinRtt {
    pub(super) fn new(now: Instant) -> Self {
        Self { value: None, confirmed_at: now, probed: None }
    }

    /// Returns the smallest recent round trip, at least [`COUNTED_MIN`]; `None` before the first sample.
    pub(super) fn get(&self) -> Option<Duration> {
        self.value
    }

    pub(super) fn handle_sample(&mut self, now: Instant, rtt: Duration) {
        let rtt = rtt.max(COUNTED_MIN);
        self.probed = Some(self.probed.map_or(rtt, |probed| probed.min(rtt)));
        match self.value {
            Some(value) if rtt > value.mul_f64(1.0 + CONFIRM_FACTOR) => {}
            Some(value) => {
                self.value = Some(value.min(rtt));
                self.confirmed_at = now;
            }
            None => {
                self.value = Some(rtt);
                self.confirmed_at = now;
            }
        }
    }

    /// Whether no sample came near the minimum for [`FILTER`]: the path may have become longer.
    pub(super) fn expired(&self, now: Instant) -> bool {
        self.value.is_some() && now.saturating_duration_since(self.confirmed_at) > FILTER
    }

    /// Replaces an expired minimum by the samples since the last call. No drain is needed, as no queue
    /// exists.
    pub(super) fn renew(&mut self, now: Instant) {
        self.finish_probe(now);
        self.start_probe();
    }

    /// Starts a measurement, as the queue is being drained.
    pub(super) fn start_probe(&mut self) {
        self.probed = None;
    }

    /// Ends a measurement: the samples since its start replace an expired minimum.
    pub(super) fn finish_probe(&mut self, now: Instant) {
        self.value = self.probed.or(self.value);
        self.confirmed_at = now;
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "an arbitrary origin of virtual time")]
mod tests {
    use super::*;

    #[test]
    fn samples_near_the_minimum_keep_it_alive_and_larger_ones_let_it_expire() {
        let start = Instant::now();
        let mut filter = MinRtt::new(start);
        filter.handle_sample(start, Duration::from_millis(50));
        let later = start + Duration::from_secs(8);
        filter.handle_sample(later, Duration::from_millis(52));
        assert!(!filter.expired(start + Duration::from_secs(12)));
        filter.handle_sample(start + Duration::from_secs(12), Duration::from_millis(80));
        assert!(filter.expired(start + Duration::from_secs(19)));
        assert_eq!(filter.get(), Some(Duration::from_millis(50)));
        filter.start_probe();
        filter.handle_sample(start + Duration::from_secs(19), Duration::from_millis(75));
        filter.handle_sample(start + Duration::from_secs(19), Duration::from_millis(70));
        filter.finish_probe(start + Duration::from_secs(19));
        assert_eq!(filter.get(), Some(Duration::from_millis(70)));
        assert!(!filter.expired(start + Duration::from_secs(20)));
    }

    #[test]
    fn without_a_queue_a_path_that_became_longer_is_seen_in_two_filters_time() {
        let start = Instant::now();
        let mut filter = MinRtt::new(start);
        filter.handle_sample(start, Duration::from_millis(20));
        for second in 1..=25 {
            let now = start + Duration::from_secs(second);
            filter.handle_sample(now, Duration::from_millis(200));
            if filter.expired(now) {
                filter.renew(now);
            }
            let expected = if second < 22 { 20 } else { 200 };
            assert_eq!(filter.get(), Some(Duration::from_millis(expected)), "after {second} s");
        }
    }
}
