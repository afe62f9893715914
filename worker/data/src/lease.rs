//! Leases on files of the cache, which protect them from eviction.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::DataError;
use super::cache::{Cache, files, open_to_lock, remove_left_behind};
use super::owned::Owned;

/// A locked file that names the stamps, lists and shards in use: one per dataset, which may have more files than a process may open.
#[derive(Debug)]
pub(super) struct Lease {
    cache: Cache,
    // Dropped before its lock.
    owned: Owned,
    file: Mutex<File>,
}

/// The files named by all leases.
#[derive(Debug, Default)]
pub(super) struct Used {
    pub(super) stamps: HashSet<String>,
    pub(super) lists: HashSet<String>,
    pub(super) shards: HashSet<String>,
}

impl Lease {
    /// Creates an empty lease.
    pub(super) fn new(cache: &Cache) -> Result<Self, DataError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let _alone = cache.alone()?;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = cache.uses().join(format!("{}-{number}", std::process::id()));
            // Another machine or container may share the folder and hold this name.
            if !remove_left_behind(&path)? {
                continue;
            }
            let file = open_to_lock(&path)?;
            if file.try_lock().is_ok() {
                let owned = Owned::new(&path)?;
                return Ok(Self { cache: cache.clone(), owned, file: Mutex::new(file) });
            }
        }
    }

    /// Protects these stamps, existing or future.
    pub(super) fn stamps(&self, names: &[String]) -> Result<(), DataError> {
        self.write(&names.iter().map(|name| format!("stamp {name}\n")).collect::<String>())
    }

    /// Protects this list.
    pub(super) fn list(&self, name: &str) -> Result<(), DataError> {
        self.note("list", name)
    }

    /// Protects this shard.
    pub(super) fn shard(&self, name: &str) -> Result<(), DataError> {
        self.note("shard", name)
    }

    /// Protects these shards.
    pub(super) fn shards(&self, names: impl IntoIterator<Item = String>) -> Result<(), DataError> {
        let lines: String = names.into_iter().map(|name| format!("shard {name}\n")).collect();
        self.write(&lines)
    }

    fn note(&self, kind: &str, name: &str) -> Result<(), DataError> {
        self.write(&format!("{kind} {name}\n"))
    }

    fn write(&self, lines: &str) -> Result<(), DataError> {
        let _together = self.cache.together()?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(lines.as_bytes()).map_err(DataError::io("write", self.owned.path()))
    }
}

impl Cache {
    /// Returns the files in use. The caller holds the exclusive lock; leases of dead processes are removed.
    pub(super) fn used(&self) -> Result<Used, DataError> {
        let mut used = Used::default();
        for path in files(&self.uses())? {
            if remove_left_behind(&path)? {
                continue;
            }
            let text = match std::fs::read_to_string(&path) {
                // Its owner has just ended.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                text => text.map_err(DataError::io("read", &path))?,
            };
            for line in text.lines() {
                match line.split_once(' ') {
                    Some(("stamp", name)) => used.stamps.insert(name.to_owned()),
                    Some(("list", name)) => used.lists.insert(name.to_owned()),
                    Some((_, name)) => used.shards.insert(name.to_owned()),
                    None => false,
                };
            }
        }
        Ok(used)
    }
}
