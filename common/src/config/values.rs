//! Small closed sets of values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the values of an update are represented on the wire. Scales and levels are bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueFormat {
    /// IEEE 754 single precision: lossless.
    F32,
    /// bfloat16, to nearest even, saturating.
    Bf16,
    /// IEEE 754 half precision, to nearest even, saturating at ±65504.
    F16,
    /// ±127 steps of the absolute maximum of each 128 values.
    Int8,
    /// ±7 steps of the absolute maximum of each 128 values.
    Int4,
    /// Sign and three exponent bits: zero, or s·2^(c−7) for c = 1..7, with s the absolute maximum of each 128 values
    /// (Streaming DiLoCo, arXiv 2501.18512).
    #[serde(rename = "e3m0")]
    E3M0,
    /// Sign and one of two levels per chunk: the means of the lower and the upper half of the magnitudes
    /// (SparseLoCo, arXiv 2508.15706).
    #[serde(rename = "2bit")]
    TwoBit,
    /// Sign only, with the mean magnitude of each chunk.
    #[serde(rename = "1bit")]
    Sign,
}

impl ValueFormat {
    /// Every format, in the order of its wire tag.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Int4, Self::E3M0, Self::TwoBit, Self::Sign];

    /// The name in configurations and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::E3M0 => "e3m0",
            Self::TwoBit => "2bit",
            Self::Sign => "1bit",
        }
    }

    /// Bits of one value's code, without its share of the block's scales.
    #[must_use]
    pub const fn code_bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::Bf16 | Self::F16 => 16,
            Self::Int8 => 8,
            Self::Int4 | Self::E3M0 => 4,
            Self::TwoBit => 2,
            Self::Sign => 1,
        }
    }

    /// The byte that stands for this format in a frame.
    #[must_use]
    pub const fn wire_tag(self) -> u8 {
        self as u8
    }

    /// The format that a frame's byte stands for.
    #[must_use]
    pub fn from_wire_tag(tag: u8) -> Option<Self> {
        Self::ALL.get(usize::from(tag)).copied()
    }
}

impl fmt::Display for ValueFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How a value becomes one of its format's levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// The nearest level.
    #[default]
    Nearest,
    /// One of the two neighbouring levels, so that the expectation is the value (Alistarh et al., arXiv 1610.02132).
    Stochastic,
}

/// The number format of forward and backward passes; parameters and optimiser state are kept in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE binary32.
    #[default]
    F32,
    /// bfloat16 activations and weights, f32 master parameters.
    Bf16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_tags_lead_back_to_their_format() {
        for format in ValueFormat::ALL {
            assert_eq!(ValueFormat::from_wire_tag(format.wire_tag()), Some(format));
        }
        assert_eq!(ValueFormat::from_wire_tag(8), None);
    }
}
