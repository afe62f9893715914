//! Wrong tokens, of the API or to join with, are answered one after the other, with a pause before each.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::sleep;

/// Between two answers to wrong tokens. It makes a guess dear for whoever has few connections; what keeps guesses out is that tokens are of 2^128 or more.
const PAUSE: Duration = Duration::from_millis(500);
/// Wrong tokens whose answers are waited for at a time. Whoever shows a right one never waits.
const WAITING_MAX: usize = 16;

/// There are [`WAITING_MAX`] who wait already.
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
    /// [`TooMany`], at once.
    pub async fn wait(&self) -> Result<(), TooMany> {
        let _place = self.places.try_acquire().map_err(|_| TooMany)?;
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
    async fn wrong_tokens_wait_for_each_other_and_too_many_are_turned_away_at_once() {
        let slowdown = Slowdown::default();
        let began = Instant::now();
        let mut waiting = JoinSet::new();
        for _ in 0..WAITING_MAX + 3 {
            let slowdown = slowdown.clone();
            waiting.spawn(async move { (slowdown.wait().await, Instant::now()) });
        }
        let ended = waiting.join_all().await;
        let (refused, waited): (Vec<_>, Vec<_>) = ended.into_iter().partition(|(answer, _)| answer.is_err());
        assert!(refused.iter().all(|(_, at)| *at == began) && refused.len() == 3, "{refused:?}");
        let last = waited.iter().map(|(_, at)| *at - began).max().unwrap();
        assert!(last >= PAUSE * WAITING_MAX as u32, "{last:?}");
        assert_eq!(slowdown.wait().await, Ok(()), "places are given back");
    }
}
