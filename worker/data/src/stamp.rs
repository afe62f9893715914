//! What a file holds, without reading all of it each time.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cache::{Cache, document, open_to_touch, read_document, touch_open};
use super::partial::keep_stamp;
use super::work::FileWork;
use super::{DataError, folder};

/// A file that was written within so many seconds before its stamp may have been written again within the same tick of its clock.
const RACY_S: i64 = 2;
/// Bytes that are hashed at a time: a stop waits for no more.
const HASHED_AT_ONCE: usize = 1 << 20;

/// A file's bytes, as long as the system says that it was not written since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    state: State,
    /// Versions before did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<Changed>,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub(super) hash: String,
}

/// What changes when a file is written, or one of a folder of images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) bytes: u64,
    pub(super) modified_s: i64,
    pub(super) modified_ns: i64,
    pub(super) inode: u64,
}

/// When the system last changed a file's content or attributes (`ctime`). Programs can put a file's time back, and not this one. Renames, links and `chmod` set it as well, so a stamp
/// alone has it: where nothing else is new, the file is hashed again, and found prepared where its bytes are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changed {
    pub(super) s: i64,
    pub(super) ns: i64,
}

/// What the system says of a file, or of a folder of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) state: State,
    pub(super) changed: Changed,
}

impl State {
    pub(super) fn of(path: &Path) -> Result<Self, DataError> {
        Seen::of(path).map(|seen| seen.state)
    }
}

impl Seen {
    fn of(path: &Path) -> Result<Self, DataError> {
        let metadata = std::fs::metadata(path).map_err(DataError::io("open", path))?;
        if metadata.is_dir() { folder::seen(path) } else { Ok(Self::from(&metadata)) }
    }

    /// Whether a stamp is of what was seen.
    fn fits(&self, stamp: &Stamp) -> bool {
        (&self.state, Some(self.changed)) == (&stamp.state, stamp.changed)
    }
}

impl From<&Metadata> for Seen {
    fn from(metadata: &Metadata) -> Self {
        Self {
            state: State::from(metadata),
            changed: Changed { s: metadata.ctime(), ns: metadata.ctime_nsec() },
        }
    }
}

impl From<&Metadata> for State {
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
    /// The stamp of a file, which is read where it is not known or may have changed.
    pub(super) fn of(path: &Path, cache: &Cache, work: &mut FileWork<'_>) -> Result<Self, DataError> {
        let seen = Seen::of(path)?;
        if let Some(known) = Self::sure(path, &seen, cache)? {
            return Ok(known);
        }
        let hash = hash(path, work)?;
        if State::of(path)? != seen.state {
            return Err(DataError::Changed { path: path.to_owned() });
        }
        Self::keep(path, seen, hash, cache)
    }

    /// Notes what a file holds that was seen so before it was read.
    pub(super) fn keep(path: &Path, seen: Seen, hash: String, cache: &Cache) -> Result<Self, DataError> {
        let Seen { state, changed } = seen;
        let (stamp, read) = (Self::place(path, cache)?, Self { state, changed: Some(changed), hash });
        keep_stamp(&stamp, &document(&read, &stamp)?, cache)?;
        Ok(read)
    }

    /// The stamp that is there, if it fits a file that is seen so, and the file cannot have been written again since.
    pub(super) fn sure(path: &Path, seen: &Seen, cache: &Cache) -> Result<Option<Self>, DataError> {
        let stamp = Self::place(path, cache)?;
        let Some(file) = open_to_touch(&stamp)? else { return Ok(None) };
        let written = file.metadata().map_err(DataError::io("read", &stamp))?;
        if seen.state.modified_s + RACY_S >= written.mtime() {
            return Ok(None);
        }
        let known = read_document::<Self>(&stamp)?.filter(|known| seen.fits(known));
        // What was written long enough before it was stamped was so before it is touched, too.
        if known.is_some() {
            touch_open(&file, &stamp)?;
        }
        Ok(known)
    }

    /// The stamp that is there, if it fits the file as it is: nothing is read or written.
    pub(super) fn known(path: &Path, cache: &Cache) -> Result<Option<Self>, DataError> {
        let seen = Seen::of(path)?;
        let known = read_document::<Self>(&Self::place(path, cache)?)?;
        Ok(known.filter(|known| seen.fits(known)))
    }

    /// The stamp that is there, if it fits but for the time of the last change: the bytes may be the same.
    pub(super) fn likely(path: &Path, seen: &Seen, cache: &Cache) -> Result<Option<Self>, DataError> {
        let known = read_document::<Self>(&Self::place(path, cache)?)?;
        Ok(known.filter(|known| known.state == seen.state))
    }

    fn place(path: &Path, cache: &Cache) -> Result<PathBuf, DataError> {
        Ok(cache.stamp(&Self::name(path)?))
    }

    /// What the stamp of a file is called.
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
