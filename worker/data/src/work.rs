//! Progress of a preparation as seen from another thread, and requests to stop it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::DataError;

/// Counts of a preparation in progress.
#[derive(Debug, Default)]
pub struct Work {
    stopped: AtomicBool,
    files: AtomicU64,
    files_done: AtomicU64,
    bytes: AtomicU64,
    hashed_bytes: AtomicU64,
    prepared_bytes: AtomicU64,
    found_bytes: AtomicU64,
    items: AtomicU64,
    made: AtomicU64,
    found: AtomicU64,
}

/// A snapshot of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkDone {
    /// Files.
    pub files: u64,
    /// Prepared files.
    pub files_done: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Hashed bytes; files are hashed before they are read.
    pub hashed_bytes: u64,
    /// Bytes whose records are in shards.
    pub prepared_bytes: u64,
    /// Bytes of files prepared before.
    pub found_bytes: u64,
    /// Tokens or images in made or found shards.
    pub items: u64,
    /// Newly made shards.
    pub made: u64,
    /// Existing shards.
    pub found: u64,
}

impl Work {
    /// Requests a stop: no further record is begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns the progress.
    #[must_use]
    pub fn done(&self) -> WorkDone {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WorkDone {
            files: get(&self.files),
            files_done: get(&self.files_done),
            bytes: get(&self.bytes),
            hashed_bytes: get(&self.hashed_bytes),
            prepared_bytes: get(&self.prepared_bytes),
            found_bytes: get(&self.found_bytes),
            items: get(&self.items),
            made: get(&self.made),
            found: get(&self.found),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Fails after a stop was requested.
    pub(super) fn goes_on(&self) -> Result<(), DataError> {
        if self.is_stopped() { Err(DataError::Stopped) } else { Ok(()) }
    }

    pub(super) fn expects(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn has_shard(&self, items: u64, is_new: bool) {
        self.items.fetch_add(items, Ordering::Relaxed);
        let count = if is_new { &self.made } else { &self.found };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Progress of a file.
#[derive(Debug)]
pub(super) struct FileWork<'a> {
    pub(super) work: &'a Work,
    /// Whether another file has failed, which makes this one useless.
    has_failed: &'a AtomicBool,
    bytes: u64,
    hashed: u64,
    prepared: u64,
}

impl<'a> FileWork<'a> {
    pub(super) fn new(work: &'a Work, has_failed: &'a AtomicBool, bytes: u64) -> Self {
        Self { work, has_failed, bytes, hashed: 0, prepared: 0 }
    }

    /// Fails after another file has failed or a stop was requested.
    pub(super) fn goes_on(&self) -> Result<(), DataError> {
        if self.has_failed.load(Ordering::Relaxed) { Err(DataError::Stopped) } else { self.work.goes_on() }
    }

    /// Counts hashed bytes.
    pub(super) fn has_hashed(&mut self, bytes: u64) {
        advance(&self.work.hashed_bytes, &mut self.hashed, bytes.min(self.bytes));
    }

    /// Counts bytes whose records are in shards.
    pub(super) fn has_prepared(&mut self, bytes: u64) {
        advance(&self.work.prepared_bytes, &mut self.prepared, bytes.min(self.bytes));
    }

    /// Counts the file as prepared; `was_found`: it already was.
    pub(super) fn finish(mut self, was_found: bool) {
        self.has_hashed(self.bytes);
        self.has_prepared(self.bytes);
        self.work.files_done.fetch_add(1, Ordering::Relaxed);
        if was_found {
            self.work.found_bytes.fetch_add(self.bytes, Ordering::Relaxed);
        }
    }
}

fn advance(sum: &AtomicU64, from: &mut u64, to: u64) {
    sum.fetch_add(to.saturating_sub(*from), Ordering::Relaxed);
    *from = to.max(*from);
}
