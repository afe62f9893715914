//! Throwing away what has not been used for longest.

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

/// What the system counts a file's place on the disk in.
const BLOCK_BYTES: u64 = 512;

/// What was thrown away and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Bytes that were thrown away.
    pub removed_bytes: u64,
    /// Bytes that are left.
    pub left_bytes: u64,
    /// Those of them that are in use.
    pub in_use_bytes: u64,
}

/// What is thrown away together: a list with the shards that no other list names, a shard that none does, or a stamp.
struct Unit {
    used: SystemTime,
    /// The list or stamp, and its bytes.
    file: Option<(PathBuf, u64)>,
    shards: Vec<String>,
    is_in_use: bool,
}

/// Throws prepared data in the worker's folder `cache` away, what has not been used for longest first, until at most `bytes_max` are left or all that is
/// left is in use.
///
/// # Errors
/// A file cannot be read or removed.
pub fn prune(cache: &Path, bytes_max: u64) -> Result<Pruned, DataError> {
    Cache::open(cache, None)?.prune(Goal { bytes: bytes_max, most: u64::MAX })
}

/// How much is to be left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// At most so many bytes, as far as they are not in use.
    pub(super) bytes: u64,
    /// Where what is in use takes more than this, nothing is thrown away.
    pub(super) most: u64,
}

impl Cache {
    /// The same, which counts what is being made as well.
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
        // All of them are being made.
        pruning.complete_files(&self.fetches())?;
        pruning.complete_files(&self.drafts())?;
        units.sort_by_key(|unit| unit.used);
        pruning.throw_away(&units, &used, goal)
    }

    /// Removes what those left behind who died.
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
    /// Bytes of each shard that is there.
    sizes: HashMap<String, u64>,
    /// Units and leases that have a shard.
    users: HashMap<String, u32>,
    /// Bytes of what is being made.
    partial_bytes: u64,
}

impl<'a> Pruning<'a> {
    fn of(cache: &'a Cache) -> Self {
        Self { cache, sizes: HashMap::new(), users: HashMap::new(), partial_bytes: 0 }
    }

    /// The files of a folder; what an interrupted preparation left unfinished is removed.
    fn complete_files(&mut self, folder: &Path) -> Result<Vec<PathBuf>, DataError> {
        let mut complete = Vec::new();
        for path in files(folder)? {
            if path.extension().is_none_or(|extension| extension != ENDING) {
                complete.push(path);
            } else if !remove_left_behind(&path)? {
                // It may just have been renamed, and is counted under either name.
                self.partial_bytes += std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            }
        }
        Ok(complete)
    }

    /// A shard that no list has.
    fn shard_unit(&mut self, path: &Path) -> Result<Option<Unit>, DataError> {
        // A damaged one was removed, to be made again.
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

    /// The list goes first: one whose shards are gone would have them made again.
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

/// A stamp, which takes more of the disk than it is long.
fn stamp_unit(path: PathBuf, used: &Used) -> Result<Option<Unit>, DataError> {
    let is_in_use = path.file_name().is_some_and(|name| used.stamps.contains(&*name.to_string_lossy()));
    let Some(metadata) = metadata(&path)? else { return Ok(None) };
    let used = metadata.modified().map_err(DataError::io("read", &path))?;
    let bytes = metadata.blocks() * BLOCK_BYTES;
    Ok(Some(Unit { used, file: Some((path, bytes)), shards: Vec::new(), is_in_use }))
}

/// None: it is not there any more.
fn metadata(path: &Path) -> Result<Option<Metadata>, DataError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        metadata => metadata.map(Some).map_err(DataError::io("read", path)),
    }
}

/// A list with its shards; none where it is damaged, and then it is removed, unless somebody can read it who uses it.
fn list_unit(path: &Path, used: &Used) -> Result<Option<Unit>, DataError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_in_use = used.lists.contains(&*name);
    let Some(list) = read_document::<PieceList>(path)? else {
        return if is_in_use { Ok(None) } else { remove(path).map(|()| None) };
    };
    let metadata = std::fs::metadata(path).map_err(DataError::io("read", path))?;
    let used_at = metadata.modified().map_err(DataError::io("read", path))?;
    // A piece that comes twice in a file has one shard.
    let mut shards: Vec<String> = list.pieces.into_iter().map(|piece| piece.name).collect();
    shards.sort_unstable();
    shards.dedup();
    Ok(Some(Unit { used: used_at, file: Some((path.to_owned(), metadata.len())), shards, is_in_use }))
}
