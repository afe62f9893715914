//! Sign and three exponent bits.
//!
//! A. Douillard et al., "Streaming DiLoCo with overlapping communication", 2025 (arXiv 2501.18512).

use super::packing::{append_packed, read_packed};
use super::scales::{append_absmax, scale};
use super::{BlockShape, Codes, NumberFormat};
use crate::codec::random::Noise;

/// Reconstructed value of each code at scale 1: c = 0..7, then with the sign bit.
const LEVELS: [f32; 16] = {
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

/// Midpoints between adjacent magnitudes: c is the number of midpoints that a magnitude reaches.
const MIDPOINTS: [f32; 7] =
    [1.0 / 128.0, 1.5 / 64.0, 1.5 / 32.0, 1.5 / 16.0, 1.5 / 8.0, 1.5 / 4.0, 1.5 / 2.0];

/// The biased exponent of 2^-7, which c = 0 corresponds to.
const EXPONENT_OF_ZERO: u32 = 127 - 7;

/// c of three bits, and the sign.
#[derive(Debug)]
pub(super) struct E3M0;

impl NumberFormat for E3M0 {
    fn shape(&self) -> BlockShape {
        BlockShape::bucket(4, Codes::Nibbles)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        let inverse = 1.0 / append_absmax(block, out);
        append_packed::<2>(block, out, |_, value| code(value * inverse));
    }

    fn quantise_at_random(&self, block: &[f32], noise: Noise, out: &mut Vec<u8>) {
        let inverse = 1.0 / append_absmax(block, out);
        append_packed::<2>(block, out, |i, value| code_at_random(value * inverse, noise, i));
    }

    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]) {
        let scale = scale(scales, 0);
        read_packed::<2>(codes, out, &LEVELS.map(|level| level * scale));
    }
}

/// Returns the code of the magnitude nearest to a value in −1..=1, and the sign.
fn code(value: f32) -> u8 {
    let c: u8 = MIDPOINTS.iter().map(|&midpoint| u8::from(value.abs() >= midpoint)).sum();
    c | u8::from(value < 0.0) << 3
}

/// Returns the code of one of the two magnitudes adjacent to a value in −1..=1, so that the expectation is
/// the value, and the sign.
fn code_at_random(value: f32, noise: Noise, index: usize) -> u8 {
    let magnitude = value.abs();
    // Between two powers of two the mantissa gives the distance to the upper one: a random mantissa carries
    // into the exponent with that probability.
    let carried = (magnitude.to_bits() + (noise.bits(index) >> 9)) >> 23;
    let power = carried.wrapping_sub(EXPONENT_OF_ZERO).min(7) as u8;
    let lowest = u8::from(magnitude * 64.0 > noise.unit(index));
    let c = if magnitude < 1.0 / 64.0 { lowest } else { power };
    c | u8::from(value < 0.0) << 3
}
