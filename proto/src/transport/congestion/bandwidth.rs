//! The path's rate.

use super::rate_sample::RateSample;
use super::windowed_max::WindowedMax;

/// Probing cycles for which the largest sample holds: the current one and the one before, so that each
/// value in use was confirmed by a probe (BBRv3's MaxBwFilterLen).
const FILTER_CYCLES: usize = 2;
/// What congestion leaves of the short-term bound, at least (BBRv3's Beta).
const BETA: f64 = 0.7;

/// The largest delivery rate of the last cycles, and a lower bound for use after congestion.
#[derive(Debug, Clone)]
pub(super) struct Bandwidth {
    filter: WindowedMax<FILTER_CYCLES>,
    short_term: Option<f64>,
    round_max: f64,
    last_round: f64,
}

impl Bandwidth {
    pub(super) fn new() -> Self {
        Self { filter: WindowedMax::new(), short_term: None, round_max: 0.0, last_round: 0.0 }
    }

    pub(super) fn handle_sample(&mut self, sample: &RateSample) {
        self.round_max = self.round_max.max(sample.rate);
        if !sample.app_limited || sample.rate >= self.filter.max() {
            self.filter.observe(sample.rate);
        }
    }

    pub(super) fn handle_round(&mut self) {
        self.last_round = self.round_max;
        self.round_max = 0.0;
    }

    /// A probing cycle ended.
    pub(super) fn advance_cycle(&mut self) {
        self.filter.advance();
    }

    /// Congestion: the rate falls to what the last round delivered, by 1 − [`BETA`] at most.
    pub(super) fn reduce(&mut self) {
        let delivered = self.last_round.max(self.round_max);
        self.short_term = Some(delivered.max(BETA * self.rate()));
    }

    /// Forgets congestion before the path is probed again.
    pub(super) fn reset_short_term(&mut self) {
        self.short_term = None;
    }

    /// The long-term estimate, bytes/s.
    pub(super) fn max(&self) -> f64 {
        self.filter.max()
    }

    /// The rate to send at, bytes/s.
    pub(super) fn rate(&self) -> f64 {
        self.short_term.map_or(self.max(), |bound| bound.min(self.max()))
    }
}
