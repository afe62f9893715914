//! Packet-timed round trips.

use std::time::Instant;

/// Start of a round, and the bytes delivered by then.
#[derive(Debug, Clone, Copy)]
struct Boundary {
    at: Instant,
    delivered: u64,
}

/// Counts rounds: one ends when a packet sent after its start is acknowledged.
#[derive(Debug, Clone, Default)]
pub(super) struct RoundCounter {
    current: Option<Boundary>,
    previous: Option<Boundary>,
}

impl RoundCounter {
    /// Whether a round ended with a packet sent when `delivered_at_send` bytes had been delivered;
    /// `delivered` is the count at `now`.
    pub(super) fn handle_ack(&mut self, now: Instant, delivered_at_send: u64, delivered: u64) -> bool {
        if self.current.is_some_and(|current| delivered_at_send < current.delivered) {
            return false;
        }
        self.previous = self.current.replace(Boundary { at: now, delivered });
        true
    }

    /// Forgets earlier rounds: after an idle phase they no longer reflect the rate.
    pub(super) fn forget_times(&mut self) {
        self.previous = None;
    }

    /// Returns the delivery rate in bytes/s from the start of the last whole round until `now`: one to two
    /// rounds.
    pub(super) fn delivery_rate(&self, now: Instant, delivered: u64) -> Option<f64> {
        let start = self.previous?;
        let seconds = now.saturating_duration_since(start.at).as_secs_f64();
        (seconds > 0.0).then(|| (delivered - start.delivered) as f64 / seconds)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "an arbitrary origin of virtual time")]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_round_ends_with_a_packet_sent_after_it_began_and_the_rate_spans_a_whole_one() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rounds = RoundCounter::default();
        assert!(rounds.handle_ack(at(0), 0, 1_000));
        assert!(!rounds.handle_ack(at(10), 500, 2_000));
        assert!(rounds.handle_ack(at(50), 1_000, 6_000));
        assert_eq!(rounds.delivery_rate(at(100), 11_000), Some(100_000.0));
        rounds.forget_times();
        assert_eq!(rounds.delivery_rate(at(100), 11_000), None);
    }
}
