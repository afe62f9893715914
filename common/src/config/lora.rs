//! `[train.lora]`: low-rank adapters beside frozen weights (Hu et al. 2021, "LoRA", arXiv 2106.09685).

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::sections::is_default;

/// `[train.lora]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank of the adapters.
    pub rank: u32,
    /// Numerator of their scale, α / rank. Default: twice the rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Scale by α / √rank instead (Kalajdzievski 2023, arXiv 2312.03732).
    #[serde(default)]
    pub use_rslora: bool,
    /// Adapted matrices: `all-linear` (all but the output projection, or the head for classes), or names of modules, whole or the end after a
    /// dot, such as `q_proj`.
    #[serde(default = "LoraConfig::all_linear")]
    pub targets: Vec<String>,
    /// Train the lengths of the matrices' rows as well (DoRA: Liu et al. 2024, arXiv 2402.09353).
    #[serde(default)]
    pub use_dora: bool,
    /// Dropout of the adapters' inputs, in training alone: PEFT's `lora_dropout`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dropout: f64,
    /// Format in which each device keeps the frozen matrices. Embeddings are in bf16 with all but `f32`; vectors are in f32.
    #[serde(default)]
    pub base: FrozenFormat,
}

/// Format of frozen matrices. Products compute in `train.precision` with any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrozenFormat {
    /// IEEE binary32.
    #[default]
    F32,
    /// bfloat16: exact for models stored in it.
    Bf16,
    /// 8-bit integers with a scale for each row.
    Int8,
    /// 4-bit quantiles of a normal distribution with a scale for 64 values (QLoRA: Dettmers et al. 2023, arXiv 2305.14314).
    Nf4,
}

/// Largest rank: more than any use.
const RANK_MAX: u32 = 1 << 14;
/// Largest α: a thousand times those in use.
const ALPHA_MAX: f64 = 1e6;

impl LoraConfig {
    /// Name of all matrices but the output projection.
    pub const ALL_LINEAR: &str = "all-linear";

    fn all_linear() -> Vec<String> {
        vec![Self::ALL_LINEAR.to_owned()]
    }

    /// Returns α.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or(2.0 * f64::from(self.rank))
    }

    /// Checks its values.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.rank == 0 || self.rank > RANK_MAX {
            let reason = format!("must be from 1 to {RANK_MAX}; 8 to 64 are usual");
            return Err(ConfigError::value("train.lora.rank", self.rank, reason));
        }
        if !(self.alpha() > 0.0 && self.alpha() <= ALPHA_MAX) {
            let reason = format!("must be above zero, and {ALPHA_MAX} at most");
            return Err(ConfigError::value("train.lora.alpha", self.alpha(), reason));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(ConfigError::value(
                "train.lora.dropout",
                self.dropout,
                "must be at least 0 and below 1",
            ));
        }
        if self.dropout > 0.0 && self.use_dora {
            let reason = "is not supported with use_dora: leave one of them out";
            return Err(ConfigError::value("train.lora.dropout", self.dropout, reason));
        }
        if self.targets.is_empty() {
            let reason = "names no matrix: leave it out for all, or name modules such as \"q_proj\"";
            return Err(ConfigError::value("train.lora.targets", "[]", reason));
        }
        Ok(())
    }
}
