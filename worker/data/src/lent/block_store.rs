//! Shards in the cache whose blocks come one by one.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_common::config::DataConfig;

use super::super::cache::{Cache, remove, touch};
use super::super::lease::Lease;
use super::super::partial::Partial;
use super::super::shard::{Head, Shard};
use super::super::{DataError, Tokenizer};
use super::items::Items;
use super::{BlockName, Catalogue};

/// Why something is not the block that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTheBlock {
    /// Nobody may ask for it.
    #[error("the run's data has no such block")]
    Unknown,
    /// The head is not what the catalogue's hash is of.
    #[error("its head is not the one that the catalogue names")]
    Head,
    /// It is too short or too long.
    #[error("it has {found} bytes, and not {wanted}")]
    Length {
        /// What came.
        found: usize,
        /// What it has.
        wanted: usize,
    },
    /// It has another hash than the head says.
    #[error("its bytes have another hash")]
    Bytes,
    /// It is the block that the run's data has, and no model can be given that.
    #[error("it has tokens beyond the vocabulary, or classes that there are not")]
    Items,
}

/// The shards of a catalogue, of which those blocks are in the cache that were fetched. A block that is not there is a hole of zeros, which has another hash than the head says:
/// so nothing has to note what is there, and what is damaged is fetched like what is missing.
#[derive(Debug)]
pub struct BlockStore {
    cache: Cache,
    items: Items,
    /// Items of each.
    shards: HashMap<[u8; 32], u64>,
    /// Held while something is written.
    writing: Mutex<()>,
    /// So that nobody throws them away.
    _lease: Lease,
}

impl BlockStore {
    /// Of this catalogue of the data of `config`, in the worker's folder `cache`, which may hold so many bytes.
    ///
    /// # Errors
    /// The folder cannot be written to, or the catalogue cannot be of such data.
    pub fn open(
        config: &DataConfig,
        catalogue: &Catalogue,
        tokenizer: &Tokenizer,
        (cache, bytes_max): (&Path, Option<u64>),
    ) -> Result<Arc<Self>, DataError> {
        let items = Items::of(config, tokenizer);
        catalogue.fits(items.bytes)?;
        let cache = Cache::open(cache, bytes_max)?;
        cache.sweep()?;
        let lease = Lease::new(&cache)?;
        let shards: HashMap<[u8; 32], u64> =
            catalogue.shards().map(|shard| (shard.hash, shard.items)).collect();
        lease.shards(shards.keys().map(shard_name))?;
        for shard in shards.keys() {
            // No list says when they were used last.
            touch_if_there(&cache.shard(&shard_name(shard)))?;
        }
        Ok(Arc::new(Self { cache, items, shards, writing: Mutex::default(), _lease: lease }))
    }

    pub(in super::super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// What its shards have one after the other.
    pub(in super::super) fn items(&self) -> Items {
        self.items
    }

    /// Whether a block is in the cache as it has to be: all of it is read.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn has(&self, name: BlockName) -> Result<bool, DataError> {
        let shard = Shard::map(&self.path(name))?.filter(|shard| shard.hash() == name.shard);
        Ok(shard.is_some_and(|shard| shard.block(name.block as usize).is_ok()))
    }

    /// Whether somebody has sent what was asked for: the head of a shard, and a block.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, name: BlockName, head: &[u8], bytes: &[u8]) -> Result<(), NotTheBlock> {
        let items = *self.shards.get(&name.shard).ok_or(NotTheBlock::Unknown)?;
        let found = Head::parse(head).ok_or(NotTheBlock::Head)?;
        if !found.is_of(name.shard, items, self.items.bytes) {
            return Err(NotTheBlock::Head);
        }
        let place = found.place(name.block as usize).ok_or(NotTheBlock::Unknown)?;
        if bytes.len() != place.len() {
            return Err(NotTheBlock::Length { found: bytes.len(), wanted: place.len() });
        }
        let is_block = found.block_hash(name.block as usize) == Some(blake3::hash(bytes));
        match (is_block, self.items.are_sound(place.start, bytes)) {
            (false, _) => Err(NotTheBlock::Bytes),
            (true, false) => Err(NotTheBlock::Items),
            (true, true) => Ok(()),
        }
    }

    /// Bytes of a shard's head; none: the run's data has no such shard.
    #[must_use]
    pub fn head_bytes(&self, shard: &[u8; 32]) -> Option<usize> {
        self.shards.get(shard).map(|items| Head::bytes_of(*items, self.items.bytes))
    }

    /// Writes a block that was checked. With the first one of a shard, room is made for all of it.
    ///
    /// # Errors
    /// There is no room, or the disk fails.
    pub fn keep(&self, name: BlockName, head: &[u8], bytes: &[u8]) -> Result<(), DataError> {
        let Some((found, place)) =
            Head::parse(head).and_then(|found| Some((found, found.place(name.block as usize)?)))
        else {
            return Err(Catalogue::refused("it has no such block"));
        };
        let path = self.path(name);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match begun(&path, head, found.file_bytes())? {
            Some(file) => file,
            None => self.begin(&path, head, found.file_bytes())?,
        };
        // Nobody reads a block before it was found to have its hash, and what another process of this folder writes there are the same bytes.
        file.write_all_at(bytes, (head.len() + place.start) as u64).map_err(DataError::io("write", &path))
    }

    /// A file for a shard, with a head and holes.
    fn begin(&self, path: &Path, head: &[u8], bytes: u64) -> Result<File, DataError> {
        let partial = Partial::lock(path)?;
        // Another process may have made it while this one waited.
        if let Some(file) = begun(path, head, bytes)? {
            return Ok(file);
        }
        // Whoever has a damaged one mapped keeps it.
        remove(path)?;
        partial.publish_holed(path, head, bytes, &self.cache)?;
        begun(path, head, bytes)?.ok_or_else(|| DataError::Unreliable { path: path.to_owned() })
    }

    fn path(&self, name: BlockName) -> PathBuf {
        self.cache.shard(&shard_name(&name.shard))
    }
}

/// What a shard that was fetched is called: never as one that was made here, whose name says which text it is of, as no peer can be trusted to know.
pub(in super::super) fn shard_name(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex()[..32].to_owned()
}

fn touch_if_there(path: &Path) -> Result<(), DataError> {
    match touch(path) {
        Err(DataError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        touched => touched,
    }
}

/// A shard's file, where it is there with this head.
fn begun(path: &Path, head: &[u8], bytes: u64) -> Result<Option<File>, DataError> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io("open", path)(error)),
    };
    if file.metadata().map_err(DataError::io("read", path))?.len() != bytes {
        return Ok(None);
    }
    let mut found = vec![0; head.len()];
    file.read_exact_at(&mut found, 0).map_err(DataError::io("read", path))?;
    Ok((found == head).then_some(file))
}
