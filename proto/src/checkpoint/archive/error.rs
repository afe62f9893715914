//! Why an archive could not be read or written.

use object_store::Error;

/// A checkpoint that is not in the archive as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The place cannot be reached.
    #[error("{operation} {place}: {source}{}", remedy(source))]
    Storage {
        /// What was tried.
        operation: &'static str,
        /// On what.
        place: String,
        /// What the storage says.
        source: Error,
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
    pub(super) fn storage(operation: &'static str, place: impl ToString) -> impl FnOnce(Error) -> Self {
        move |source| Self::Storage { operation, place: place.to_string(), source }
    }

    pub(super) fn damaged(place: impl ToString, reason: impl ToString) -> Self {
        Self::Damaged { place: place.to_string(), reason: reason.to_string() }
    }

    /// Whether what is there will not become right by trying again.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}

fn remedy(error: &Error) -> &'static str {
    match error {
        Error::Unauthenticated { .. } | Error::PermissionDenied { .. } => {
            "; the environment of this process must have credentials for it, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        }
        Error::Generic { store: "S3" | "GCS", .. } => {
            "; is the bucket there (checkpoint.to), and is checkpoint.endpoint where it is?"
        }
        Error::NotFound { .. } => "; is the folder there (checkpoint.to)?",
        _ => "",
    }
}
