//! Why a file cannot be had from where it is.

/// What a server or object storage says.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It wants credentials, or others.
    #[error(
        "access is denied ({0}); for s3:// the worker's environment must have credentials for it, as AWS_ACCESS_KEY_ID and \
         AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true where all may read), and for https:// the URL a signature that has not expired"
    )]
    Denied(String),
    /// It is not there.
    #[error("there is no such file ({0}); is the URL right, and was it not moved or removed?")]
    Missing(String),
    /// It does not answer.
    #[error(
        "{0}; has this machine a way to it, and if it needs a proxy, is HTTPS_PROXY set? A copy on this machine can be a path"
    )]
    Unreachable(String),
    /// It answers that it cannot.
    #[error("it answers {0}, again and again; try later")]
    Busy(String),
    /// It answers something else.
    #[error("that leads to no file: {0}")]
    Refused(String),
    /// It gave less than it said.
    #[error(
        "the connection ended before the file did, again and again, the last time after {0} bytes; is the link to it stable?"
    )]
    Cut(u64),
    /// It gives a byte now and then.
    #[error("after {0} bytes, next to nothing comes; is it busy, or the link to it?")]
    Slow(u64),
    /// It became another.
    #[error("it was changed since it was looked at: prepare it again when it is complete")]
    Changed,
    /// It could not be told from another one.
    #[error(
        "the server gives neither an ETag nor a date of change, so that a change could not be noticed; fetch it, and give its path"
    )]
    NoVersion,
    /// It does not say how long it is.
    #[error("the server does not say how long it is; fetch it, and give its path")]
    NoLength,
    /// This program has no means to ask.
    #[error(
        "this worker was built without data from web servers and object storage: build it with `--features remote-data` (`cargo build --release` has all)"
    )]
    NotBuilt,
    /// This machine has no means to ask.
    #[error("this process cannot ask servers: {0}")]
    NoClient(String),
}

impl RemoteError {
    /// Whether it may be better in a moment.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Busy(_) | Self::Cut(_) | Self::Slow(_))
    }
}
