//! Small JSON documents with a checksum.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<T> {
    content: T,
    /// BLAKE3 of the content, serialised without white space, in hexadecimal.
    seal: String,
}

/// A document that fails its check.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Not a document of this form.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A byte differs.
    #[error("its seal does not match its content")]
    Broken,
}

/// Returns the document's text.
///
/// # Errors
/// JSON cannot represent the content.
pub fn to_text<T: Serialize>(content: &T) -> serde_json::Result<String> {
    let seal = blake3::hash(&serde_json::to_vec(content)?).to_hex().to_string();
    let mut text = serde_json::to_string_pretty(&Sealed { content, seal })?;
    text.push('\n');
    Ok(text)
}

/// Returns the content of a document after checking every byte.
///
/// # Errors
/// [`SealError`]
pub fn from_bytes<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, SealError> {
    let document: Sealed<T> = serde_json::from_slice(bytes)?;
    if to_text(&document.content)?.as_bytes() == bytes {
        Ok(document.content)
    } else {
        Err(SealError::Broken)
    }
}
