//! What a `tokenizer.json` describes, by the `tokenizers` library.

use std::path::Path;

use tokenizers::models::ModelWrapper;

use crate::data::DataError;

/// A tokenizer of the library.
#[derive(Clone, Debug)]
pub struct Described(tokenizers::Tokenizer);

impl Described {
    /// Reads one, which came from there.
    ///
    /// # Errors
    /// When it is no tokenizer.
    pub(super) fn read(json: &[u8], path: &Path) -> Result<Self, DataError> {
        let read = tokenizers::Tokenizer::from_bytes(json);
        let refused = |reason: String| DataError::Tokenizer { path: path.to_owned(), reason };
        read.map(Self).map_err(|error| refused(error.to_string()))
    }

    /// Drops the settings of a file's last use, which are not the tokenizer: Hugging Face writes truncation and padding after a call with them, and
    /// dropout makes other tokens of the same text each time. Answers which those were.
    pub(super) fn without_settings(&mut self) -> Vec<String> {
        let tokenizer = &mut self.0;
        let mut settings = Vec::new();
        if let Some(truncation) = tokenizer.get_truncation() {
            settings.push(format!("truncation to {} tokens", truncation.max_length));
            // Without parameters there is nothing that it could refuse.
            let _ = tokenizer.with_truncation(None);
        }
        if tokenizer.get_padding().is_some() {
            settings.push("padding".to_owned());
            tokenizer.with_padding(None);
        }
        if let ModelWrapper::BPE(model) = tokenizer.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            let mut model = model.clone();
            model.dropout = None;
            settings.push(format!("dropout of {dropout}"));
            tokenizer.with_model(model);
        }
        settings
    }

    /// Its largest token.
    pub(super) fn largest(&self) -> Option<u32> {
        self.0.get_vocab(true).into_values().max()
    }

    /// Its special tokens, by number.
    pub(super) fn special(&self) -> Vec<String> {
        let mut added: Vec<_> = self.0.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|(number, _)| *number);
        added.into_iter().filter(|(_, token)| token.special).map(|(_, token)| token.content).collect()
    }

    /// Whether a name is that of a token, or of several one after the other.
    pub(super) fn has_as_tokens(&self, name: &str) -> Result<bool, String> {
        if self.0.token_to_id(name).is_some() {
            return Ok(true);
        }
        let (added, mut rest) = (self.0.get_added_tokens_decoder(), name);
        for id in self.encode(name)? {
            let Some(after) = added.get(&id).and_then(|token| rest.strip_prefix(token.content.as_str()))
            else {
                return Ok(false);
            };
            rest = after.trim_start();
        }
        Ok(rest.is_empty())
    }

    /// The tokens of a text, without special ones around it.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.0.encode_fast(text, false).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, special ones included.
    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        self.0.decode(tokens, false).map_err(|error| error.to_string())
    }
}
