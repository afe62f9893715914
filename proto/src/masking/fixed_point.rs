//! Updates as integers, so that sums are exact and wrap.

use crate::codec::EncodeError;

/// Of 2³¹, so many are left for rounding: half a step for each contributor of a result, which are 4096 at most.
const ROUNDING_ROOM: f64 = 4096.0;

/// How a weighted update becomes words: word = round(weight · value / step) modulo 2³², where the step is so small that the sum over all
/// sites stays within ±2³¹, and so large that it cannot leave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedPoint {
    range: f64,
    weight_max: u64,
}

impl FixedPoint {
    /// For values within ±`range`, and weights of all sites together of at most `weight_max` samples.
    #[must_use]
    pub const fn new(range: f64, weight_max: u64) -> Self {
        Self { range, weight_max: if weight_max == 0 { 1 } else { weight_max } }
    }

    /// The most that all sites together may weigh.
    #[must_use]
    pub fn weight_max(&self) -> u64 {
        self.weight_max
    }

    /// The weighted sum's last digit. A mean is off by at most half of this for each site, over the weight of all.
    #[must_use]
    pub fn step(&self) -> f64 {
        self.range * self.weight_max as f64 / (f64::from(1u32 << 31) - ROUNDING_ROOM)
    }

    /// A site's update as words. Values beyond ±`range` are taken for ±`range`, and a weight beyond the greatest for that.
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

    /// The mean in the sum of all sites' words, which weigh so much together.
    pub fn set_mean(&self, sum: &[u32], weight: u64, mean: &mut [f32]) {
        let scale = self.step() / weight.max(1) as f64;
        for (mean, word) in mean.iter_mut().zip(sum) {
            *mean = (f64::from(*word as i32) * scale) as f32;
        }
    }
}
