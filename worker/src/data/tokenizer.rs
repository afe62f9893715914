//! From text to tokens and back.

use std::path::Path;
use std::sync::Arc;

use longhaul_common::config::DataConfig;

use super::DataError;
use super::error::READ_TOKENIZER;

#[cfg(feature = "tokenizers")]
mod described;
#[cfg(not(feature = "tokenizers"))]
#[path = "tokenizer/not_described.rs"]
mod described;

pub use self::described::Described;

/// How text becomes tokens.
#[derive(Clone, Debug)]
pub enum Tokenizer {
    /// A token is a byte.
    Bytes,
    /// As a `tokenizer.json` describes.
    Json {
        /// The file's content, which a checkpoint carries along.
        json: Arc<[u8]>,
        /// What it describes.
        tokenizer: Box<Described>,
    },
}

impl Tokenizer {
    /// The tokenizer that `data.tokenizer` names: `bytes`, or the path of a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file cannot be read or is no tokenizer.
    pub fn load(name: &str) -> Result<Self, DataError> {
        if name == DataConfig::BYTES {
            return Ok(Self::Bytes);
        }
        let path = Path::new(name);
        let json = std::fs::read(path).map_err(DataError::io(READ_TOKENIZER, path))?;
        Self::of_json(json, path)
    }

    /// The one of a `tokenizer.json`, which came from there.
    ///
    /// # Errors
    /// When it is no tokenizer.
    pub fn of_json(json: Vec<u8>, path: &Path) -> Result<Self, DataError> {
        let tokenizer = Described::read(&json, path)?;
        if tokenizer.largest() == Some(u32::MAX) {
            let reason = format!("it has a token {}, and there must be one more than that", u32::MAX);
            return Err(DataError::Tokenizer { path: path.to_owned(), reason });
        }
        Ok(Self::Json { json: json.into(), tokenizer: Box::new(tokenizer) })
    }

    /// One more than the largest token.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        match self {
            Self::Bytes => DataConfig::BYTES_VOCABULARY,
            Self::Json { tokenizer, .. } => {
                tokenizer.largest().map_or(0, |largest| largest.saturating_add(1))
            }
        }
    }

    /// Names what it does: texts become the same tokens under tokenizers with the same hash.
    #[must_use]
    pub fn hash(&self) -> blake3::Hash {
        match self {
            Self::Bytes => blake3::hash(DataConfig::BYTES.as_bytes()),
            Self::Json { json, .. } => blake3::hash(json),
        }
    }

    /// The content of its `tokenizer.json`; none for bytes.
    #[must_use]
    pub fn json(&self) -> Option<Arc<[u8]>> {
        match self {
            Self::Bytes => None,
            Self::Json { json, .. } => Some(Arc::clone(json)),
        }
    }

    /// The tokens of a text, without special ones around it.
    ///
    /// # Errors
    /// What the `tokenizers` library refuses, in its words.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Json { tokenizer, .. } => tokenizer.encode(text),
        }
    }

    /// The text of tokens; what is no text is shown as replacement characters.
    ///
    /// # Errors
    /// What the `tokenizers` library refuses, in its words.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, String> {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> =
                    tokens.iter().map(|&token| u8::try_from(token).unwrap_or(b'?')).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::Json { tokenizer, .. } => tokenizer.decode(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "tokenizers")]
    const WORDS: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,
        "truncation":null,"padding":null,"pre_tokenizer":{"type":"Whitespace"},
        "model":{"type":"WordLevel","vocab":{"[unk]":0,"one":1,"two":7},"unk_token":"[unk]"}}"#;

    #[test]
    fn bytes_survive_there_and_back() {
        let tokens = Tokenizer::Bytes.encode("añ\n").unwrap();
        assert_eq!(tokens, [97, 0xc3, 0xb1, 10]);
        assert_eq!(Tokenizer::Bytes.decode(&tokens).unwrap(), "añ\n");
        assert_eq!(Tokenizer::Bytes.vocabulary(), 256);
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_tokenizer_file_decides_tokens_and_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, WORDS).unwrap();
        let tokenizer = Tokenizer::load(path.to_str().unwrap()).unwrap();
        assert_eq!(tokenizer.encode("two one three").unwrap(), [7, 1, 0]);
        assert_eq!(tokenizer.vocabulary(), 8);
        assert_eq!(tokenizer.json().unwrap()[..], *WORDS.as_bytes());

        std::fs::write(&path, WORDS.replace("7}", "4294967295}")).unwrap();
        let message = Tokenizer::load(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(message.contains("one more than that"), "{message}");

        std::fs::write(&path, "{}").unwrap();
        let message = Tokenizer::load(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(message.contains("is no tokenizer") && message.contains("Hugging Face"), "{message}");
    }
}
