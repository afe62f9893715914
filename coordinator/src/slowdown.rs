//! Delay for wrong tokens, of the API or for joining: answers come one after the other, each after a pause; beyond a limit, the others are answered at the
//! end of the queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::sleep;

/// Time between two answers to wrong tokens. It makes guesses expensive with few connections; the real protection is the tokens' 2^128 or more
/// possibilities.
const PAUSE: Duration = Duration::from_millis(500);
/// Most waiting answers to wrong tokens. A right token never waits.
const WAITING_MAX: usize = 16;
/// How long an answer to others is held back, each by itself, so that many at a time are no way to guess fast: connections are limited, too.
const TURNED_AWAY_AFTER: Duration = Duration::from_secs(8);

/// [`WAITING_MAX`] callers were waiting already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Queue of callers with wrong tokens. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Slowdown {
    places: Arc<Semaphore>,
    turn: Arc<Mutex<()>>,
}

impl Default for Slowdown {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(WAITING_MAX)), turn: Arc::default() }
    }
}

impl Slowdown {
    /// Waits for a turn.
    ///
    /// # Errors
    /// [`TooMany`], after the wait of the last one in the queue.
    pub async fn wait(&self) -> Result<(), TooMany> {
        let Ok(_place) = self.places.try_acquire() else {
            sleep(TURNED_AWAY_AFTER).await;
            return Err(TooMany);
        };
        let _turn = self.turn.lock().await;
        sleep(PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_wait_for_each_other_and_too_many_are_turned_away_no_sooner() {
        let slowdown = Slowdown::default();
        let began = Instant::now();
        let mut waiting = JoinSet::new();
        for _ in 0..WAITING_MAX + 3 {
            let slowdown = slowdown.clone();
            waiting.spawn(async move { (slowdown.wait().await, Instant::now()) });
        }
        let ended = waiting.join_all().await;
        let (refused, waited): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(answer, _)| answer.is_err());
        let last = waited.iter().map(|(_, at)| *at - began).max().unwrap();
        assert!(refused.iter().all(|(_, at)| *at - began >= last) && refused.len() == 3, "{refused:?}");
        assert!(last >= PAUSE * WAITING_MAX as u32, "{last:?}");
        assert_eq!(slowdown.wait().await, Ok(()), "places are given back");
    }
}
