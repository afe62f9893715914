//! Small JSON documents that tell whether they are as they were written.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<T> {
    content: T,
    /// BLAKE3 of the content as it is serialised without white space, in hexadecimal.
    seal: String,
}

/// A document that is not as it was written.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It is no such document.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A byte of it is another.
    #[error("its seal does not fit its content")]
    Broken,
}

/// The document's text.
///
/// # Errors
/// The content is nothing that JSON can say.
pub fn to_text<T: Serialize>(content: &T) -> serde_json::Result<String> {
    let seal = blake3::hash(&serde_json::to_vec(content)?).to_hex().to_string();
    let mut text = serde_json::to_string_pretty(&Sealed { content, seal })?;
    text.push('\n');
    Ok(text)
}

/// The content of a document, each of whose bytes is as it was written.
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
