//! Updates as integers, so that sums are exact and wrap.

use crate::codec::EncodeError;

/// Reserve of 2³¹ for rounding: half a step for each contributor of a result, at most 4096.
const ROUNDING_ROOM: f64 = 4096.0;

/// Conversion of a weighted update to words: word = round(weight · value / step) modulo 2³². The step is just
/// large enough to keep the sum over all sites within ±2³¹.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedPoint {
    range: f64,
    weight_max: u64,
}

impl FixedPoint {
    /// For values within ±`range`, and a total weight of all sites of at most `weight_max` samples.
    #[must_use]
    pub const fn new(range: f64, weight_max: u64) -> Self {
        Self { range, weight_max: if weight_max == 0 { 1 } else { weight_max } }
    }

    /// Returns the maximum total weight of all sites.
    #[must_use]
    pub fn weight_max(&self) -> u64 {
        self.weight_max
    }

    /// Returns the resolution of the weighted sum. A mean is off by at most half of it for each site, over
    /// the total weight.
    #[must_use]
    pub fn step(&self) -> f64 {
        self.range * self.weight_max as f64 / (f64::from(1u32 << 31) - ROUNDING_ROOM)
    }

    /// Converts a site's update to words. Values are clamped to ±`range`, and the weight to the maximum.
    ///
    /// # Errors
    /// [`EncodeError::NonFinite`]
    pub fn to_words(&self, weight: u32, values: &[f32]) -> Result<Vec<u32>, EncodeError> {
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(EncodeError::NonFinite { index });
        }
        let scale = u64::from(weight).min(self.weight_max) as f64 / self.step();
        let word =
            |value: &f32| (f64::from(*value).clamp(-self.range, self.range) * scale).round() as i32 as u32;
        Ok(values.iter().map(word).collect())
    }

    /// Sets the mean from the sum of all sites' words, of this total weight.
    pub fn set_mean(&self, sum: &[u32], weight: u64, mean: &mut [f32]) {
        let scale = self.step() / weight.max(1) as f64;
        for (mean, word) in mean.iter_mut().zip(sum) {
            *mean = (f64::from(*word as i32) * scale) as f32;
        }
    }
}
