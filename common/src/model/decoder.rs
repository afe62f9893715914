//! The description of a causal decoder: `worker/engine/docs/decoder.md`.

use std::f64::consts::TAU;

use super::{Experts, families};
use crate::config::{ModelConfig, ModelKind, RopeScaling};

/// A causal decoder's choices beyond its sizes, with all defaults resolved. Numbers are finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    /// Width of one head, E.
    pub head_width: u32,
    /// Added to the mean square in RMSNorm.
    pub norm_epsilon: f64,
    /// Places of the norms.
    pub norms: NormPlaces,
    /// Whether a norm's factor is 1 + its weight.
    pub unit_norms: bool,
    /// Norms of queries and keys.
    pub query_norm: Option<QueryNorm>,
    /// Biases of queries, keys and values.
    pub qkv_bias: bool,
    /// Bias of the attention's output.
    pub out_bias: bool,
    /// Biases of the feed-forward part.
    pub mlp_bias: bool,
    /// Activation of the gate.
    pub activation: Activation,
    /// Channels of a head, from the first on, that turn by positions; even.
    pub rotary_width: u32,
    /// Rotary positions.
    pub rotary: Rotary,
    /// Rotary positions of layers with a window, where they differ.
    pub window_rotary: Option<Rotary>,
    /// Tokens that a layer with a window attends to, the own one included.
    pub window: Option<u32>,
    /// Layers with a window, in order.
    pub window_layers: Vec<u32>,
    /// Layers without rotary positions, in order.
    pub no_rope_layers: Vec<u32>,
    /// Factor of the token embedding's output.
    pub embedding_scale: f64,
    /// Scores are divided by the root of this.
    pub score_scalar: f64,
    /// Soft cap of scores: cap · tanh(score / cap).
    pub score_cap: Option<f64>,
    /// Soft cap of logits.
    pub logit_cap: Option<f64>,
    /// Experts in place of feed-forward parts.
    pub experts: Option<Experts>,
}

/// No number is NaN.
impl Eq for Decoder {}

/// Places of a layer's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlaces {
    /// Before attention and feed-forward part.
    Before,
    /// Behind each, before its output is added.
    Behind,
    /// Both.
    Both,
}

impl NormPlaces {
    /// Whether there are norms before attention and feed-forward part.
    #[must_use]
    pub fn are_before(self) -> bool {
        self != Self::Behind
    }

    /// Whether there are norms behind them.
    #[must_use]
    pub fn are_behind(self) -> bool {
        self != Self::Before
    }
}

/// RMSNorm of queries and of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryNorm {
    /// Of each head by itself, with one weight for all.
    Head,
    /// Of all heads together.
    Width,
}

/// Activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · σ(x).
    Silu,
    /// GELU by its approximation with tanh.
    GeluTanh,
}

/// Rotary positions (Su et al. 2021, arXiv 2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub base: f64,
    /// Scaling of the frequencies.
    pub scaling: Option<RopeScaling>,
}

impl Rotary {
    /// Returns the angle per position of each pair of the channels that turn, and the factor of cosines and sines, for sequences of at
    /// most `length` tokens in a model of so many positions. As `modeling_rope_utils.py` of transformers 5 computes them.
    #[must_use]
    pub fn frequencies(&self, width: u32, context: u32, length: u32) -> (Vec<f64>, f64) {
        let plain = (0..width / 2).map(|pair| self.base.powf(-f64::from(2 * pair) / f64::from(width)));
        match &self.scaling {
            None => (plain.collect(), 1.0),
            Some(RopeScaling::Linear { factor }) => {
                (plain.map(|frequency| frequency / factor).collect(), 1.0)
            }
            Some(RopeScaling::Llama3 { factor, low, high, original }) => {
                let turns = |frequency: f64| f64::from(*original) * frequency / TAU;
                let scaled = |frequency: f64| {
                    let kept = ((turns(frequency) - low) / (high - low)).clamp(0.0, 1.0);
                    frequency * (kept + (1.0 - kept) / factor)
                };
                (plain.map(scaled).collect(), 1.0)
            }
            Some(RopeScaling::Yarn { factor, original, fast, slow, scale }) => {
                // The pair of channels that makes so many turns within the original context.
                let pair_of = |turns: f64| {
                    f64::from(width) * (f64::from(*original) / (turns * TAU)).ln() / (2.0 * self.base.ln())
                };
                let last = f64::from(width) - 1.0;
                let (low, high) = (pair_of(*fast).floor().max(0.0), pair_of(*slow).ceil().min(last));
                let width = if low == high { 0.001 } else { high - low };
                let scaled = |(pair, frequency): (usize, f64)| {
                    let divided = ((pair as f64 - low) / width).clamp(0.0, 1.0);
                    frequency * (1.0 - divided + divided / factor)
                };
                let usual = if *factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                (plain.enumerate().map(scaled).collect(), scale.unwrap_or(usual))
            }
            Some(RopeScaling::LongRope { short, long, original, scale }) => {
                let stretch = f64::from(context) / f64::from(*original);
                let usual = match stretch <= 1.0 {
                    true => 1.0,
                    false => (1.0 + stretch.ln() / f64::from(*original).ln()).sqrt(),
                };
                let factors = if length > *original { long } else { short };
                let scaled = plain.zip(factors).map(|(frequency, factor)| frequency / factor);
                (scaled.collect(), scale.unwrap_or(usual))
            }
        }
    }
}

impl Decoder {
    /// Returns the decoder of a checked configuration; `None`: it is of another family.
    #[must_use]
    pub fn of(model: &ModelConfig) -> Option<Self> {
        let usual = families::decoder(model)?;
        let given = model.decoder.clone().unwrap_or_default();
        let head_width = given.head_dim.unwrap_or(usual.head_width);
        let rotary_width = given.rotary_width(head_width);
        let cap = |given: Option<f64>, usual: Option<f64>| given.or(usual).filter(|cap| *cap > 0.0);
        let sorted = |mut layers: Vec<u32>| {
            layers.sort_unstable();
            layers.dedup();
            layers
        };
        let window_base = given.rope_local_base_freq.or(usual.window_rotary.map(|rotary| rotary.base));
        Some(Self {
            head_width,
            rotary_width,
            norm_epsilon: given.rms_norm_eps.unwrap_or(usual.norm_epsilon),
            qkv_bias: given.qkv_bias.unwrap_or(usual.qkv_bias),
            out_bias: given.out_bias.unwrap_or(usual.out_bias),
            mlp_bias: given.mlp_bias.unwrap_or(usual.mlp_bias),
            rotary: Rotary {
                base: given.rope_theta.unwrap_or(usual.rotary.base),
                // Invalid values were refused with the configuration.
                scaling: given.rope_scaling.and_then(|scaling| scaling.resolved(rotary_width / 2).ok()),
            },
            window_rotary: window_base.map(|base| Rotary { base, scaling: None }),
            window: given.sliding_window.or(usual.window),
            window_layers: sorted(given.window_layers.unwrap_or(usual.window_layers)),
            no_rope_layers: sorted(given.no_rope_layers.unwrap_or(usual.no_rope_layers)),
            score_scalar: given.query_pre_attn_scalar.unwrap_or(head_width.into()),
            score_cap: cap(given.attn_logit_softcapping, usual.score_cap),
            logit_cap: cap(given.final_logit_softcapping, usual.logit_cap),
            experts: usual.experts.map(|usual| Experts {
                count: given.num_experts.unwrap_or(usual.count),
                chosen: given.num_experts_per_tok.unwrap_or(usual.chosen),
                width: given.moe_intermediate_size.unwrap_or(usual.width),
                are_normalised: given.norm_topk_prob.unwrap_or(usual.are_normalised),
                balance: given.router_aux_loss_coef.unwrap_or(usual.balance),
                dense_layers: sorted(given.mlp_only_layers.unwrap_or(usual.dense_layers)),
            }),
            ..usual
        })
    }

    /// Returns the tokens that a layer attends to, the own one included; `None`: all.
    #[must_use]
    pub fn window_of(&self, layer: u32) -> Option<u32> {
        self.window.filter(|_| self.window_layers.binary_search(&layer).is_ok())
    }

    /// Returns the rotary positions of a layer; `None`: it has none.
    #[must_use]
    pub fn rotary_of(&self, layer: u32) -> Option<&Rotary> {
        if self.no_rope_layers.binary_search(&layer).is_ok() {
            return None;
        }
        let own = self.window_rotary.as_ref().filter(|_| self.window_of(layer).is_some());
        Some(own.unwrap_or(&self.rotary))
    }
}

impl ModelKind {
    /// Whether it is one of the families that [`Decoder`] describes.
    #[must_use]
    pub fn is_decoder(self) -> bool {
        !self.is_encoder() && !matches!(self, Self::Gpt2 | Self::Mlp | Self::Cnn)
    }
}
