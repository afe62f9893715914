//! A file of a source, local or remote.

use std::path::{Path, PathBuf};

use super::DataError;
use super::cache::Cache;
use super::remote::RemoteFile;
use super::stamp::{FileState, Stamp};
use super::work::FileWork;

/// The location of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// On this machine: a file, or a folder of images.
    Local(PathBuf),
    /// On a server or in object storage.
    Remote(RemoteFile),
    /// A file of images, with their labels in another.
    Labelled { images: Box<Self>, labels: Box<Self> },
}

impl Origin {
    /// Returns a path for messages and for the extension.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Local(path) => path,
            Self::Remote(file) => &file.shown,
            Self::Labelled { images, .. } => images.path(),
        }
    }

    /// Whether all of it is on this machine.
    pub(super) fn is_here(&self) -> bool {
        match self {
            Self::Local(_) => true,
            Self::Remote(_) => false,
            Self::Labelled { images, labels } => images.is_here() && labels.is_here(),
        }
    }

    /// Returns its bytes.
    pub(super) fn bytes(&self) -> Result<u64, DataError> {
        match self {
            Self::Local(path) => Ok(FileState::of(path)?.bytes),
            Self::Remote(file) => Ok(file.version.bytes),
            Self::Labelled { images, labels } => Ok(images.bytes()? + labels.bytes()?),
        }
    }

    /// Returns metadata that changes on writes, for each of its files; empty if each read verifies the version.
    pub(super) fn state(&self) -> Result<Vec<FileState>, DataError> {
        match self {
            Self::Local(path) => Ok(vec![FileState::of(path)?]),
            Self::Remote(_) => Ok(Vec::new()),
            Self::Labelled { images, labels } => Ok([images.state()?, labels.state()?].concat()),
        }
    }

    /// Returns the names of its stamps.
    pub(super) fn stamps(&self) -> Result<Vec<String>, DataError> {
        match self {
            Self::Local(path) => Ok(vec![Stamp::name(path)?]),
            Self::Remote(file) => Ok(vec![file.found.clone()]),
            Self::Labelled { images, labels } => Ok([images.stamps()?, labels.stamps()?].concat()),
        }
    }

    /// Returns the identity of its content; for a local file the hash of its bytes, which may have to be read.
    pub(super) fn hash(&self, cache: &Cache, work: &mut FileWork<'_>) -> Result<String, DataError> {
        match self {
            Self::Local(path) => Ok(Stamp::of(path, cache, work)?.hash),
            Self::Remote(file) => Ok(file.hash().to_hex().to_string()),
            Self::Labelled { images, labels } => {
                Ok(both(&images.hash(cache, work)?, &labels.hash(cache, work)?))
            }
        }
    }

    /// The same if it is known without reading.
    pub(super) fn known_hash(&self, cache: &Cache) -> Result<Option<String>, DataError> {
        match self {
            Self::Local(path) => Ok(Stamp::known(path, cache)?.map(|stamp| stamp.hash)),
            Self::Remote(file) => Ok(Some(file.hash().to_hex().to_string())),
            Self::Labelled { images, labels } => {
                let hashes = (images.known_hash(cache)?, labels.known_hash(cache)?);
                Ok(hashes.0.zip(hashes.1).map(|(images, labels)| both(&images, &labels)))
            }
        }
    }
}

/// Returns the identity of the content of two files.
fn both(images: &str, labels: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(images.as_bytes());
    hasher.update(labels.as_bytes());
    hasher.finalize().to_hex().to_string()
}
