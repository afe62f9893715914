//! Stamps that identify a file's content without reading all of it each time.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cache::{Cache, document, open_to_touch, read_document, touch_open};
use super::partial::keep_stamp;
use super::work::FileWork;
use super::{DataError, folder};

/// Seconds before its stamp within which a file may have been written again in the same tick of its clock.
const RACY_S: i64 = 2;
/// Bytes hashed between checks for a stop.
const HASHED_AT_ONCE: usize = 1 << 20;

/// The identity of a file's bytes, valid while the operating system reports no write since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    state: FileState,
    /// Absent in stamps of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<Changed>,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub(super) hash: String,
}

/// Attributes that change when a file, or one of an image folder, is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    pub(super) bytes: u64,
    pub(super) modified_s: i64,
    pub(super) modified_ns: i64,
    pub(super) inode: u64,
}

/// Time of the last change of a file's content or attributes (`ctime`). Programs can reset a file's `mtime`, but not this. Renames, links and `chmod` also
/// set it, so only stamps store it: if nothing else changed, the file is hashed again, and is still prepared if its bytes are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changed {
    pub(super) s: i64,
    pub(super) ns: i64,
}

/// Metadata of a file, or of a folder of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) state: FileState,
    pub(super) changed: Changed,
}

impl FileState {
    pub(super) fn of(path: &Path) -> Result<Self, DataError> {
        Seen::of(path).map(|seen| seen.state)
    }
}

impl Seen {
    fn of(path: &Path) -> Result<Self, DataError> {
        let metadata = std::fs::metadata(path).map_err(DataError::io("open", path))?;
        if metadata.is_dir() { folder::seen(path) } else { Ok(Self::from(&metadata)) }
    }

    /// Whether a stamp matches this metadata.
    fn fits(&self, stamp: &Stamp) -> bool {
        (&self.state, Some(self.changed)) == (&stamp.state, stamp.changed)
    }
}

impl From<&Metadata> for Seen {
    fn from(metadata: &Metadata) -> Self {
        Self {
            state: FileState::from(metadata),
            changed: Changed { s: metadata.ctime(), ns: metadata.ctime_nsec() },
        }
    }
}

impl From<&Metadata> for FileState {
    fn from(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            inode: metadata.ino(),
        }
    }
}

impl Stamp {
    /// Returns the stamp of a file, which is read if it is unknown or may have changed.
    pub(super) fn of(path: &Path, cache: &Cache, work: &mut FileWork<'_>) -> Result<Self, DataError> {
        let seen = Seen::of(path)?;
        if let Some(known) = Self::sure(path, &seen, cache)? {
            return Ok(known);
        }
        let hash = hash(path, work)?;
        if FileState::of(path)? != seen.state {
            return Err(DataError::Changed { path: path.to_owned() });
        }
        Self::keep(path, seen, hash, cache)
    }

    /// Stores the hash of a file, with its metadata from before the read.
    pub(super) fn keep(path: &Path, seen: Seen, hash: String, cache: &Cache) -> Result<Self, DataError> {
        let Seen { state, changed } = seen;
        let (stamp, read) = (Self::place(path, cache)?, Self { state, changed: Some(changed), hash });
        keep_stamp(&stamp, &document(&read, &stamp)?, cache)?;
        Ok(read)
    }

    /// Returns the existing stamp if it matches this metadata and a later write is excluded.
    pub(super) fn sure(path: &Path, seen: &Seen, cache: &Cache) -> Result<Option<Self>, DataError> {
        let stamp = Self::place(path, cache)?;
        let Some(file) = open_to_touch(&stamp)? else { return Ok(None) };
        let written = file.metadata().map_err(DataError::io("read", &stamp))?;
        if seen.state.modified_s + RACY_S >= written.mtime() {
            return Ok(None);
        }
        let known = read_document::<Self>(&stamp)?.filter(|known| seen.fits(known));
        // A file old enough at its stamp is old enough at the touch.
        if known.is_some() {
            touch_open(&file, &stamp)?;
        }
        Ok(known)
    }

    /// Returns the existing stamp if it matches the file. Neither reads the file nor writes anything.
    pub(super) fn known(path: &Path, cache: &Cache) -> Result<Option<Self>, DataError> {
        let seen = Seen::of(path)?;
        let known = read_document::<Self>(&Self::place(path, cache)?)?;
        Ok(known.filter(|known| seen.fits(known)))
    }

    /// Returns the existing stamp if it matches except for the time of the last change: the bytes may be the same.
    pub(super) fn likely(path: &Path, seen: &Seen, cache: &Cache) -> Result<Option<Self>, DataError> {
        let known = read_document::<Self>(&Self::place(path, cache)?)?;
        Ok(known.filter(|known| known.state == seen.state))
    }

    fn place(path: &Path, cache: &Cache) -> Result<PathBuf, DataError> {
        Ok(cache.stamp(&Self::name(path)?))
    }

    /// Returns the name of a file's stamp.
    pub(super) fn name(path: &Path) -> Result<String, DataError> {
        let absolute = std::path::absolute(path).map_err(DataError::io("find", path))?;
        Ok(blake3::hash(absolute.as_os_str().as_encoded_bytes()).to_hex()[..32].to_owned())
    }
}

fn hash(path: &Path, work: &mut FileWork<'_>) -> Result<String, DataError> {
    if path.is_dir() {
        return folder::hash(path, work);
    }
    let mut file = File::open(path).map_err(DataError::io("open", path))?;
    let (mut hasher, mut buffer, mut hashed) = (blake3::Hasher::new(), vec![0; HASHED_AT_ONCE], 0);
    loop {
        work.goes_on()?;
        let read = file.read(&mut buffer).map_err(DataError::io("read", path))?;
        if read == 0 {
            return Ok(hasher.finalize().to_hex().to_string());
        }
        hasher.update(&buffer[..read]);
        hashed += read as u64;
        work.has_hashed(hashed);
    }
}
