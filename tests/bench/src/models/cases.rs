//! Models to measure.

use longhaul_common::config::{DecoderConfig, FrozenFormat, ModelConfig, ModelKind, Precision};
use longhaul_common::model::ModelSpec;

/// Rank of adapters.
const RANK: u32 = 16;
const KINDS: [ModelKind; 16] = [
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
    ModelKind::Bert,
    ModelKind::Roberta,
    ModelKind::Electra,
];

/// A model and a step of it.
pub(super) struct Case {
    pub name: String,
    pub spec: ModelSpec,
    pub work: Work,
}

/// A step.
#[derive(Clone, Copy, clap::Args)]
pub(super) struct Work {
    /// Sequences.
    pub sequences: u32,
    /// Tokens of a sequence.
    pub length: u32,
    /// Format of products.
    #[arg(value_parser = precision)]
    pub precision: Precision,
    /// Rank of adapters; 0: all weights are trained.
    pub rank: u32,
}

fn precision(name: &str) -> Result<Precision, String> {
    match name {
        "f32" => Ok(Precision::F32),
        "bf16" => Ok(Precision::Bf16),
        _ => Err("f32 or bf16".to_owned()),
    }
}

impl Work {
    /// Format of frozen weights: that of a large model is its own.
    pub fn base(self) -> FrozenFormat {
        if self.precision == Precision::Bf16 { FrozenFormat::Bf16 } else { FrozenFormat::F32 }
    }

    /// Returns the arguments of a side's process.
    pub fn arguments(self) -> [String; 4] {
        [self.sequences.to_string(), self.length.to_string(), numbers(self.precision), self.rank.to_string()]
    }
}

fn numbers(precision: Precision) -> String {
    if precision == Precision::F32 { "f32".to_owned() } else { "bf16".to_owned() }
}

/// Every family at some ten million parameters in f32 and bf16; adapters; and unless `quick`, the same at a hundred million.
pub(super) fn all(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        for precision in [Precision::F32, Precision::Bf16] {
            cases.extend(case(kind, Size::SMALL, precision, 0));
        }
    }
    for kind in [ModelKind::Gpt2, ModelKind::Llama, ModelKind::Qwen3] {
        cases.extend(case(kind, Size::SMALL, Precision::F32, RANK));
    }
    if !quick {
        for kind in KINDS {
            for precision in [Precision::F32, Precision::Bf16] {
                cases.extend(case(kind, Size::LARGE, precision, 0));
            }
        }
        cases.extend(case(ModelKind::Qwen3, Size::LARGE, Precision::F32, RANK));
    }
    cases
}

/// Adapters beside a model of a billion parameters, or of a hundred million.
pub(super) fn large(quick: bool) -> Option<Case> {
    let size = if quick { Size::LARGE } else { Size::BILLION };
    let case = case(ModelKind::Llama, size, Precision::Bf16, RANK)?;
    let work = Work { sequences: 1, ..case.work };
    Some(Case { work, ..case })
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
    const BILLION: Self = Self { name: "1B", layers: 18, width: 2048, heads: 32, vocabulary: 32_768 };
}

/// Experts of a layer, those that compute a token, and their width.
const EXPERTS: [u32; 3] = [8, 2, 256];

fn case(kind: ModelKind, size: Size, precision: Precision, rank: u32) -> Option<Case> {
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
    let adapters = if rank > 0 { format!(" lora {rank}") } else { String::new() };
    let name = format!("{} {} {}{adapters}", kind.name(), size.name, numbers(precision));
    let work = Work { sequences: 8, length: 128, precision, rank };
    let spec = ModelSpec::resolve(&config, size.vocabulary).ok()?;
    Some(Case { name, spec, work })
}
