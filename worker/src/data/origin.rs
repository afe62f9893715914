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
    /// On this machine, with the labels of its images in another.
    Labelled { images: PathBuf, labels: PathBuf },
    /// On a server or in object storage.
    Remote(RemoteFile),
}

impl Origin {
    /// For people, and for what its name ends with.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Local(path) | Self::Labelled { images: path, .. } => path,
            Self::Remote(file) => &file.shown,
        }
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> Result<u64, DataError> {
        match self {
            Self::Local(path) => Ok(State::of(path)?.bytes),
            Self::Labelled { images, labels } => Ok(State::of(images)?.bytes + State::of(labels)?.bytes),
            Self::Remote(file) => Ok(file.version.bytes),
        }
    }

    /// What changes when it is written, of each of its files; nothing where each part of it that is read says what it is of.
    pub(super) fn state(&self) -> Result<Vec<State>, DataError> {
        match self {
            Self::Local(path) => Ok(vec![State::of(path)?]),
            Self::Labelled { images, labels } => Ok(vec![State::of(images)?, State::of(labels)?]),
            Self::Remote(_) => Ok(Vec::new()),
        }
    }

    /// Names what it holds; of a file on this machine by its bytes, which may take reading them.
    pub(super) fn hash(&self, cache: &Cache, work: &mut FileWork<'_>) -> Result<String, DataError> {
        match self {
            Self::Local(path) => Ok(Stamp::of(path, cache, work)?.hash),
            Self::Labelled { images, labels } => {
                Ok(both(&Stamp::of(images, cache, work)?, &Stamp::of(labels, cache, work)?))
            }
            Self::Remote(file) => Ok(file.hash().to_hex().to_string()),
        }
    }

    /// The same where it is known without reading.
    pub(super) fn known_hash(&self, cache: &Cache) -> Result<Option<String>, DataError> {
        match self {
            Self::Local(path) => Ok(Stamp::known(path, cache)?.map(|stamp| stamp.hash)),
            Self::Labelled { images, labels } => {
                let stamps = (Stamp::known(images, cache)?, Stamp::known(labels, cache)?);
                Ok(stamps.0.zip(stamps.1).map(|(images, labels)| both(&images, &labels)))
            }
            Self::Remote(file) => Ok(Some(file.hash().to_hex().to_string())),
        }
    }
}

/// Names what two files hold.
fn both(images: &Stamp, labels: &Stamp) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(images.hash.as_bytes());
    hasher.update(labels.hash.as_bytes());
    hasher.finalize().to_hex().to_string()
}
