//! Why a checkpoint could not be written or read.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// A checkpoint that was not written, or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be read or written.
    #[error("{operation} {}: {source}{}", path.display(), remedy(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file that is not as it was written.
    #[error("{} is damaged: {reason}{instead}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What to use in its place.
        instead: Instead,
    },
    /// A checkpoint of another model.
    #[error("{} holds another model: {reason}", path.display())]
    OtherModel {
        /// Which file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
}

impl CheckpointError {
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }

    pub(super) fn damaged(path: &Path, reason: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.to_string(), instead: Instead::NotLookedFor }
    }

    /// The same, where a checkpoint is damaged with the one before it, which `find` looks for.
    pub(super) fn with_instead(self, find: impl FnOnce() -> Option<PathBuf>) -> Self {
        match self {
            Self::Damaged { path, reason, .. } => {
                Self::Damaged { path, reason, instead: find().map_or(Instead::Nothing, Instead::Before) }
            }
            other => other,
        }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space, or lower checkpoint.keep; training goes on"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; make checkpoint.dir writable for the user that runs the worker; training goes on"
        }
        _ => "",
    }
}

/// What there is in place of a damaged checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Nobody has looked.
    NotLookedFor,
    /// No whole one that is older.
    Nothing,
    /// The newest whole one before it.
    Before(PathBuf),
}

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLookedFor => Ok(()),
            Self::Nothing => write!(f, "; there is no whole checkpoint before it"),
            Self::Before(path) => write!(f, "; the newest whole checkpoint before it is {}", path.display()),
        }
    }
}
