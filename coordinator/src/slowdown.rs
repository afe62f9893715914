//! Wrong tokens, of the API or to join with, are answered one after the other, with a pause before each; where too many wait, the others are told so as late.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::sleep;

/// Between two answers to wrong tokens. It makes a guess dear for whoever has few connections; what keeps guesses out is that tokens are of 2^128 or more.
const PAUSE: Duration = Duration::from_millis(500);
/// Wrong tokens whose answers are waited for at a time. Whoever shows a right one never waits.
const WAITING_MAX: usize = 16;
/// How long an answer to others is held back, each by itself, so that many at a time are no way to guess fast: connections are limited, too.
const TURNED_AWAY_AFTER: Duration = Duration::from_secs(8);

/// There were [`WAITING_MAX`] who waited already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The queue of those who have shown a wrong token. Clones share it.
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
    /// Waits for one's turn.
    ///
    /// # Errors
    /// [`TooMany`], after as long as the last of those who wait takes.
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
