//! One value as a code, and the scales and levels of a block.
//!
//! Codes are computed without branches and without libm, so that this vectorises and gives the same bits everywhere.

use half::{bf16, f16};

use super::random::Noise;

/// A block with a smaller absolute maximum is sent as zeros: its scale's reciprocal stays finite, and what is
/// reconstructed from it is never subnormal. 2^-100.
const ABSMAX_MIN: f32 = f32::from_bits((127 - 100) << 23);

/// The largest scale: the largest bf16 below 2^127, so that even the code that an encoder never writes (−128 steps of
/// 127, −8 of 7) stands for a finite number. Larger values saturate.
const SCALE_MAX: f32 = f32::from_bits(SCALE_BITS_END - 0x1_0000);
/// The bits of 2^127, which is no scale any more.
pub(super) const SCALE_BITS_END: u32 = (127 + 127) << 23;

/// Adding 1.5·2^23 rounds a float of less than 2^22 to an integer, half to even, which the low bits then hold.
const ROUND: f32 = 12_582_912.0;

/// What is reconstructed for each code of E3M0, at scale 1: c = 0..7, then with the sign bit.
pub(super) const E3M0_LEVELS: [f32; 16] = {
    let magnitudes = [0.0, 1.0 / 64.0, 1.0 / 32.0, 1.0 / 16.0, 0.125, 0.25, 0.5, 1.0];
    let mut levels = [0.0; 16];
    let mut c = 0;
    while c < 8 {
        levels[c] = magnitudes[c];
        levels[c + 8] = -magnitudes[c];
        c += 1;
    }
    levels
};

/// Midpoints between neighbouring magnitudes of E3M0: c is how many of them a magnitude reaches.
const E3M0_MIDPOINTS: [f32; 7] =
    [1.0 / 128.0, 1.5 / 64.0, 1.5 / 32.0, 1.5 / 16.0, 1.5 / 8.0, 1.5 / 4.0, 1.5 / 2.0];

/// The bits of the nearest finite bf16, ties to even.
pub(super) fn bf16_saturating(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits & 0x7fff_ffff) + 0x7fff + (bits >> 16 & 1);
    let magnitude = (rounded >> 16).min(u32::from(bf16::MAX.to_bits()));
    (magnitude | bits >> 16 & 0x8000) as u16
}

pub(super) fn f16_saturating(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

/// The nearest integer, at most `STEPS` from zero, in two's complement. With uniform noise in ±1/2 added to the value
/// the expectation of this integer is the value.
pub(super) fn step_of<const STEPS: i16>(value: f32) -> u8 {
    let steps = f32::from(STEPS);
    (value.clamp(-steps, steps) + ROUND).to_bits() as u8
}

/// The nearest magnitude of E3M0 to a value in −1..=1, and its sign.
pub(super) fn e3m0_code(value: f32) -> u8 {
    let c: u8 = E3M0_MIDPOINTS.iter().map(|&midpoint| u8::from(value.abs() >= midpoint)).sum();
    c | u8::from(value < 0.0) << 3
}

/// One of the two magnitudes of E3M0 next to a value in −1..=1, so that their expectation is the value, and its sign.
pub(super) fn e3m0_code_at_random(value: f32, noise: Noise, index: usize) -> u8 {
    let magnitude = value.abs();
    // Between two powers of two the mantissa says how far it is to the upper one: a random mantissa carries into the
    // exponent as often as that.
    let carried = (magnitude.to_bits() + (noise.bits(index) >> 9)) >> 23;
    let power = carried.wrapping_sub(E3M0_EXPONENT_OF_ZERO).min(7) as u8;
    let lowest = u8::from(magnitude * 64.0 > noise.unit(index));
    let c = if magnitude < 1.0 / 64.0 { lowest } else { power };
    c | u8::from(value < 0.0) << 3
}

/// The biased exponent of 2^-7, which c = 0 would stand for.
const E3M0_EXPONENT_OF_ZERO: u32 = 127 - 7;

/// The block's absolute maximum, rounded up to a bf16, so that no value is clipped; zero if it counts as zero.
pub(super) fn absmax_scale(block: &[f32]) -> f32 {
    // As integers, whose maximum vectorises; finite magnitudes order the same.
    let bits = block.iter().fold(0, |maximum, value| maximum.max(value.abs().to_bits() as i32)) as u32;
    if f32::from_bits(bits) < ABSMAX_MIN {
        return 0.0;
    }
    f32::from_bits((bits + 0xffff) & 0xffff_0000).min(SCALE_MAX)
}

/// The means of the smaller and of the larger half of the magnitudes, as bf16 represents them. Of an odd number the
/// middle one counts as large.
pub(super) fn half_means(block: &[f32], magnitudes: &mut Vec<u32>) -> (f32, f32) {
    magnitudes.clear();
    magnitudes.extend(block.iter().map(|value| value.abs().to_bits()));
    let lower_count = block.len() / 2;
    let upper_count = block.len() - lower_count;
    let pivot = nth_smallest(magnitudes, lower_count);

    // The sums do not depend on how the search permutes. Values equal to the pivot fall to both halves, as many as each then lacks.
    let Halves { lower, upper, below, above } = Halves::of(block, pivot);
    let pivot = f64::from(f32::from_bits(pivot));
    let lower = lower + (lower_count - below) as f64 * pivot;
    let upper = upper + (upper_count - above) as f64 * pivot;
    (level(lower / lower_count.max(1) as f64), level(upper / upper_count as f64))
}

/// What lies on either side of a pivot.
struct Halves {
    lower: f64,
    upper: f64,
    below: usize,
    above: usize,
}

impl Halves {
    fn of(block: &[f32], pivot: u32) -> Self {
        /// Sums side by side, for the vector units; their number is part of the result.
        const LANES: usize = 8;
        let (mut lower, mut upper) = ([0.0_f64; LANES], [0.0_f64; LANES]);
        let (mut below, mut above) = ([0_u32; LANES], [0_u32; LANES]);
        let mut add = |lane: usize, value: f32| {
            let (key, magnitude) = (value.abs().to_bits(), f64::from(value.abs()));
            lower[lane] += if key < pivot { magnitude } else { 0.0 };
            upper[lane] += if key > pivot { magnitude } else { 0.0 };
            below[lane] += u32::from(key < pivot);
            above[lane] += u32::from(key > pivot);
        };
        let (rows, rest) = block.as_chunks::<LANES>();
        for row in rows {
            (0..LANES).for_each(|lane| add(lane, row[lane]));
        }
        (0..).zip(rest).for_each(|(lane, value)| add(lane, *value));
        let count = |lanes: [u32; LANES]| lanes.iter().sum::<u32>() as usize;
        Self {
            lower: lower.iter().sum(),
            upper: upper.iter().sum(),
            below: count(below),
            above: count(above),
        }
    }
}

/// The key with `n` keys below it in ascending order; permutes them.
fn nth_smallest(keys: &mut Vec<u32>, mut n: usize) -> u32 {
    /// Fewer are partitioned at once.
    const COUNTED_MIN: usize = 256;
    const BUCKETS_LOG2: u32 = 8;
    if keys.len() >= COUNTED_MIN {
        let (least, most) =
            keys.iter().fold((u32::MAX, 0), |(least, most), &key| (least.min(key), most.max(key)));
        // So that the buckets span what there is.
        let shift = (u32::BITS - (most - least).leading_zeros()).saturating_sub(BUCKETS_LOG2);
        let bucket = |key: u32| ((key - least) >> shift) as usize;
        let mut counts = [0_u32; 1 << BUCKETS_LOG2];
        keys.iter().for_each(|&key| counts[bucket(key)] += 1);
        let mut holds = 0;
        while n >= counts[holds] as usize {
            n -= counts[holds] as usize;
            holds += 1;
        }
        // Which keys stay is as good as random, so there is no branch on it.
        let mut kept = 0;
        for index in 0..keys.len() {
            let key = keys[index];
            keys[kept] = key;
            kept += usize::from(bucket(key) == holds);
        }
        keys.truncate(kept);
    }
    *keys.select_nth_unstable(n).1
}

/// A mean as bf16 represents it; zero if too small to be worth sending.
pub(super) fn level(mean: f64) -> f32 {
    let mean = (mean as f32).min(SCALE_MAX);
    if mean < ABSMAX_MIN { 0.0 } else { f32::from_bits(u32::from(bf16_saturating(mean)) << 16) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By sorting all magnitudes.
    fn by_sorting(block: &[f32]) -> (f32, f32) {
        let mut magnitudes: Vec<f64> = block.iter().map(|value| f64::from(value.abs())).collect();
        magnitudes.sort_unstable_by(f64::total_cmp);
        let (lower, upper) = magnitudes.split_at(block.len() / 2);
        let mean = |half: &[f64]| half.iter().sum::<f64>() / half.len().max(1) as f64;
        (level(mean(lower)), level(mean(upper)))
    }

    /// Few different magnitudes; some octaves; all of them.
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

        #[test]
        fn the_nth_key_is_that_of_the_sorted_ones(values in values(), part in 0.0..1.0_f64) {
            let mut keys: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
            let n = (part * keys.len() as f64) as usize;
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            prop_assert_eq!(nth_smallest(&mut keys, n), sorted[n]);
        }
    }
}
