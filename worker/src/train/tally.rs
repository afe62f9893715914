//! What a round comes to on the device.

use std::time::Duration;

/// Samples and losses of a round.
pub(super) struct Tally {
    pub samples: u32,
    /// Those of `samples` whose losses are known.
    measured: u32,
    weighted_loss: f64,
    /// Steps that were measured, and what they took.
    pub steps: u32,
    pub compute: Duration,
}

impl Tally {
    /// After steps on so many samples, whose losses are not known any more.
    pub fn resumed(samples: usize) -> Self {
        Self { samples: samples as u32, measured: 0, weighted_loss: 0.0, steps: 0, compute: Duration::ZERO }
    }

    pub fn add(&mut self, samples: usize, loss: f32, took: Duration) {
        self.steps += 1;
        self.compute += took;
        self.samples += samples as u32;
        self.measured += samples as u32;
        self.weighted_loss += samples as f64 * f64::from(loss);
    }

    /// Mean loss of the samples whose losses are known, nats a token.
    pub fn loss(&self) -> Option<f32> {
        (self.measured > 0).then(|| (self.weighted_loss / f64::from(self.measured)) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_round_weighs_as_much_as_one_that_was_never_interrupted() {
        let mut resumed = Tally::resumed(3);
        resumed.add(2, 3.0, Duration::ZERO);
        assert_eq!((resumed.samples, resumed.loss()), (5, Some(3.0)));
        let mut whole = Tally::resumed(0);
        whole.add(3, 9.0, Duration::ZERO);
        whole.add(2, 3.0, Duration::ZERO);
        assert_eq!(whole.samples, resumed.samples);
        assert_eq!(Tally::resumed(1).loss(), None, "no loss was measured");
    }
}
