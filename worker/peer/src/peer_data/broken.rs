//! Shards that this worker cannot lend.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time without another attempt for a damaged shard that cannot be remade: an attempt reads a file up to its piece.
const BROKEN: Duration = Duration::from_secs(60);

/// Expiry by hash of such shards.
#[derive(Debug, Default)]
pub(super) struct Broken(Mutex<HashMap<[u8; 32], Instant>>);

impl Broken {
    pub fn has(&self, shard: &[u8; 32], now: Instant) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(shard).is_some_and(|until| *until > now)
    }

    pub fn note(&self, shard: [u8; 32], now: Instant) {
        // Bounded by the data: only existing shards can be broken.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(shard, now + BROKEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_again_is_left_alone_for_a_while() {
        let (broken, now) = (Broken::default(), Instant::now());
        assert!(!broken.has(&[1; 32], now));
        broken.note([1; 32], now);
        assert!(broken.has(&[1; 32], now) && !broken.has(&[2; 32], now));
        assert!(!broken.has(&[1; 32], now + BROKEN));
    }
}
