//! Small JSON documents that tell whether they are as they were written.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::CheckpointError;

/// A manifest or record is a few lines; a longer file is none.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<T> {
    content: T,
    /// BLAKE3 of the content as it is serialised without white space, in hexadecimal.
    seal: String,
}

/// The document's text.
pub(super) fn to_text<T: Serialize>(content: &T) -> serde_json::Result<String> {
    let seal = blake3::hash(&serde_json::to_vec(content)?).to_hex().to_string();
    let mut text = serde_json::to_string_pretty(&Sealed { content, seal })?;
    text.push('\n');
    Ok(text)
}

/// Reads a document, and refuses it unless each of its bytes is as it was written.
pub(super) fn read<T: Serialize + DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let failed = |error| CheckpointError::io("read", path)(error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.len() > DOCUMENT_BYTES_MAX {
        return Err(CheckpointError::damaged(path, format!("it has {} bytes", metadata.len())));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    let damaged = |error: serde_json::Error| CheckpointError::damaged(path, error);
    let document: Sealed<T> = serde_json::from_slice(&bytes).map_err(damaged)?;
    if to_text(&document.content).map_err(damaged)?.as_bytes() != bytes {
        return Err(CheckpointError::damaged(path, "its seal does not fit its content"));
    }
    Ok(document.content)
}
