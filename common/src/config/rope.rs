//! `[model.decoder.rope_scaling]`: scaling of rotary frequencies.

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// `[model.decoder.rope_scaling]`. Each type reads the keys that its name stands before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeScalingConfig {
    /// Type.
    pub rope_type: RopeType,
    /// linear, llama3, yarn (needed): factor of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// llama3, yarn, longrope (needed): context before scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_max_position_embeddings: Option<u32>,
    /// llama3 (needed): frequencies with fewer turns within the original context are divided by the factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_freq_factor: Option<f64>,
    /// llama3 (needed): frequencies with more turns are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_freq_factor: Option<f64>,
    /// yarn: turns above which frequencies are kept. Default: 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta_fast: Option<f64>,
    /// yarn: turns below which they are divided by the factor. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beta_slow: Option<f64>,
    /// yarn, longrope: factor of cosines and sines. Default: 0.1 ln(factor) + 1 (yarn); √(1 + ln(context / original) / ln(original)) (longrope).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_factor: Option<f64>,
    /// longrope (needed): divisors of the frequencies for sequences within the original context, half a head's width of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short_factor: Option<Vec<f64>>,
    /// longrope (needed): the same for longer sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_factor: Option<Vec<f64>>,
}

/// Type of scaling, by the names of transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopeType {
    /// All frequencies are divided by the factor.
    Linear,
    /// Llama 3.1: low frequencies are divided by the factor, high ones are kept.
    Llama3,
    /// YaRN (Peng et al. 2023, arXiv 2309.00071).
    Yarn,
    /// LongRoPE (Ding et al. 2024, arXiv 2402.13753), as Phi-3 has it.
    LongRope,
}

/// Scaling of rotary frequencies with all defaults resolved. Numbers are above zero.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// See [`RopeType::Linear`].
    Linear {
        /// Factor.
        factor: f64,
    },
    /// See [`RopeType::Llama3`].
    Llama3 {
        /// Factor.
        factor: f64,
        /// Turns within the original context below which frequencies are divided.
        low: f64,
        /// Turns above which they are kept.
        high: f64,
        /// Original context.
        original: u32,
    },
    /// See [`RopeType::Yarn`].
    Yarn {
        /// Factor.
        factor: f64,
        /// Original context.
        original: u32,
        /// Turns above which frequencies are kept.
        fast: f64,
        /// Turns below which they are divided.
        slow: f64,
        /// Factor of cosines and sines, if it is not the usual one.
        scale: Option<f64>,
    },
    /// See [`RopeType::LongRope`].
    LongRope {
        /// Divisors for sequences within the original context.
        short: Vec<f64>,
        /// Divisors for longer ones.
        long: Vec<f64>,
        /// Original context.
        original: u32,
        /// Factor of cosines and sines, if it is not the usual one.
        scale: Option<f64>,
    },
}

impl RopeScalingConfig {
    /// Returns the values of a type, and nothing else.
    #[must_use]
    pub fn of(rope_type: RopeType) -> Self {
        Self {
            rope_type,
            factor: None,
            original_max_position_embeddings: None,
            low_freq_factor: None,
            high_freq_factor: None,
            beta_fast: None,
            beta_slow: None,
            attention_factor: None,
            short_factor: None,
            long_factor: None,
        }
    }

    /// Returns the scaling for heads with this half width.
    ///
    /// # Errors
    /// Names the first key that is missing, of another type, or has an invalid value.
    pub fn resolved(&self, half: u32) -> Result<RopeScaling, ConfigError> {
        const FACTOR: &str = "model.decoder.rope_scaling.factor";
        const ORIGINAL: &str = "model.decoder.rope_scaling.original_max_position_embeddings";
        const LOW: &str = "model.decoder.rope_scaling.low_freq_factor";
        const HIGH: &str = "model.decoder.rope_scaling.high_freq_factor";
        const FAST: &str = "model.decoder.rope_scaling.beta_fast";
        const SLOW: &str = "model.decoder.rope_scaling.beta_slow";
        const SCALE: &str = "model.decoder.rope_scaling.attention_factor";
        self.check_unread()?;
        let factor = || above_zero(FACTOR, self.needed(FACTOR, self.factor)?);
        let original = || {
            let original = self.needed(ORIGINAL, self.original_max_position_embeddings)?;
            match original > 1 {
                true => Ok(original),
                false => Err(ConfigError::value(ORIGINAL, original, "must be at least 2")),
            }
        };
        let scale = || self.attention_factor.map(|scale| above_zero(SCALE, scale)).transpose();
        let above = |key, value: f64, least: f64, other: &str| match value > least && value.is_finite() {
            true => Ok(value),
            false => Err(ConfigError::value(key, value, format!("must be above {other}"))),
        };
        Ok(match self.rope_type {
            RopeType::Linear => RopeScaling::Linear { factor: factor()? },
            RopeType::Llama3 => {
                let low = above_zero(LOW, self.needed(LOW, self.low_freq_factor)?)?;
                let high = above(HIGH, self.needed(HIGH, self.high_freq_factor)?, low, "low_freq_factor")?;
                RopeScaling::Llama3 { factor: factor()?, low, high, original: original()? }
            }
            RopeType::Yarn => {
                let slow = above_zero(SLOW, self.beta_slow.unwrap_or(1.0))?;
                let fast = above(FAST, self.beta_fast.unwrap_or(32.0), slow, "beta_slow")?;
                RopeScaling::Yarn { factor: factor()?, original: original()?, fast, slow, scale: scale()? }
            }
            RopeType::LongRope => RopeScaling::LongRope {
                short: self.factors("model.decoder.rope_scaling.short_factor", &self.short_factor, half)?,
                long: self.factors("model.decoder.rope_scaling.long_factor", &self.long_factor, half)?,
                original: original()?,
                scale: scale()?,
            },
        })
    }

    fn needed<T>(&self, key: &'static str, value: Option<T>) -> Result<T, ConfigError> {
        let reason = || format!("must be given for rope_type = \"{}\"", self.rope_type.name());
        value.ok_or_else(|| ConfigError::value(key, "nothing", reason()))
    }

    fn factors(
        &self,
        key: &'static str,
        factors: &Option<Vec<f64>>,
        half: u32,
    ) -> Result<Vec<f64>, ConfigError> {
        let factors = self.needed(key, factors.clone())?;
        if factors.len() != half as usize {
            let reason = format!("must be the number of factors: half a head's width, {half}");
            return Err(ConfigError::value(key, factors.len(), reason));
        }
        factors.into_iter().map(|factor| above_zero(key, factor)).collect()
    }

    /// Refuses keys that the type does not read.
    fn check_unread(&self) -> Result<(), ConfigError> {
        use RopeType::{Linear, Llama3, LongRope, Yarn};
        let (is_linear, is_llama3) = (self.rope_type == Linear, self.rope_type == Llama3);
        let (is_yarn, is_longrope) = (self.rope_type == Yarn, self.rope_type == LongRope);
        let keys = [
            ("model.decoder.rope_scaling.factor", self.factor.is_some(), !is_longrope),
            (
                "model.decoder.rope_scaling.original_max_position_embeddings",
                self.original_max_position_embeddings.is_some(),
                !is_linear,
            ),
            ("model.decoder.rope_scaling.low_freq_factor", self.low_freq_factor.is_some(), is_llama3),
            ("model.decoder.rope_scaling.high_freq_factor", self.high_freq_factor.is_some(), is_llama3),
            ("model.decoder.rope_scaling.beta_fast", self.beta_fast.is_some(), is_yarn),
            ("model.decoder.rope_scaling.beta_slow", self.beta_slow.is_some(), is_yarn),
            (
                "model.decoder.rope_scaling.attention_factor",
                self.attention_factor.is_some(),
                is_yarn || is_longrope,
            ),
            ("model.decoder.rope_scaling.short_factor", self.short_factor.is_some(), is_longrope),
            ("model.decoder.rope_scaling.long_factor", self.long_factor.is_some(), is_longrope),
        ];
        match keys.into_iter().find(|(_, is_given, is_read)| *is_given && !is_read) {
            Some((key, ..)) => {
                let reason = format!("rope_type = \"{}\" does not read it: remove it", self.rope_type.name());
                Err(ConfigError::value(key, "given", reason))
            }
            None => Ok(()),
        }
    }
}

impl RopeType {
    /// Returns its name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Llama3 => "llama3",
            Self::Yarn => "yarn",
            Self::LongRope => "longrope",
        }
    }
}

fn above_zero(key: &'static str, value: f64) -> Result<f64, ConfigError> {
    match value > 0.0 && value.is_finite() {
        true => Ok(value),
        false => Err(ConfigError::value(key, value, "must be above zero")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_toml;

    #[test]
    fn each_type_needs_its_own_keys_and_takes_no_others() {
        let original = "original_max_position_embeddings = 8";
        let llama3 = format!("rope_type = \"llama3\"\nfactor = 8.0\nhigh_freq_factor = 4.0\n{original}");
        let longrope = format!("rope_type = \"longrope\"\nshort_factor = [1.0, 2.0]\n{original}");
        for (lines, words) in [
            (
                "rope_type = \"linear\"".to_owned(),
                "rope_scaling.factor = nothing: must be given for rope_type = \"linear\"",
            ),
            ("rope_type = \"linear\"\nfactor = 0.0".to_owned(), "factor = 0: must be above zero"),
            ("rope_type = \"linear\"\nfactor = inf".to_owned(), "factor = inf: must be above zero"),
            (
                format!("rope_type = \"linear\"\nfactor = 2.0\n{original}"),
                "original_max_position_embeddings = given: rope_type = \"linear\" does not read it",
            ),
            (llama3.clone(), "low_freq_factor = nothing"),
            (
                format!("{llama3}\nlow_freq_factor = 4.0"),
                "high_freq_factor = 4: must be above low_freq_factor",
            ),
            (format!("{llama3}\nlow_freq_factor = 1.0\nbeta_fast = 2.0"), "beta_fast = given"),
            ("rope_type = \"yarn\"\nfactor = 4.0".to_owned(), "original_max_position_embeddings = nothing"),
            (
                "rope_type = \"yarn\"\nfactor = 4.0\noriginal_max_position_embeddings = 1".to_owned(),
                "must be at least 2",
            ),
            (
                format!("rope_type = \"yarn\"\nfactor = 4.0\nbeta_slow = 40.0\n{original}"),
                "beta_fast = 32: must be above beta_slow",
            ),
            (longrope.clone(), "long_factor = nothing"),
            (format!("{longrope}\nlong_factor = [1.0]"), "long_factor = 1: must be the number of factors"),
            (format!("{longrope}\nlong_factor = [1.0, -2.0]"), "long_factor = -2: must be above zero"),
        ] {
            let config: RopeScalingConfig = read_toml(&lines).unwrap();
            let message = config.resolved(2).unwrap_err().to_string();
            assert!(message.contains(words), "{lines}: {message}");
        }
        let config: RopeScalingConfig = read_toml(&format!("{llama3}\nlow_freq_factor = 1.0")).unwrap();
        assert_eq!(
            config.resolved(2),
            Ok(RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8 })
        );
    }
}
