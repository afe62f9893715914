//! How a preparation goes, seen from another thread, and the wish that it stops.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts of a preparation that goes on.
#[derive(Debug, Default)]
pub struct Work {
    stopped: AtomicBool,
    bytes: AtomicU64,
    /// Of files that are prepared, and of the one that is read.
    read_bytes: [AtomicU64; 2],
    tokens: AtomicU64,
    made: AtomicU64,
    found: AtomicU64,
}

/// What they were at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkDone {
    /// Bytes of all files.
    pub bytes: u64,
    /// Those of them that were read.
    pub read_bytes: u64,
    /// Tokens in the shards that were made or found.
    pub tokens: u64,
    /// Shards that were made.
    pub made: u64,
    /// Shards that were there.
    pub found: u64,
}

impl Work {
    /// Asks for a stop: what is being made is completed, and nothing else begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// How far it is.
    #[must_use]
    pub fn done(&self) -> WorkDone {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WorkDone {
            bytes: get(&self.bytes),
            read_bytes: get(&self.read_bytes[0]) + get(&self.read_bytes[1]),
            tokens: get(&self.tokens),
            made: get(&self.made),
            found: get(&self.found),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(super) fn expects(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So much of the file that is read.
    pub(super) fn has_read(&self, bytes: u64) {
        self.read_bytes[1].store(bytes, Ordering::Relaxed);
    }

    /// The file of so many bytes is prepared.
    pub(super) fn has_file(&self, bytes: u64) {
        self.read_bytes[1].store(0, Ordering::Relaxed);
        self.read_bytes[0].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn has_shard(&self, tokens: u64, is_new: bool) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        let count = if is_new { &self.made } else { &self.found };
        count.fetch_add(1, Ordering::Relaxed);
    }
}
