//! The families of decoders: what their `config.json` leaves out, from the configurations of transformers 5.

use super::Experts;
use super::decoder::{Activation, Decoder, NormPlaces, QueryNorm, Rotary};
use crate::config::{ModelConfig, ModelKind};

/// Window of Gemma's and Mistral's layers, where nothing else is configured.
const WINDOW: u32 = 4096;
/// Of so many layers of Gemma 3 in a row, the last attends to all tokens.
const GEMMA3_PERIOD: u32 = 6;
/// Of so many layers of SmolLM3 in a row, the last has no positions.
const SMOLLM3_PERIOD: u32 = 4;

/// Returns the usual decoder of a model's family and sizes; `None`: it is no decoder.
pub(super) fn decoder(model: &ModelConfig) -> Option<Decoder> {
    let head_width = model.width.checked_div(model.heads).unwrap_or(0);
    let plain = |base: f64, norm_epsilon: f64| Decoder {
        head_width,
        rotary_width: head_width,
        norm_epsilon,
        norms: NormPlaces::Before,
        unit_norms: false,
        query_norm: None,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        activation: Activation::Silu,
        rotary: Rotary { base, scaling: None },
        window_rotary: None,
        window: None,
        window_layers: Vec::new(),
        no_rope_layers: Vec::new(),
        embedding_scale: 1.0,
        score_scalar: 1.0,
        score_cap: None,
        logit_cap: None,
        experts: model.kind.usual_experts().map(|[count, chosen]| Experts {
            count,
            chosen,
            width: model.inner_width(),
            are_normalised: model.kind == ModelKind::Mixtral,
            balance: 0.0,
            dense_layers: Vec::new(),
        }),
    };
    // Of each `period` layers in a row, those for which it holds.
    let layers = |is_one: fn(u32) -> bool| (0..model.layers).filter(|layer| is_one(*layer)).collect();
    let gemma = |base: f64| Decoder {
        norms: NormPlaces::Both,
        unit_norms: true,
        activation: Activation::GeluTanh,
        embedding_scale: f64::from(model.width).sqrt(),
        window: Some(WINDOW),
        ..plain(base, 1e-6)
    };
    Some(match model.kind {
        ModelKind::Gpt2
        | ModelKind::Bert
        | ModelKind::Roberta
        | ModelKind::XlmRoberta
        | ModelKind::Electra
        | ModelKind::Mlp
        | ModelKind::Cnn => return None,
        ModelKind::Llama => plain(10_000.0, 1e-5),
        ModelKind::Mistral => plain(10_000.0, 1e-6),
        ModelKind::Qwen2 => Decoder { qkv_bias: true, ..plain(10_000.0, 1e-6) },
        ModelKind::Qwen3 | ModelKind::Qwen3Moe => {
            Decoder { query_norm: Some(QueryNorm::Head), ..plain(10_000.0, 1e-6) }
        }
        ModelKind::Mixtral => plain(1_000_000.0, 1e-5),
        ModelKind::Olmoe => Decoder { query_norm: Some(QueryNorm::Width), ..plain(10_000.0, 1e-5) },
        ModelKind::SmolLm3 => Decoder {
            no_rope_layers: layers(|layer| (layer + 1).is_multiple_of(SMOLLM3_PERIOD)),
            ..plain(2_000_000.0, 1e-6)
        },
        ModelKind::Phi3 => plain(10_000.0, 1e-5),
        ModelKind::Olmo2 => {
            Decoder { norms: NormPlaces::Behind, query_norm: Some(QueryNorm::Width), ..plain(10_000.0, 1e-5) }
        }
        ModelKind::Gemma2 => Decoder {
            window_layers: layers(|layer| layer.is_multiple_of(2)),
            score_cap: Some(50.0),
            logit_cap: Some(30.0),
            ..gemma(10_000.0)
        },
        ModelKind::Gemma3 => Decoder {
            query_norm: Some(QueryNorm::Head),
            window_layers: layers(|layer| !(layer + 1).is_multiple_of(GEMMA3_PERIOD)),
            window_rotary: Some(Rotary { base: 10_000.0, scaling: None }),
            ..gemma(1_000_000.0)
        },
    })
}
