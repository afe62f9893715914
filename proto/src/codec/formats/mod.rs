//! Number formats: conversion of kept values to bytes and back.
//!
//! A format is a file with a type that implements [`NumberFormat`], a line in the registry below, and a line
//! in the list of [`ValueFormat`], which names it in configurations.

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

pub use self::nf4::code as nf4_code;

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

/// One number format. A block consists of its scales (bf16) and its codes, packed from the least significant
/// bit.
///
/// Reconstruction multiplies and looks up, in f32 and unfused, so that its bits are the same on all machines.
/// Callers pass whole blocks or sections, so that loops over values are compiled for each format.
pub(super) trait NumberFormat: Debug + Sync {
    /// Returns the division of its blocks.
    fn shape(&self) -> BlockShape;

    /// Appends a block of finite values, rounded to nearest.
    fn quantise(&self, block: &[f32], out: &mut Vec<u8>);

    /// Appends a block of finite values, each rounded to one of two neighbours, so that the expectation is
    /// the value.
    fn quantise_at_random(&self, _block: &[f32], _noise: Noise, _out: &mut Vec<u8>) {
        unreachable!("`CodecSpec::validate` refuses stochastic rounding to {self:?}")
    }

    /// Reconstructs a block, which starts with `scales`.
    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]);

    /// Whether the block contains only finite numbers.
    fn is_finite(&self, scales: &[u8], _codes: &[u8]) -> bool {
        scales::are_finite(scales)
    }

    /// Appends values in blocks, rounded to nearest or, with `noise`, at random.
    fn quantise_all(&self, values: &[f32], block_values: usize, noise: Option<Noise>, out: &mut Vec<u8>) {
        for (index, block) in values.chunks(block_values).enumerate() {
            match noise {
                None => self.quantise(block, out),
                Some(noise) => self.quantise_at_random(block, noise.skip(index * block_values), out),
            }
        }
    }

    /// Returns the index of the first block of `block_bytes` bytes with a number that is not finite.
    fn first_not_finite(&self, section: &[u8], block_bytes: usize) -> Option<usize> {
        let BlockShape { scale_bytes, .. } = self.shape();
        section.chunks(block_bytes).position(|block| {
            let (scales, codes) = block.split_at(scale_bytes);
            !self.is_finite(scales, codes)
        })
    }
}

/// Division of a format's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockShape {
    /// Bits of a value's code.
    pub code_bits: usize,
    /// Values in a block; `None`: scales apply to the groups of the selection.
    pub values: Option<usize>,
    /// Bytes of a block's scales, which precede its codes.
    pub scale_bytes: usize,
    /// The codes, if entropy coding pays: few and of unequal probability.
    pub codes: Option<Codes>,
}

impl BlockShape {
    /// Values without a scale.
    const fn plain(code_bits: usize) -> Self {
        Self { code_bits, values: Some(PLAIN_BLOCK_VALUES), scale_bytes: 0, codes: None }
    }

    /// Values with a scale of their absolute maximum.
    const fn bucket(code_bits: usize, codes: Codes) -> Self {
        Self { code_bits, values: Some(BUCKET_VALUES), scale_bytes: scales::SCALE_BYTES, codes: Some(codes) }
    }

    /// Groups of the selection, with their scales.
    const fn group(code_bits: usize, scale_bytes: usize) -> Self {
        Self { code_bits, values: None, scale_bytes, codes: None }
    }
}

/// Codes that can be entropy-coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    /// Four bits, two codes in a byte.
    Nibbles,
    /// Eight bits; adjacent codes are about equally likely.
    Bytes,
}

/// Declares the formats: the tag in a frame, and the type, named as in the list of configurations.
macro_rules! registry {
    ($($tag:literal => $format:ident,)*) => {
        /// Returns the implementation of a format.
        pub(super) fn of(format: ValueFormat) -> &'static dyn NumberFormat {
            match format {
                $(ValueFormat::$format => &$format,)*
            }
        }

        /// Returns the tag of a format in a frame.
        pub(super) fn wire_tag(format: ValueFormat) -> u8 {
            match format {
                $(ValueFormat::$format => $tag,)*
            }
        }

        /// Returns the format of a tag in a frame.
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

/// Values in a block of a format without scales. The number is arbitrary; this one keeps scratch memory in
/// the L1 cache.
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
