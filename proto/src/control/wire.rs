//! Encoding of control messages: postcard, without trailing bytes, within the limit of the type.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{ToCoordinator, ToWorker};

/// Maximum message to a worker, in bytes: 16 MiB. The longest legitimate one starts a generation in a run of
/// 10,000 fragments ([`FRAGMENTS_MAX`](longhaul_common::config::FRAGMENTS_MAX)), 64 sites and 256 members:
/// owners and uploaders take 65 × 10,000 × 2 bytes, the adopted results 10,000 × (36 bytes + 256 holders × 2
/// bytes); together 7 MB.
pub const CONTROL_FRAME_BYTES_MAX: usize = 16 << 20;

/// Maximum message to the coordinator, in bytes: 4 MiB. The longest legitimate one settles the same run:
/// 10,000 held results × (36 bytes + 64 sites × 1 byte) are 1 MB.
pub const REPORT_FRAME_BYTES_MAX: usize = 4 << 20;

/// A message on a control stream.
pub trait ControlMessage: Serialize + DeserializeOwned + Send + 'static {
    /// Maximum bytes.
    const BYTES_MAX: usize;
}

impl ControlMessage for ToWorker {
    const BYTES_MAX: usize = CONTROL_FRAME_BYTES_MAX;
}

impl ControlMessage for ToCoordinator {
    const BYTES_MAX: usize = REPORT_FRAME_BYTES_MAX;
}

/// Bytes that are not a message of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// postcard rejects them.
    #[error("invalid message: {0}")]
    Postcard(#[from] postcard::Error),
    /// Bytes follow the message.
    #[error("{bytes} bytes follow the message")]
    Trailing {
        /// Number of bytes.
        bytes: usize,
    },
}

/// Encodes a message.
///
/// # Errors
/// A value cannot be encoded, such as a sequence of unknown length.
pub fn encode<T: ControlMessage>(message: &T) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_stdvec(message)
}

/// Decodes a message.
///
/// # Errors
/// [`DecodeError`]. No input makes it panic, or use memory out of proportion to its length.
pub fn decode<T: ControlMessage>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (message, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(message) } else { Err(DecodeError::Trailing { bytes: rest.len() }) }
}

#[cfg(test)]
mod tests;
