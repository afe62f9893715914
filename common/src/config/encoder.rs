//! `[model.encoder]`: an encoder's choices beyond its sizes, by the names of Hugging Face's `config.json`.

use serde::{Deserialize, Serialize};

use super::{ConfigError, ModelConfig, ModelKind};

/// `[model.encoder]`. A key that is absent has the family's value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncoderConfig {
    /// Added to the variance in layer norms. Default: 1e-12.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_norm_eps: Option<f64>,
    /// Activation of the feed-forward part. Default: `gelu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_act: Option<EncoderActivation>,
    /// Token types, of which the first is used. Default: 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_vocab_size: Option<u32>,
    /// electra: width of the embeddings. Default: 128.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_size: Option<u32>,
    /// roberta, xlm-roberta: the padding token, behind whose number positions begin. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<u32>,
    /// Head. Runs train `masked`, and `classes` with `[data.classification]`. Default: that of the run's data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<EncoderHead>,
    /// `head = "classes"`: number of classes. Default: that of `data.classification.labels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<u32>,
}

/// Head of an encoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderHead {
    /// Tells masked tokens: `BertForMaskedLM` and the like.
    #[default]
    Masked,
    /// Tells the class of a sequence by its first token: `BertForSequenceClassification` and the like.
    Classes,
    /// electra: tells which tokens were replaced: `ElectraForPreTraining`.
    Replaced,
    /// None: `BertModel` and the like.
    None,
}

impl EncoderHead {
    /// Returns its name in `run.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Masked => "masked",
            Self::Classes => "classes",
            Self::Replaced => "replaced",
            Self::None => "none",
        }
    }
}

/// Activation of an encoder's feed-forward part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderActivation {
    /// GELU.
    #[default]
    Gelu,
    /// Its approximation with tanh.
    GeluNew,
}

/// Largest number of the padding token.
const PADDING_MAX: u32 = 1 << 16;
/// Most token types: more than any use.
const TYPES_MAX: u32 = 1 << 10;
/// Most classes: of the largest sets of labels in use.
pub(super) const CLASSES_MAX: u32 = 1 << 16;
/// Widest embeddings: as for layers.
const EMBEDDING_MAX: u32 = 1 << 20;

impl ModelKind {
    /// Whether it is an encoder, in which every token sees all others.
    #[must_use]
    pub fn is_encoder(self) -> bool {
        matches!(self, Self::Bert | Self::Roberta | Self::XlmRoberta | Self::Electra)
    }
}

impl EncoderConfig {
    /// Checks the values for an encoder.
    ///
    /// # Errors
    /// Names the first invalid value, and the reason.
    pub(super) fn check(&self, model: &ModelConfig) -> Result<(), ConfigError> {
        let refused = |key, value: String, reason: &str| Err(ConfigError::value(key, value, reason));
        if let Some(epsilon) = self.layer_norm_eps.filter(|it| !(it.is_finite() && *it > 0.0)) {
            return refused("model.encoder.layer_norm_eps", epsilon.to_string(), "must be above zero");
        }
        let counts = [
            ("model.encoder.type_vocab_size", self.type_vocab_size, TYPES_MAX),
            ("model.encoder.embedding_size", self.embedding_size, EMBEDDING_MAX),
            ("model.encoder.classes", self.classes, CLASSES_MAX),
        ];
        for (key, value, max) in counts {
            if let Some(value) = value.filter(|value| !(1..=max).contains(value)) {
                return refused(key, value.to_string(), &format!("must be from 1 to {max}"));
            }
        }
        if let Some(padding) = self.pad_token_id.filter(|padding| *padding > PADDING_MAX) {
            let reason = format!("must be at most {PADDING_MAX}: positions begin behind it");
            return refused("model.encoder.pad_token_id", padding.to_string(), &reason);
        }
        let has_padding = matches!(model.kind, ModelKind::Roberta | ModelKind::XlmRoberta);
        let foreign = [
            (
                "model.encoder.embedding_size",
                self.embedding_size.filter(|_| model.kind != ModelKind::Electra),
            ),
            ("model.encoder.pad_token_id", self.pad_token_id.filter(|_| !has_padding)),
        ];
        if let Some((key, value)) = foreign.into_iter().find_map(|(key, value)| Some((key, value?))) {
            let reason = format!("{} has no such choice: remove it", model.kind.name());
            return refused(key, value.to_string(), &reason);
        }
        let head = self.head.unwrap_or_default();
        if let Some(classes) = self.classes.filter(|_| head != EncoderHead::Classes) {
            let reason = "is for head = \"classes\": remove it";
            return refused("model.encoder.classes", classes.to_string(), reason);
        }
        if head == EncoderHead::Replaced && model.kind != ModelKind::Electra {
            let reason = format!("{} has no such head: take kind = \"electra\"", model.kind.name());
            return refused("model.encoder.head", "replaced".to_owned(), &reason);
        }
        let is_masked = head == EncoderHead::Masked;
        if !is_masked && model.tied_embeddings == Some(true) {
            let reason = "only the head for masked tokens has an output projection: remove it";
            return refused("model.tied_embeddings", "true".to_owned(), reason);
        }
        if is_masked && model.tied_embeddings == Some(false) {
            let reason = "the output projection of an encoder is its token embedding: remove it";
            return refused("model.tied_embeddings", "false".to_owned(), reason);
        }
        Ok(())
    }
}
