//! The resolved shape of a model.

use std::ops::Range;
use std::sync::Arc;

use super::parameters::{self, ParameterSpec};
use super::{Classifier, Decoder, Encoder, Head, Shard, Stream, Tuning};
use crate::config::{ConfigError, ImageConfig, ModelConfig, ModelKind, RunConfig};

/// Added to the variance in GPT-2's layer norms, which `config.json` calls `layer_norm_epsilon`.
pub const GPT2_NORM_EPSILON: f64 = 1e-5;
/// The fields of [`ModelConfig`] with all defaults resolved, given the tokenizer or the images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// The architecture family.
    pub kind: ModelKind,
    /// Transformer blocks, or hidden layers of a classifier, including convolutions.
    pub layers: u32,
    /// Width of the residual stream, D.
    pub width: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Inner width of the feed-forward part, F.
    pub feed_forward_width: u32,
    /// Longest sequence, in tokens.
    pub context: u32,
    /// Vocabulary size, V, or number of image classes.
    pub vocabulary: u32,
    /// Whether the output projection is tied to the token embedding.
    pub tied_embeddings: bool,
    /// Blocks present, in order, as ranges: one range of all, except in a worker of a pipeline. Block 0 is
    /// the embedding, then the layers, then the head: see [`Self::head`].
    pub chunks: Vec<Range<u32>>,
    /// Share of their layers: the whole, except in a member of a tensor group. The other fields are those of
    /// the whole model.
    pub shard: Shard,
    /// Choices of a decoder; `None`: another family.
    pub decoder: Option<Arc<Decoder>>,
    /// Choices of an encoder; `None`: another family.
    pub encoder: Option<Arc<Encoder>>,
    /// Form of the residual stream.
    pub stream: Stream,
    /// Structure of an image classifier; fields that do not apply to it are 1.
    pub classifier: Option<Classifier>,
    /// The trained part; `None`: all parameters are trained.
    pub tuning: Option<Arc<Tuning>>,
}

impl ModelSpec {
    /// Returns the model of a checked run; `tokenizer_vocabulary` applies to text.
    ///
    /// # Errors
    /// `model.vocabulary` is smaller than the tokenizer's, or model and data do not match.
    pub fn of(config: &RunConfig, tokenizer_vocabulary: u32) -> Result<Self, ConfigError> {
        match &config.data.image {
            Some(image) if config.model.kind.is_of_images() => Self::of_images(&config.model, image),
            _ => Self::resolve(&config.model, tokenizer_vocabulary)?.tuned_with_head(&config.train),
        }
    }

    /// Returns a classifier of these images.
    ///
    /// # Errors
    /// The configuration is not possible.
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
            decoder: None,
            encoder: None,
            stream: Stream::Full,
            classifier: Some(classifier),
            tuning: None,
        })
    }

    /// Resolves a checked configuration of a language model with the tokenizer's vocabulary size.
    ///
    /// # Errors
    /// `model.vocabulary` is smaller than the tokenizer's, or the model classifies images.
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
        let encoder = Encoder::of(config).map(Arc::new);
        let are_usually_tied = encoder.as_ref().is_some_and(|encoder| encoder.head == Head::Masked)
            || matches!(config.kind, ModelKind::Gpt2 | ModelKind::Gemma2 | ModelKind::Gemma3);
        Ok(Self {
            kind: config.kind,
            layers: config.layers,
            width: config.width,
            heads: config.heads,
            kv_heads: config.kv_heads.unwrap_or(config.heads),
            feed_forward_width: config.inner_width(),
            context: config.context,
            vocabulary,
            tied_embeddings: config.tied_embeddings.unwrap_or(are_usually_tied),
            chunks: all_blocks(config.layers),
            shard: Shard::WHOLE,
            decoder: Decoder::of(config).map(Arc::new),
            encoder,
            stream: Stream::of(config),
            classifier: None,
            tuning: None,
        })
    }

    /// Returns the encoder with the head for classes of another one, if that has one and this has not; else the same model.
    #[must_use]
    pub fn with_classes_of(&self, other: &Self) -> Self {
        match (self.classes(), other.classes()) {
            (None, Some(count)) => self.with_classes(count),
            _ => self.clone(),
        }
    }

    /// Returns the number of classes that an encoder's head tells; `None`: it is another head, or no encoder.
    #[must_use]
    pub fn classes(&self) -> Option<u32> {
        match self.encoder.as_ref()?.head {
            Head::Classes(classes) => Some(classes),
            Head::Masked | Head::Replaced | Head::None => None,
        }
    }

    /// Returns the encoder with a head for so many classes; another model as it is.
    #[must_use]
    pub fn with_classes(&self, count: u32) -> Self {
        let Some(encoder) = &self.encoder else { return self.clone() };
        let encoder = Encoder { head: Head::Classes(count), ..Encoder::clone(encoder) };
        Self { encoder: Some(Arc::new(encoder)), tied_embeddings: false, ..self.clone() }
    }

    /// Returns the last block: the last norm, the output projection and the loss.
    #[must_use]
    pub fn head(&self) -> u32 {
        self.layers + 1
    }

    /// Returns the same model with these blocks.
    #[must_use]
    pub fn part(&self, chunks: Vec<Range<u32>>) -> Self {
        Self { chunks, ..self.clone() }
    }

    /// Returns the whole model.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self { chunks: all_blocks(self.layers), shard: Shard::WHOLE, ..self.clone() }
    }

    /// Whether this block is present.
    #[must_use]
    pub fn holds(&self, block: u32) -> bool {
        self.chunks.iter().any(|chunk| chunk.contains(&block))
    }

    /// Returns the layers of a range of blocks.
    #[must_use]
    pub fn layers_in(&self, chunk: &Range<u32>) -> Range<u32> {
        chunk.start.max(1) - 1..chunk.end.saturating_sub(1).min(self.layers)
    }

    /// Returns the indices of a range's tensors in [`Self::parameters`].
    #[must_use]
    pub fn tensors_in(&self, chunk: &Range<u32>) -> Vec<usize> {
        let names: Vec<String> =
            self.part(vec![chunk.clone()]).parameters().into_iter().map(|t| t.name).collect();
        let held = self.parameters().into_iter().enumerate();
        held.filter(|(_, tensor)| names.contains(&tensor.name)).map(|(at, _)| at).collect()
    }

    /// Returns the tensor that this part uses but another one owns: a tied token embedding, if only the head
    /// is here.
    #[must_use]
    pub fn borrowed(&self) -> Option<ParameterSpec> {
        // A frozen one is here.
        let borrows = self.ties_trained_embedding() && self.holds(self.head()) && !self.holds(0);
        let name = parameters::token_embedding(self.kind);
        let mut all = parameters::in_model_order(self).into_iter().map(|(_, tensor)| tensor);
        all.find(|tensor| borrows && name.is_some_and(|name| tensor.name == name))
    }

    /// Returns the width of one attention head.
    #[must_use]
    pub fn head_width(&self) -> u32 {
        self.decoder.as_ref().map_or(self.width / self.heads, |decoder| decoder.head_width)
    }

    /// Returns the width of all query heads together.
    #[must_use]
    pub fn query_width(&self) -> u32 {
        self.heads * self.head_width()
    }

    /// Returns the width of all key heads together, equal to that of all value heads.
    #[must_use]
    pub fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_width()
    }

    /// Returns the parameter tensors in the order of the flat parameter vector: matrices in model order, then
    /// vectors in model order. Decayed parameters are thus a prefix: see [`Self::decayed_count`].
    #[must_use]
    pub fn parameters(&self) -> Vec<ParameterSpec> {
        let (mut matrices, vectors): (Vec<_>, Vec<_>) = self.held().partition(ParameterSpec::is_matrix);
        matrices.extend(vectors);
        matrices
    }

    /// Returns the length of the flat parameter vector.
    #[must_use]
    pub fn parameter_count(&self) -> u64 {
        self.held().map(|tensor| tensor.count()).sum()
    }

    /// Returns the length of the flat parameter vector's prefix of matrices.
    #[must_use]
    pub fn decayed_count(&self) -> u64 {
        self.held().filter(ParameterSpec::is_matrix).map(|tensor| tensor.count()).sum()
    }

    /// Returns the tensors of the present blocks, in model order.
    fn held(&self) -> impl Iterator<Item = ParameterSpec> + '_ {
        let trained = self.trained_in_model_order().into_iter();
        trained.filter(|(block, _)| self.holds(*block)).map(|(_, tensor)| tensor)
    }
}

/// Returns all blocks in one range.
fn all_blocks(layers: u32) -> Vec<Range<u32>> {
    std::iter::once(0..layers + 2).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::{DecoderConfig, Precision};

    pub fn config(kind: ModelKind, layers: u32, width: u32, heads: u32, context: u32) -> ModelConfig {
        ModelConfig { layers, width, heads, context, ..ModelConfig::of(kind) }
    }

    /// Returns a classifier of images with these channels, rows and columns.
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

    /// Jiang et al. 2024, "Mixtral of experts": 47 billion, of which 13 compute each token. Qwen3-30B-A3B: 30.5 and 3.3.
    #[test]
    fn mixtures_have_the_published_numbers_of_parameters_and_of_those_that_compute() {
        let mut config = config(ModelKind::Mixtral, 32, 4096, 32, 4096);
        (config.kv_heads, config.feed_forward_width) = (Some(8), Some(14_336));
        let mixtral = ModelSpec::resolve(&config, 32_000).unwrap();
        assert_eq!(mixtral.parameter_count(), 46_702_792_704);
        let decoder = DecoderConfig {
            head_dim: Some(128),
            moe_intermediate_size: Some(768),
            ..DecoderConfig::default()
        };
        let mut config = ModelConfig { kind: ModelKind::Qwen3Moe, decoder: Some(decoder), ..config };
        (config.layers, config.width, config.kv_heads) = (48, 2048, Some(4));
        let qwen = ModelSpec::resolve(&config, 151_936).unwrap();
        assert_eq!(qwen.parameter_count(), 30_532_122_624);
        for (spec, billions) in [(mixtral, 12.9), (qwen, 3.3)] {
            let blocks = spec.blocks(1, Precision::F32);
            let attention = 4 * u64::from(spec.layers * spec.query_width());
            let forward: u64 = blocks.iter().map(|block| block.forward_flops_per_token).sum();
            let matrices = (forward - attention) / 2 + blocks[0].parameters;
            assert!((matrices as f64 / 1e9 - billions).abs() < 0.06, "{:?}: {matrices}", spec.kind);
            assert_eq!(blocks.iter().map(|block| block.parameters).sum::<u64>(), spec.parameter_count());
        }
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
