//! What a control message is as bytes: postcard, nothing behind it, not longer than its type allows.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{ToCoordinator, ToWorker};

/// The longest message to a worker, in bytes: 16 MiB. The longest that is honest starts a generation in a run of 10,000
/// fragments ([`FRAGMENTS_MAX`](longhaul_common::config::FRAGMENTS_MAX)), 64 sites and 256 members: owners and uploaders
/// take 65 × 10,000 × 2 bytes, the adopted results 10,000 × (36 bytes + 256 holders × 2 bytes); together 7 MB.
pub const CONTROL_FRAME_BYTES_MAX: usize = 16 << 20;

/// The longest message to the coordinator, in bytes: 4 MiB. The longest that is honest settles the same run:
/// 10,000 held results × (36 bytes + 64 sites × 1 byte) are 1 MB.
pub const REPORT_FRAME_BYTES_MAX: usize = 4 << 20;

/// Something that is said over a control stream.
pub trait ControlMessage: Serialize + DeserializeOwned + Send + 'static {
    /// The longest, in bytes.
    const BYTES_MAX: usize;
}

impl ControlMessage for ToWorker {
    const BYTES_MAX: usize = CONTROL_FRAME_BYTES_MAX;
}

impl ControlMessage for ToCoordinator {
    const BYTES_MAX: usize = REPORT_FRAME_BYTES_MAX;
}

/// Bytes that are no message of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// postcard does not accept them.
    #[error("the bytes are no message: {0}")]
    Postcard(#[from] postcard::Error),
    /// The message ends before they do.
    #[error("{bytes} bytes follow the message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

/// Writes a message.
///
/// # Errors
/// If a value in it cannot be written, such as a sequence of unknown length.
pub fn encode<T: ControlMessage>(message: &T) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_stdvec(message)
}

/// Reads a message.
///
/// # Errors
/// [`DecodeError`]. No bytes make it panic, or take memory out of proportion to their number.
pub fn decode<T: ControlMessage>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (message, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(message) } else { Err(DecodeError::Trailing { bytes: rest.len() }) }
}

#[cfg(test)]
mod tests;
