//! The end of filling a folder, and waiting for it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::piece::BadRecords;

/// The outcome.
#[derive(Clone, Debug, Default)]
pub(super) enum End {
    /// It goes on.
    #[default]
    Open,
    /// All is in shards.
    Complete,
    /// Nobody wants it any more.
    Stopped,
    /// More is bad than may be.
    Bad(BadRecords),
    /// An image is another one than when the folder was listed.
    Changed(PathBuf),
    /// It cannot go on for another reason.
    Failed(Arc<str>),
}

/// The end, for the thread that fills and those that wait for it.
#[derive(Debug, Default)]
pub(super) struct Ending {
    end: Mutex<End>,
    ended: Condvar,
    /// Whether the end is set, for cheap frequent checks.
    is_there: AtomicBool,
}

impl Ending {
    /// The first end counts.
    pub(super) fn set(&self, with: End) {
        let mut end = self.lock();
        if matches!(*end, End::Open) {
            *end = with;
            self.is_there.store(true, Ordering::Relaxed);
            self.ended.notify_all();
        }
    }

    /// Whether there is one.
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Returns the outcome.
    pub(super) fn get(&self) -> End {
        self.lock().clone()
    }

    /// Returns once there is an end.
    pub(super) fn wait(&self) {
        drop(self.ended.wait_while(self.lock(), is_open).unwrap_or_else(PoisonError::into_inner));
    }

    /// The same, after `at_most` without one.
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
