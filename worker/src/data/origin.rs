//! A file of a source, wherever it is.

use std::path::{Path, PathBuf};

use super::DataError;
use super::cache::Cache;
use super::remote::RemoteFile;
use super::stamp::{Stamp, State};
use super::work::FileWork;

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// On this machine.
    Local(PathBuf),
    /// On a server or in object storage.
    Remote(RemoteFile),
}

impl Origin {
    /// For people, and for what its name ends with.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Local(path) => path,
            Self::Remote(file) => &file.shown,
        }
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> Result<u64, DataError> {
        match self {
            Self::Local(path) => Ok(State::of(path)?.bytes),
            Self::Remote(file) => Ok(file.version.bytes),
        }
    }

    /// What changes when it is written; none where each part of it that is read says what it is of.
    pub(super) fn state(&self) -> Result<Option<State>, DataError> {
        match self {
            Self::Local(path) => State::of(path).map(Some),
            Self::Remote(_) => Ok(None),
        }
    }

    /// Names what it holds; of a file on this machine by its bytes, which may take reading them.
    pub(super) fn hash(&self, cache: &Cache, work: &mut FileWork<'_>) -> Result<String, DataError> {
        match self {
            Self::Local(path) => Ok(Stamp::of(path, cache, work)?.hash),
            Self::Remote(file) => Ok(file.hash().to_hex().to_string()),
        }
    }

    /// The same where it is known without reading.
    pub(super) fn known_hash(&self, cache: &Cache) -> Result<Option<String>, DataError> {
        match self {
            Self::Local(path) => Ok(Stamp::known(path, cache)?.map(|stamp| stamp.hash)),
            Self::Remote(file) => Ok(Some(file.hash().to_hex().to_string())),
        }
    }
}
