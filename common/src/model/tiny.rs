//! Small models for tests of any crate.

use super::ModelSpec;
use crate::config::{
    BottleneckConfig, ConfigError, DecoderConfig, EncoderConfig, ImageConfig, ModelConfig, ModelKind,
};

/// Returns two layers, width 32, four heads, context 16, vocabulary 64.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_gpt2() -> ModelSpec {
    valid(language_model(ModelKind::Gpt2, None))
}

/// Returns [`tiny_gpt2`] with a residual stream in a subspace of width 6.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_subspace(tied_embeddings: bool) -> ModelSpec {
    let config = ModelConfig { subspace: Some(6), ..tiny(ModelKind::Gpt2, None) };
    let config = ModelConfig { tied_embeddings: Some(tied_embeddings), ..config };
    valid(ModelSpec::resolve(&config, VOCABULARY))
}

/// Returns [`tiny_gpt2`] with three layers, a bottleneck of width 6 behind the second, and an untied output projection.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_bottleneck() -> ModelSpec {
    let bottleneck = Some(BottleneckConfig { width: 6, behind: vec![2] });
    let config = ModelConfig { layers: 3, bottleneck, ..tiny(ModelKind::Gpt2, None) };
    let config = ModelConfig { tied_embeddings: Some(false), ..config };
    valid(ModelSpec::resolve(&config, VOCABULARY))
}

/// Returns a Llama of the sizes of [`tiny_gpt2`], with two key heads and an untied output projection.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_llama() -> ModelSpec {
    valid(language_model(ModelKind::Llama, Some(2)))
}

/// Returns a decoder of each other family, of the same sizes, with windows of six tokens where the family has some.
///
/// # Panics
/// Never: the configurations are valid.
#[must_use]
pub fn tiny_decoders() -> Vec<ModelSpec> {
    use ModelKind::{
        Gemma2, Gemma3, Llama, Mistral, Mixtral, Olmo2, Olmoe, Phi3, Qwen2, Qwen3, Qwen3Moe, SmolLm3,
    };
    let with = |kind: ModelKind, decoder: DecoderConfig| {
        let config = ModelConfig { decoder: Some(decoder), ..tiny(kind, Some(2)) };
        valid(ModelSpec::resolve(&config, VOCABULARY))
    };
    let window = || DecoderConfig { sliding_window: Some(6), head_dim: Some(12), ..DecoderConfig::default() };
    let experts = |count: u32| DecoderConfig {
        num_experts: Some(count),
        num_experts_per_tok: Some(2),
        router_aux_loss_coef: Some(0.02),
        ..DecoderConfig::default()
    };
    let of_qwen = DecoderConfig {
        head_dim: Some(12),
        moe_intermediate_size: Some(20),
        norm_topk_prob: Some(true),
        mlp_only_layers: Some(vec![1]),
        ..experts(5)
    };
    let biases = [Some(true); 3];
    let [qkv_bias, out_bias, mlp_bias] = biases;
    vec![
        with(Llama, DecoderConfig { qkv_bias, out_bias, mlp_bias, ..DecoderConfig::default() }),
        with(Mistral, DecoderConfig { window_layers: Some(vec![0, 1]), ..window() }),
        with(Qwen2, DecoderConfig::default()),
        with(Qwen3, DecoderConfig { head_dim: Some(12), ..DecoderConfig::default() }),
        with(Qwen3Moe, of_qwen),
        with(Mixtral, experts(4)),
        with(Olmoe, experts(4)),
        with(SmolLm3, DecoderConfig { no_rope_layers: Some(vec![1]), ..DecoderConfig::default() }),
        with(Phi3, DecoderConfig::default()),
        with(Olmo2, DecoderConfig::default()),
        with(Gemma2, window()),
        with(Gemma3, DecoderConfig { window_layers: Some(vec![0]), ..window() }),
    ]
}

/// Returns an encoder of each kind that differs: BERT, RoBERTa, and ELECTRA with narrower embeddings.
///
/// # Panics
/// Never: the configurations are valid.
#[must_use]
pub fn tiny_encoders() -> Vec<ModelSpec> {
    let with = |kind: ModelKind, encoder: EncoderConfig| {
        let config = ModelConfig { encoder: Some(encoder), ..tiny(kind, None) };
        valid(ModelSpec::resolve(&config, VOCABULARY))
    };
    vec![
        with(ModelKind::Bert, EncoderConfig::default()),
        with(ModelKind::Roberta, EncoderConfig { type_vocab_size: Some(1), ..EncoderConfig::default() }),
        with(ModelKind::Electra, EncoderConfig { embedding_size: Some(12), ..EncoderConfig::default() }),
    ]
}

/// Returns hidden layers of 16 and 12 units, for grey images of 6 × 6 in three classes.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_mlp() -> ModelSpec {
    let hidden = Some(vec![16, 12]);
    valid(classifier(&ModelConfig { hidden, ..ModelConfig::of(ModelKind::Mlp) }))
}

/// Returns two convolutions and a hidden layer, for the same images.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_cnn() -> ModelSpec {
    let (channels, hidden) = (Some(vec![4, 6]), Some(vec![12]));
    valid(classifier(&ModelConfig { channels, hidden, ..ModelConfig::of(ModelKind::Cnn) }))
}

const VOCABULARY: u32 = 64;

fn tiny(kind: ModelKind, kv_heads: Option<u32>) -> ModelConfig {
    let (layers, width, heads, context) = (2, 32, 4, 16);
    let config = ModelConfig { layers, width, heads, kv_heads, context, ..ModelConfig::of(kind) };
    ModelConfig { vocabulary: Some(VOCABULARY), ..config }
}

fn language_model(kind: ModelKind, kv_heads: Option<u32>) -> Result<ModelSpec, ConfigError> {
    ModelSpec::resolve(&tiny(kind, kv_heads), VOCABULARY)
}

fn classifier(model: &ModelConfig) -> Result<ModelSpec, ConfigError> {
    let image = ImageConfig { channels: 1, height: 6, width: 6, classes: 3, shift: 0, flip: false };
    ModelSpec::of_images(model, &image)
}

fn valid(spec: Result<ModelSpec, ConfigError>) -> ModelSpec {
    spec.unwrap_or_else(|error| panic!("a model for tests is refused: {error}"))
}
