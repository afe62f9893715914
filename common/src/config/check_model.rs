//! Constraints of `[model]`, alone and together with the data.

use super::check::positive;
use super::{ConfigError, DecoderConfig, EncoderConfig, ImageConfig, ModelConfig, ModelKind, RunConfig};

/// Maximum blocks: each is a dozen tensors in every list of a model's parameters. The deepest models in use
/// have 130.
const LAYERS_MAX: u32 = 1 << 12;
/// Maximum width of the residual stream, the feed-forward part and hidden layers: with the other limits, 64
/// bits can count a model's parameters. The widest models in use have 2¹⁴ and 2¹⁶.
const WIDTH_MAX: u32 = 1 << 20;
/// Maximum positions: more than the longest contexts in use.
const CONTEXT_MAX: u32 = 1 << 24;
/// Maximum entries of the vocabulary: sixty times the largest in use.
const VOCABULARY_MAX: u32 = 1 << 24;
/// Maximum hidden layers of a classifier: without skip connections even fewer are hardly trainable.
const HIDDEN_MAX: usize = 1 << 8;
/// Maximum channels of a convolution: twice the widest in use.
const CHANNELS_MAX: u32 = 1 << 12;

/// Llama's inner width is rounded up to a multiple of this, so that matrix kernels get whole tiles.
const INNER_WIDTH_MULTIPLE: u32 = 64;

impl RunConfig {
    pub(crate) fn check_model(&self) -> Result<(), ConfigError> {
        self.model.check()?;
        self.check_stream()?;
        let kind = self.model.kind;
        if kind.is_of_images() {
            for (key, rate) in [
                ("train.dropout", self.train.dropout),
                ("train.attention_dropout", self.train.attention_dropout),
            ] {
                if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
                    let reason = "is for language models: leave it out";
                    return Err(ConfigError::value(key, rate, reason));
                }
            }
        }
        self.check_classes()?;
        self.check_masking()?;
        match &self.data.image {
            Some(image) if kind.is_of_images() => return self.model.check_images(image),
            Some(_) => {
                let reason = "is of text, and data.image asks for images: take kind = \"mlp\" or \"cnn\", or leave [data.image] out";
                return Err(ConfigError::value("model.kind", kind.name(), reason));
            }
            None if kind.is_of_images() => return Err(self.model.wants_images()),
            None => {}
        }
        let length = self.data.sequence_length;
        positive("data.sequence_length", length)?;
        if length > self.model.context {
            let reason = format!("must not exceed model.context = {}", self.model.context);
            return Err(ConfigError::value("data.sequence_length", length, reason));
        }
        Ok(())
    }
}

/// Default widths of a perceptron's hidden layers: those of meProp's experiments on MNIST (Sun et al. 2017,
/// section 4).
const USUAL_HIDDEN: [u32; 3] = [500, 500, 500];
/// Defaults of a convolutional net: channels, and the hidden layer after them.
const USUAL_CHANNELS: [u32; 2] = [32, 64];
const USUAL_HIDDEN_OF_CNN: [u32; 1] = [128];

impl ModelConfig {
    /// Returns the channels after each convolution of a classifier; empty for a perceptron.
    #[must_use]
    pub fn convolutions(&self) -> &[u32] {
        let usual = if self.kind == ModelKind::Cnn { &USUAL_CHANNELS[..] } else { &[] };
        self.channels.as_deref().unwrap_or(usual)
    }

    /// Returns the widths of the hidden linear layers of a classifier.
    #[must_use]
    pub fn hidden_widths(&self) -> &[u32] {
        let usual = if self.kind == ModelKind::Cnn { &USUAL_HIDDEN_OF_CNN[..] } else { &USUAL_HIDDEN };
        self.hidden.as_deref().unwrap_or(usual)
    }

    /// Returns the inner width of a language model's feed-forward part.
    #[must_use]
    pub fn inner_width(&self) -> u32 {
        let usual = match self.kind.is_decoder() {
            true => (8 * self.width).div_ceil(3).next_multiple_of(INNER_WIDTH_MULTIPLE),
            false => 4 * self.width,
        };
        self.feed_forward_width.unwrap_or(usual)
    }

    /// Checks the values, alone and together.
    ///
    /// # Errors
    /// Names the first invalid value, and the reason.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.kind.is_of_images() { self.check_classifier() } else { self.check_language() }
    }

    /// Checks a classifier against its images.
    ///
    /// # Errors
    /// Names the first invalid value, and the reason.
    pub fn check_images(&self, image: &ImageConfig) -> Result<(), ConfigError> {
        if !self.kind.is_of_images() {
            return Err(ConfigError::value("model.kind", self.kind.name(), "takes no images"));
        }
        self.check_classifier()?;
        let convolutions = self.convolutions();
        let halvings = image.height.min(image.width).max(1).ilog2() as usize;
        if convolutions.len() > halvings {
            let reason = format!(
                "each convolution halves the image, and one of {} × {} pixels can be halved {halvings} times: give at most so many",
                image.height, image.width
            );
            return Err(ConfigError::value("model.channels", format!("{convolutions:?}"), reason));
        }
        Ok(())
    }

    /// Returns the error of a classifier without images.
    pub(crate) fn wants_images(&self) -> ConfigError {
        let reason = "classifies images: say in [data.image] what they are made into, or take kind = \"gpt2\" or \"llama\"";
        ConfigError::value("model.kind", self.kind.name(), reason)
    }

    fn check_language(&self) -> Result<(), ConfigError> {
        for (key, widths) in [("model.hidden", &self.hidden), ("model.channels", &self.channels)] {
            if let Some(widths) = widths {
                let reason = format!(
                    "{} is a language model, which has model.layers and model.width: remove it, or take kind = \"mlp\" or \"cnn\"",
                    self.kind.name()
                );
                return Err(ConfigError::value(key, format!("{widths:?}"), reason));
            }
        }
        let sizes = [
            ("model.layers", Some(self.layers), LAYERS_MAX),
            ("model.width", Some(self.width), WIDTH_MAX),
            ("model.heads", Some(self.heads), WIDTH_MAX),
            ("model.feed_forward_width", self.feed_forward_width, WIDTH_MAX),
            ("model.context", Some(self.context), CONTEXT_MAX),
            ("model.vocabulary", self.vocabulary, VOCABULARY_MAX),
        ];
        for (key, value, max) in sizes {
            let Some(value) = value else { continue };
            if value == 0 {
                let reason = format!("must be given for kind = \"{}\", and be at least 1", self.kind.name());
                return Err(ConfigError::value(key, value, reason));
            }
            if value > max {
                return Err(ConfigError::value(key, value, format!("must be at most {max}")));
            }
        }
        self.check_heads()?;
        self.check_stream()?;
        match &self.encoder {
            Some(encoder) if self.kind.is_encoder() => encoder.check(self)?,
            Some(_) => {
                let reason = "is for encoders: remove it, or take kind = \"bert\"";
                return Err(ConfigError::value("model.encoder", "{…}", reason));
            }
            None if self.kind.is_encoder() => EncoderConfig::default().check(self)?,
            None => {}
        }
        match &self.decoder {
            None => DecoderConfig::default().check_experts(self),
            Some(_) if !self.kind.is_decoder() => {
                let reason = format!(
                    "{} has no such choices; remove it, or take another kind, such as \"llama\"",
                    self.kind.name()
                );
                Err(ConfigError::value("model.decoder", "{…}", reason))
            }
            Some(decoder) => {
                decoder.check(self.layers, self.width / self.heads)?;
                decoder.check_experts(self)
            }
        }
    }

    fn check_heads(&self) -> Result<(), ConfigError> {
        let head_dim = self.decoder.as_ref().and_then(|decoder| decoder.head_dim);
        if head_dim.is_none() && !self.width.is_multiple_of(self.heads) {
            let reason = format!("must be a multiple of model.heads = {}", self.heads);
            return Err(ConfigError::value("model.width", self.width, reason));
        }
        if let Some(kv_heads) = self.kv_heads {
            if !self.kind.is_decoder() {
                let reason = format!(
                    "{} has as many key heads as query heads; remove it, or take kind = \"llama\"",
                    self.kind.name()
                );
                return Err(ConfigError::value("model.kv_heads", kv_heads, reason));
            }
            if kv_heads == 0 || !self.heads.is_multiple_of(kv_heads) {
                let reason = format!("must divide model.heads = {}", self.heads);
                return Err(ConfigError::value("model.kv_heads", kv_heads, reason));
            }
        }
        if self.kind.is_decoder() && !head_dim.unwrap_or(self.width / self.heads).is_multiple_of(2) {
            let reason = "rotary positions need an even width of a head (model.width / model.heads)";
            return Err(ConfigError::value("model.heads", self.heads, reason));
        }
        Ok(())
    }

    fn check_classifier(&self) -> Result<(), ConfigError> {
        let given = |value: u32| (value > 0).then(|| value.to_string());
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let foreign = [
            ("model.layers", given(self.layers)),
            ("model.width", given(self.width)),
            ("model.heads", given(self.heads)),
            ("model.kv_heads", number(self.kv_heads)),
            ("model.feed_forward_width", number(self.feed_forward_width)),
            ("model.context", given(self.context)),
            ("model.vocabulary", number(self.vocabulary)),
            ("model.tied_embeddings", self.tied_embeddings.map(|tied| tied.to_string())),
        ];
        let foreign = foreign.into_iter().filter_map(|(key, value)| Some((key, value?)));
        if let Some((key, value)) = foreign.chain(self.given_stream()).next() {
            let instead = match key {
                "model.vocabulary" => "data.image.classes says how many classes there are",
                _ => "model.hidden says how wide its layers are, and how many there are",
            };
            let reason = format!("a {} has no such thing, {instead}: remove it", self.kind.name());
            return Err(ConfigError::value(key, value, reason));
        }
        let refused = |key, widths: &[u32], reason: &str| {
            Err(ConfigError::value(key, format!("{widths:?}"), reason.to_owned()))
        };
        if let Some(hidden) = &self.hidden {
            if hidden.is_empty() && self.kind == ModelKind::Mlp {
                return refused(
                    "model.hidden",
                    hidden,
                    "a perceptron has a hidden layer at least: give its width",
                );
            }
            if hidden.len() > HIDDEN_MAX || !hidden.iter().all(|width| (1..=WIDTH_MAX).contains(width)) {
                let reason = format!("must be {HIDDEN_MAX} widths at most, each from 1 to {WIDTH_MAX}");
                return refused("model.hidden", hidden, &reason);
            }
        }
        let Some(channels) = &self.channels else { return Ok(()) };
        if self.kind == ModelKind::Mlp {
            let reason = "a perceptron has no convolutions: remove it, or take kind = \"cnn\"";
            return refused("model.channels", channels, reason);
        }
        if channels.is_empty() || !channels.iter().all(|channels| (1..=CHANNELS_MAX).contains(channels)) {
            let reason = format!(
                "must be the channels behind each convolution, each from 1 to {CHANNELS_MAX}, and one at least; without convolutions it would be an mlp"
            );
            return refused("model.channels", channels, &reason);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "[run]\nname = \"images\"\nworkers = 2\nsteps = 10\n";
    const DATA: &str = "[data]\n[[data.sources]]\npath = \"images\"\nformat = \"images\"\n[data.image]\nheight = 28\nwidth = 28\nclasses = 10\n";

    fn parse(model: &str, more: &str) -> Result<RunConfig, String> {
        let text = format!("{RUN}[model]\n{model}\n{DATA}{more}");
        let config = RunConfig::parse(&text).map_err(|error| error.to_string())?;
        let written = config.to_toml().unwrap();
        assert_eq!(RunConfig::parse(&written).unwrap(), config, "{written}");
        Ok(config)
    }

    #[test]
    fn a_kind_is_enough_for_a_classifier() {
        for kind in ["mlp", "cnn"] {
            let config = parse(&format!("kind = \"{kind}\""), "").unwrap();
            assert_eq!((config.vocabulary(), config.predictions_per_sample()), (Some(10), 1));
            assert!(!config.is_plan_open(), "each worker has all of it");
        }
        parse("kind = \"cnn\"\nchannels = [8, 16, 16, 16]\nhidden = []", "").unwrap();
        let more = "[train.selective_backward]\nbeta = 1\n[train.sparse_backward]\nkeep = 0.16\nlayers = [\"hidden.*\", \"output.weight\"]\n";
        parse("kind = \"mlp\"\nhidden = [64]", more).unwrap();
    }

    #[test]
    fn the_example_is_a_whole_run() {
        let config = RunConfig::parse(include_str!("../../../examples/fashion.toml")).unwrap();
        let spec = crate::model::ModelSpec::of(&config, 0).unwrap();
        assert_eq!((spec.layers, spec.vocabulary), (3, 10));
    }

    #[test]
    fn keys_of_the_other_family_are_refused_with_their_own() {
        for (model, told) in [
            ("kind = \"mlp\"\nlayers = 3", "model.layers = 3: a mlp has no such thing, model.hidden says"),
            ("kind = \"cnn\"\nwidth = 64", "model.width = 64: a cnn has no such thing"),
            ("kind = \"cnn\"\nheads = 4", "model.heads = 4: a cnn has no such thing"),
            ("kind = \"cnn\"\ncontext = 8", "model.context = 8: a cnn has no such thing"),
            ("kind = \"mlp\"\nkv_heads = 1", "model.kv_heads = 1: a mlp has no such thing"),
            (
                "kind = \"mlp\"\nvocabulary = 10",
                "model.vocabulary = 10: a mlp has no such thing, data.image.classes",
            ),
            ("kind = \"mlp\"\ntied_embeddings = true", "model.tied_embeddings = true: a mlp has"),
            ("kind = \"mlp\"\nchannels = [8]", "model.channels = [8]: a perceptron has no convolutions"),
            ("kind = \"mlp\"\nhidden = []", "model.hidden = []: a perceptron has a hidden layer at least"),
            ("kind = \"mlp\"\nhidden = [8, 0]", "model.hidden = [8, 0]: must be 256 widths at most"),
            ("kind = \"cnn\"\nchannels = []", "model.channels = []: must be the channels"),
            ("kind = \"cnn\"\nchannels = [5000]", "model.channels = [5000]: must be the channels"),
            (
                "kind = \"cnn\"\nchannels = [1, 1, 1, 1, 1]",
                "model.channels = [1, 1, 1, 1, 1]: each convolution halves",
            ),
            (
                "kind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8",
                "model.kind = gpt2: is of text",
            ),
            ("kind = \"llama\"\nhidden = [8]", "model.hidden = [8]: llama is a language model"),
        ] {
            let message = parse(model, "").unwrap_err();
            assert!(message.starts_with(told), "{model}: {message}");
        }
        let text = format!("{RUN}[model]\nkind = \"cnn\"\n[data]\npath = \"x\"\nsequence_length = 8\n");
        let message = RunConfig::parse(&text).unwrap_err().to_string();
        assert!(message.starts_with("model.kind = cnn: classifies images: say in [data.image]"), "{message}");
        let text = format!(
            "{RUN}[model]\nkind = \"gpt2\"\nwidth = 8\nheads = 1\ncontext = 8\n[data]\npath = \"x\"\nsequence_length = 8\n"
        );
        let message = RunConfig::parse(&text).unwrap_err().to_string();
        assert!(message.starts_with("model.layers = 0: must be given for kind = \"gpt2\""), "{message}");
    }

    #[test]
    fn a_classifier_is_not_divided() {
        for (more, key) in [
            ("[parallel]\nstages = 2\n", "parallel.stages = 2"),
            ("[parallel]\ntensor = 2\n", "parallel.tensor = 2"),
            ("[parallel]\nchunks = 2\n", "parallel.chunks = 2"),
        ] {
            let message = parse("kind = \"mlp\"", more).unwrap_err();
            assert!(
                message.starts_with(key) && message.contains("has all of a classifier"),
                "{more}: {message}"
            );
        }
        let wrong =
            parse("kind = \"cnn\"", "[train.sparse_backward]\nkeep = 0.1\nlayers = [\"convolutions.*\"]\n");
        let message = wrong.unwrap_err();
        assert!(message.contains("`hidden.*.weight`") && message.contains("`output.weight`"), "{message}");
    }
}
