//! Small JSON documents on disk with a checksum.

use std::path::Path;

use longhaul_proto::checkpoint::folder::DOCUMENT_BYTES_MAX;
use longhaul_proto::checkpoint::sealed;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::CheckpointError;

/// Reads a document, and refuses any changed byte.
pub(super) fn read<T: Serialize + DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let failed = |error| CheckpointError::io("read", path)(error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.len() > DOCUMENT_BYTES_MAX {
        return Err(CheckpointError::damaged(path, format!("it has {} bytes", metadata.len())));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    sealed::from_bytes(&bytes).map_err(|error| CheckpointError::damaged(path, error))
}
