//! A file for readers that seek.

use std::fs::File;
use std::io::Seek;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::cache::Cache;
use crate::remote::{Fetched, RemoteFile};

/// A local file, or a temporary copy of a remote one.
pub(super) struct TableFile {
    /// For messages.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    file: File,
    _copy: Option<Fetched>,
}

impl TableFile {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        let size = file.metadata().map_err(DataError::io("read", path))?.len();
        Ok(Self { path: path.to_owned(), size, file, _copy: None })
    }

    pub(super) fn fetch(remote: &RemoteFile, cache: &Cache) -> Result<Self, DataError> {
        let copy = Fetched::new(remote, cache)?;
        let file = copy.open().map_err(DataError::io("open", &remote.shown))?;
        let (path, size) = (remote.shown.clone(), remote.version.bytes);
        Ok(Self { path, size, file, _copy: Some(copy) })
    }

    /// Returns the file, rewound. Handles returned earlier must not be in use: they share the position.
    pub(super) fn rewound(&self) -> Result<File, DataError> {
        let mut file = self.file.try_clone().map_err(DataError::io("open", &self.path))?;
        file.rewind().map_err(DataError::io("read", &self.path))?;
        Ok(file)
    }
}
