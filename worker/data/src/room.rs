//! The size limit of a cache, shared by all its writers.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::DataError;
use super::cache::{Cache, open_to_lock};
use super::prune::Goal;

/// Fraction (1/32) of the limit that is freed beyond the need, so that the next shard does not require a full count.
const SLACK: u64 = 32;

impl Cache {
    /// Reserves `bytes` for an unfinished file, and evicts the least recently used data if there is too little room.
    ///
    /// A file records the reserved total, so that a shard does not require a full count. The total is too high after a crash or a removal, and never
    /// too low: room is reserved before it is used.
    pub(super) fn make_room(&self, bytes: u64, partial: &File, path: &Path) -> Result<(), DataError> {
        let place = self.size();
        let mut size = open_to_lock(&place)?;
        size.lock().map_err(DataError::io("lock", &place))?;
        let known = read(&mut size).map_err(DataError::io("read", &place))?;
        let taken = match (self.bytes_max, known) {
            // A process with a limit counts at its first request.
            (None, None) => None,
            (None, Some(known)) => Some(known.saturating_add(bytes)),
            (Some(max), Some(known)) if known.saturating_add(bytes) <= max => Some(known + bytes),
            (Some(max), _) => Some(self.evict(bytes, max)?.saturating_add(bytes)),
        };
        // Set to its final length, so that a full count includes it.
        partial.set_len(bytes).map_err(DataError::io("write", path))?;
        taken.map_or(Ok(()), |taken| write(&mut size, taken).map_err(DataError::io("write", &place)))
    }

    /// Returns the bytes left after eviction. Evicts nothing if the data in use leaves too little room anyway.
    fn evict(&self, bytes: u64, max: u64) -> Result<u64, DataError> {
        // A file above the limit never fits: only the bytes in use are counted.
        let most = max.checked_sub(bytes).unwrap_or(u64::MAX);
        let pruned = self.prune(Goal { bytes: most.saturating_sub(max / SLACK), most })?;
        if pruned.left_bytes.saturating_add(bytes) > max {
            return Err(DataError::NoRoom { bytes, max, in_use: pruned.in_use_bytes });
        }
        if pruned.removed_bytes > 0 {
            tracing::info!(
                removed_bytes = pruned.removed_bytes,
                left_bytes = pruned.left_bytes,
                "evicted the least recently used data to make room"
            );
        }
        Ok(pruned.left_bytes)
    }
}

fn read(size: &mut File) -> io::Result<Option<u64>> {
    let mut bytes = Vec::new();
    size.take(9).read_to_end(&mut bytes)?;
    Ok(bytes.try_into().ok().map(u64::from_le_bytes))
}

fn write(size: &mut File, taken: u64) -> io::Result<()> {
    size.seek(SeekFrom::Start(0))?;
    size.write_all(&taken.to_le_bytes())
}
