//! Throwing away what has not been used for longest.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::DataError;
use super::cache::{Cache, read_document};
use super::prepared::PieceList;

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

/// What is thrown away together: a list with the shards that no other list names, or a shard that none does.
struct Unit {
    used: SystemTime,
    list: Option<(PathBuf, u64)>,
    shards: Vec<String>,
    is_in_use: bool,
}

/// Throws prepared data in the worker's folder `cache` away, what has not been used for longest first, until at most `bytes_max` are left or all that is
/// left is in use.
///
/// # Errors
/// Data is being prepared, or a file cannot be removed.
pub fn prune(cache: &Path, bytes_max: u64) -> Result<Pruned, DataError> {
    let cache = Cache::open(cache)?;
    let _alone = cache.stop_all()?.ok_or(DataError::Busy)?;
    let [lists, shards] = cache.folders();
    let (mut units, mut sizes) = (Vec::new(), HashMap::new());
    let mut users: HashMap<String, u32> = HashMap::new();
    for path in files(&lists)? {
        let Some(unit) = list_unit(&path)? else { continue };
        for shard in &unit.shards {
            *users.entry(shard.clone()).or_default() += 1;
        }
        units.push(unit);
    }
    for path in files(&shards)? {
        let metadata = std::fs::metadata(&path).map_err(DataError::io("read", &path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !users.contains_key(&name) {
            let used = metadata.modified().map_err(DataError::io("read", &path))?;
            users.insert(name.clone(), 1);
            units.push(Unit { used, list: None, shards: vec![name.clone()], is_in_use: false });
        }
        sizes.insert(name, metadata.len());
    }
    units.sort_by_key(|unit| unit.used);
    Pruning { cache: &cache, sizes, users }.throw_away(&units, bytes_max)
}

struct Pruning<'a> {
    cache: &'a Cache,
    /// Bytes of each shard that is there.
    sizes: HashMap<String, u64>,
    /// Units that have a shard.
    users: HashMap<String, u32>,
}

impl Pruning<'_> {
    fn throw_away(mut self, units: &[Unit], bytes_max: u64) -> Result<Pruned, DataError> {
        let lists: u64 = units.iter().filter_map(|unit| unit.list.as_ref()).map(|(_, bytes)| bytes).sum();
        let mut pruned = Pruned { left_bytes: lists + self.sizes.values().sum::<u64>(), ..Pruned::default() };
        for unit in units.iter().filter(|unit| !unit.is_in_use) {
            if pruned.left_bytes <= bytes_max {
                break;
            }
            let bytes = self.remove(unit)?;
            pruned.left_bytes -= bytes;
            pruned.removed_bytes += bytes;
        }
        let mut in_use: Vec<&String> =
            units.iter().filter(|unit| unit.is_in_use).flat_map(|unit| &unit.shards).collect();
        in_use.sort_unstable();
        in_use.dedup();
        pruned.in_use_bytes = in_use.into_iter().filter_map(|shard| self.sizes.get(shard)).sum();
        Ok(pruned)
    }

    /// The list goes first: one whose shards are gone would have them made again.
    fn remove(&mut self, unit: &Unit) -> Result<u64, DataError> {
        let mut bytes = 0;
        if let Some((path, size)) = &unit.list {
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

/// A list with its shards; none where it is damaged, and then it is removed.
fn list_unit(path: &Path) -> Result<Option<Unit>, DataError> {
    let Some(list) = read_document::<PieceList>(path)? else { return remove(path).map(|()| None) };
    let file = File::open(path).map_err(DataError::io("open", path))?;
    let is_in_use = match file.try_lock() {
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(error)) => return Err(DataError::io("lock", path)(error)),
    };
    let metadata = file.metadata().map_err(DataError::io("read", path))?;
    let used = metadata.modified().map_err(DataError::io("read", path))?;
    // A piece that comes twice in a file has one shard.
    let mut shards: Vec<String> = list.pieces.into_iter().map(|piece| piece.name).collect();
    shards.sort_unstable();
    shards.dedup();
    Ok(Some(Unit { used, list: Some((path.to_owned(), metadata.len())), shards, is_in_use }))
}

/// The files of a folder; what an interrupted preparation left unfinished is removed, as nobody writes it now.
fn files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::io("read folder", folder))? {
        let path = entry.map_err(DataError::io("read folder", folder))?.path();
        if path.extension().is_some_and(|extension| extension == "partial") {
            remove(&path)?;
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn remove(path: &Path) -> Result<(), DataError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DataError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
