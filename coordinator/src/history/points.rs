//! The points of curves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::done::Done;
use super::thinned::Point;

/// The run at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// Steps in rounds that are applied everywhere.
    pub step: u64,
    /// Such rounds.
    pub round: u64,
    /// Workers that train.
    pub training: u32,
    /// Work of all workers since the history began.
    pub run: Done,
    /// Work of each site, by the place of its name.
    pub sites: Vec<Done>,
    /// Bandwidth in bytes a second and round trip in seconds of each link, by its place.
    pub ways: Vec<[f32; 2]>,
    /// Encoding of each site's frames, by the place of its name: the share of values sent, and the bits of each; null where not reported. Absent in files of older
    /// releases.
    #[serde(default)]
    pub encodings: Vec<Option<[f32; 2]>>,
}

/// Sums and states of then: the later one holds the earlier one.
impl Point for Sample {
    fn joined(self, later: Self) -> Self {
        later
    }
}

/// A round, or neighbouring rounds merged. Unknown values are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundPoint {
    /// Unix time in milliseconds at which it counted; none of one that is known from the run's store alone.
    pub at_ms: Option<u64>,
    /// Its number: that of the last one.
    pub round: u64,
    /// Steps of the run by its end.
    pub step: u64,
    /// Steps between rounds.
    pub every: u64,
    /// Samples trained on.
    pub samples: u64,
    /// The learning rate of its last step.
    pub learning_rate: f64,
    /// Mean training loss, weighted by samples.
    pub loss: Option<f32>,
    /// Norm of a member's gradient before clipping: the root mean square, weighted by samples. Releases that did not know it kept none.
    #[serde(default)]
    pub gradient_norm: Option<f32>,
    /// The newest validation loss,
    pub validation_loss: Option<f32>,
    /// and share of correctly classified held-out images.
    pub validation_accuracy: Option<f32>,
    /// About how many exchanges' changes wait in error feedback.
    pub residual_ratio: Option<f32>,
    /// Scores of questions after it, by task and measure. Releases that did not know them kept none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, f32>,
}

impl Point for RoundPoint {
    fn joined(self, later: Self) -> Self {
        let [of_a, of_b] = [&self, &later].map(|point| point.samples.max(1) as f64);
        let mean = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some((a * of_a + b * of_b) / (of_a + of_b)),
            (a, b) => a.or(b),
        };
        let loss = mean(self.loss.map(f64::from), later.loss.map(f64::from)).map(|loss| loss as f32);
        let square = |norm: Option<f32>| norm.map(|norm| f64::from(norm).powi(2));
        let squares = mean(square(self.gradient_norm), square(later.gradient_norm));
        Self {
            at_ms: later.at_ms.or(self.at_ms),
            loss,
            gradient_norm: squares.map(|square| square.sqrt() as f32),
            samples: self.samples.saturating_add(later.samples),
            validation_loss: later.validation_loss.or(self.validation_loss),
            validation_accuracy: later.validation_accuracy.or(self.validation_accuracy),
            residual_ratio: later.residual_ratio.or(self.residual_ratio),
            scores: if later.scores.is_empty() { self.scores } else { later.scores },
            ..later
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(number: u64, samples: u64, loss: Option<f32>) -> RoundPoint {
        RoundPoint {
            at_ms: Some(number),
            round: number,
            step: number,
            every: 1,
            samples,
            learning_rate: 0.1,
            loss,
            gradient_norm: loss,
            validation_loss: (number == 1).then_some(3.0),
            validation_accuracy: None,
            residual_ratio: None,
            scores: BTreeMap::new(),
        }
    }

    #[test]
    fn rounds_are_joined_to_a_mean_by_samples_that_forgets_no_validation() {
        let joined = round(1, 30, Some(1.0)).joined(round(2, 10, Some(5.0)));
        assert_eq!(
            (joined.loss, joined.samples, joined.validation_loss, joined.round),
            (Some(2.0), 40, Some(3.0), 2)
        );
        // √((30·1² + 10·5²) / 40)
        assert_eq!(joined.gradient_norm, Some(7f32.sqrt()));
        assert_eq!(round(1, 1, None).joined(round(2, 1, Some(4.0))).loss, Some(4.0));
    }
}
