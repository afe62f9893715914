//! The resolved shape of a model.

use std::ops::Range;

use super::parameters::{self, ParameterSpec};
use super::{Classifier, Shard};
use crate::config::{ConfigError, ImageConfig, ModelConfig, ModelKind, RunConfig};

/// Added to the variance in GPT-2's layer norms, which `config.json` calls `layer_norm_epsilon`.
pub const GPT2_NORM_EPSILON: f64 = 1e-5;
/// Added to the mean square in Llama's RMSNorm, which `config.json` calls `rms_norm_eps`.
pub const LLAMA_NORM_EPSILON: f64 = 1e-5;
/// Llama's base of rotary frequencies, which `config.json` calls `rope_theta`.
pub const LLAMA_ROTARY_BASE: f64 = 10_000.0;

/// The fields of [`ModelConfig`] with every default resolved, as the tokenizer or the images are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// The architecture family.
    pub kind: ModelKind,
    /// Transformer blocks, or hidden layers of a classifier, convolutions among them.
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
    /// Entries of the vocabulary, V, or classes of images.
    pub vocabulary: u32,
    /// Whether the output projection is the token embedding.
    pub tied_embeddings: bool,
    /// The blocks that are meant, in order, as chunks of neighbours: all of them in one, unless this is the part of one worker in a pipeline.
    /// Block 0 is the embedding, then come the layers, then the head: see [`Self::head`].
    pub chunks: Vec<Range<u32>>,
    /// Which share of their layers is meant: all of it, unless this is what one member of a tensor group has. The other fields are those of the whole model.
    pub shard: Shard,
    /// What it is made of, where it classifies images; those fields that say nothing of one are 1.
    pub classifier: Option<Classifier>,
}

/// Llama's inner width is rounded up to a multiple of this, so that matrix kernels meet whole tiles.
const FEED_FORWARD_MULTIPLE: u32 = 64;

impl ModelSpec {
    /// The model of a checked run, whose tokenizer has so many entries if it is of text.
    ///
    /// # Errors
    /// When `model.vocabulary` is smaller than what the tokenizer produces; when model and data do not go together.
    pub fn of(config: &RunConfig, tokenizer_vocabulary: u32) -> Result<Self, ConfigError> {
        match &config.data.image {
            Some(image) if config.model.kind.is_of_images() => Self::of_images(&config.model, image),
            _ => Self::resolve(&config.model, tokenizer_vocabulary),
        }
    }

    /// A classifier of such images.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn of_images(model: &ModelConfig, image: &ImageConfig) -> Result<Self, ConfigError> {
        model.check_images(image)?;
        let classifier = Classifier::new(model, image);
        let layers = (classifier.convolutions.len() + classifier.hidden.len()) as u32;
        Ok(Self {
            kind: model.kind,
            layers,
            width: 1,
            heads: 1,
            kv_heads: 1,
            feed_forward_width: 1,
            context: 1,
            vocabulary: image.classes,
            tied_embeddings: false,
            chunks: all_blocks(layers),
            shard: Shard::WHOLE,
            classifier: Some(classifier),
        })
    }

    /// Resolves a checked configuration of a language model against the tokenizer's number of entries.
    ///
    /// # Errors
    /// When `model.vocabulary` is smaller than what the tokenizer produces; when it classifies images.
    pub fn resolve(config: &ModelConfig, tokenizer_vocabulary: u32) -> Result<Self, ConfigError> {
        if config.kind.is_of_images() {
            return Err(config.wants_images());
        }
        let vocabulary = config.vocabulary.unwrap_or(tokenizer_vocabulary);
        if vocabulary < tokenizer_vocabulary {
            return Err(ConfigError::Value {
                key: "model.vocabulary",
                value: vocabulary.to_string(),
                reason: format!("the tokenizer has {tokenizer_vocabulary} entries; take at least as many"),
            });
        }
        let feed_forward_default = match config.kind {
            ModelKind::Llama => (8 * config.width).div_ceil(3).next_multiple_of(FEED_FORWARD_MULTIPLE),
            _ => 4 * config.width,
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
            chunks: all_blocks(config.layers),
            shard: Shard::WHOLE,
            classifier: None,
        })
    }

    /// The last block: the last norm, the output projection and the loss.
    #[must_use]
    pub fn head(&self) -> u32 {
        self.layers + 1
    }

    /// The same model, of which these blocks are meant.
    #[must_use]
    pub fn part(&self, chunks: Vec<Range<u32>>) -> Self {
        Self { chunks, ..self.clone() }
    }

    /// The same model, all of it.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self { chunks: all_blocks(self.layers), shard: Shard::WHOLE, ..self.clone() }
    }

    /// Whether this block is meant.
    #[must_use]
    pub fn holds(&self, block: u32) -> bool {
        self.chunks.iter().any(|chunk| chunk.contains(&block))
    }

    /// The layers of a chunk of blocks.
    #[must_use]
    pub fn layers_in(&self, chunk: &Range<u32>) -> Range<u32> {
        chunk.start.max(1) - 1..chunk.end.saturating_sub(1).min(self.layers)
    }

    /// Where the tensors of a chunk are among [`Self::parameters`].
    #[must_use]
    pub fn tensors_in(&self, chunk: &Range<u32>) -> Vec<usize> {
        let names: Vec<String> =
            self.part(vec![chunk.clone()]).parameters().into_iter().map(|t| t.name).collect();
        let held = self.parameters().into_iter().enumerate();
        held.filter(|(_, tensor)| names.contains(&tensor.name)).map(|(at, _)| at).collect()
    }

    /// What this part computes with and another one holds: the token embedding, where that is the output projection as well and only the head is here.
    #[must_use]
    pub fn borrowed(&self) -> Option<ParameterSpec> {
        let borrows = self.tied_embeddings && self.holds(self.head()) && !self.holds(0);
        let name = parameters::token_embedding(self.kind);
        let mut all = parameters::in_model_order(self).into_iter().map(|(_, tensor)| tensor);
        all.find(|tensor| borrows && name.is_some_and(|name| tensor.name == name))
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
        let (mut matrices, vectors): (Vec<_>, Vec<_>) = self.held().partition(ParameterSpec::is_matrix);
        matrices.extend(vectors);
        matrices
    }

    /// The length of the flat parameter vector.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        self.held().map(|tensor| tensor.count()).sum()
    }

    /// The length of the flat parameter vector's prefix of matrices.
    #[must_use]
    pub fn decayed_count(&self) -> u64 {
        self.held().filter(ParameterSpec::is_matrix).map(|tensor| tensor.count()).sum()
    }

    /// The tensors of the blocks that are meant, in model order.
    fn held(&self) -> impl Iterator<Item = ParameterSpec> + '_ {
        let all = parameters::in_model_order(self).into_iter();
        all.filter(|(block, _)| self.holds(*block)).map(|(_, tensor)| tensor)
    }
}

/// In one chunk.
fn all_blocks(layers: u32) -> Vec<Range<u32>> {
    std::iter::once(0..layers + 2).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn config(kind: ModelKind, layers: u32, width: u32, heads: u32, context: u32) -> ModelConfig {
        ModelConfig { layers, width, heads, context, ..ModelConfig::of(kind) }
    }

    /// For images of these channels, rows and columns.
    pub fn classifier(
        kind: ModelKind,
        [channels, height, width]: [u32; 3],
        convolutions: Option<&[u32]>,
        hidden: Option<&[u32]>,
        classes: u32,
    ) -> ModelSpec {
        let model = ModelConfig {
            channels: convolutions.map(<[u32]>::to_vec),
            hidden: hidden.map(<[u32]>::to_vec),
            ..ModelConfig::of(kind)
        };
        let image = ImageConfig { channels, height, width, classes, shift: 0, flip: false };
        ModelSpec::of_images(&model, &image).unwrap()
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
