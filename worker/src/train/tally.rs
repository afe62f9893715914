//! The totals of a round on the device.

use std::time::Duration;

/// Samples (trained tokens, of conversations), losses and gradients of a round.
pub(super) struct Tally {
    pub samples: u32,
    /// Samples with known losses, of `samples`.
    measured: u32,
    weighted_loss: f64,
    /// Sum of the squared gradient norms, and their number.
    squared_norms: f64,
    norms: u32,
    /// Measured steps, and their duration.
    pub steps: u32,
    pub compute: Duration,
}

impl Tally {
    /// Starts after steps on these samples, whose losses are no longer known.
    pub fn resumed(samples: usize) -> Self {
        Self {
            samples: samples as u32,
            measured: 0,
            weighted_loss: 0.0,
            squared_norms: 0.0,
            norms: 0,
            steps: 0,
            compute: Duration::ZERO,
        }
    }

    pub fn add(&mut self, samples: usize, loss: f32, gradient_norm: Option<f32>, took: Duration) {
        self.steps += 1;
        self.compute += took;
        let counted = u32::try_from(samples).unwrap_or(u32::MAX);
        self.samples = self.samples.saturating_add(counted);
        self.measured = self.measured.saturating_add(counted);
        self.weighted_loss += samples as f64 * f64::from(loss);
        if let Some(norm) = gradient_norm {
            self.squared_norms += f64::from(norm).powi(2);
            self.norms += 1;
        }
    }

    /// Counts this share of the samples only: `own` of `all` positions.
    pub fn keep_share(&mut self, own: usize, all: usize) {
        let share = |samples: u32| (u64::from(samples) * own as u64).div_ceil(all.max(1) as u64);
        self.samples = u32::try_from(share(self.samples)).unwrap_or(u32::MAX);
    }

    /// Returns the mean of the known losses, in nats per token.
    pub fn loss(&self) -> Option<f32> {
        (self.measured > 0).then(|| (self.weighted_loss / f64::from(self.measured)) as f32)
    }

    /// Returns the root mean square of the known gradient norms. Unlike norms, mean squares over the parts of a model add up to that of the whole.
    pub fn gradient_norm(&self) -> Option<f32> {
        (self.norms > 0).then(|| (self.squared_norms / f64::from(self.norms)).sqrt() as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_round_weighs_as_much_as_one_that_was_never_interrupted() {
        let mut resumed = Tally::resumed(3);
        resumed.add(2, 3.0, Some(1.5), Duration::ZERO);
        assert_eq!((resumed.samples, resumed.loss(), resumed.gradient_norm()), (5, Some(3.0), Some(1.5)));
        let mut whole = Tally::resumed(0);
        whole.add(3, 9.0, None, Duration::ZERO);
        whole.add(2, 3.0, None, Duration::ZERO);
        assert_eq!(whole.samples, resumed.samples);
        assert_eq!(Tally::resumed(1).loss(), None, "no loss was measured");
        assert_eq!(whole.gradient_norm(), None, "no gradient was measured");
    }

    /// Two parts whose norms swap; the whole model's norm is 5 in both steps.
    #[test]
    fn norms_of_parts_over_several_steps_add_up_to_that_of_the_whole() {
        let [mut first, mut second] = [Tally::resumed(0), Tally::resumed(0)];
        for (a, b) in [(3.0, 4.0), (4.0, 3.0)] {
            first.add(1, 1.0, Some(a), Duration::ZERO);
            second.add(1, 1.0, Some(b), Duration::ZERO);
        }
        let squares = [first, second].map(|tally| f64::from(tally.gradient_norm().unwrap()).powi(2));
        assert!((squares.iter().sum::<f64>().sqrt() - 5.0).abs() < 1e-6, "{squares:?}");
    }
}
