//! The limit of what a cache holds: kept by all who write to it, together.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::DataError;
use super::cache::{Cache, open_to_lock};
use super::prune::Goal;

/// One in so many bytes of the limit is made free beyond what is needed, so that not all is counted again for the next shard.
const SLACK: u64 = 32;

impl Cache {
    /// Takes `bytes` of the room for a file that is being made, and throws away what has not been used for longest where there is too little.
    ///
    /// What is taken stands in a file, so that not all is counted for each shard. It is too much where somebody died or removed something, and never too little: room is taken before it is used.
    pub(super) fn make_room(&self, bytes: u64, partial: &File, path: &Path) -> Result<(), DataError> {
        let place = self.size();
        let mut size = open_to_lock(&place)?;
        size.lock().map_err(DataError::io("lock", &place))?;
        let known = read(&mut size).map_err(DataError::io("read", &place))?;
        let taken = match (self.bytes_max, known) {
            // Whoever has a limit counts when it first asks.
            (None, None) => None,
            (None, Some(known)) => Some(known.saturating_add(bytes)),
            (Some(max), Some(known)) if known.saturating_add(bytes) <= max => Some(known + bytes),
            (Some(max), _) => Some(self.evict(bytes, max)?.saturating_add(bytes)),
        };
        // As long as it is when it is written: so it is counted by whoever counts all.
        partial.set_len(bytes).map_err(DataError::io("write", path))?;
        taken.map_or(Ok(()), |taken| write(&mut size, taken).map_err(DataError::io("write", &place)))
    }

    /// What is taken afterwards. Nothing is thrown away for what does not fit beside what is in use.
    fn evict(&self, bytes: u64, max: u64) -> Result<u64, DataError> {
        // Of what never fits, only what is in use is counted.
        let most = max.checked_sub(bytes).unwrap_or(u64::MAX);
        let pruned = self.prune(Goal { bytes: most.saturating_sub(max / SLACK), most })?;
        if pruned.left_bytes.saturating_add(bytes) > max {
            return Err(DataError::NoRoom { bytes, max, in_use: pruned.in_use_bytes });
        }
        if pruned.removed_bytes > 0 {
            tracing::info!(
                removed_bytes = pruned.removed_bytes,
                left_bytes = pruned.left_bytes,
                "what was used longest ago was thrown away for what is prepared"
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
