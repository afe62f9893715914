//! Errors of writing and reading checkpoints.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// A checkpoint that was not written, or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be read or written.
    #[error("{operation} {}: {source}{}", path.display(), remedy(source))]
    Io {
        /// Operation.
        operation: &'static str,
        /// Path.
        path: PathBuf,
        /// System's error.
        source: io::Error,
    },
    /// A file whose content has changed.
    #[error("{} is damaged: {reason}{instead}", path.display())]
    Damaged {
        /// File.
        path: PathBuf,
        /// Difference.
        reason: String,
        /// Replacement.
        instead: Instead,
    },
    /// A checkpoint of another model.
    #[error("{} holds another model: {reason}", path.display())]
    OtherModel {
        /// File.
        path: PathBuf,
        /// Difference.
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

    /// Adds the previous intact checkpoint to an error about a damaged one, by `find`.
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

/// Replacement of a damaged checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Not searched for.
    NotLookedFor,
    /// No older intact one exists.
    Nothing,
    /// The newest intact one before it.
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
