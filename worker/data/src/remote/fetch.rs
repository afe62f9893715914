//! A local copy of a remote file, for readers that seek.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use super::{RemoteFile, RemoteReader};
use crate::DataError;
use crate::cache::Cache;
use crate::partial::Partial;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 18;

/// A full-length copy in the cache, removed on drop.
#[derive(Debug)]
pub(crate) struct Fetched(Partial);

impl Fetched {
    /// Fetches the whole file. Concurrent callers wait.
    pub(crate) fn new(remote: &RemoteFile, cache: &Cache) -> Result<Self, DataError> {
        let path = cache.fetched(&remote.hash().to_hex()[..32]);
        let mut partial = Partial::lock(&path)?;
        partial.take_room(remote.version.bytes, cache)?;
        let failed = |source| DataError::Remote { url: remote.url.shown(), source };
        let mut reader = RemoteReader::new(remote).map_err(failed)?;
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            let read = reader.read(&mut buffer).map_err(DataError::io("fetch", &remote.shown))?;
            if read == 0 {
                return Ok(Self(partial));
            }
            partial.file().write_all(&buffer[..read]).map_err(DataError::io("write", &path))?;
        }
    }

    /// Opens the copy at its start.
    pub(crate) fn open(&self) -> io::Result<File> {
        let mut file = self.0.file().try_clone()?;
        file.rewind()?;
        Ok(file)
    }
}
