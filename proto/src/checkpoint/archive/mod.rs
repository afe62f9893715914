//! Checkpoints of a run in one place that all its workers reach, a folder or object storage.
//!
//! ```text
//! <place>/<run>/part-1-of-2/round-000120.json      what the checkpoint is: written last, and whole or not at all
//! <place>/<run>/part-1-of-2/pieces/<BLAKE3>        its bytes, cut by fragment; what is there is not stored again
//! ```
//!
//! Reads and writes are bounded by the storage's timeouts and retries; no object is larger than a piece, so nothing is ever half an object.

mod error;
mod manifest;
#[cfg(feature = "object-storage")]
mod stored;
#[cfg(not(feature = "object-storage"))]
#[path = "absent.rs"]
mod stored;

pub use error::ArchiveError;
pub use manifest::{Content, Manifest, Piece, Private};
pub use stored::{Archive, Upload};

use longhaul_common::config::ArchiveLocation;
use longhaul_common::id::{Round, RunId};

/// Bytes of a piece, at most: a fragment has an eighth of it by default.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;

/// Whether this program has archives at all, before anything is done that needs one.
///
/// # Errors
/// [`ArchiveError::NotBuilt`]
pub fn require(location: &ArchiveLocation) -> Result<(), ArchiveError> {
    if cfg!(feature = "object-storage") {
        return Ok(());
    }
    Err(ArchiveError::NotBuilt { place: location.to_string() })
}

/// A part of the model of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Which run.
    pub run: RunId,
    /// Of how many parts it is,
    pub parts: u32,
    /// and which, from 0.
    pub rank: u32,
}

/// A checkpoint of a part that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Archived {
    /// Of what.
    pub part: Part,
    /// The round that follows the ones it contains.
    pub next_round: Round,
}

/// What came of reading all of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Pieces that are as they were written.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is not, and why.
    pub damaged: Vec<String>,
}
