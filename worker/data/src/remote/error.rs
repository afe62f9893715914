//! Errors of fetching a remote file.

/// An error of a server or of object storage.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Credentials are missing or wrong.
    #[error(
        "access is denied ({0}); for s3:// the worker's environment must have credentials for it, as AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true where all may read), and for https:// the URL a signature that has not expired"
    )]
    Denied(String),
    /// The file does not exist.
    #[error("there is no such file ({0}); is the URL right, and was it not moved or removed?")]
    Missing(String),
    /// The server does not respond.
    #[error(
        "{0}; can this machine reach it, and if it needs a proxy, is HTTPS_PROXY set? A local copy can be given as a path"
    )]
    Unreachable(String),
    /// The server reports a temporary failure.
    #[error("it answers {0}, again and again; try later")]
    Busy(String),
    /// The server sends another response.
    #[error("that leads to no file: {0}")]
    Refused(String),
    /// The response ended early.
    #[error(
        "the connection ended before the file did, again and again, the last time after {0} bytes; is the link to it stable?"
    )]
    Cut(u64),
    /// The transfer is too slow.
    #[error("after {0} bytes, the transfer nearly stopped; is the server busy, or the link to it?")]
    Slow(u64),
    /// The file has changed.
    #[error("it was changed since it was looked at: prepare it again when it is complete")]
    Changed,
    /// Changes of the file would go unnoticed.
    #[error(
        "the server gives neither an ETag nor a date of change, so a change would go unnoticed; download the file, and give its path"
    )]
    NoVersion,
    /// The length is unknown.
    #[error("the server does not report its length; download it, and give its path")]
    NoLength,
    /// The feature is missing from this build.
    #[error(
        "this worker was built without data from web servers and object storage: build it with `--features remote-data` (`cargo build --release` has all)"
    )]
    NotBuilt,
    /// The HTTP client cannot start.
    #[error("this process cannot send requests: {0}")]
    NoClient(String),
}

impl RemoteError {
    /// Whether a retry may succeed.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Busy(_) | Self::Cut(_) | Self::Slow(_))
    }
}
