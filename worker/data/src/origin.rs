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
    /// On this machine: a file, or a folder of images.
    Local(PathBuf),
    /// On a server or in object storage.
    Remote(RemoteFile),
    /// A file of images, with their labels in another.
    Labelled { images: Box<Self>, labels: Box<Self> },
}

impl Origin {
    /// For people, and for what its name ends with.
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

    /// Its bytes.
    pub(super) fn bytes(&self) -> Result<u64, DataError> {
        match self {
            Self::Local(path) => Ok(State::of(path)?.bytes),
            Self::Remote(file) => Ok(file.version.bytes),
            Self::Labelled { images, labels } => Ok(images.bytes()? + labels.bytes()?),
        }
    }

    /// What changes when it is written, of each of its files; nothing where each part of it that is read says what it is of.
    pub(super) fn state(&self) -> Result<Vec<State>, DataError> {
        match self {
            Self::Local(path) => Ok(vec![State::of(path)?]),
            Self::Remote(_) => Ok(Vec::new()),
            Self::Labelled { images, labels } => Ok([images.state()?, labels.state()?].concat()),
        }
    }

    /// What is kept of it by its place: the names of stamps.
    pub(super) fn stamps(&self) -> Result<Vec<String>, DataError> {
        match self {
            Self::Local(path) => Ok(vec![Stamp::name(path)?]),
            Self::Remote(file) => Ok(vec![file.found.clone()]),
            Self::Labelled { images, labels } => Ok([images.stamps()?, labels.stamps()?].concat()),
        }
    }

    /// Names what it holds; of a file on this machine by its bytes, which may take reading them.
    pub(super) fn hash(&self, cache: &Cache, work: &mut FileWork<'_>) -> Result<String, DataError> {
        match self {
            Self::Local(path) => Ok(Stamp::of(path, cache, work)?.hash),
            Self::Remote(file) => Ok(file.hash().to_hex().to_string()),
            Self::Labelled { images, labels } => {
                Ok(both(&images.hash(cache, work)?, &labels.hash(cache, work)?))
            }
        }
    }

    /// The same where it is known without reading.
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

/// Names what two files hold.
fn both(images: &str, labels: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(images.as_bytes());
    hasher.update(labels.as_bytes());
    hasher.finalize().to_hex().to_string()
}
