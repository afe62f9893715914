//! Faults of the place of the state, and their remedies.

use std::io;
use std::path::{Path, PathBuf};

/// A state that cannot be used.
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
        /// The system's error.
        source: io::Error,
    },
    /// Its content is not as written.
    #[error(
        "{place} is damaged ({what}): restore it from a backup, or move it away and start the run anew from a checkpoint"
    )]
    Corrupt {
        /// Where.
        place: String,
        /// The fault found.
        what: String,
    },
    /// Another release wrote it.
    #[error(
        "{place} has layout {found}, this release knows {known}: continue the run with the release that began it"
    )]
    Version {
        /// Where.
        place: String,
        /// The layout that is there.
        found: u64,
        /// The layout that this release writes.
        known: u64,
    },
    /// A record is longer than a place takes.
    #[error("{place} cannot store {record}, now {bytes} bytes: the limit is {bytes_max}")]
    TooLong {
        /// Where.
        place: String,
        /// Which record.
        record: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// etcd does not answer.
    #[error("{place} cannot be reached: {why}")]
    Unreachable {
        /// Where.
        place: String,
        /// Reason for the last failure, and the remedy.
        why: String,
    },
    /// etcd answers, and does not do as it is asked.
    #[error("{place} refuses ({why})")]
    Refused {
        /// Where.
        place: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// Another process may write now.
    #[error("this coordinator no longer leads: {why}")]
    Deposed {
        /// How that shows.
        why: String,
    },
}

impl StoreError {
    pub(super) fn of_redb(folder: &Path, error: redb::Error) -> Self {
        let corrupt =
            |what| Self::Corrupt { place: format!("the state directory {}", folder.display()), what };
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::Locked { folder: folder.to_owned() },
            // The file is there and is no database of this kind.
            redb::Error::Io(source) if source.kind() == io::ErrorKind::InvalidData => {
                corrupt(source.to_string())
            }
            redb::Error::Io(source) => Self::Unwritable { folder: folder.to_owned(), source },
            other => corrupt(other.to_string()),
        }
    }
}
