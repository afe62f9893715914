//! The path's rate.

use super::rate_sample::RateSample;
use super::windowed_max::WindowedMax;

/// Probing cycles for which the largest sample is kept: the current and the previous one, so that a probe has
/// confirmed each value in use (BBRv3's MaxBwFilterLen).
const FILTER_CYCLES: usize = 2;
/// Minimum remainder of the short-term bound after congestion (BBRv3's Beta).
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

    /// Ends a probing cycle.
    pub(super) fn advance_cycle(&mut self) {
        self.filter.advance();
    }

    /// Reacts to congestion: lowers the rate to the last round's delivery rate, by at most 1 − [`BETA`].
    pub(super) fn reduce(&mut self) {
        let delivered = self.last_round.max(self.round_max);
        self.short_term = Some(delivered.max(BETA * self.rate()));
    }

    /// Clears the reaction to congestion before the next probe of the path.
    pub(super) fn reset_short_term(&mut self) {
        self.short_term = None;
    }

    /// Returns the long-term estimate, bytes/s.
    pub(super) fn max(&self) -> f64 {
        self.filter.max()
    }

    /// Returns the sending rate, bytes/s.
    pub(super) fn rate(&self) -> f64 {
        self.short_term.map_or(self.max(), |bound| bound.min(self.max()))
    }
}
