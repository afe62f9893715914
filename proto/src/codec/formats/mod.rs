//! Number formats: how kept values become bytes, and bytes values again.
//!
//! A format is a file with a type that implements [`NumberFormat`], a line in the registry below, and a line in the list of
//! [`ValueFormat`], which gives it its name in configurations.

mod bf16;
mod e3m0;
mod exact;
mod f16;
mod int4;
mod int8;
mod nf4;
mod packing;
mod scales;
mod sign;
mod two_bit;

use std::fmt::Debug;

use self::bf16::Bf16;
use self::e3m0::E3M0;
use self::exact::F32;
use self::f16::F16;
use self::int4::Int4;
use self::int8::Int8;
use self::nf4::Nf4;
use self::sign::Sign;
use self::two_bit::TwoBit;
use super::ValueFormat;
use super::random::Noise;

/// One number format. A block is its scales (bf16) and then its codes, packed from the least significant bit.
///
/// Reconstruction multiplies and looks up, in f32 and unfused, so that its bits are the same everywhere. Callers ask for
/// whole blocks or sections, so that loops over values are compiled for each format.
pub(super) trait NumberFormat: Debug + Sync {
    /// How its blocks are divided.
    fn shape(&self) -> BlockShape;

    /// Appends a block of finite values, rounded to nearest. `magnitudes` is scratch memory.
    fn quantise(&self, block: &[f32], magnitudes: &mut Vec<u32>, out: &mut Vec<u8>);

    /// Appends a block of finite values, rounded to one of two neighbours, so that the expectation is the value.
    fn quantise_at_random(&self, _block: &[f32], _noise: Noise, _out: &mut Vec<u8>) {
        unreachable!("`CodecSpec::validate` refuses stochastic rounding to {self:?}")
    }

    /// Writes what a block stands for, of which `scales` are the first bytes.
    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]);

    /// Whether everything that a block stands for is finite.
    fn is_finite(&self, scales: &[u8], _codes: &[u8]) -> bool {
        scales::are_finite(scales)
    }

    /// Appends values in blocks, rounded to nearest or, where there is `noise`, at random.
    fn quantise_all(
        &self,
        values: &[f32],
        block_values: usize,
        noise: Option<Noise>,
        magnitudes: &mut Vec<u32>,
        out: &mut Vec<u8>,
    ) {
        for (index, block) in values.chunks(block_values).enumerate() {
            match noise {
                None => self.quantise(block, magnitudes, out),
                Some(noise) => self.quantise_at_random(block, noise.skip(index * block_values), out),
            }
        }
    }

    /// The first block of so many bytes that stands for a number that is not finite.
    fn first_not_finite(&self, section: &[u8], block_bytes: usize) -> Option<usize> {
        let BlockShape { scale_bytes, .. } = self.shape();
        section.chunks(block_bytes).position(|block| {
            let (scales, codes) = block.split_at(scale_bytes);
            !self.is_finite(scales, codes)
        })
    }
}

/// How a format's blocks are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockShape {
    /// Bits of a value's code.
    pub code_bits: usize,
    /// Values in a block; none if scales are for as many values as the selection brings together.
    pub values: Option<usize>,
    /// Bytes of a block's scales, which come before its codes.
    pub scale_bytes: usize,
    /// The codes, if they can be entropy-coded: few enough different ones that are not about equally likely.
    pub codes: Option<Codes>,
}

impl BlockShape {
    /// Values that need no scale.
    const fn plain(code_bits: usize) -> Self {
        Self { code_bits, values: Some(PLAIN_BLOCK_VALUES), scale_bytes: 0, codes: None }
    }

    /// Values beside the scale of their absolute maximum.
    const fn bucket(code_bits: usize, codes: Codes) -> Self {
        Self { code_bits, values: Some(BUCKET_VALUES), scale_bytes: scales::SCALE_BYTES, codes: Some(codes) }
    }

    /// Values that the selection brings together, beside their scales.
    const fn group(code_bits: usize, scale_bytes: usize) -> Self {
        Self { code_bits, values: None, scale_bytes, codes: None }
    }
}

/// Codes that can be entropy-coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    /// Of four bits, two in a byte.
    Nibbles,
    /// Of eight bits, of which neighbours are about equally likely.
    Bytes,
}

/// Declares the formats: the byte that stands for each in a frame, and its type, which has the name that it has in the list
/// of configurations.
macro_rules! registry {
    ($($tag:literal => $format:ident,)*) => {
        /// What there is to a format.
        pub(super) fn of(format: ValueFormat) -> &'static dyn NumberFormat {
            match format {
                $(ValueFormat::$format => &$format,)*
            }
        }

        /// The byte that stands for a format in a frame.
        pub(super) fn wire_tag(format: ValueFormat) -> u8 {
            match format {
                $(ValueFormat::$format => $tag,)*
            }
        }

        /// The format that a frame's byte stands for.
        pub(super) fn of_wire_tag(tag: u8) -> Option<ValueFormat> {
            match tag {
                $($tag => Some(ValueFormat::$format),)*
                _ => None,
            }
        }
    };
}

registry! {
    0 => F32,
    1 => Bf16,
    2 => F16,
    3 => Int8,
    4 => Int4,
    5 => E3M0,
    6 => TwoBit,
    7 => Sign,
    8 => Nf4,
}

/// Values in a block of a format without scales: any number would do, this one keeps scratch memory in the L1 cache.
const PLAIN_BLOCK_VALUES: usize = 1024;

/// Values that share the scale of their absolute maximum.
const BUCKET_VALUES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_tags_lead_back_to_their_format() {
        for format in ValueFormat::ALL {
            assert_eq!(of_wire_tag(wire_tag(format)), Some(format));
        }
        assert_eq!(of_wire_tag(255), None);
    }
}
