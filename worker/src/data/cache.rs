//! The folder of prepared data: its files, and who may touch them when.
//!
//! Whoever makes or opens something holds the folder's lock together with others; whoever throws away holds it alone. What is in use is locked as long as
//! it is: the list of a file's pieces, for all its shards.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use longhaul_proto::checkpoint::sealed;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DataError;

/// Bytes of a list or stamp, at most: a list of ten million pieces.
const DOCUMENT_BYTES_MAX: u64 = 2 << 30;

/// A folder `data` in the worker's cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The one in the worker's cache folder, which is made when it is not there.
    pub(super) fn open(cache: &Path) -> Result<Self, DataError> {
        let folder = cache.join("data");
        for part in ["stamps", "lists", "shards"] {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).map_err(DataError::io("create folder", &path))?;
        }
        Ok(Self { folder })
    }

    /// What is known of a file, by its place.
    pub(super) fn stamp(&self, name: &str) -> PathBuf {
        self.folder.join("stamps").join(name)
    }

    /// Nothing is made or opened until the file is closed. None: somebody makes or opens something just now.
    pub(super) fn stop_all(&self) -> Result<Option<File>, DataError> {
        let path = self.folder.join("lock");
        let file = open_to_lock(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(DataError::io("lock", &path)(error)),
        }
    }

    /// The folder of lists, and that of shards.
    pub(super) fn folders(&self) -> [PathBuf; 2] {
        [self.folder.join("lists"), self.folder.join("shards")]
    }

    /// The pieces of a file under a recipe.
    pub(super) fn list(&self, name: &str) -> PathBuf {
        self.folder.join("lists").join(name)
    }

    /// The tokens of a piece.
    pub(super) fn shard(&self, name: &str) -> PathBuf {
        self.folder.join("shards").join(name)
    }

    /// Until the file is closed, nothing is thrown away.
    pub(super) fn keep_all(&self) -> Result<File, DataError> {
        let path = self.folder.join("lock");
        let file = open_to_lock(&path)?;
        file.lock_shared().map_err(DataError::io("lock", &path))?;
        Ok(file)
    }
}

/// Opens what is at `path`, and makes it when `open` does not find it or finds it damaged. Who asks for the same at the same time, in whichever process, waits for the
/// first one to make it.
pub(super) fn make_once<T>(
    path: &Path,
    open: impl Fn() -> Result<Option<T>, DataError>,
    make: impl FnOnce() -> Result<Vec<u8>, DataError>,
) -> Result<T, DataError> {
    if let Some(found) = open()? {
        return Ok(found);
    }
    let (partial, file) = lock_partial(path)?;
    // Somebody may have made it while this worker waited for the lock.
    if let Some(found) = open()? {
        // What is left of it would be written over by the next one.
        let _ = std::fs::remove_file(&partial);
        return Ok(found);
    }
    let bytes = make()?;
    publish(file, &partial, path, &bytes)?;
    open()?.ok_or_else(|| DataError::Unreliable { path: path.to_owned() })
}

/// Writes a file anew: who reads it finds the old one or the new one.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let (partial, file) = lock_partial(path)?;
    publish(file, &partial, path, bytes)
}

fn publish(mut file: File, partial: &Path, path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    write_whole(&mut file, bytes).map_err(DataError::io("write", partial))?;
    std::fs::rename(partial, path).map_err(DataError::io("rename to", path))?;
    // Not earlier: who waits for the lock must find what was made.
    drop(file);
    Ok(())
}

fn write_whole(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The file that becomes the one at `path`, which nobody else writes as long as it is open.
fn lock_partial(path: &Path) -> Result<(PathBuf, File), DataError> {
    let partial = path.with_extension("partial");
    loop {
        let file = open_to_lock(&partial)?;
        file.lock().map_err(DataError::io("lock", &partial))?;
        let locked = file.metadata().map_err(DataError::io("lock", &partial))?;
        // Whoever had the lock before may have renamed or removed the file that this one waited for.
        if std::fs::metadata(&partial).is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino()))
        {
            return Ok((partial, file));
        }
    }
}

fn open_to_lock(path: &Path) -> Result<File, DataError> {
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
pub(super) fn touch(file: &File, path: &Path) -> Result<(), DataError> {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    futimens(file, &times).map_err(|error| DataError::io("touch", path)(error.into()))
}
