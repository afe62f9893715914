//! Small models for tests of any crate.

use super::ModelSpec;
use crate::config::{ConfigError, ImageConfig, ModelConfig, ModelKind};

/// Returns two layers, width 32, four heads, context 16, vocabulary 64.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_gpt2() -> ModelSpec {
    valid(language_model(ModelKind::Gpt2, None))
}

/// Returns the same with two key heads and an untied output projection.
///
/// # Panics
/// Never: the configuration is valid.
#[must_use]
pub fn tiny_llama() -> ModelSpec {
    valid(language_model(ModelKind::Llama, Some(2)))
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

fn language_model(kind: ModelKind, kv_heads: Option<u32>) -> Result<ModelSpec, ConfigError> {
    let (layers, width, heads, context, vocabulary) = (2, 32, 4, 16, 64);
    let config = ModelConfig { layers, width, heads, kv_heads, context, ..ModelConfig::of(kind) };
    ModelSpec::resolve(&ModelConfig { vocabulary: Some(vocabulary), ..config }, vocabulary)
}

fn classifier(model: &ModelConfig) -> Result<ModelSpec, ConfigError> {
    let image = ImageConfig { channels: 1, height: 6, width: 6, classes: 3, shift: 0, flip: false };
    ModelSpec::of_images(model, &image)
}

fn valid(spec: Result<ModelSpec, ConfigError>) -> ModelSpec {
    spec.unwrap_or_else(|error| panic!("a model for tests is refused: {error}"))
}
