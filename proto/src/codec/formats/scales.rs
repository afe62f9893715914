//! Scales of a block, and steps of a scale.
//!
//! Codes are computed without branches and without libm, which vectorises and gives the same bits on all
//! machines.

use half::bf16;
use multiversion::multiversion;

use super::packing::all_below;

/// Bytes of a scale, a bf16.
pub(super) const SCALE_BYTES: usize = 2;

/// Blocks with a smaller absolute maximum become zeros: the reciprocal of the scale stays finite, and no
/// reconstructed value is subnormal. 2^-100.
const ABSMAX_MIN: f32 = f32::from_bits((127 - 100) << 23);

/// The largest scale: the largest bf16 below 2^127. Even the code that an encoder never writes (−128 steps of
/// 127, −8 of 7) is then finite. Larger values saturate.
const SCALE_MAX: f32 = f32::from_bits(SCALE_BITS_END - 0x1_0000);
/// The bits of 2^127, which exceeds all scales.
const SCALE_BITS_END: u32 = (127 + 127) << 23;

/// Adding 1.5·2^23 rounds a float of less than 2^22 to an integer, half to even; the low bits then contain
/// it.
const ROUND: f32 = 12_582_912.0;

/// Returns the bits of the nearest finite bf16, ties to even.
pub(super) fn bf16_saturating(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits & 0x7fff_ffff) + 0x7fff + (bits >> 16 & 1);
    let magnitude = (rounded >> 16).min(u32::from(bf16::MAX.to_bits()));
    (magnitude | bits >> 16 & 0x8000) as u16
}

/// Returns the nearest integer within `STEPS` of zero, in two's complement. With uniform noise in ±1/2 added
/// to the value the expectation is the value.
pub(super) fn step_of<const STEPS: i16>(value: f32) -> u8 {
    let steps = f32::from(STEPS);
    (value.clamp(-steps, steps) + ROUND).to_bits() as u8
}

/// Appends the scale of the block's absolute maximum. Returns the divisor of the codes: the scale, or
/// infinity in place of zero, so that every number becomes zero.
pub(super) fn append_absmax(block: &[f32], out: &mut Vec<u8>) -> f32 {
    let scale = absmax_scale(block);
    append_scale(scale, out);
    if scale == 0.0 { f32::INFINITY } else { scale }
}

/// Appends a number that bf16 represents.
pub(super) fn append_scale(scale: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&bf16_saturating(scale).to_le_bytes());
}

/// Returns the scale at this index.
pub(super) fn scale(scales: &[u8], index: usize) -> f32 {
    bf16::from_le_bytes([scales[2 * index], scales[2 * index + 1]]).to_f32()
}

/// Whether all scales are numbers that an encoder can write.
pub(super) fn are_finite(scales: &[u8]) -> bool {
    all_below(scales, |scale| u16::from_le_bytes(scale) & 0x7fff, (SCALE_BITS_END >> 16) as u16)
}

/// Returns the block's absolute maximum, rounded up to a bf16 so that no value is clipped; zero if
/// negligible.
#[multiversion(targets = "simd")]
fn absmax_scale(block: &[f32]) -> f32 {
    // The maximum of integers vectorises; finite magnitudes have the same order.
    let bits = block.iter().fold(0, |maximum, value| maximum.max(value.abs().to_bits() as i32)) as u32;
    if f32::from_bits(bits) < ABSMAX_MIN {
        return 0.0;
    }
    f32::from_bits((bits + 0xffff) & 0xffff_0000).min(SCALE_MAX)
}

/// Returns a mean of magnitudes as bf16; zero if negligible.
pub(super) fn mean_scale(mean: f64) -> f32 {
    let mean = (mean as f32).min(SCALE_MAX);
    if mean < ABSMAX_MIN { 0.0 } else { f32::from_bits(u32::from(bf16_saturating(mean)) << 16) }
}
