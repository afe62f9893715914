//! Kept values as bytes: blocks of values, each with its own scales.
//!
//! A block is its scales (bf16) and then its codes, packed from the least significant bit. Reconstruction multiplies
//! and looks up, in f32 and unfused, so that its bits are the same everywhere.

use half::{bf16, f16};

use super::packing::{all_below, append, append_packed, few_levels, read, read_packed};
use super::{CHUNK_VALUES_DEFAULT, CodecSpec, Selection, ValueFormat};

/// Values that share an absmax scale.
const BUCKET_VALUES: usize = 128;

/// Values in a block of a format without scales: any number would do, this one keeps scratch memory in the L1 cache.
const PLAIN_BLOCK_VALUES: usize = 1024;

/// A block with a smaller absolute maximum is sent as zeros: its scale's reciprocal stays finite, and what is
/// reconstructed from it is never subnormal. 2^-100.
const ABSMAX_MIN: f32 = f32::from_bits((127 - 100) << 23);

/// The largest scale: the largest bf16 below 2^127, so that even the code that an encoder never writes (−128 steps of
/// 127, −8 of 7) stands for a finite number. Larger values saturate.
const SCALE_MAX: f32 = f32::from_bits(SCALE_BITS_END - 0x1_0000);
const SCALE_BITS_END: u32 = (127 + 127) << 23;

/// Adding 1.5·2^23 rounds a float of less than 2^22 to an integer, half to even, which the low bits then hold.
const ROUND: f32 = 12_582_912.0;

const INT8_STEPS: i16 = 127;
const INT4_STEPS: i16 = 7;
/// An int4 code is this much more than its step.
const INT4_ZERO: u8 = 8;

/// What is reconstructed for each code of E3M0, at scale 1: c = 0..7, then with the sign bit.
const E3M0_LEVELS: [f32; 16] = {
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

/// How the values of a fragment are cut into blocks and coded.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueBlocks {
    format: ValueFormat,
    /// Values in a block; the last may have fewer.
    pub block_values: usize,
}

impl ValueBlocks {
    pub fn new(spec: &CodecSpec) -> Self {
        let block_values = match spec.values {
            ValueFormat::F32 | ValueFormat::Bf16 | ValueFormat::F16 => PLAIN_BLOCK_VALUES,
            ValueFormat::Int8 | ValueFormat::Int4 | ValueFormat::E3M0 => BUCKET_VALUES,
            ValueFormat::TwoBit | ValueFormat::Sign => match spec.selection {
                Selection::All => CHUNK_VALUES_DEFAULT as usize,
                Selection::TopK { keep, .. } => keep as usize,
            },
        };
        Self { format: spec.values, block_values }
    }

    /// Bytes of `count` values.
    pub fn bytes(self, count: usize) -> usize {
        let last = count % self.block_values;
        let last_bytes = if last == 0 { 0 } else { self.block_bytes(last) };
        count / self.block_values * self.block_bytes(self.block_values) + last_bytes
    }

    fn block_bytes(self, count: usize) -> usize {
        self.scale_bytes() + (count * self.format.code_bits()).div_ceil(8)
    }

    fn scale_bytes(self) -> usize {
        match self.format {
            ValueFormat::F32 | ValueFormat::Bf16 | ValueFormat::F16 => 0,
            ValueFormat::Int8 | ValueFormat::Int4 | ValueFormat::E3M0 | ValueFormat::Sign => 2,
            ValueFormat::TwoBit => 4,
        }
    }

    /// The blocks of a section, in order.
    pub fn split(self, section: &[u8]) -> std::slice::Chunks<'_, u8> {
        section.chunks(self.block_bytes(self.block_values))
    }

    /// Appends finite values. `magnitudes` is scratch memory.
    pub fn quantise(self, values: &[f32], magnitudes: &mut Vec<u32>, out: &mut Vec<u8>) {
        for block in values.chunks(self.block_values) {
            self.quantise_block(block, magnitudes, out);
        }
    }

    fn quantise_block(self, block: &[f32], magnitudes: &mut Vec<u32>, out: &mut Vec<u8>) {
        match self.format {
            ValueFormat::F32 => append(block, out, |value| value.to_le_bytes()),
            ValueFormat::Bf16 => append(block, out, |value| bf16_saturating(value).to_le_bytes()),
            ValueFormat::F16 => append(block, out, |value| f16_saturating(value).to_le_bytes()),
            ValueFormat::Int8 => {
                let inverse = f32::from(INT8_STEPS) / append_absmax(block, out);
                append(block, out, |value| [step_of::<INT8_STEPS>(value * inverse)]);
            }
            ValueFormat::Int4 => {
                let inverse = f32::from(INT4_STEPS) / append_absmax(block, out);
                let code = |value: f32| step_of::<INT4_STEPS>(value * inverse).wrapping_add(INT4_ZERO);
                append_packed::<2>(block, out, code);
            }
            ValueFormat::E3M0 => {
                let inverse = 1.0 / append_absmax(block, out);
                append_packed::<2>(block, out, |value| e3m0_code(value * inverse));
            }
            ValueFormat::TwoBit => {
                let (lower, upper) = half_means(block, magnitudes);
                append_scale(lower, out);
                append_scale(upper, out);
                let middle = 0.5 * lower + 0.5 * upper;
                let code = |value: f32| u8::from(value.abs() >= middle) | u8::from(value < 0.0) << 1;
                append_packed::<4>(block, out, code);
            }
            ValueFormat::Sign => {
                let sum: f64 = block.iter().map(|value| f64::from(value.abs())).sum();
                append_scale(level(sum / block.len() as f64), out);
                append_packed::<8>(block, out, |value| u8::from(value < 0.0));
            }
        }
    }

    /// Writes what the block, as [`ValueBlocks::split`] gives it, stands for.
    pub fn reconstruct_block(self, block: &[u8], out: &mut [f32]) {
        let (scales, codes) = block.split_at(self.scale_bytes());
        let scale = |index: usize| bf16::from_le_bytes([scales[2 * index], scales[2 * index + 1]]).to_f32();
        match self.format {
            ValueFormat::F32 => read(codes, out, f32::from_le_bytes),
            ValueFormat::Bf16 => {
                read(codes, out, |code| f32::from_bits(u32::from(u16::from_le_bytes(code)) << 16))
            }
            ValueFormat::F16 => read(codes, out, |code| f16::from_le_bytes(code).to_f32()),
            ValueFormat::Int8 => {
                let step = scale(0) / f32::from(INT8_STEPS);
                read(codes, out, |[code]| f32::from(code as i8) * step);
            }
            ValueFormat::Int4 => {
                let step = scale(0) / f32::from(INT4_STEPS);
                let levels: [f32; 16] =
                    std::array::from_fn(|code| (code as f32 - f32::from(INT4_ZERO)) * step);
                read_packed::<2>(codes, out, &levels);
            }
            ValueFormat::E3M0 => read_packed::<2>(codes, out, &E3M0_LEVELS.map(|level| level * scale(0))),
            ValueFormat::TwoBit => {
                read_packed::<4>(codes, out, &few_levels([scale(0), scale(1), -scale(0), -scale(1)]));
            }
            ValueFormat::Sign => read_packed::<8>(codes, out, &few_levels([scale(0), -scale(0)])),
        }
    }

    /// Whether everything that the block stands for is finite.
    pub fn is_finite(self, block: &[u8]) -> bool {
        let (scales, codes) = block.split_at(self.scale_bytes());
        match self.format {
            ValueFormat::F32 => all_below(codes, |code| u32::from_le_bytes(code) & 0x7fff_ffff, 0x7f80_0000),
            ValueFormat::Bf16 => all_below(codes, |code| u16::from_le_bytes(code) & 0x7fff, 0x7f80),
            ValueFormat::F16 => all_below(codes, |code| u16::from_le_bytes(code) & 0x7fff, 0x7c00),
            _ => all_below(scales, |scale| u16::from_le_bytes(scale) & 0x7fff, (SCALE_BITS_END >> 16) as u16),
        }
    }
}

/// Appends the block's absolute maximum, rounded up, and returns what the decoder will read; infinity in place of
/// a maximum that counts as zero, so that every code becomes zero.
fn append_absmax(block: &[f32], out: &mut Vec<u8>) -> f32 {
    // As integers, whose maximum vectorises; finite magnitudes order the same.
    let bits = block.iter().fold(0, |maximum, value| maximum.max(value.abs().to_bits() as i32)) as u32;
    if f32::from_bits(bits) < ABSMAX_MIN {
        append_scale(0.0, out);
        return f32::INFINITY;
    }
    let absmax = f32::from_bits((bits + 0xffff) & 0xffff_0000).min(SCALE_MAX);
    append_scale(absmax, out);
    absmax
}

/// Appends a number that bf16 represents.
fn append_scale(scale: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&bf16_saturating(scale).to_le_bytes());
}

/// The bits of the nearest finite bf16, ties to even.
fn bf16_saturating(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits & 0x7fff_ffff) + 0x7fff + (bits >> 16 & 1);
    let magnitude = (rounded >> 16).min(u32::from(bf16::MAX.to_bits()));
    (magnitude | bits >> 16 & 0x8000) as u16
}

fn f16_saturating(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

/// The nearest integer, at most `STEPS` from zero, in two's complement.
fn step_of<const STEPS: i16>(value: f32) -> u8 {
    let steps = f32::from(STEPS);
    (value.clamp(-steps, steps) + ROUND).to_bits() as u8
}

/// The nearest magnitude of E3M0 to a value in −1..=1, and its sign.
fn e3m0_code(value: f32) -> u8 {
    let c: u8 = E3M0_MIDPOINTS.iter().map(|&midpoint| u8::from(value.abs() >= midpoint)).sum();
    c | u8::from(value < 0.0) << 3
}

/// The means of the smaller and of the larger half of the magnitudes, as bf16 represents them. Of an odd number the
/// middle one counts as large.
fn half_means(block: &[f32], magnitudes: &mut Vec<u32>) -> (f32, f32) {
    magnitudes.clear();
    magnitudes.extend(block.iter().map(|value| value.abs().to_bits()));
    let lower_count = block.len() / 2;
    let upper_count = block.len() - lower_count;
    let pivot = *magnitudes.select_nth_unstable(lower_count).1;

    // The sums run in the order of the values, so that they do not depend on how the partition permutes. Values equal
    // to the pivot fall to both halves, as many as each then lacks.
    let (mut lower, mut upper) = (0.0, 0.0);
    let (mut below, mut above) = (0, 0);
    for value in block {
        let magnitude = f64::from(value.abs());
        let key = value.abs().to_bits();
        lower += if key < pivot { magnitude } else { 0.0 };
        upper += if key > pivot { magnitude } else { 0.0 };
        below += usize::from(key < pivot);
        above += usize::from(key > pivot);
    }
    let pivot = f64::from(f32::from_bits(pivot));
    lower += (lower_count - below) as f64 * pivot;
    upper += (upper_count - above) as f64 * pivot;
    (level(lower / lower_count.max(1) as f64), level(upper / upper_count as f64))
}

/// A mean as bf16 represents it; zero if too small to be worth sending.
fn level(mean: f64) -> f32 {
    let mean = (mean as f32).min(SCALE_MAX);
    if mean < ABSMAX_MIN { 0.0 } else { f32::from_bits(u32::from(bf16_saturating(mean)) << 16) }
}
