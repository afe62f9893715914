//! The end of filling a folder, and waiting for it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::piece::BadRecords;

/// The outcome.
#[derive(Clone, Debug, Default)]
pub(super) enum End {
    /// In progress.
    #[default]
    Open,
    /// Everything is in shards.
    Complete,
    /// It was stopped.
    Stopped,
    /// Too many bad images.
    Bad(BadRecords),
    /// An image has changed since the folder was listed.
    Changed(PathBuf),
    /// Another failure.
    Failed(Arc<str>),
}

/// The end, shared by the filling thread and those that wait for it.
#[derive(Debug, Default)]
pub(super) struct Ending {
    end: Mutex<End>,
    ended: Condvar,
    /// Whether the end is set, for cheap frequent checks.
    is_there: AtomicBool,
}

impl Ending {
    /// Sets the end; only the first counts.
    pub(super) fn set(&self, with: End) {
        let mut end = self.lock();
        if matches!(*end, End::Open) {
            *end = with;
            self.is_there.store(true, Ordering::Relaxed);
            self.ended.notify_all();
        }
    }

    /// Whether it has ended.
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Returns the outcome.
    pub(super) fn get(&self) -> End {
        self.lock().clone()
    }

    /// Waits for the end.
    pub(super) fn wait(&self) {
        drop(self.ended.wait_while(self.lock(), is_open).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for the end, at most this long.
    pub(super) fn wait_for(&self, at_most: Duration) {
        drop(self.ended.wait_timeout_while(self.lock(), at_most, is_open));
    }

    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_open(end: &mut End) -> bool {
    matches!(end, End::Open)
}
