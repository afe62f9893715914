//! Checkpoints of a run in a folder or object storage that all workers reach.
//!
//! ```text
//! <place>/<run>/part-1-of-2/round-000120.json      the manifest: written last, atomically
//! <place>/<run>/part-1-of-2/pieces/<BLAKE3>        the bytes, cut by fragment; pieces already present are not stored again
//! ```
//!
//! Timeouts and retries of the storage bound all requests. No object exceeds a piece, and none is stored in
//! part.

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

/// Maximum bytes of a piece. A fragment has an eighth of it by default.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;

/// Checks that this build supports archives.
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
pub struct ModelPart {
    /// Run.
    pub run: RunId,
    /// Number of parts.
    pub parts: u32,
    /// Index, from 0.
    pub rank: u32,
}

/// A complete checkpoint of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Archived {
    /// Part.
    pub part: ModelPart,
    /// First round not contained.
    pub next_round: Round,
}

/// Result of verifying a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Intact pieces.
    pub pieces: u64,
    /// Bytes of the intact pieces.
    pub bytes: u64,
    /// Damaged objects, with reasons.
    pub damaged: Vec<String>,
}
