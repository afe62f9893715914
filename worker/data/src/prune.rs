//! Eviction of the least recently used data.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::DataError;
use super::cache::{Cache, files, read_document, remove, remove_left_behind};
use super::lease::Used;
use super::partial::ENDING;
use super::prepared::PieceList;

/// Unit of a file's size on disk, as the system reports it.
const BLOCK_BYTES: u64 = 512;

/// The result of an eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Bytes removed.
    pub removed_bytes: u64,
    /// Bytes left.
    pub left_bytes: u64,
    /// Bytes left that are in use.
    pub in_use_bytes: u64,
}

/// The unit of eviction: a list with the shards named by no other list, a shard without a list, or a stamp.
struct Unit {
    used: SystemTime,
    /// The list or stamp, with its bytes.
    file: Option<(PathBuf, u64)>,
    shards: Vec<String>,
    is_in_use: bool,
}

/// Evicts prepared data from the worker's folder `cache`, least recently used first, until at most `bytes_max` are left or the rest is in use.
///
/// # Errors
/// A file cannot be read or removed.
pub fn prune(cache: &Path, bytes_max: u64) -> Result<Pruned, DataError> {
    Cache::open(cache, None)?.prune(Goal { bytes: bytes_max, most: u64::MAX })
}

/// The target of an eviction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// Bytes to leave at most, unless more are in use.
    pub(super) bytes: u64,
    /// Bytes in use above which nothing is evicted.
    pub(super) most: u64,
}

impl Cache {
    /// The same; unfinished files count as well.
    pub(super) fn prune(&self, goal: Goal) -> Result<Pruned, DataError> {
        let _alone = self.alone()?;
        let used = self.used()?;
        let (mut units, mut pruning) = (Vec::new(), Pruning::of(self));
        for path in pruning.complete_files(&self.stamps())? {
            units.extend(stamp_unit(path, &used)?);
        }
        for path in pruning.complete_files(&self.lists())? {
            units.extend(list_unit(&path, &used)?);
        }
        for shard in units.iter().flat_map(|unit| &unit.shards).chain(&used.shards) {
            *pruning.users.entry(shard.clone()).or_default() += 1;
        }
        for path in pruning.complete_files(&self.shards())? {
            units.extend(pruning.shard_unit(&path)?);
        }
        // All of these are unfinished.
        pruning.complete_files(&self.fetches())?;
        pruning.complete_files(&self.drafts())?;
        units.sort_by_key(|unit| unit.used);
        pruning.throw_away(&units, &used, goal)
    }

    /// Removes leftovers of processes that died.
    pub(super) fn sweep(&self) -> Result<(), DataError> {
        let _alone = self.alone()?;
        let mut pruning = Pruning::of(self);
        for folder in [self.stamps(), self.lists(), self.shards(), self.fetches(), self.drafts()] {
            pruning.complete_files(&folder)?;
        }
        self.used().map(drop)
    }
}

struct Pruning<'a> {
    cache: &'a Cache,
    /// Bytes of each existing shard.
    sizes: HashMap<String, u64>,
    /// Units and leases that have a shard.
    users: HashMap<String, u32>,
    /// Bytes of unfinished files.
    partial_bytes: u64,
}

impl<'a> Pruning<'a> {
    fn of(cache: &'a Cache) -> Self {
        Self { cache, sizes: HashMap::new(), users: HashMap::new(), partial_bytes: 0 }
    }

    /// Returns the complete files of a folder; removes those left unfinished by an interrupted preparation.
    fn complete_files(&mut self, folder: &Path) -> Result<Vec<PathBuf>, DataError> {
        let mut complete = Vec::new();
        for path in files(folder)? {
            if path.extension().is_none_or(|extension| extension != ENDING) {
                complete.push(path);
            } else if !remove_left_behind(&path)? {
                // It may just have been renamed; it counts under either name.
                self.partial_bytes += std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            }
        }
        Ok(complete)
    }

    /// Returns the unit of a shard without a list.
    fn shard_unit(&mut self, path: &Path) -> Result<Option<Unit>, DataError> {
        // A damaged shard was removed in order to be rebuilt.
        let Some(metadata) = metadata(path)? else { return Ok(None) };
        let used = metadata.modified().map_err(DataError::io("read", path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.sizes.insert(name.clone(), metadata.len());
        if self.users.contains_key(&name) {
            return Ok(None);
        }
        self.users.insert(name.clone(), 1);
        Ok(Some(Unit { used, file: None, shards: vec![name], is_in_use: false }))
    }

    fn throw_away(mut self, units: &[Unit], used: &Used, goal: Goal) -> Result<Pruned, DataError> {
        let bytes_of = |units: &mut dyn Iterator<Item = &Unit>| -> u64 {
            units.filter_map(|unit| unit.file.as_ref()).map(|(_, bytes)| bytes).sum()
        };
        let left_bytes = bytes_of(&mut units.iter()) + self.partial_bytes + self.sizes.values().sum::<u64>();
        let in_use = || units.iter().filter(|unit| unit.is_in_use);
        let mut shards: Vec<&String> = in_use().flat_map(|unit| &unit.shards).chain(&used.shards).collect();
        shards.sort_unstable();
        shards.dedup();
        let in_shards: u64 = shards.into_iter().filter_map(|shard| self.sizes.get(shard)).sum();
        let in_use_bytes = in_shards + bytes_of(&mut in_use()) + self.partial_bytes;
        let mut pruned = Pruned { left_bytes, in_use_bytes, removed_bytes: 0 };
        if in_use_bytes > goal.most {
            return Ok(pruned);
        }
        for unit in units.iter().filter(|unit| !unit.is_in_use) {
            if pruned.left_bytes <= goal.bytes {
                break;
            }
            let bytes = self.remove(unit)?;
            pruned.left_bytes -= bytes;
            pruned.removed_bytes += bytes;
        }
        Ok(pruned)
    }

    /// Removes a unit, its list first: a list with missing shards would cause them to be rebuilt.
    fn remove(&mut self, unit: &Unit) -> Result<u64, DataError> {
        let mut bytes = 0;
        if let Some((path, size)) = &unit.file {
            remove(path)?;
            bytes += size;
        }
        for shard in &unit.shards {
            let users = self.users.entry(shard.clone()).or_default();
            *users = users.saturating_sub(1);
            if *users == 0
                && let Some(size) = self.sizes.remove(shard)
            {
                remove(&self.cache.shard(shard))?;
                bytes += size;
            }
        }
        Ok(bytes)
    }
}

/// Returns the unit of a stamp, which takes more room on disk than its length.
fn stamp_unit(path: PathBuf, used: &Used) -> Result<Option<Unit>, DataError> {
    let is_in_use = path.file_name().is_some_and(|name| used.stamps.contains(&*name.to_string_lossy()));
    let Some(metadata) = metadata(&path)? else { return Ok(None) };
    let used = metadata.modified().map_err(DataError::io("read", &path))?;
    let bytes = metadata.blocks() * BLOCK_BYTES;
    Ok(Some(Unit { used, file: Some((path, bytes)), shards: Vec::new(), is_in_use }))
}

/// Returns a file's metadata; `None`: it no longer exists.
fn metadata(path: &Path) -> Result<Option<Metadata>, DataError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        metadata => metadata.map(Some).map_err(DataError::io("read", path)),
    }
}

/// Returns the unit of a list with its shards; `None` if it is damaged. A damaged list is removed unless it is in use.
fn list_unit(path: &Path, used: &Used) -> Result<Option<Unit>, DataError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_in_use = used.lists.contains(&*name);
    let Some(list) = read_document::<PieceList>(path)? else {
        return if is_in_use { Ok(None) } else { remove(path).map(|()| None) };
    };
    let metadata = std::fs::metadata(path).map_err(DataError::io("read", path))?;
    let used_at = metadata.modified().map_err(DataError::io("read", path))?;
    // A piece that occurs twice in a file has one shard.
    let mut shards: Vec<String> = list.pieces.into_iter().map(|piece| piece.name).collect();
    shards.sort_unstable();
    shards.dedup();
    Ok(Some(Unit { used: used_at, file: Some((path.to_owned(), metadata.len())), shards, is_in_use }))
}
