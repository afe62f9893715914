//! What can be wrong with a state directory, and what to do then.

use std::io;
use std::path::{Path, PathBuf};

/// A state directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "the state directory {} is in use by another coordinator: stop that one, or give this one another --state-dir",
        folder.display()
    )]
    Locked {
        /// The state directory.
        folder: PathBuf,
    },
    /// It cannot be written.
    #[error("the state directory {} cannot be written ({source}): choose another with --state-dir", folder.display())]
    Unwritable {
        /// The state directory.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What is in it is not what was written.
    #[error(
        "the state directory {} is damaged ({what}): restore it from a backup, or move it away and start the run anew from \
         a checkpoint",
        folder.display()
    )]
    Corrupt {
        /// The state directory.
        folder: PathBuf,
        /// What was noticed.
        what: String,
    },
    /// Another release wrote it.
    #[error(
        "the state directory {} has layout {found}, this release knows {known}: continue the run with the release that \
         began it",
        folder.display()
    )]
    Version {
        /// The state directory.
        folder: PathBuf,
        /// The layout that is there.
        found: u64,
        /// The layout that this release writes.
        known: u64,
    },
}

impl StoreError {
    pub(super) fn opening(folder: &Path, error: redb::Error) -> Self {
        let folder = folder.to_owned();
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::Locked { folder },
            // The file is there and is no database of this kind.
            redb::Error::Io(source) if source.kind() == io::ErrorKind::InvalidData => {
                Self::Corrupt { folder, what: source.to_string() }
            }
            redb::Error::Io(source) => Self::Unwritable { folder, source },
            other => Self::Corrupt { folder, what: other.to_string() },
        }
    }
}
