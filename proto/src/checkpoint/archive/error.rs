//! Why an archive could not be read or written.

use std::error::Error;

/// A checkpoint that is not in the archive as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The place cannot be reached.
    #[error("{operation} {place}: {source}{remedy}")]
    Storage {
        /// What was tried.
        operation: &'static str,
        /// On what.
        place: String,
        /// What the storage says.
        source: Box<dyn Error + Send + Sync>,
        /// What to do about it, after a semicolon; or nothing.
        remedy: &'static str,
    },
    /// This program has no archive of any kind.
    #[error(
        "this program was built without an archive of checkpoints, which {place} is: build it with `--features object-storage` (`cargo build --release` has all)"
    )]
    NotBuilt {
        /// What was to be opened.
        place: String,
    },
    /// Something is there and is not what was written.
    #[error("{place} is damaged: {reason}")]
    Damaged {
        /// What.
        place: String,
        /// What is wrong.
        reason: String,
    },
}

impl ArchiveError {
    /// Whether what is there will not become right by trying again.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}
