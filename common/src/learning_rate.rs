//! The learning rate as a function of the run's step.

use std::f64::consts::PI;

use crate::config::{DecayShape, LearningRateSchedule, TrainConfig};

/// Linear warm-up to the peak, then a decay to a share of it by the run's schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    peak: f64,
    last: f64,
    warmup_steps: u64,
    /// First step of the decay.
    decay_from: u64,
    steps: u64,
    decay: Decay,
}

/// Form of a decay.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Decay {
    None,
    Cosine,
    Linear,
    OneMinusSqrt,
}

impl Decay {
    /// Returns the share of the way from the last rate to the peak, given that of the decay's steps.
    fn left(self, progress: f64) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
            Self::Linear => 1.0 - progress,
            Self::OneMinusSqrt => 1.0 - progress.sqrt(),
        }
    }
}

impl LearningRate {
    /// Creates the schedule of a run of `steps` steps.
    #[must_use]
    pub fn new(train: &TrainConfig, steps: u64) -> Self {
        let peak = train.learning_rate;
        let last = peak * train.final_learning_rate_share;
        let warmup_steps = train.warmup_steps_in(steps);
        let (decay, decay_steps) = match (train.schedule, train.decay_shape) {
            (LearningRateSchedule::Constant, _) => (Decay::None, steps),
            (LearningRateSchedule::Cosine, _) => (Decay::Cosine, steps),
            (LearningRateSchedule::Linear, _) => (Decay::Linear, steps),
            (LearningRateSchedule::Wsd, DecayShape::Linear) => (Decay::Linear, train.decay_steps_in(steps)),
            (LearningRateSchedule::Wsd, DecayShape::OneMinusSqrt) => {
                (Decay::OneMinusSqrt, train.decay_steps_in(steps))
            }
        };
        let decay_from = steps.saturating_sub(decay_steps).max(warmup_steps);
        Self { peak, last, warmup_steps, decay_from, steps, decay }
    }

    /// Returns the rate of the run's `step`, counted from zero.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        if step < self.decay_from || self.decay == Decay::None {
            return self.peak;
        }
        let decaying = self.steps.saturating_sub(self.decay_from).max(1);
        let progress = ((step - self.decay_from) as f64 / decaying as f64).min(1.0);
        self.last + (self.peak - self.last) * self.decay.left(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_table(train: &TrainConfig, steps: u64, table: &[(u64, f64)]) {
        let rate = LearningRate::new(train, steps);
        for &(step, expected) in table {
            assert!((rate.at(step) - expected).abs() < 1e-12, "{} at step {step} of {rate:?}", rate.at(step));
        }
    }

    #[test]
    fn the_rate_rises_linearly_and_falls_as_half_a_cosine() {
        let train = TrainConfig { learning_rate: 2.0, warmup_steps: 4, ..TrainConfig::default() };
        // A quarter of the way the cosine is √½.
        let quarter = 0.2 + 1.8 * 0.5 * (1.0 + 0.5f64.sqrt());
        let table = [(0, 0.5), (3, 2.0), (4, 2.0), (29, quarter), (54, 1.1), (104, 0.2), (9999, 0.2)];
        assert_table(&train, 104, &table);
    }

    #[test]
    fn each_schedule_follows_its_table() {
        let of = |schedule| TrainConfig {
            learning_rate: 2.0,
            warmup_steps: 4,
            schedule,
            ..TrainConfig::default()
        };
        let rise = [(0, 0.5), (1, 1.0), (3, 2.0), (4, 2.0)];
        for schedule in
            [LearningRateSchedule::Linear, LearningRateSchedule::Constant, LearningRateSchedule::Wsd]
        {
            assert_table(&of(schedule), 104, &rise);
        }
        assert_table(
            &of(LearningRateSchedule::Linear),
            104,
            &[(14, 1.82), (54, 1.1), (104, 0.2), (999, 0.2)],
        );
        assert_table(&of(LearningRateSchedule::Constant), 104, &[(14, 2.0), (104, 2.0), (999, 2.0)]);
        let wsd = TrainConfig { decay_share: Some(0.25), ..of(LearningRateSchedule::Wsd) };
        assert_table(&wsd, 400, &[(299, 2.0), (300, 2.0), (325, 1.55), (350, 1.1), (400, 0.2), (999, 0.2)]);
        let root = TrainConfig { decay_shape: DecayShape::OneMinusSqrt, ..wsd };
        // At a sixteenth and a quarter of the decay, 1 − √x is ¾ and ½.
        assert_table(&root, 1600, &[(1199, 2.0), (1200, 2.0), (1225, 1.55), (1300, 1.1), (1600, 0.2)]);
    }

    /// The decay of a longer run begins later, so that its stable part goes on.
    #[test]
    fn an_extended_wsd_run_stays_at_its_peak_if_extended_before_the_decay() {
        let train = TrainConfig {
            schedule: LearningRateSchedule::Wsd,
            decay_share: Some(0.1),
            learning_rate: 1.0,
            ..TrainConfig::default()
        };
        let (short, long) = (LearningRate::new(&train, 1000), LearningRate::new(&train, 2000));
        assert!((0..900).all(|step| short.at(step) == long.at(step)));
        assert!((900..1800).all(|step| long.at(step) == 1.0) && long.at(1801) < 1.0);
    }

    #[test]
    fn warmup_and_decay_may_be_shares_and_fill_the_run() {
        let train = TrainConfig {
            schedule: LearningRateSchedule::Wsd,
            learning_rate: 1.0,
            final_learning_rate_share: 0.0,
            warmup_share: Some(0.5),
            decay_share: Some(0.5),
            ..TrainConfig::default()
        };
        assert_table(&train, 8, &[(0, 0.25), (3, 1.0), (4, 1.0), (5, 0.75), (7, 0.25), (8, 0.0)]);
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
