//! Distinction of congestion from random loss.
//!
//! BBRv3 takes 2 % loss in a round as the sign of an overfull queue. Our long links may lose 1 % at random,
//! and a round of 90 packets then shows 2 % every fourth time. The bound therefore lies above the path's own
//! loss, learnt while the queue is not being probed, with a margin for chance.

/// Loss above the baseline that means congestion (BBRv3's LossThresh).
const EXCESS_MAX: f64 = 0.02;
/// Standard deviations of a Poisson count allowed on top: a false alarm in about a thousand rounds.
const CHANCE_SIGMAS: f64 = 3.0;
/// Maximum loss attributed to the path itself. Links with more random loss are rare; a queue that always
/// overflows must not pass for one.
const BASELINE_MAX: f64 = 0.05;
/// Baseline before any measurement.
const BASELINE_START: f64 = 0.01;
/// Weight of one round in the baseline: about 16 rounds make a new estimate.
const BASELINE_WEIGHT: f64 = 1.0 / 16.0;

/// Reference for the rounds' losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// The path is unknown: allow the largest baseline.
    Unknown,
    /// The learnt baseline.
    Learnt,
}

/// Loss of the current round against the path's baseline.
#[derive(Debug, Clone)]
pub(super) struct LossMonitor {
    baseline: f64,
    lost: u64,
    delivered: u64,
    congestion_marked: bool,
}

impl LossMonitor {
    pub(super) fn new() -> Self {
        Self { baseline: BASELINE_START, lost: 0, delivered: 0, congestion_marked: false }
    }

    pub(super) fn handle_delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    /// Records `bytes` declared lost; zero for an explicit congestion mark (ECN).
    pub(super) fn handle_lost(&mut self, bytes: u64) {
        self.lost += bytes;
        self.congestion_marked |= bytes == 0;
    }

    /// Whether this round's loss so far, in packets of `packet_bytes`, is congestion.
    pub(super) fn is_excessive(&self, packet_bytes: u64, bound: Bound) -> bool {
        let packets = (self.lost + self.delivered) as f64 / packet_bytes as f64;
        let baseline = match bound {
            Bound::Unknown => BASELINE_MAX,
            Bound::Learnt => self.baseline,
        };
        let expected = packets * baseline;
        let allowed = expected + packets * EXCESS_MAX + CHANCE_SIGMAS * expected.max(1.0).sqrt();
        self.lost as f64 / packet_bytes as f64 > allowed
    }

    /// Whether the path marked packets of this round (ECN).
    pub(super) fn congestion_marked(&self) -> bool {
        self.congestion_marked
    }

    /// Ends the round. `learn`: the sender neither probed nor overfilled the queue in it.
    pub(super) fn finish_round(&mut self, learn: bool) {
        let total = self.lost + self.delivered;
        if learn && total > 0 {
            let rate = (self.lost as f64 / total as f64).min(BASELINE_MAX);
            self.baseline += BASELINE_WEIGHT * (rate - self.baseline);
        }
        self.lost = 0;
        self.delivered = 0;
        self.congestion_marked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1_400;

    fn round(monitor: &mut LossMonitor, packets: u64, lost: u64) -> bool {
        monitor.handle_delivered((packets - lost) * PACKET);
        if lost > 0 {
            monitor.handle_lost(lost * PACKET);
        }
        let excessive = monitor.is_excessive(PACKET, Bound::Learnt);
        monitor.finish_round(!excessive);
        excessive
    }

    #[test]
    fn a_full_queue_counts_and_chance_does_not() {
        let mut monitor = LossMonitor::new();
        // 90 packets at 1 %: up to five lost is chance; 430 packets: ten is.
        assert!(!round(&mut monitor, 90, 4));
        assert!(!round(&mut monitor, 430, 10));
        assert!(round(&mut monitor, 430, 60));
        assert!(round(&mut monitor, 90, 20));
    }

    #[test]
    fn a_path_that_always_loses_three_per_cent_raises_its_own_bound() {
        let mut monitor = LossMonitor::new();
        for _ in 0..100 {
            round(&mut monitor, 1_000, 30);
        }
        assert!(!round(&mut monitor, 1_000, 45));
        assert!(round(&mut monitor, 1_000, 120));
    }

    #[test]
    fn heavy_loss_never_becomes_the_baseline() {
        let mut monitor = LossMonitor::new();
        for _ in 0..200 {
            monitor.handle_delivered(700 * PACKET);
            monitor.handle_lost(300 * PACKET);
            monitor.finish_round(true);
        }
        assert!(round(&mut monitor, 1_000, 150));
    }
}
