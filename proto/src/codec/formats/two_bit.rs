//! The sign and one of two levels: the means of the smaller and of the larger half of a block's magnitudes.
//!
//! A. Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025 (arXiv 2508.15706).

use multiversion::multiversion;

use super::packing::{append_packed, few_levels, read_packed};
use super::scales::{SCALE_BYTES, append_scale, mean_scale, scale};
use super::{BlockShape, NumberFormat};
use crate::codec::order::nth_smallest;

/// Two bits: whether the level is the upper one, and whether the value is negative.
#[derive(Debug)]
pub(super) struct TwoBit;

impl NumberFormat for TwoBit {
    fn shape(&self) -> BlockShape {
        BlockShape::group(2, 2 * SCALE_BYTES)
    }

    fn quantise(&self, block: &[f32], magnitudes: &mut Vec<u32>, out: &mut Vec<u8>) {
        let (lower, upper) = half_means(block, magnitudes);
        append_scale(lower, out);
        append_scale(upper, out);
        let middle = 0.5 * lower + 0.5 * upper;
        let code = |value: f32| u8::from(value.abs() >= middle) | u8::from(value < 0.0) << 1;
        append_packed::<4>(block, out, |_, value| code(value));
    }

    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]) {
        let (lower, upper) = (scale(scales, 0), scale(scales, 1));
        read_packed::<4>(codes, out, &few_levels([lower, upper, -lower, -upper]));
    }
}

/// Returns the means of the smaller and of the larger half of the magnitudes, as bf16. Of an odd number the
/// middle one counts as large.
fn half_means(block: &[f32], magnitudes: &mut Vec<u32>) -> (f32, f32) {
    magnitudes.clear();
    magnitudes.extend(block.iter().map(|value| value.abs().to_bits()));
    let lower_count = block.len() / 2;
    let upper_count = block.len() - lower_count;
    let pivot = nth_smallest(magnitudes, lower_count);

    // Values equal to the pivot fill both halves up.
    let Halves { lower, upper, below, above } = halves(magnitudes, pivot);
    let pivot = f64::from(f32::from_bits(pivot));
    let lower = lower + (lower_count - below) as f64 * pivot;
    let upper = upper + (upper_count - above) as f64 * pivot;
    (mean_scale(lower / lower_count.max(1) as f64), mean_scale(upper / upper_count as f64))
}

/// Sums and counts on either side of a pivot.
struct Halves {
    lower: f64,
    upper: f64,
    below: usize,
    above: usize,
}

#[multiversion(targets = "simd")]
fn halves(magnitudes: &[u32], pivot: u32) -> Halves {
    /// Parallel sums for the vector units; their number affects the result.
    const LANES: usize = 8;
    let (mut lower, mut upper) = ([0.0_f64; LANES], [0.0_f64; LANES]);
    let (mut below, mut above) = ([0_u32; LANES], [0_u32; LANES]);
    let mut add = |lane: usize, key: u32| {
        let magnitude = f64::from(f32::from_bits(key));
        lower[lane] += if key < pivot { magnitude } else { 0.0 };
        upper[lane] += if key > pivot { magnitude } else { 0.0 };
        below[lane] += u32::from(key < pivot);
        above[lane] += u32::from(key > pivot);
    };
    let (rows, rest) = magnitudes.as_chunks::<LANES>();
    for row in rows {
        (0..LANES).for_each(|lane| add(lane, row[lane]));
    }
    (0..).zip(rest).for_each(|(lane, key)| add(lane, *key));
    let count = |lanes: [u32; LANES]| lanes.iter().sum::<u32>() as usize;
    Halves { lower: lower.iter().sum(), upper: upper.iter().sum(), below: count(below), above: count(above) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sorts all magnitudes.
    fn by_sorting(block: &[f32]) -> (f32, f32) {
        let mut magnitudes: Vec<f64> = block.iter().map(|value| f64::from(value.abs())).collect();
        magnitudes.sort_unstable_by(f64::total_cmp);
        let (lower, upper) = magnitudes.split_at(block.len() / 2);
        let mean = |half: &[f64]| half.iter().sum::<f64>() / half.len().max(1) as f64;
        (mean_scale(mean(lower)), mean_scale(mean(upper)))
    }

    /// Few different magnitudes; some octaves; all.
    fn values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            Just((-2..=2).prop_map(|i| i as f32).boxed()),
            Just((-1.0_f32..1.0).prop_map(|v| v.powi(5)).boxed()),
            Just((-120.0_f32..120.0).prop_map(f32::exp2).boxed()),
            Just(prop_oneof![Just(f32::MIN_POSITIVE), Just(0.0), Just(-1e30)].boxed()),
        ];
        (value, 1_usize..1500).prop_flat_map(|(value, len)| prop::collection::vec(value, len))
    }

    proptest! {
        #[test]
        fn the_halves_are_those_of_the_sorted_magnitudes(values in values()) {
            let (lower, upper) = half_means(&values, &mut Vec::new());
            let (sorted_lower, sorted_upper) = by_sorting(&values);
            // Sums in another order may round to the next bf16.
            let is_close = |a: f32, b: f32| (a - b).abs() <= 0.01 * a.abs();
            prop_assert!(is_close(lower, sorted_lower) && is_close(upper, sorted_upper));
        }
    }
}
