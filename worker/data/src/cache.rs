//! The folder of prepared data: its files, and who may touch them when.
//!
//! Whoever names what it uses, or looks for it, holds the folder's lock together with others for that moment; whoever throws away holds it alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use longhaul_proto::checkpoint::sealed;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DataError;

/// Bytes of a list or stamp, at most: a list of ten million pieces.
const DOCUMENT_BYTES_MAX: u64 = 2 << 30;

/// Prepared data in the worker's cache folder.
pub(super) const FOLDER: &str = "data";
/// Folders in that.
const PARTS: [&str; 6] = ["stamps", "lists", "shards", "fetched", "drafts", "uses"];

/// Whether a folder is one of prepared data, in whichever cache.
pub(super) fn is_laid_out(folder: &Path) -> bool {
    PARTS.iter().all(|part| folder.join(part).is_dir())
}

/// A folder `data` in the worker's cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    /// What stamps, lists, shards and what is being made may take together.
    pub(super) bytes_max: Option<u64>,
}

impl Cache {
    /// The one in the worker's cache folder, which is made when it is not there.
    pub(super) fn open(cache: &Path, bytes_max: Option<u64>) -> Result<Self, DataError> {
        let folder = cache.join(FOLDER);
        for part in PARTS {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).map_err(DataError::io("create folder", &path))?;
        }
        Ok(Self { folder, bytes_max })
    }

    /// What is known of a file, by its place.
    pub(super) fn stamp(&self, name: &str) -> PathBuf {
        self.stamps().join(name)
    }

    /// The folder of stamps.
    pub(super) fn stamps(&self) -> PathBuf {
        self.folder.join("stamps")
    }

    /// The pieces of a file under a recipe.
    pub(super) fn list(&self, name: &str) -> PathBuf {
        self.lists().join(name)
    }

    /// The tokens of a piece.
    pub(super) fn shard(&self, name: &str) -> PathBuf {
        self.shards().join(name)
    }

    /// The folder of lists.
    pub(super) fn lists(&self) -> PathBuf {
        self.folder.join("lists")
    }

    /// That of shards.
    pub(super) fn shards(&self) -> PathBuf {
        self.folder.join("shards")
    }

    /// What a file elsewhere holds, as long as it is read.
    #[cfg(feature = "parquet")]
    pub(super) fn fetched(&self, name: &str) -> PathBuf {
        self.fetches().join(name)
    }

    /// The folder of those.
    pub(super) fn fetches(&self) -> PathBuf {
        self.folder.join("fetched")
    }

    /// The folder of what becomes shards piece by piece while it is trained on.
    pub(super) fn drafts(&self) -> PathBuf {
        self.folder.join("drafts")
    }

    /// That of what processes use: see [`super::lease::Lease`].
    pub(super) fn uses(&self) -> PathBuf {
        self.folder.join("uses")
    }

    /// How much room is taken: see [`Self::make_room`].
    pub(super) fn size(&self) -> PathBuf {
        self.folder.join("size")
    }

    /// Until the file is closed, nothing is thrown away. Held for moments only.
    pub(super) fn together(&self) -> Result<File, DataError> {
        let (path, file) = self.open_lock()?;
        file.lock_shared().map_err(DataError::io("lock", &path))?;
        Ok(file)
    }

    /// Until the file is closed, nobody begins to use anything.
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

/// The files of a folder.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let entries = std::fs::read_dir(folder).map_err(DataError::io("read folder", folder))?;
    entries.map(|entry| Ok(entry.map_err(DataError::io("read folder", folder))?.path())).collect()
}

/// Removes a file that its maker, who had it locked, left behind. Whether it did: it stays where the maker is there.
pub(super) fn remove_left_behind(path: &Path) -> Result<bool, DataError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        file => file.map_err(DataError::io("open", path))?,
    };
    match file.try_lock() {
        // Its maker may just have given it its name, and another one begun anew: that one has it locked.
        Ok(()) if !is_at(&file, path) => Ok(false),
        Ok(()) => remove(path).map(|()| true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(DataError::io("lock", path)(error)),
    }
}

/// Whether the file that is open is the one that has this name now.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(now)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (now.dev(), now.ino())
}

/// A file of that name is not there afterwards.
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

/// A document's content. None when it is not there, or not as it was written.
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

/// A document's bytes.
pub(super) fn document<T: Serialize>(content: &T, path: &Path) -> Result<Vec<u8>, DataError> {
    let text = sealed::to_text(content).map_err(|error| DataError::io("write", path)(error.into()))?;
    Ok(text.into_bytes())
}

/// Notes that a file is used now: what has not been used for longest is thrown away first.
pub(super) fn touch(path: &Path) -> Result<(), DataError> {
    match open_to_touch(path)? {
        Some(file) => touch_open(&file, path),
        None => Err(DataError::io("touch", path)(io::ErrorKind::NotFound.into())),
    }
}

/// A file to touch once it is known to be of use; none: it is not there.
pub(super) fn open_to_touch(path: &Path) -> Result<Option<File>, DataError> {
    match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some).map_err(DataError::io("open", path)),
    }
}

/// As [`touch`], of what was at this path when it was opened.
pub(super) fn touch_open(file: &File, path: &Path) -> Result<(), DataError> {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    futimens(file, &times).map_err(|error| DataError::io("touch", path)(error.into()))
}
