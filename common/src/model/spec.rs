//! The resolved shape of a model.

use super::parameters::{self, ParameterSpec};
use crate::config::{ConfigError, ModelConfig, ModelKind};

/// The fields of [`ModelConfig`] with every default resolved, as the tokenizer is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// The architecture family.
    pub kind: ModelKind,
    /// Transformer blocks.
    pub layers: u32,
    /// Width of the residual stream, D.
    pub width: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Inner width of the feed-forward part, F.
    pub feed_forward_width: u32,
    /// The longest sequence, in tokens.
    pub context: u32,
    /// Entries of the vocabulary, V.
    pub vocabulary: u32,
    /// Whether the output projection is the token embedding.
    pub tied_embeddings: bool,
}

/// Llama's inner width is rounded up to a multiple of this, so that matrix kernels meet whole tiles.
const FEED_FORWARD_MULTIPLE: u32 = 64;

impl ModelSpec {
    /// Resolves a checked configuration against the tokenizer's number of entries.
    ///
    /// # Errors
    /// When `model.vocabulary` is smaller than what the tokenizer produces.
    pub fn resolve(config: &ModelConfig, tokenizer_vocabulary: u32) -> Result<Self, ConfigError> {
        let vocabulary = config.vocabulary.unwrap_or(tokenizer_vocabulary);
        if vocabulary < tokenizer_vocabulary {
            return Err(ConfigError::Value {
                key: "model.vocabulary",
                value: vocabulary.to_string(),
                reason: format!("the tokenizer has {tokenizer_vocabulary} entries; take at least as many"),
            });
        }
        let feed_forward_default = match config.kind {
            ModelKind::Gpt2 => 4 * config.width,
            ModelKind::Llama => (8 * config.width).div_ceil(3).next_multiple_of(FEED_FORWARD_MULTIPLE),
        };
        Ok(Self {
            kind: config.kind,
            layers: config.layers,
            width: config.width,
            heads: config.heads,
            kv_heads: config.kv_heads.unwrap_or(config.heads),
            feed_forward_width: config.feed_forward_width.unwrap_or(feed_forward_default),
            context: config.context,
            vocabulary,
            tied_embeddings: config.tied_embeddings.unwrap_or(config.kind == ModelKind::Gpt2),
        })
    }

    /// Width of one attention head.
    #[must_use]
    pub fn head_width(&self) -> u32 {
        self.width / self.heads
    }

    /// Width of all key heads together, and of all value heads.
    #[must_use]
    pub fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_width()
    }

    /// The parameter tensors in the order of the flat parameter vector: matrices in model order, then vectors in
    /// model order. So what weight decay applies to is a prefix: see [`Self::decayed_count`].
    #[must_use]
    pub fn parameters(&self) -> Vec<ParameterSpec> {
        let (mut matrices, vectors): (Vec<_>, Vec<_>) =
            parameters::in_model_order(self).into_iter().partition(ParameterSpec::is_matrix);
        matrices.extend(vectors);
        matrices
    }

    /// The length of the flat parameter vector.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        parameters::in_model_order(self).iter().map(ParameterSpec::count).sum()
    }

    /// The length of the flat parameter vector's prefix of matrices.
    #[must_use]
    pub fn decayed_count(&self) -> u64 {
        parameters::in_model_order(self).iter().filter(|p| p.is_matrix()).map(ParameterSpec::count).sum()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn config(kind: ModelKind, layers: u32, width: u32, heads: u32, context: u32) -> ModelConfig {
        let (kv_heads, feed_forward_width, vocabulary, tied_embeddings) = (None, None, None, None);
        ModelConfig {
            kind,
            layers,
            width,
            heads,
            kv_heads,
            feed_forward_width,
            context,
            vocabulary,
            tied_embeddings,
        }
    }

    #[test]
    fn gpt2_small_has_the_published_number_of_parameters() {
        let spec = ModelSpec::resolve(&config(ModelKind::Gpt2, 12, 768, 12, 1024), 50_257).unwrap();
        assert_eq!(spec.parameter_count(), 124_439_808);
    }

    #[test]
    fn the_byte_level_gpt_of_the_benchmarks_has_10_9_million_parameters() {
        let mut config = config(ModelKind::Gpt2, 6, 384, 6, 128);
        config.tied_embeddings = Some(false);
        let spec = ModelSpec::resolve(&config, 256).unwrap();
        // Per block 12 D² + 13 D; embeddings 256 D + 128 D; output 256 D; the last norm 2 D.
        assert_eq!(spec.parameter_count(), 6 * (12 * 384 * 384 + 13 * 384) + 640 * 384 + 2 * 384);
        assert_eq!(spec.parameter_count(), 10_893_312);
        assert_eq!(spec.decayed_count(), 6 * 12 * 384 * 384 + 640 * 384);
    }

    #[test]
    fn llama_2_7b_has_the_published_number_of_parameters() {
        let mut config = config(ModelKind::Llama, 32, 4096, 32, 4096);
        config.feed_forward_width = Some(11_008);
        let spec = ModelSpec::resolve(&config, 32_000).unwrap();
        assert_eq!(spec.parameter_count(), 6_738_415_616);
    }

    #[test]
    fn grouped_query_attention_and_tying_shrink_a_llama() {
        let mut config = config(ModelKind::Llama, 2, 96, 6, 64);
        config.kv_heads = Some(2);
        config.tied_embeddings = Some(true);
        let spec = ModelSpec::resolve(&config, 100).unwrap();
        assert_eq!((spec.head_width(), spec.kv_width(), spec.feed_forward_width), (16, 32, 256));
        let block = 2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 256 + 2 * 96;
        assert_eq!(spec.parameter_count(), 2 * block + 100 * 96 + 96);
    }

    #[test]
    fn a_vocabulary_smaller_than_the_tokenizers_is_refused() {
        let mut config = config(ModelKind::Gpt2, 1, 8, 1, 8);
        config.vocabulary = Some(255);
        let message = ModelSpec::resolve(&config, 256).unwrap_err().to_string();
        assert!(message.starts_with("model.vocabulary = 255: the tokenizer has 256"), "{message}");
    }
}
