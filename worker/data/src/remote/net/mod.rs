//! Requests to web servers and object storage.

mod back_off;
mod client;
mod reader;
mod s3;
mod web;

use std::error::Error;

use self::back_off::Attempts;
pub(super) use self::client::Client;
pub(crate) use self::reader::RemoteReader;
use super::{RemoteError, RemoteFile, Version};

impl Version {
    /// Creates a version; fails without an attribute that shows changes.
    fn new(bytes: u64, etag: Option<String>, modified: Option<String>) -> Result<Self, RemoteError> {
        if etag.is_none() && modified.is_none() {
            return Err(RemoteError::NoVersion);
        }
        Ok(Self { bytes, etag, modified })
    }
}

impl RemoteError {
    /// Converts a transfer error with its causes, without the URL, which may have a signature.
    fn of_web(error: reqwest::Error) -> Self {
        let is_final = error.is_redirect() || error.is_builder();
        let causes = causes(&error.without_url());
        if is_final { Self::Refused(causes) } else { Self::Unreachable(causes) }
    }
}

/// Describes an error with its causes.
fn causes(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words += &format!(": {more}");
        }
        cause = error.source();
    }
    words
}
