//! Why a checkpoint could not be written or read.

use std::io;
use std::path::{Path, PathBuf};

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
    #[error("{} is damaged: {reason}{}", path.display(), instead(before.as_deref()))]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// The newest whole checkpoint before it.
        before: Option<PathBuf>,
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
        Self::Damaged { path: path.to_owned(), reason: reason.to_string(), before: None }
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

fn instead(before: Option<&Path>) -> String {
    match before {
        Some(path) => format!("; the newest whole checkpoint before it is {}", path.display()),
        None => "; there is no whole checkpoint before it".to_owned(),
    }
}
