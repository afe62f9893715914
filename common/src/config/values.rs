//! Small closed sets of values.

use serde::{Deserialize, Serialize};

/// How a value of an update is written on the wire. Defined in the codec that implements them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ValueFormat {
    /// IEEE binary32.
    #[serde(rename = "f32")]
    F32,
    /// bfloat16.
    #[serde(rename = "bf16")]
    Bf16,
    /// IEEE binary16.
    #[serde(rename = "f16")]
    F16,
    /// Eight bits, scaled by the bucket's largest magnitude.
    #[serde(rename = "int8")]
    Int8,
    /// Four bits, scaled by the bucket's largest magnitude.
    #[serde(rename = "int4")]
    Int4,
    /// Sign and three exponent bits, scaled by the bucket's largest magnitude.
    #[serde(rename = "e3m0")]
    E3M0,
    /// Sign and one of two levels a chunk.
    #[serde(rename = "2bit")]
    TwoBit,
    /// Sign, and one scale a chunk.
    #[serde(rename = "1bit")]
    Sign,
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
