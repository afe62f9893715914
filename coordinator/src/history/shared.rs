//! A history that is written and read at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::rand::{SecureRandom as _, SystemRandom};

use super::History;

/// The curves of a run, which its owner writes and the HTTP API reads.
#[derive(Clone, Debug)]
pub struct SharedHistory {
    history: Arc<Mutex<History>>,
    /// Which one: another process, or another turn of this one, counts its points anew.
    epoch: u64,
}

impl SharedHistory {
    /// Shares a history.
    #[must_use]
    pub fn new(history: History) -> Self {
        let mut epoch = [0; 8];
        // Without randomness, epochs are alike; the only effect is a wrong curve on an open page.
        let _ = SystemRandom::new().fill(&mut epoch);
        Self { history: Arc::new(Mutex::new(history)), epoch: u64::from_le_bytes(epoch) }
    }

    /// Looks at it; the owner of the run waits meanwhile.
    pub fn look<T>(&self, at: impl FnOnce(&History) -> T) -> T {
        at(&self.lock())
    }

    /// A number that no other history has.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// For its owner.
    pub(crate) fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
