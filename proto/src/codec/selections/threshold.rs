//! Selection by one threshold for the whole fragment, estimated from a sample and corrected by counting.
//!
//! Y. Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), section 3 and the authors' code.

use longhaul_common::config::SyncConfig;
use multiversion::multiversion;
use serde::{Deserialize, Serialize};

use super::magnitudes::{cut_to_largest, gather_at_least};
use super::{Memory, Rule, Selection, Shape, chunk_values_default};
use crate::codec::layout::Layout;
use crate::codec::{FRAGMENT_VALUES_MAX, SpecError, chunks};

/// One value in this many is sampled: 1 %.
const SAMPLE_STRIDE: usize = 100;

/// Minimum values in the sample, or all of a shorter fragment.
const SAMPLE_VALUES_MIN: usize = 512;

/// Maximum corrections of the threshold.
const ADAPTATIONS_MAX: usize = 10;

/// First correction of the threshold's key: between a fifth and a quarter of an octave. Each further one in
/// the same direction is twice as large, so that [`ADAPTATIONS_MAX`] of them cover all floats.
const STEP: u32 = 1 << 21;

/// Values that share scales, as no number per chunk is fixed: an eighth of a bit each for two levels.
const GROUP_VALUES: usize = 256;

/// The largest magnitudes of the whole fragment, about `keep` for each `chunk` of values: 0.8 to 1.3 times as
/// many, or fewer if fewer differ from zero (Lin et al., arXiv 1712.01887).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// A power of two, at most [`CHUNK_VALUES_MAX`](crate::codec::CHUNK_VALUES_MAX).
    #[serde(default = "chunk_values_default")]
    pub chunk: u32,
    /// Values kept for each `chunk` of values, `1..=chunk`.
    pub keep: u32,
}

impl Threshold {
    /// Returns the selection of all values that are not zero.
    pub(crate) fn all_but_zeros(chunk: u32) -> Selection {
        Self { chunk, keep: chunk }.into()
    }
}

impl From<Threshold> for Selection {
    fn from(rule: Threshold) -> Self {
        Self::Threshold(rule)
    }
}

impl Rule for Threshold {
    fn validate(&self) -> Result<(), SpecError> {
        chunks::validate(self.chunk, self.keep)
    }

    fn shape(&self) -> Shape {
        Shape::of(self.chunk, self.keep)
    }

    fn read(shape: Shape) -> Option<Self> {
        let rule = Self { chunk: shape.chunk()?, keep: shape.keep };
        rule.validate().is_ok().then_some(rule)
    }

    fn is_counted(&self) -> bool {
        true
    }

    fn layout(&self, len: usize, count: usize) -> Option<Layout> {
        let most = Quota::new(len, self.chunk, self.keep).most;
        (count <= most).then_some(Layout::Scattered { len, kept: count, most })
    }

    fn group_values(&self) -> usize {
        GROUP_VALUES
    }

    fn select(&self, values: &[f32], memory: &mut Memory, positions: &mut Vec<u32>) {
        memory.select_by_threshold(Quota::new(values.len(), self.chunk, self.keep), values, positions);
    }

    fn kept_share(&self) -> f64 {
        f64::from(self.keep) / f64::from(self.chunk)
    }

    fn configured(config: &SyncConfig) -> Selection {
        Self { chunk: config.chunk, keep: config.keep }.into()
    }
}

/// Number of values to keep, and the accepted range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quota {
    wanted: usize,
    least: usize,
    most: usize,
}

impl Quota {
    /// Returns the quota of `len` values: `keep` of each `chunk`, rounded up. 0.8 to 1.3 times as many are
    /// accepted (Lin et al. 2018).
    fn new(len: usize, chunk: u32, keep: u32) -> Self {
        debug_assert!(len <= FRAGMENT_VALUES_MAX, "so that the product fits 64 bits");
        let wanted = (len as u64 * u64::from(keep)).div_ceil(u64::from(chunk)) as usize;
        Self { wanted, least: (wanted * 8).div_ceil(10), most: len.min(wanted * 13 / 10) }
    }
}

impl Memory {
    /// Appends the positions of about the wanted number of largest magnitudes, ascending: `quota.least` to
    /// `quota.most`, or fewer if fewer differ from zero. If the threshold passes more, exactly the wanted
    /// number is kept; lower positions win ties. `values` are finite.
    fn select_by_threshold(&mut self, quota: Quota, values: &[f32], positions: &mut Vec<u32>) {
        positions.reserve(quota.most);
        if quota.wanted == 0 {
            return;
        }
        // Where all are wanted, all non-zero values, without counting them.
        let bound = if quota.wanted == values.len() { 1 } else { self.find_bound(quota, values) };
        let candidates = gather_at_least(values, f32::from_bits(bound), &mut self.candidates);
        let mut count = candidates.len();
        if count > quota.most {
            cut_to_largest(candidates, values, quota.wanted, &mut self.keys);
            count = quota.wanted;
        }
        positions.extend_from_slice(&candidates[..count]);
    }

    /// Returns the key of a threshold that an acceptable number of magnitudes reach; otherwise one that more
    /// reach; otherwise, as nearly all values are zero, the smallest non-zero one.
    fn find_bound(&mut self, quota: Quota, values: &[f32]) -> u32 {
        let mut bound = self.estimate_bound(quota, values);
        // The highest key that too many reach, and the lowest that too few reach.
        let (mut low, mut high) = (None, None);
        let mut step = STEP;
        for _ in 0..=ADAPTATIONS_MAX {
            let count = count_at_least(values, f32::from_bits(bound));
            match () {
                () if count > quota.most => low = Some(bound),
                () if count < quota.least => high = Some(bound),
                () => return bound,
            }
            let next = match (low, high) {
                (Some(low), Some(high)) => low + (high - low) / 2,
                (Some(low), None) => (low + step).min(f32::MAX.to_bits()),
                (None, high) => high.unwrap_or(bound).saturating_sub(step).max(1),
            };
            if next == bound {
                break;
            }
            bound = next;
            step = step.saturating_mul(2);
        }
        low.unwrap_or(1)
    }

    /// Returns the sample's magnitude of the rank that corresponds to the wanted number.
    fn estimate_bound(&mut self, quota: Quota, values: &[f32]) -> u32 {
        let sample_len = (values.len() / SAMPLE_STRIDE).max(SAMPLE_VALUES_MIN).min(values.len());
        // Odd, so that it does not hit only a few columns of a matrix.
        let stride = (values.len() / sample_len).saturating_sub(1) | 1;
        let sampled = self.keys.collect(values.iter().step_by(stride).copied());
        let rank = (sampled * quota.wanted).div_ceil(values.len());
        self.keys.kth_largest(rank).max(1)
    }
}

#[multiversion(targets = "simd")]
fn count_at_least(values: &[f32], bound: f32) -> usize {
    // 32 bits, so that it vectorises; a fragment has fewer values.
    values.iter().map(|value| u32::from(value.abs() >= bound)).sum::<u32>() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Some distributions: few different magnitudes, mostly zeros, many powers of two.
    fn values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            Just(prop_oneof![(-2..=2).prop_map(|i| i as f32)].boxed()),
            Just(prop_oneof![50 => Just(0.0_f32), 1 => -1.0_f32..1.0].boxed()),
            Just((-1.0_f32..1.0).prop_map(|v| v.powi(15)).boxed()),
            Just(prop_oneof![Just(f32::MAX), Just(-1e-45_f32)].boxed()),
        ];
        (value, 0_usize..6000).prop_flat_map(|(value, len)| prop::collection::vec(value, len))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn what_is_selected_are_the_largest_and_about_as_many_as_wanted(
            values in values(), log2 in 0_u32..=12, part in 0.0..1.0_f64,
        ) {
            let chunk = 1_u32 << log2;
            let keep = 1 + (part.powi(4) * f64::from(chunk - 1)) as u32;
            let quota = Quota::new(values.len(), chunk, keep);
            let mut positions = Vec::new();
            Memory::default().select_by_threshold(quota, &values, &mut positions);

            let not_zero = values.iter().filter(|value| **value != 0.0).count();
            let count = positions.len();
            prop_assert!(count <= quota.most && count >= quota.least.min(not_zero));

            // Sorts all.
            let mut order: Vec<u32> = (0..values.len() as u32).collect();
            order.sort_by(|&a, &b| {
                let magnitude = |i: u32| values[i as usize].abs();
                magnitude(b).total_cmp(&magnitude(a)).then(a.cmp(&b))
            });
            order.truncate(count);
            order.sort_unstable();
            prop_assert_eq!(positions, order);
        }
    }

    #[test]
    fn the_number_is_within_the_bounds_whatever_the_sample_said() {
        // The sample contains only about every fifth value, and these are small.
        let stride = (5000 / SAMPLE_VALUES_MIN - 1) | 1;
        let values: Vec<f32> =
            (0..5000).map(|i| if i % stride == 0 { 1e-3 } else { 1.0 + i as f32 }).collect();
        let quota = Quota::new(values.len(), 64, 4);
        let mut positions = Vec::new();
        Memory::default().select_by_threshold(quota, &values, &mut positions);
        assert!((quota.least..=quota.most).contains(&positions.len()));
    }

    /// As in a union of updates of sites: small values do not exclude a position.
    #[test]
    fn where_all_are_wanted_nothing_is_left_out_but_zeros() {
        let value = |i: u32| if i % 10 == 3 { 0.0 } else { 0.5_f32.powi((i % 97) as i32) };
        let values: Vec<f32> = (0..5000).map(value).collect();
        let mut positions = Vec::new();
        Memory::default().select_by_threshold(Quota::new(5000, 64, 64), &values, &mut positions);
        let not_zero = (0..5000).filter(|i| i % 10 != 3);
        assert_eq!(positions, not_zero.collect::<Vec<u32>>());
    }

    #[test]
    fn a_quota_is_rounded_up_and_bounded_by_what_there_is() {
        assert_eq!(Quota::new(1000, 4096, 41), Quota { wanted: 11, least: 9, most: 14 });
        assert_eq!(Quota::new(100, 8, 8), Quota { wanted: 100, least: 80, most: 100 });
        assert_eq!(Quota::new(0, 8, 8), Quota { wanted: 0, least: 0, most: 0 });
    }
}
