//! `[model.decoder]`: a causal decoder's choices beyond its sizes, by the names of Hugging Face's `config.json`.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::rope::RopeScalingConfig;

/// `[model.decoder]`. A key that is absent has the family's value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecoderConfig {
    /// Width of a head. Default: width / heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<u32>,
    /// Added to the mean square in RMSNorm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rms_norm_eps: Option<f64>,
    /// Base of the rotary frequencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// Base of the rotary frequencies in layers with a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_local_base_freq: Option<f64>,
    /// Share of a head's channels that turn by positions, from the first one on. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_rotary_factor: Option<f64>,
    /// Scaling of the rotary frequencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScalingConfig>,
    /// Biases of queries, keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Bias of the attention's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_bias: Option<bool>,
    /// Biases of the feed-forward part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_bias: Option<bool>,
    /// Tokens that a layer with a window attends to, the own one included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<u32>,
    /// Layers with a window, from 0. Default: as the family has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_layers: Option<Vec<u32>>,
    /// Layers without rotary positions, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_rope_layers: Option<Vec<u32>>,
    /// Scores are divided by the root of this. Default: the width of a head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_pre_attn_scalar: Option<f64>,
    /// Soft cap of scores; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attn_logit_softcapping: Option<f64>,
    /// Soft cap of logits; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_logit_softcapping: Option<f64>,
    /// Experts of a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_experts: Option<u32>,
    /// Experts that compute each token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_experts_per_tok: Option<u32>,
    /// qwen3_moe: inner width of an expert. Default: `model.feed_forward_width`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moe_intermediate_size: Option<u32>,
    /// Weights of a token's experts sum to one. Default: yes (mixtral), no (others).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_topk_prob: Option<bool>,
    /// Coefficient of the loss that balances the load of experts (Fedus et al. 2021, arXiv 2101.03961, equation 4): the mean over layers. It adds to gradients, not to
    /// reported losses. Default: 0; with `model.from`, that of a `config.json` that sets `output_router_logits`. 0.001 to 0.01 are usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_aux_loss_coef: Option<f64>,
    /// qwen3_moe: layers with an ordinary feed-forward part in place of experts, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_only_layers: Option<Vec<u32>>,
}

impl DecoderConfig {
    /// Checks the values for a model of so many layers, whose heads have this width unless told otherwise.
    ///
    /// # Errors
    /// Names the first invalid value, and the reason.
    pub(super) fn check(&self, layers: u32, head_width: u32) -> Result<(), ConfigError> {
        if let Some(head_dim) = self.head_dim
            && (head_dim == 0 || head_dim > HEAD_WIDTH_MAX)
        {
            let reason = format!("must be from 2 to {HEAD_WIDTH_MAX}");
            return Err(ConfigError::value("model.decoder.head_dim", head_dim, reason));
        }
        let positive = [
            ("model.decoder.rms_norm_eps", self.rms_norm_eps),
            ("model.decoder.rope_theta", self.rope_theta),
            ("model.decoder.rope_local_base_freq", self.rope_local_base_freq),
            ("model.decoder.query_pre_attn_scalar", self.query_pre_attn_scalar),
        ];
        for (key, value) in positive {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
                return Err(ConfigError::value(key, value, "must be above zero"));
            }
        }
        let caps = [
            ("model.decoder.attn_logit_softcapping", self.attn_logit_softcapping),
            ("model.decoder.final_logit_softcapping", self.final_logit_softcapping),
        ];
        for (key, value) in caps {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value >= 0.0)) {
                return Err(ConfigError::value(key, value, "must be above zero, or 0 for none"));
            }
        }
        if self.sliding_window == Some(0) {
            return Err(ConfigError::value("model.decoder.sliding_window", 0, "must be at least 1"));
        }
        let listed = [
            ("model.decoder.window_layers", &self.window_layers),
            ("model.decoder.no_rope_layers", &self.no_rope_layers),
        ];
        for (key, list) in listed {
            if let Some(layer) = list.iter().flatten().find(|layer| **layer >= layers) {
                let reason = format!("layers are counted from 0, and there are {layers}");
                return Err(ConfigError::value(key, layer, reason));
            }
        }
        let turning = self.rotary_width(self.head_dim.unwrap_or(head_width));
        if let Some(share) = self.partial_rotary_factor
            && (!(share > 0.0 && share <= 1.0) || turning == 0 || turning % 2 == 1)
        {
            let reason = format!("must give an even number of a head's channels, not {turning}");
            return Err(ConfigError::value("model.decoder.partial_rotary_factor", share, reason));
        }
        self.rope_scaling.as_ref().map_or(Ok(()), |scaling| scaling.resolved(turning / 2).map(drop))
    }

    /// Returns the channels of a head of this width that turn, as transformers rounds them.
    #[must_use]
    pub fn rotary_width(&self, head_width: u32) -> u32 {
        self.partial_rotary_factor.map_or(head_width, |share| (f64::from(head_width) * share) as u32)
    }
}

/// Maximum width of a head: four times the widest in use.
const HEAD_WIDTH_MAX: u32 = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channels_that_turn_are_even_and_rounded_as_in_transformers() {
        let of = |share| DecoderConfig { partial_rotary_factor: Some(share), ..DecoderConfig::default() };
        assert_eq!(of(0.75).rotary_width(128), 96);
        assert_eq!(of(0.3).rotary_width(64), 19);
        for share in [0.5, 1.0, 0.26] {
            assert_eq!(of(share).check(1, 8), Ok(()), "{share}");
        }
        for share in [0.0, -0.5, 1.5, f64::NAN, 0.1, 0.4] {
            let error = of(share).check(1, 8).unwrap_err().to_string();
            assert!(error.contains("model.decoder.partial_rotary_factor"), "{error}");
        }
    }
}
