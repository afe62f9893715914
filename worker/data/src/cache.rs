//! The folder of prepared data: its files and their locks.
//!
//! A process that registers or looks up files in use holds the folder's lock shared for that moment; pruning
//! holds it exclusively.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use longhaul_proto::checkpoint::sealed;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DataError;

/// Most bytes of a list or stamp: a list of ten million pieces.
const DOCUMENT_BYTES_MAX: u64 = 2 << 30;

/// Prepared data in the worker's cache folder.
pub(super) const FOLDER: &str = "data";
/// Its subfolders.
const PARTS: [&str; 6] = ["stamps", "lists", "shards", "fetched", "drafts", "uses"];

/// Whether a folder holds prepared data of any cache.
pub(super) fn is_laid_out(folder: &Path) -> bool {
    PARTS.iter().all(|part| folder.join(part).is_dir())
}

/// Files beside these.
const FILES: [&str; 2] = ["lock", "size"];

/// Whether this program creates a file of this name in such a folder.
pub(super) fn has_made(name: &str) -> bool {
    PARTS.contains(&name) || FILES.contains(&name)
}

/// A folder `data` in the worker's cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    /// Limit of stamps, lists, shards and drafts together, in bytes.
    pub(super) bytes_max: Option<u64>,
}

impl Cache {
    /// Opens the folder in the worker's cache, and creates it if necessary.
    pub(super) fn open(cache: &Path, bytes_max: Option<u64>) -> Result<Self, DataError> {
        let folder = cache.join(FOLDER);
        for part in PARTS {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).map_err(DataError::io("create folder", &path))?;
        }
        Ok(Self { folder, bytes_max })
    }

    /// Returns the path of a file's stamp.
    pub(super) fn stamp(&self, name: &str) -> PathBuf {
        self.stamps().join(name)
    }

    /// Returns the folder of stamps.
    pub(super) fn stamps(&self) -> PathBuf {
        self.folder.join("stamps")
    }

    /// Returns the path of the list of a file's pieces under a recipe.
    pub(super) fn list(&self, name: &str) -> PathBuf {
        self.lists().join(name)
    }

    /// Returns the path of a piece's tokens.
    pub(super) fn shard(&self, name: &str) -> PathBuf {
        self.shards().join(name)
    }

    /// Returns the folder of lists.
    pub(super) fn lists(&self) -> PathBuf {
        self.folder.join("lists")
    }

    /// Returns the folder of shards.
    pub(super) fn shards(&self) -> PathBuf {
        self.folder.join("shards")
    }

    /// Returns the path of a local copy of a remote file, which exists while it is read.
    #[cfg(feature = "parquet")]
    pub(super) fn fetched(&self, name: &str) -> PathBuf {
        self.fetches().join(name)
    }

    /// Returns the folder of local copies.
    pub(super) fn fetches(&self) -> PathBuf {
        self.folder.join("fetched")
    }

    /// Returns the folder of shards that are filled piece by piece during training.
    pub(super) fn drafts(&self) -> PathBuf {
        self.folder.join("drafts")
    }

    /// Returns the folder of leases: see [`super::lease::Lease`].
    pub(super) fn uses(&self) -> PathBuf {
        self.folder.join("uses")
    }

    /// Returns the path of the recorded size: see [`Self::make_room`].
    pub(super) fn size(&self) -> PathBuf {
        self.folder.join("size")
    }

    /// Takes the shared lock, which blocks pruning until the file is closed. Held only briefly.
    pub(super) fn together(&self) -> Result<File, DataError> {
        let (path, file) = self.open_lock()?;
        file.lock_shared().map_err(DataError::io("lock", &path))?;
        Ok(file)
    }

    /// Takes the exclusive lock, which blocks new uses until the file is closed.
    pub(super) fn alone(&self) -> Result<File, DataError> {
        let (path, file) = self.open_lock()?;
        file.lock().map_err(DataError::io("lock", &path))?;
        Ok(file)
    }

    fn open_lock(&self) -> Result<(PathBuf, File), DataError> {
        let path = self.folder.join("lock");
        let file = open_to_lock(&path)?;
        Ok((path, file))
    }
}

/// Returns the files of a folder.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let entries = std::fs::read_dir(folder).map_err(DataError::io("read folder", folder))?;
    entries.map(|entry| Ok(entry.map_err(DataError::io("read folder", folder))?.path())).collect()
}

/// Removes a file left behind by its maker. Returns false if the maker still runs: it then holds the lock.
pub(super) fn remove_left_behind(path: &Path) -> Result<bool, DataError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        file => file.map_err(DataError::io("open", path))?,
    };
    match file.try_lock() {
        // The maker may just have renamed it, and another process, which holds the lock, created it anew.
        Ok(()) if !is_at(&file, path) => Ok(false),
        Ok(()) => remove(path).map(|()| true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(DataError::io("lock", path)(error)),
    }
}

/// Whether the open file is the one that now has this name.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(now)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (now.dev(), now.ino())
}

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) -> Result<(), DataError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DataError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

pub(super) fn open_to_lock(path: &Path) -> Result<File, DataError> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    file.map_err(DataError::io("write", path))
}

/// Returns a document's content; `None`: absent or corrupt.
pub(super) fn read_document<T: Serialize + DeserializeOwned>(path: &Path) -> Result<Option<T>, DataError> {
    let bytes = match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > DOCUMENT_BYTES_MAX => return Ok(None),
        Ok(_) => std::fs::read(path),
        Err(error) => Err(error),
    };
    match bytes {
        Ok(bytes) => Ok(sealed::from_bytes(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DataError::io("read", path)(error)),
    }
}

/// Returns a document's bytes.
pub(super) fn document<T: Serialize>(content: &T, path: &Path) -> Result<Vec<u8>, DataError> {
    let text = sealed::to_text(content).map_err(|error| DataError::io("write", path)(error.into()))?;
    Ok(text.into_bytes())
}

/// Marks a file as used now: the least recently used is pruned first.
pub(super) fn touch(path: &Path) -> Result<(), DataError> {
    match open_to_touch(path)? {
        Some(file) => touch_open(&file, path),
        None => Err(DataError::io("touch", path)(io::ErrorKind::NotFound.into())),
    }
}

/// Opens a file to touch it later, once it proves useful; `None`: it is absent.
pub(super) fn open_to_touch(path: &Path) -> Result<Option<File>, DataError> {
    match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some).map_err(DataError::io("open", path)),
    }
}

/// Like [`touch`], for an open file.
pub(super) fn touch_open(file: &File, path: &Path) -> Result<(), DataError> {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    futimens(file, &times).map_err(|error| DataError::io("touch", path)(error.into()))
}
