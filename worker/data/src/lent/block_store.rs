//! Shards in the cache whose blocks arrive one by one.

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

/// The reason why a payload is not the requested block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTheBlock {
    /// The block is not part of the run's data.
    #[error("the run's data has no such block")]
    Unknown,
    /// The head does not match the catalogue's hash.
    #[error("its head differs from the one in the catalogue")]
    Head,
    /// It is too short or too long.
    #[error("it has {found} bytes, and not {wanted}")]
    Length {
        /// Bytes received.
        found: usize,
        /// Bytes expected.
        wanted: usize,
    },
    /// Its hash differs from that in the head.
    #[error("its bytes have another hash")]
    Bytes,
    /// It is the right block, but no model can use its items.
    #[error("it has tokens beyond the vocabulary, or classes that do not exist")]
    Items,
}

/// The shards of a catalogue, with the fetched blocks in the cache. A missing block is a hole of zeros, whose hash differs from that in the head:
/// no list of present blocks is needed, and damaged blocks are fetched like missing ones.
#[derive(Debug)]
pub struct BlockStore {
    cache: Cache,
    items: Items,
    /// Items of each shard, by its hash.
    shards: HashMap<[u8; 32], u64>,
    /// Held during writes.
    writing: Mutex<()>,
    /// Protects the shards from eviction.
    _lease: Lease,
}

impl BlockStore {
    /// Opens the shards of this catalogue of the data of `config` in the worker's size-limited folder `cache`.
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
            // No list records their last use.
            touch_if_there(&cache.shard(&shard_name(shard)))?;
        }
        Ok(Arc::new(Self { cache, items, shards, writing: Mutex::default(), _lease: lease }))
    }

    pub(in super::super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the kind of items in its shards.
    pub(in super::super) fn items(&self) -> Items {
        self.items
    }

    /// Whether a valid block is in the cache. Reads all of it.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn has(&self, name: BlockName) -> Result<bool, DataError> {
        let shard = Shard::map(&self.path(name))?.filter(|shard| shard.hash() == name.shard);
        Ok(shard.is_some_and(|shard| shard.block(name.block as usize).is_ok()))
    }

    /// Checks a received head of a shard and a block against the request.
    ///
    /// # Errors
    /// The payload is not the requested block.
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

    /// Returns the bytes of a shard's head; `None`: the run's data has no such shard.
    #[must_use]
    pub fn head_bytes(&self, shard: &[u8; 32]) -> Option<usize> {
        self.shards.get(shard).map(|items| Head::bytes_of(*items, self.items.bytes))
    }

    /// Writes a checked block. The first one of a shard makes room for all of it.
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
        // Readers check a block's hash before use, and other processes of this folder write the same bytes.
        file.write_all_at(bytes, (head.len() + place.start) as u64).map_err(DataError::io("write", &path))
    }

    /// Creates a shard's file with its head and holes.
    fn begin(&self, path: &Path, head: &[u8], bytes: u64) -> Result<File, DataError> {
        let partial = Partial::lock(path)?;
        // Another process may have made it while this one waited.
        if let Some(file) = begun(path, head, bytes)? {
            return Ok(file);
        }
        // Processes that have a damaged one mapped keep it.
        remove(path)?;
        partial.publish_holed(path, head, bytes, &self.cache)?;
        begun(path, head, bytes)?.ok_or_else(|| DataError::Unreliable { path: path.to_owned() })
    }

    fn path(&self, name: BlockName) -> PathBuf {
        self.cache.shard(&shard_name(&name.shard))
    }
}

/// Returns the name of a fetched shard. It differs from that of a shard built here, whose name identifies its text: no peer can be trusted on that.
pub(in super::super) fn shard_name(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex()[..32].to_owned()
}

fn touch_if_there(path: &Path) -> Result<(), DataError> {
    match touch(path) {
        Err(DataError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        touched => touched,
    }
}

/// Opens a shard's file if it exists with this head.
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
