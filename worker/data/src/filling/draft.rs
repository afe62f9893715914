//! The file that holds the images of a folder until they are in shards. All processes that use the folder fill it together.
//!
//! Layout: 64 bytes per piece (its shard's name and hash, and 16 bytes of the BLAKE3 of both, or zeros), 48 per image (the BLAKE3 of its file,
//! eight bytes of that of its sample, and eight that cover both and its kind, or zeros), then the samples, then room for the overhead of shards.
//! Samples are cut off from the end once they are in a shard. An entry without a valid hash counts as absent. Writers need no lock: all write the
//! same bytes.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::super::DataError;
use super::super::cache::{Cache, is_at, open_to_lock, remove};
use super::super::named::Named;

/// Bytes per entry of a piece.
const PIECE_BYTES: u64 = 64;
/// Bytes per entry of an image.
const IMAGE_BYTES: u64 = 48;
/// Bytes of a shard's name, as a number.
const NAME_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// Offsets in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) pieces: u64,
    pub(super) images: u64,
    pub(super) sample_bytes: u64,
    /// Bytes after the samples.
    pub(super) spare: u64,
}

impl Layout {
    fn image(&self, image: u64) -> u64 {
        self.pieces * PIECE_BYTES + image * IMAGE_BYTES
    }

    fn sample(&self, image: u64) -> u64 {
        self.image(self.images) + image * self.sample_bytes
    }
}

/// The state of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Its sample was written.
    Decoded = 1,
    /// It cannot be decoded.
    Bad = 2,
    /// It is in a shard that existed before.
    Found = 3,
}

/// The entry of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) digest: blake3::Hash,
    pub(super) kind: Kind,
    check: [u8; 8],
}

/// The file, which stays as long as a process has it open.
#[derive(Debug)]
pub(super) struct Draft {
    file: File,
    path: PathBuf,
    layout: Layout,
}

impl Draft {
    /// Opens the draft at a path, or creates it if none exists or `is_whole` rejects it. Reserves room for all of it.
    pub(super) fn open(
        path: PathBuf,
        layout: Layout,
        cache: &Cache,
        is_whole: impl Fn(&Self) -> Result<bool, DataError>,
    ) -> Result<Self, DataError> {
        loop {
            let draft = Self { file: open_to_lock(&path)?, path: path.clone(), layout };
            match draft.file.try_lock() {
                // Its last user has removed it.
                Ok(()) if !is_at(&draft.file, &path) => continue,
                Ok(()) if draft.is_begun()? && is_whole(&draft)? => {}
                Ok(()) => draft.begin(cache)?,
                // Other processes use it.
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(DataError::io("lock", &path)(error)),
            }
            draft.file.lock_shared().map_err(DataError::io("lock", &path))?;
            // It may have been removed in between, or its creator may have failed.
            if is_at(&draft.file, &path) && draft.is_begun()? {
                return Ok(draft);
            }
        }
    }

    fn is_begun(&self) -> Result<bool, DataError> {
        let metadata = self.file.metadata().map_err(DataError::io("read", &self.path))?;
        Ok(metadata.len() >= self.layout.sample(0))
    }

    fn begin(&self, cache: &Cache) -> Result<(), DataError> {
        let begun = self.take_room(cache);
        if begun.is_err() {
            remove(&self.path)?;
        }
        begun
    }

    fn take_room(&self, cache: &Cache) -> Result<(), DataError> {
        let bytes = self.layout.sample(self.layout.images) + self.layout.spare;
        self.file.set_len(0).map_err(DataError::io("write", &self.path))?;
        cache.make_room(bytes, &self.file, &self.path)?;
        let allocate = || fallocate(&self.file, FallocateFlags::empty(), 0, bytes);
        let allocated = match allocate() {
            Err(Errno::NOSPC | Errno::DQUOT) => {
                // Leftovers of other processes may hold the room.
                cache.sweep()?;
                allocate()
            }
            allocated => allocated,
        };
        match allocated {
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                Err(DataError::io("write", &self.path)(error.into()))
            }
            // Some file systems cannot reserve room.
            _ => Ok(()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the shard of a piece; `None`: not sealed yet.
    pub(super) fn sealed(&self, piece: u64) -> Result<Option<Named>, DataError> {
        let mut bytes = [0; PIECE_BYTES as usize];
        let is_there = self.fill(&mut bytes, piece * PIECE_BYTES)?;
        let (named, check) = bytes.split_at(NAME_BYTES + HASH_BYTES);
        if !is_there || check != piece_check(piece, named) {
            return Ok(None);
        }
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (name, hash) = named.split_at(NAME_BYTES);
        Ok(Some(Named { name: hex(name), hash: hex(hash) }))
    }

    /// Records the shard of a piece, whose samples are no longer needed.
    pub(super) fn seal(&self, piece: u64, name: &str, hash: [u8; HASH_BYTES]) -> Result<(), DataError> {
        let number = u128::from_str_radix(name, 16).map_err(io::Error::other);
        let number = number.map_err(DataError::io("write", &self.path))?;
        let mut bytes = [&number.to_be_bytes()[..], &hash].concat();
        bytes.extend(piece_check(piece, &bytes));
        self.put(&bytes, piece * PIECE_BYTES)
    }

    /// Frees the room of an image's sample and of all after it.
    pub(super) fn cut(&self, image: u64) -> Result<(), DataError> {
        let (bytes, metadata) = (self.layout.sample(image), self.file.metadata());
        let is_longer = metadata.map_err(DataError::io("read", &self.path))?.len() > bytes;
        let cut = if is_longer { self.file.set_len(bytes) } else { Ok(()) };
        cut.map_err(DataError::io("write", &self.path))
    }

    /// Whether the file still has its name. The process that finishes the last shard removes it.
    pub(super) fn is_there(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// Unlinks the file. Processes that have it open can still read its entries.
    pub(super) fn remove(&self) -> Result<(), DataError> {
        if self.is_there() { remove(&self.path) } else { Ok(()) }
    }

    /// Returns the entry of an image; `None`: nothing is known.
    pub(super) fn noted(&self, image: u64) -> Result<Option<Noted>, DataError> {
        let mut bytes = [0; IMAGE_BYTES as usize];
        if !self.fill(&mut bytes, self.layout.image(image))? {
            return Ok(None);
        }
        let kind = match bytes[40] & 3 {
            1 => Kind::Decoded,
            2 => Kind::Bad,
            3 => Kind::Found,
            _ => return Ok(None),
        };
        let digest = blake3::Hash::from_bytes(*bytes.first_chunk().unwrap_or(&[0; HASH_BYTES]));
        let mut check = [0; 8];
        check.copy_from_slice(&bytes[HASH_BYTES..40]);
        let noted = Noted { digest, kind, check };
        Ok((noted.bytes(image) == bytes).then_some(noted))
    }

    /// Records the state of an image.
    pub(super) fn note(&self, image: u64, digest: blake3::Hash, kind: Kind) -> Result<(), DataError> {
        let noted = Noted { digest, kind, check: [0; 8] };
        self.put(&noted.bytes(image), self.layout.image(image))
    }

    /// Stores an image's sample.
    pub(super) fn keep(&self, image: u64, digest: blake3::Hash, sample: &[u8]) -> Result<(), DataError> {
        self.put(sample, self.layout.sample(image))?;
        let noted = Noted { digest, kind: Kind::Decoded, check: sample_check(sample) };
        self.put(&noted.bytes(image), self.layout.image(image))
    }

    /// Appends an image's sample and returns whether all of it is there. The caller checks afterwards that it was not cut off ([`Self::sealed`]).
    pub(super) fn read(&self, image: u64, into: &mut Vec<u8>) -> Result<bool, DataError> {
        let before = into.len();
        into.resize(before + self.layout.sample_bytes as usize, 0);
        let is_there = self.fill(&mut into[before..], self.layout.sample(image))?;
        if !is_there {
            into.truncate(before);
        }
        Ok(is_there)
    }

    /// The same if the sample, from any process, matches its checksum.
    pub(super) fn read_checked(
        &self,
        image: u64,
        noted: &Noted,
        into: &mut Vec<u8>,
    ) -> Result<bool, DataError> {
        let before = into.len();
        let is_sound = noted.kind == Kind::Decoded
            && self.read(image, into)?
            && sample_check(&into[before..]) == noted.check;
        if !is_sound {
            into.truncate(before);
        }
        Ok(is_sound)
    }

    /// Whether the file had enough bytes.
    fn fill(&self, bytes: &mut [u8], at: u64) -> Result<bool, DataError> {
        match self.file.read_exact_at(bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| true).map_err(DataError::io("read", &self.path)),
        }
    }

    fn put(&self, bytes: &[u8], at: u64) -> Result<(), DataError> {
        self.file.write_all_at(bytes, at).map_err(DataError::io("write", &self.path))
    }
}

impl Noted {
    /// Encodes the entry of this image.
    fn bytes(&self, image: u64) -> [u8; IMAGE_BYTES as usize] {
        let mut bytes = [0; IMAGE_BYTES as usize];
        bytes[..HASH_BYTES].copy_from_slice(self.digest.as_bytes());
        bytes[HASH_BYTES..40].copy_from_slice(&self.check);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&image.to_le_bytes()).update(&[self.kind as u8]).update(&bytes[..40]);
        bytes[40..].copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        bytes[40] = bytes[40] & !3 | self.kind as u8;
        bytes
    }
}

fn piece_check(piece: u64, named: &[u8]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&piece.to_le_bytes()).update(named);
    let mut check = [0; 16];
    check.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    check
}

fn sample_check(sample: &[u8]) -> [u8; 8] {
    let mut check = [0; 8];
    check.copy_from_slice(&blake3::hash(sample).as_bytes()[..8]);
    check
}
