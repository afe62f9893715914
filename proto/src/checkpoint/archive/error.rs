//! Errors of reading and writing archives.

use std::error::Error;

/// A failure of an archive operation.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The storage cannot be reached or refuses.
    #[error("{operation} {place}: {source}{remedy}")]
    Storage {
        /// Operation attempted.
        operation: &'static str,
        /// Place it addressed.
        place: String,
        /// Error of the storage.
        source: Box<dyn Error + Send + Sync>,
        /// Remedy, after a semicolon; may be empty.
        remedy: &'static str,
    },
    /// This build supports no archive.
    #[error(
        "this program was built without an archive of checkpoints, which {place} is: build it with `--features object-storage` (`cargo build --release` has all)"
    )]
    NotBuilt {
        /// Archive to open.
        place: String,
    },
    /// An object is missing or differs from the bytes written.
    #[error("{place} is damaged: {reason}")]
    Damaged {
        /// Object or checkpoint.
        place: String,
        /// Difference found.
        reason: String,
    },
}

impl ArchiveError {
    /// Whether a retry cannot help, because the stored object itself is damaged.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}
