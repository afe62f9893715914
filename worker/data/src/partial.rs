//! Files written under a temporary name, and renamed once they are complete and on disk.

use std::fs::{File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::DataError;
use super::cache::{Cache, is_at, open_to_lock};
use super::owned::Owned;

/// Extension of the temporary name.
pub(super) const ENDING: &str = "partial";

/// Bytes of the smallest file on most disks.
const DISK_BLOCK_BYTES: u64 = 1 << 12;

/// A locked file that becomes the one at a path. It is removed on drop.
#[derive(Debug)]
pub(super) struct Partial {
    // Dropped first: the file is removed while it is locked.
    owned: Owned,
    file: File,
}

impl Partial {
    /// Locks the one of `path`. Waits for the current holder.
    pub(super) fn lock(path: &Path) -> Result<Self, DataError> {
        let partial = path.with_extension(ENDING);
        loop {
            let file = open_to_lock(&partial)?;
            file.lock().map_err(DataError::io("lock", &partial))?;
            // The previous holder may have renamed or removed the file during the wait,
            if is_at(&file, &partial) {
                let owned = Owned::new(&partial)?;
                // or it died, and its bytes are void.
                file.set_len(0).map_err(DataError::io("write", &partial))?;
                return Ok(Self { owned, file });
            }
        }
    }

    /// Locks the one of `path`; `None`: it is held elsewhere.
    pub(super) fn try_lock(path: &Path) -> Result<Option<Self>, DataError> {
        let partial = path.with_extension(ENDING);
        let file = open_to_lock(&partial)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, &partial) => Ok(Some(Self { owned: Owned::new(&partial)?, file })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(DataError::io("lock", &partial)(error)),
        }
    }

    /// Makes room for bytes about to be written.
    pub(super) fn take_room(&mut self, bytes: u64, cache: &Cache) -> Result<(), DataError> {
        cache.make_room(bytes, &self.file, self.owned.path())
    }

    /// Returns the file itself.
    #[cfg(feature = "parquet")]
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Makes `room` bytes of room, writes the content, and renames the file.
    fn publish(mut self, path: &Path, bytes: &[u8], room: u64, cache: &Cache) -> Result<(), DataError> {
        self.take_room(room, cache)?;
        self.write(bytes).map_err(DataError::io("write", self.owned.path()))?;
        // A concurrent count of the cache sees it under one name only.
        let _together = cache.together()?;
        // The lock is released afterwards: a waiting process must find the finished file.
        self.owned.rename(path).map_err(DataError::io("rename to", path))
    }

    /// Writes its head and renames it; the rest, of `bytes` in all, is written under the final name.
    pub(super) fn publish_holed(
        mut self,
        path: &Path,
        head: &[u8],
        bytes: u64,
        cache: &Cache,
    ) -> Result<(), DataError> {
        self.file.set_len(0).map_err(DataError::io("write", self.owned.path()))?;
        self.take_room(bytes, cache)?;
        let written = self.file.set_len(bytes).and_then(|()| self.file.write_all_at(head, 0));
        written.and_then(|()| self.file.sync_all()).map_err(DataError::io("write", self.owned.path()))?;
        let _together = cache.together()?;
        self.owned.rename(path).map_err(DataError::io("rename to", path))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.set_len(bytes.len() as u64)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(bytes)?;
        self.file.sync_all()
    }
}

/// Opens the file at `path`, or makes it if `open` finds it missing or damaged. Concurrent callers in any process wait for the first one to make it.
pub(super) fn make_once<T>(
    path: &Path,
    cache: &Cache,
    open: impl Fn() -> Result<Option<T>, DataError>,
    make: impl FnOnce() -> Result<Vec<u8>, DataError>,
) -> Result<T, DataError> {
    if let Some(found) = open()? {
        return Ok(found);
    }
    let partial = Partial::lock(path)?;
    // Another process may have made it while this one waited for the lock.
    if let Some(found) = open()? {
        return Ok(found);
    }
    let made = make()?;
    partial.publish(path, &made, made.len() as u64, cache)?;
    open()?.ok_or_else(|| DataError::Unreliable { path: path.to_owned() })
}

/// Replaces a stamp atomically. Without room it is not kept: the only loss is time.
pub(super) fn keep_stamp(path: &Path, bytes: &[u8], cache: &Cache) -> Result<(), DataError> {
    let room = (bytes.len() as u64).next_multiple_of(DISK_BLOCK_BYTES);
    match Partial::lock(path)?.publish(path, bytes, room, cache) {
        Err(DataError::NoRoom { .. }) => Ok(()),
        kept => kept,
    }
}
