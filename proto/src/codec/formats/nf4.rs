//! Sixteen levels that normally distributed values occupy about equally often.
//!
//! T. Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023 (arXiv 2305.14314), section 3 and appendix E.

use super::packing::{append_packed, read_packed};
use super::scales::{append_absmax, scale};
use super::{BlockShape, Codes, NumberFormat};
use crate::codec::random::Noise;

/// Reconstructed value of each code at scale 1: quantiles of the normal distribution, with zero between them.
const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

const GAPS: usize = LEVELS.len() - 1;

/// Midpoints between adjacent levels: a code is the number of midpoints that a value reaches.
const MIDPOINTS: [f32; GAPS] = {
    let mut midpoints = [0.0; GAPS];
    let mut gap = 0;
    while gap < GAPS {
        midpoints[gap] = 0.5 * LEVELS[gap] + 0.5 * LEVELS[gap + 1];
        gap += 1;
    }
    midpoints
};

/// Distance from each level to the next.
const WIDTHS: [f32; GAPS] = {
    let mut widths = [0.0; GAPS];
    let mut gap = 0;
    while gap < GAPS {
        widths[gap] = LEVELS[gap + 1] - LEVELS[gap];
        gap += 1;
    }
    widths
};

/// The index of a level.
#[derive(Debug)]
pub(super) struct Nf4;

impl NumberFormat for Nf4 {
    fn shape(&self) -> BlockShape {
        BlockShape::bucket(4, Codes::Nibbles)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        let inverse = 1.0 / append_absmax(block, out);
        append_packed::<2>(block, out, |_, value| code(value * inverse));
    }

    fn quantise_at_random(&self, block: &[f32], noise: Noise, out: &mut Vec<u8>) {
        let inverse = 1.0 / append_absmax(block, out);
        append_packed::<2>(block, out, |i, value| code_at_random(value * inverse, noise.unit(i)));
    }

    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]) {
        let scale = scale(scales, 0);
        read_packed::<2>(codes, out, &LEVELS.map(|level| level * scale));
    }
}

/// Returns the NF4 code of the level nearest to a value in −1..=1 (module documentation has the source): 0 to 15.
#[must_use]
pub fn code(value: f32) -> u8 {
    MIDPOINTS.iter().map(|&midpoint| u8::from(value >= midpoint)).sum()
}

/// Returns one of the two levels adjacent to a value in −1..=1, so that the expectation is the value. All
/// gaps below the value count, and its own gap with the probability of the share below the value. Zero stays
/// zero, as `unit` is between 0 and 1.
fn code_at_random(value: f32, unit: f32) -> u8 {
    let gaps = LEVELS.iter().zip(&WIDTHS);
    gaps.map(|(&level, &width)| u8::from(value >= level + unit * width)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The normal distribution function, as the series of its integral.
    fn normal_below(x: f64) -> f64 {
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > 1e-17 {
            n += 2.0;
            term *= x * x / n;
            sum += term;
        }
        0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
    }

    fn quantile(share: f64) -> f64 {
        let (mut low, mut high) = (-10.0, 10.0);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if normal_below(middle) < share { low = middle } else { high = middle }
        }
        low
    }

    /// Checks the definition of appendix E: seven quantiles below zero, zero, and eight above.
    #[test]
    fn the_levels_are_quantiles_of_the_normal_distribution() {
        const OUTERMOST: f64 = 0.967_708_3;
        let between =
            |at: i32, count: i32| quantile(0.5 + (OUTERMOST - 0.5) * f64::from(at) / f64::from(count));
        let below = (1..=7).rev().map(|at| -between(at, 7));
        let expected: Vec<f64> = below.chain([0.0]).chain((1..=8).map(|at| between(at, 8))).collect();
        for (level, expected) in LEVELS.iter().zip(&expected) {
            assert!((f64::from(*level) - expected / quantile(OUTERMOST)).abs() < 1e-6, "{level}: {expected}");
        }
        assert_eq!(LEVELS.len(), expected.len());
    }

    #[test]
    fn zero_stays_zero_whatever_is_drawn() {
        for seed in 0..1000 {
            let noise = Noise::new(seed);
            assert!((0..100).all(|index| LEVELS[usize::from(code_at_random(0.0, noise.unit(index)))] == 0.0));
        }
    }
}
