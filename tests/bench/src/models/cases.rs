//! Models to measure.

use longhaul_common::config::{DecoderConfig, ModelConfig, ModelKind, Precision};
use longhaul_common::model::ModelSpec;

/// Sequences of a step.
pub(super) const SEQUENCES: u32 = 8;
/// Tokens of a sequence.
pub(super) const LENGTH: usize = 128;
/// Rank of adapters.
const RANK: u32 = 16;
const KINDS: [ModelKind; 13] = [
    ModelKind::Gpt2,
    ModelKind::Llama,
    ModelKind::Mistral,
    ModelKind::Qwen2,
    ModelKind::Qwen3,
    ModelKind::Qwen3Moe,
    ModelKind::Mixtral,
    ModelKind::Olmoe,
    ModelKind::SmolLm3,
    ModelKind::Phi3,
    ModelKind::Olmo2,
    ModelKind::Gemma2,
    ModelKind::Gemma3,
];

/// A model, the numbers it computes with, and the rank of its adapters; `None`: all weights are trained.
pub(super) struct Case {
    pub name: String,
    pub spec: ModelSpec,
    pub precision: Precision,
    pub rank: Option<u32>,
}

/// Every family at some ten million parameters in f32 and bf16; adapters; and unless `quick`, two families at a hundred million.
pub(super) fn all(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        for precision in [Precision::F32, Precision::Bf16] {
            cases.extend(case(kind, Size::SMALL, precision, None));
        }
    }
    for kind in [ModelKind::Gpt2, ModelKind::Llama, ModelKind::Qwen3] {
        cases.extend(case(kind, Size::SMALL, Precision::F32, Some(RANK)));
    }
    if !quick {
        for kind in [ModelKind::Gpt2, ModelKind::Qwen3] {
            cases.extend(case(kind, Size::LARGE, Precision::F32, None));
        }
        cases.extend(case(ModelKind::Qwen3, Size::LARGE, Precision::F32, Some(RANK)));
    }
    cases
}

struct Size {
    name: &'static str,
    layers: u32,
    width: u32,
    heads: u32,
    vocabulary: u32,
}

impl Size {
    const SMALL: Self = Self { name: "10M", layers: 6, width: 320, heads: 5, vocabulary: 4096 };
    const LARGE: Self = Self { name: "100M", layers: 12, width: 768, heads: 12, vocabulary: 16_384 };
}

/// Experts of a layer, those that compute a token, and their width.
const EXPERTS: [u32; 3] = [8, 2, 256];

fn case(kind: ModelKind, size: Size, precision: Precision, rank: Option<u32>) -> Option<Case> {
    let [count, chosen, width] = EXPERTS;
    let decoder = kind.usual_experts().map(|_| DecoderConfig {
        num_experts: Some(count),
        num_experts_per_tok: Some(chosen),
        ..DecoderConfig::default()
    });
    let config = ModelConfig {
        feed_forward_width: decoder.as_ref().map(|_| width),
        decoder,
        layers: size.layers,
        width: size.width,
        heads: size.heads,
        context: 256,
        vocabulary: Some(size.vocabulary),
        ..ModelConfig::of(kind)
    };
    let numbers = if precision == Precision::F32 { "f32" } else { "bf16" };
    let adapters = rank.map(|rank| format!(" lora {rank}")).unwrap_or_default();
    let name = format!("{} {} {numbers}{adapters}", kind.name(), size.name);
    Some(Case { name, spec: ModelSpec::resolve(&config, 0).ok()?, precision, rank })
}
