//! Errors outside the links.

use std::sync::atomic::{AtomicU64, Ordering};

use super::RelayStats;

/// [`RelayStats`] as counted by the thread.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) flows_refused: AtomicU64,
    pub(super) strangers: AtomicU64,
    pub(super) send_failures: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> RelayStats {
        RelayStats {
            flows_refused: self.flows_refused.load(Ordering::Relaxed),
            strangers: self.strangers.load(Ordering::Relaxed),
            send_failures: self.send_failures.load(Ordering::Relaxed),
        }
    }
}
