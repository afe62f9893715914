//! Kept values as bytes: blocks of values, each with its own scales.
//!
//! A block is its scales (bf16) and then its codes, packed from the least significant bit. Reconstruction multiplies
//! and looks up, in f32 and unfused, so that its bits are the same everywhere.

use half::{bf16, f16};

use super::packing::{all_below, append, append_packed, few_levels, read, read_packed};
use super::quantise::{
    E3M0_LEVELS, SCALE_BITS_END, absmax_scale, bf16_saturating, e3m0_code, e3m0_code_at_random,
    f16_saturating, half_means, level, step_of,
};
use super::random::Noise;
use super::{CHUNK_VALUES_DEFAULT, Selection, ValueFormat};

/// Values that share an absmax scale.
const BUCKET_VALUES: usize = 128;

/// Values in a block of a format without scales: any number would do, this one keeps scratch memory in the L1 cache.
const PLAIN_BLOCK_VALUES: usize = 1024;

/// Values that share levels when a threshold selects, as it does not say how many it keeps of a chunk: an eighth of a
/// bit each for two levels.
const SCATTERED_BLOCK_VALUES: usize = 256;

const INT8_STEPS: i16 = 127;
const INT4_STEPS: i16 = 7;
/// An int4 code is this much more than its step.
const INT4_ZERO: u8 = 8;

/// How the values of a fragment are cut into blocks and coded.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueBlocks {
    pub format: ValueFormat,
    /// Values in a block; the last may have fewer.
    pub block_values: usize,
}

impl ValueBlocks {
    pub fn new(selection: Selection, format: ValueFormat) -> Self {
        let block_values = match format {
            ValueFormat::F32 | ValueFormat::Bf16 | ValueFormat::F16 => PLAIN_BLOCK_VALUES,
            ValueFormat::Int8 | ValueFormat::Int4 | ValueFormat::E3M0 => BUCKET_VALUES,
            ValueFormat::TwoBit | ValueFormat::Sign => match selection {
                Selection::All => CHUNK_VALUES_DEFAULT as usize,
                Selection::TopK { keep, .. } => keep as usize,
                Selection::Threshold { .. } => SCATTERED_BLOCK_VALUES,
            },
        };
        Self { format, block_values }
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

    /// Bytes of the codes of a block that is not the last.
    pub fn block_codes_bytes(self) -> usize {
        self.block_bytes(self.block_values) - self.scale_bytes()
    }

    /// Bytes of a block's scales, which come before its codes.
    pub fn scale_bytes(self) -> usize {
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

    /// Appends finite values, rounded to nearest or, where there is `noise`, at random. `magnitudes` is scratch memory.
    pub fn quantise(
        self,
        values: &[f32],
        noise: Option<Noise>,
        magnitudes: &mut Vec<u32>,
        out: &mut Vec<u8>,
    ) {
        for (index, block) in values.chunks(self.block_values).enumerate() {
            match noise {
                None => self.quantise_to_nearest(block, magnitudes, out),
                Some(noise) => self.quantise_at_random(block, noise.skip(index * self.block_values), out),
            }
        }
    }

    fn quantise_to_nearest(self, block: &[f32], magnitudes: &mut Vec<u32>, out: &mut Vec<u8>) {
        match self.format {
            ValueFormat::F32 => append(block, out, |_, value| value.to_le_bytes()),
            ValueFormat::Bf16 => append(block, out, |_, value| bf16_saturating(value).to_le_bytes()),
            ValueFormat::F16 => append(block, out, |_, value| f16_saturating(value).to_le_bytes()),
            ValueFormat::Int8 => {
                let inverse = f32::from(INT8_STEPS) / append_absmax(block, out);
                append(block, out, |_, value| [step_of::<INT8_STEPS>(value * inverse)]);
            }
            ValueFormat::Int4 => {
                let inverse = f32::from(INT4_STEPS) / append_absmax(block, out);
                append_packed::<2>(block, out, |_, value| int4_code(value * inverse));
            }
            ValueFormat::E3M0 => {
                let inverse = 1.0 / append_absmax(block, out);
                append_packed::<2>(block, out, |_, value| e3m0_code(value * inverse));
            }
            ValueFormat::TwoBit => {
                let (lower, upper) = half_means(block, magnitudes);
                append_scale(lower, out);
                append_scale(upper, out);
                let middle = 0.5 * lower + 0.5 * upper;
                let code = |value: f32| u8::from(value.abs() >= middle) | u8::from(value < 0.0) << 1;
                append_packed::<4>(block, out, |_, value| code(value));
            }
            ValueFormat::Sign => {
                let sum: f64 = block.iter().map(|value| f64::from(value.abs())).sum();
                append_scale(level(sum / block.len() as f64), out);
                append_packed::<8>(block, out, |_, value| u8::from(value < 0.0));
            }
        }
    }

    fn quantise_at_random(self, block: &[f32], noise: Noise, out: &mut Vec<u8>) {
        match self.format {
            ValueFormat::Int8 => {
                let inverse = f32::from(INT8_STEPS) / append_absmax(block, out);
                append(block, out, |i, value| [step_of::<INT8_STEPS>(value * inverse + noise.centred(i))]);
            }
            ValueFormat::Int4 => {
                let inverse = f32::from(INT4_STEPS) / append_absmax(block, out);
                append_packed::<2>(block, out, |i, value| int4_code(value * inverse + noise.centred(i)));
            }
            ValueFormat::E3M0 => {
                let inverse = 1.0 / append_absmax(block, out);
                append_packed::<2>(block, out, |i, value| e3m0_code_at_random(value * inverse, noise, i));
            }
            other => unreachable!("`CodecSpec::validate` refuses stochastic rounding to {other}"),
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

    /// Writes all values of a section, which `out` has room for.
    pub fn reconstruct(self, section: &[u8], out: &mut [f32]) {
        for (block, out) in self.split(section).zip(out.chunks_mut(self.block_values)) {
            self.reconstruct_block(block, out);
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

fn int4_code(steps: f32) -> u8 {
    step_of::<INT4_STEPS>(steps).wrapping_add(INT4_ZERO)
}

/// Appends the block's scale, and returns what the codes' numbers are relative to: the scale, or infinity in place of
/// zero, so that every code becomes zero.
fn append_absmax(block: &[f32], out: &mut Vec<u8>) -> f32 {
    let scale = absmax_scale(block);
    append_scale(scale, out);
    if scale == 0.0 { f32::INFINITY } else { scale }
}

/// Appends a number that bf16 represents.
fn append_scale(scale: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&bf16_saturating(scale).to_le_bytes());
}
