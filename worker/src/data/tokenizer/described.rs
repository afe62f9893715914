//! What a `tokenizer.json` describes, by the `tokenizers` library.

use std::path::Path;

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

    /// Its largest token.
    pub(super) fn largest(&self) -> Option<u32> {
        self.0.get_vocab(true).into_values().max()
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
