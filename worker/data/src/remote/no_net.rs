//! Stand-in for web servers and object storage in builds without the feature `remote-data`: it sends no requests.

use std::convert::Infallible;
use std::io::{self, Read};

use longhaul_common::config::DataUrl;

use super::{RemoteError, RemoteFile, Version};

/// Never created.
pub(super) struct Client {
    never: Infallible,
}

/// Never created.
pub(crate) struct RemoteReader {
    never: Infallible,
}

impl Client {
    /// Refuses.
    pub(super) fn get() -> Result<&'static Self, RemoteError> {
        Err(RemoteError::NotBuilt)
    }

    pub(super) fn find(&self, _: &DataUrl, _: Option<&str>) -> Result<Vec<(String, Version)>, RemoteError> {
        match self.never {}
    }
}

impl RemoteReader {
    /// Refuses.
    pub(crate) fn new(_: &RemoteFile) -> Result<Self, RemoteError> {
        Err(RemoteError::NotBuilt)
    }
}

impl Read for RemoteReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.never {}
    }
}
