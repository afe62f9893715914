//! Selection by one threshold for the whole fragment, which a sample gives and a few counts correct.
//!
//! Y. Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), section 3 and the authors' code.

use super::layout::Quota;
use super::magnitudes::{cut_to_largest, gather_at_least, key};

/// One value in this many is in the sample: 1 %.
const SAMPLE_STRIDE: usize = 100;

/// Values in the sample, at least, unless the fragment has fewer.
const SAMPLE_VALUES_MIN: usize = 512;

/// How often the threshold is moved, at most.
const ADAPTATIONS_MAX: usize = 10;

/// The first move of the threshold's key: between a fifth and a quarter of an octave. Each further move in the same
/// direction is twice as far, so that [`ADAPTATIONS_MAX`] of them lead across all floats.
const STEP: u32 = 1 << 21;

/// Selects by a threshold. Its memory is reused from fragment to fragment.
#[derive(Debug, Default)]
pub(super) struct Threshold {
    candidates: Vec<u32>,
    keys: Vec<u32>,
}

impl Threshold {
    /// Writes the positions of about the wanted number of largest magnitudes, ascending: at least `quota.least` and at
    /// most `quota.most`, or fewer if fewer are not zero. Where the threshold leaves more, exactly the wanted number
    /// is kept, the lower position first among equals. `values` are finite.
    pub fn select(&mut self, quota: Quota, values: &[f32], positions: &mut Vec<u32>) {
        positions.clear();
        positions.reserve(quota.most);
        if quota.wanted == 0 {
            return;
        }
        let bound = self.find(quota, values);
        let candidates = gather_at_least(values, f32::from_bits(bound), &mut self.candidates);
        let mut count = candidates.len();
        if count > quota.most {
            cut_to_largest(candidates, values, quota.wanted, &mut self.keys);
            count = quota.wanted;
        }
        positions.extend_from_slice(&candidates[..count]);
    }

    /// The key of a threshold that an acceptable number of magnitudes reach; failing that one that more reach; failing
    /// that, as nearly all values are zero, the smallest that is not zero.
    fn find(&mut self, quota: Quota, values: &[f32]) -> u32 {
        let mut bound = self.estimate(quota, values);
        // The highest key that too many reach, the lowest that too few reach.
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

    /// What the sample says: its magnitude of the rank that corresponds to the wanted number.
    fn estimate(&mut self, quota: Quota, values: &[f32]) -> u32 {
        let sample_len = (values.len() / SAMPLE_STRIDE).max(SAMPLE_VALUES_MIN).min(values.len());
        // Odd, lest it keep to a few columns of a matrix.
        let stride = (values.len() / sample_len).saturating_sub(1) | 1;
        self.keys.clear();
        self.keys.extend(values.iter().step_by(stride).map(|&value| key(value)));
        let rank = (self.keys.len() * quota.wanted).div_ceil(values.len());
        let ascending = self.keys.len() - rank;
        (*self.keys.select_nth_unstable(ascending).1).max(1)
    }
}

fn count_at_least(values: &[f32], bound: f32) -> usize {
    // In 32 bits, so that it vectorises; a fragment has fewer values.
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
            Threshold::default().select(quota, &values, &mut positions);

            let not_zero = values.iter().filter(|value| **value != 0.0).count();
            let count = positions.len();
            prop_assert!(count <= quota.most && count >= quota.least.min(not_zero));

            // By sorting everything.
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
        // The sample sees only every fifth value or so, and these are the small ones.
        let stride = (5000 / SAMPLE_VALUES_MIN - 1) | 1;
        let values: Vec<f32> =
            (0..5000).map(|i| if i % stride == 0 { 1e-3 } else { 1.0 + i as f32 }).collect();
        let quota = Quota::new(values.len(), 64, 4);
        let mut positions = Vec::new();
        Threshold::default().select(quota, &values, &mut positions);
        assert!((quota.least..=quota.most).contains(&positions.len()));
    }
}
