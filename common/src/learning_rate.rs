//! The learning rate as a function of the run's step.

use std::f64::consts::PI;

use crate::config::TrainConfig;

/// Linear warm-up to the peak, then half a cosine down to a share of it (Loshchilov & Hutter 2017, without restarts).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    peak: f64,
    last: f64,
    warmup_steps: u64,
    steps: u64,
}

impl LearningRate {
    /// Creates the schedule of a run of `steps` steps.
    #[must_use]
    pub fn new(train: &TrainConfig, steps: u64) -> Self {
        let peak = train.learning_rate;
        let last = peak * train.final_learning_rate_share;
        Self { peak, last, warmup_steps: train.warmup_steps, steps }
    }

    /// Returns the rate of the run's `step`, counted from zero.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let decaying = self.steps.saturating_sub(self.warmup_steps).max(1);
        let progress = ((step - self.warmup_steps) as f64 / decaying as f64).min(1.0);
        self.last + (self.peak - self.last) * 0.5 * (1.0 + (PI * progress).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_linearly_and_falls_as_half_a_cosine() {
        let train = TrainConfig { learning_rate: 2.0, warmup_steps: 4, ..TrainConfig::default() };
        let rate = LearningRate::new(&train, 104);
        for (step, expected) in [(0, 0.5), (3, 2.0), (4, 2.0), (54, 1.1), (104, 0.2), (9999, 0.2)] {
            assert!((rate.at(step) - expected).abs() < 1e-12, "{} at step {step}", rate.at(step));
        }
        // A quarter of the way the cosine is √½.
        let quarter = 0.2 + 1.8 * 0.5 * (1.0 + 0.5f64.sqrt());
        assert!((rate.at(29) - quarter).abs() < 1e-12);
    }

    #[test]
    fn a_run_shorter_than_its_warmup_only_rises() {
        let train = TrainConfig { learning_rate: 1.0, warmup_steps: 10, ..TrainConfig::default() };
        let rate = LearningRate::new(&train, 5);
        assert!((0..10).all(|step| (rate.at(step) - (step + 1) as f64 / 10.0).abs() < 1e-12));
        let unwarmed = LearningRate::new(&TrainConfig { warmup_steps: 0, ..train }, 0);
        assert_eq!(unwarmed.at(0), 1.0);
    }
}
