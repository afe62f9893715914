//! `[data.masking]`: masked language modelling (Devlin et al. 2018, arXiv 1810.04805), by which encoders are trained.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::check::range;
use super::{ConfigError, DataConfig, RunConfig};

/// `[data.masking]`: prediction of masked tokens, for encoders. Masks are drawn anew at each visit of a sample. The table may be absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaskingConfig {
    /// Share of each sequence's tokens that are predicted. Special tokens are not counted and not predicted.
    pub share: f64,
    /// Share of the predicted tokens in whose place the mask token stands.
    pub masked: f64,
    /// Share of the predicted tokens in whose place a random token stands. The rest stay.
    pub random: f64,
    /// Mask token: its text, or its number. Default: the tokenizer's `[MASK]` or `<mask>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<MaskToken>,
}

/// A mask token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a token in quotes, or its number, is wanted")]
pub enum MaskToken {
    /// By its text.
    Text(String),
    /// By its number.
    Number(u32),
}

impl fmt::Display for MaskToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl Default for MaskingConfig {
    fn default() -> Self {
        Self { share: 0.15, masked: 0.8, random: 0.1, token: None }
    }
}

impl MaskingConfig {
    pub(super) fn check(&self, data: &DataConfig) -> Result<(), ConfigError> {
        for (key, value, low, high) in [
            ("data.masking.share", self.share, f64::MIN_POSITIVE, 1.0),
            ("data.masking.masked", self.masked, 0.0, 1.0),
            ("data.masking.random", self.random, 0.0, 1.0),
        ] {
            if !(low..=high).contains(&value) {
                return Err(ConfigError::value(key, value, range(low, high)));
            }
        }
        if self.masked + self.random > 1.0 + f64::EPSILON {
            let reason =
                format!("with data.masking.masked = {} it is more than all: lower one of them", self.masked);
            return Err(ConfigError::value("data.masking.random", self.random, reason));
        }
        let beside = [
            (data.image.is_some(), "data.image", "images have no masked tokens: leave out one of the two"),
            (
                data.conversations.is_some(),
                "data.conversations",
                "trains on the tokens of answers, and data.masking on masked ones: leave out one of the two",
            ),
        ];
        if let Some((_, key, reason)) = beside.into_iter().find(|(is_set, ..)| *is_set) {
            return Err(ConfigError::value(key, "{ … }", reason));
        }
        if data.tokenizer == DataConfig::BYTES && !matches!(self.token, Some(MaskToken::Number(_))) {
            let reason = format!(
                "has no mask token: name a tokenizer.json that has [MASK] or <mask>; or set data.masking.token = {0} and model.vocabulary = {1}",
                DataConfig::BYTES_VOCABULARY,
                DataConfig::BYTES_VOCABULARY + 1
            );
            return Err(ConfigError::value("data.tokenizer", DataConfig::BYTES, reason));
        }
        let all = data.training();
        let mut all = all.iter().chain(&data.validation);
        if data.tokenizer == DataConfig::BYTES
            && let Some(source) = all.find(|source| source.format().is_of_tokens())
        {
            let reason = "has tokens, and data.masking needs their special ones and their number: set data.tokenizer to their tokenizer.json";
            return Err(ConfigError::value("data.sources", source, reason));
        }
        Ok(())
    }
}

impl DataConfig {
    /// Whether only some tokens of a sequence have a loss, so that contributions count by them and not by samples.
    #[must_use]
    pub fn has_labels(&self) -> bool {
        self.conversations.is_some() || self.masking.is_some()
    }
}

impl RunConfig {
    /// Encoders are trained by masked language modelling, where no other data is named.
    pub(crate) fn with_masking(mut self) -> Self {
        let is_taken = self.data.masking.is_some() || self.data.classification.is_some();
        if self.model.kind.is_encoder() && !is_taken {
            self.data.masking = Some(MaskingConfig::default());
        }
        self
    }

    /// Checks model and data together.
    pub(super) fn check_masking(&self) -> Result<(), ConfigError> {
        let (kind, is_masked) = (self.model.kind, self.data.masking.is_some());
        if kind.is_encoder() == (is_masked || self.data.classification.is_some()) {
            return self.check_mask_token();
        }
        if is_masked {
            let reason = format!(
                "predicts masked tokens, which {} does not see from both sides: remove it, or take an encoder (kind = \"bert\")",
                kind.name()
            );
            return Err(ConfigError::value("data.masking", "{ … }", reason));
        }
        let reason = "is an encoder, which is trained on masked tokens: add [data.masking]";
        Err(ConfigError::value("model.kind", kind.name(), reason))
    }

    fn check_mask_token(&self) -> Result<(), ConfigError> {
        let token = self.data.masking.as_ref().and_then(|masking| masking.token.as_ref());
        let vocabulary = self.vocabulary();
        match (token, vocabulary) {
            (Some(MaskToken::Number(number)), Some(vocabulary)) if *number >= vocabulary => {
                let reason = format!(
                    "is outside the model's vocabulary of {vocabulary}: raise model.vocabulary, or name another token"
                );
                Err(ConfigError::value("data.masking.token", number, reason))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: &str, data: &str, more: &str) -> Result<RunConfig, String> {
        let text = format!(
            "[run]\nname = \"a\"\nworkers = 2\nsteps = 9\n[model]\nkind = {kind:?}\nlayers = 2\nwidth = 8\nheads = 1\ncontext = 8\n\
             [data]\nsequence_length = 8\n{data}\n{more}"
        );
        RunConfig::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_encoder_is_trained_on_masked_tokens_without_a_word_of_it() {
        let text = "path = \"a\"\ntokenizer = \"t.json\"";
        for kind in ["bert", "roberta", "xlm-roberta", "electra"] {
            let config = parse(kind, text, "").unwrap();
            assert_eq!(config.data.masking, Some(MaskingConfig::default()));
            assert!(config.data.has_labels());
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        }
        assert_eq!(parse("gpt2", text, "").unwrap().data.masking, None);
        let masking = "[data.masking]\nshare = 0.4\nmasked = 1\nrandom = 0\ntoken = ";
        for token in ["\"<m>\"", "77"] {
            let config = parse("bert", text, &format!("{masking}{token}")).unwrap();
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_with_the_remedy() {
        let (text, bytes) = ("path = \"a\"\ntokenizer = \"t.json\"", "path = \"a\"");
        for (kind, data, more, words) in [
            (
                "gpt2",
                text,
                "[data.masking]",
                "data.masking = { … }: predicts masked tokens, which gpt2 does not",
            ),
            ("bert", text, "[data.masking]\nshare = 0.0", "data.masking.share = 0: must be above 0"),
            ("bert", text, "[data.masking]\nshare = 1.5", "data.masking.share = 1.5: must be"),
            ("bert", text, "[data.masking]\nmasked = nan", "data.masking.masked = NaN: must be"),
            (
                "bert",
                text,
                "[data.masking]\nrandom = 0.3",
                "data.masking.random = 0.3: with data.masking.masked = 0.8",
            ),
            ("bert", text, "[data.masking]\ntoken = true", "line "),
            ("bert", text, "mlm_probability = 0.2", "unknown key `mlm_probability`: here "),
            (
                "bert",
                bytes,
                "[data.masking]\ntoken = 256",
                "data.masking.token = 256: is outside the model's vocabulary of 256",
            ),
            (
                "bert",
                bytes,
                "",
                "data.tokenizer = bytes: has no mask token: name a tokenizer.json that has [MASK]",
            ),
            (
                "bert",
                "sources = [{ path = \"a.bin\" }]",
                "[data.masking]\ntoken = 3",
                "data.sources = a.bin: has tokens",
            ),
            ("bert", "sources = [{ path = \"a.jsonl\" }]\nconversations = {}", "", "data.conversations = "),
            ("bert", text, "[train.selective_backward]\nbeta = 2.0", "train.selective_backward = "),
            ("bert", text, "[secure_aggregation]\nrange = 1.0", "secure_aggregation = "),
            ("bert", text, "[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6", "privacy = "),
            (
                "bert",
                text,
                "[model.encoder]\nhead = \"none\"",
                "model.encoder.head = none: the model has no head for masked tokens, which runs train: its files lack cls.predictions.transform.dense.weight, ",
            ),
            (
                "bert",
                text,
                "[model.encoder]\nhead = \"replaced\"",
                "model.encoder.head = replaced: bert has no such head",
            ),
            (
                "electra",
                text,
                "[model.encoder]\nhead = \"replaced\"",
                "model.encoder.head = replaced: a discriminator",
            ),
            (
                "roberta",
                text,
                "[model.encoder]\nhead = \"classes\"\nclasses = 3",
                "model.encoder.head = classes: its head tells classes of texts: add [data.classification]",
            ),
            ("roberta", text, "[model.encoder]\nclasses = 3", "model.encoder.classes = 3: is for head"),
            (
                "bert",
                text,
                "[parallel]\nstages = 2\n[parallel.differences]\nmemory_mib = 1",
                "parallel.differences = ",
            ),
            ("bert", text, "[parallel]\ntensor = 2", "parallel.tensor = 2: encoders are not divided"),
        ] {
            let message = parse(kind, data, more).unwrap_err();
            assert!(message.starts_with(words), "{kind}, {data}, {more}: {message}");
        }
    }
}
