//! Room in memory for blocks for other workers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_common::id::WorkerId;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// In MiB: a quarter of the round protocol's frame memory.
const ALL: usize = 64;
/// Share of one worker, so that peers that do not read leave room for others: as many blocks as one requests at a time.
const OF_ONE: usize = 16;

/// A block holds one until sent.
#[derive(Debug)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    of_each: Mutex<BTreeMap<WorkerId, Arc<Semaphore>>>,
}

/// Room for a block.
#[derive(Debug)]
pub(super) struct Taken {
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Default for Places {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(ALL)), of_each: Mutex::default() }
    }
}

impl Places {
    /// Waits for room for a block for that worker.
    pub async fn take(&self, worker: WorkerId) -> Result<Taken, AcquireError> {
        let own = {
            let mut of_each = self.of_each.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(of_each.entry(worker).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE))))
        };
        let own = own.acquire_owned().await?;
        Ok(Taken { _all: Arc::clone(&self.all).acquire_owned().await?, _own: own })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_leaves_room_for_others_and_all_together_have_no_more_than_there_is() {
        let (places, mut taken) = (Places::default(), Vec::new());
        let is_full =
            async |worker| timeout(Duration::from_secs(9), places.take(WorkerId(worker))).await.is_err();
        for worker in 0..(ALL / OF_ONE) as u32 {
            for _ in 0..OF_ONE {
                taken.push(places.take(WorkerId(worker)).await.unwrap());
            }
            assert!(is_full(worker).await, "a worker exceeds its share");
        }
        assert!(is_full(99).await);
        taken.pop();
        assert!(!is_full(99).await);
    }
}
