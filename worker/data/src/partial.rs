//! Files that are written under another name, and get theirs when they are complete and on the disk.

use std::fs::{File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::DataError;
use super::cache::{Cache, is_at, open_to_lock};
use super::owned::Owned;

/// What such a name ends with.
pub(super) const ENDING: &str = "partial";

/// What the smallest file takes, on most disks.
const DISK_BLOCK_BYTES: u64 = 1 << 12;

/// A file that becomes the one at a path, which nobody else writes meanwhile. Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Partial {
    // Goes first: it is removed as long as it is locked.
    owned: Owned,
    file: File,
}

impl Partial {
    /// The one of `path`. Waits for whoever has it.
    pub(super) fn lock(path: &Path) -> Result<Self, DataError> {
        let partial = path.with_extension(ENDING);
        loop {
            let file = open_to_lock(&partial)?;
            file.lock().map_err(DataError::io("lock", &partial))?;
            // Whoever had the lock before may have renamed or removed the file that this one waited for,
            if is_at(&file, &partial) {
                let owned = Owned::new(&partial)?;
                // or have died, and what it wrote counts no more.
                file.set_len(0).map_err(DataError::io("write", &partial))?;
                return Ok(Self { owned, file });
            }
        }
    }

    /// The one of `path`; none: somebody has it.
    pub(super) fn try_lock(path: &Path) -> Result<Option<Self>, DataError> {
        let partial = path.with_extension(ENDING);
        let file = open_to_lock(&partial)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, &partial) => Ok(Some(Self { owned: Owned::new(&partial)?, file })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(DataError::io("lock", &partial)(error)),
        }
    }

    /// Makes room for so many bytes that are about to be written.
    pub(super) fn take_room(&mut self, bytes: u64, cache: &Cache) -> Result<(), DataError> {
        cache.make_room(bytes, &self.file, self.owned.path())
    }

    /// The file itself.
    #[cfg(feature = "parquet")]
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Writes all of it, and gives it its name, once there is so much room.
    fn publish(mut self, path: &Path, bytes: &[u8], room: u64, cache: &Cache) -> Result<(), DataError> {
        self.take_room(room, cache)?;
        self.write(bytes).map_err(DataError::io("write", self.owned.path()))?;
        // Whoever counts what is there meets it under one name.
        let _together = cache.together()?;
        // The lock is given up after that: who waits for it must find what was made.
        self.owned.rename(path).map_err(DataError::io("rename to", path))
    }

    /// Writes its beginning, and gives it its name: the rest, of so many bytes in all, is written under that.
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

/// Opens what is at `path`, and makes it when `open` does not find it or finds it damaged. Who asks for the same at the same time, in whichever process, waits for the
/// first one to make it.
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
    // Somebody may have made it while this worker waited for the lock.
    if let Some(found) = open()? {
        return Ok(found);
    }
    let made = make()?;
    partial.publish(path, &made, made.len() as u64, cache)?;
    open()?.ok_or_else(|| DataError::Unreliable { path: path.to_owned() })
}

/// Writes a stamp anew: who reads it finds the old one or the new one. Where there is no room for it, it is not kept: nothing is lost but time.
pub(super) fn keep_stamp(path: &Path, bytes: &[u8], cache: &Cache) -> Result<(), DataError> {
    let room = (bytes.len() as u64).next_multiple_of(DISK_BLOCK_BYTES);
    match Partial::lock(path)?.publish(path, bytes, room, cache) {
        Err(DataError::NoRoom { .. }) => Ok(()),
        kept => kept,
    }
}
