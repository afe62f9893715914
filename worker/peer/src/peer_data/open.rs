//! A block in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::fetch::ANSWER_MAX;
use super::turns::{Wish, Wishes};

/// Longest wait of a non-relying neighbour for a block from afar: it receives no signs, and after [`ANSWER_MAX`] considers this worker dead.
const UNRELIED_MAX: Duration = ANSWER_MAX.saturating_sub(Duration::from_secs(2));

/// The worker asked at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// None: the block waits for a turn, or for the next attempt.
    #[default]
    Nobody,
    /// A worker of the site, for a block that it has.
    Near,
    /// The keeper, which fetches it.
    Keeper,
    /// A worker of another site, for a block that it has.
    Afar,
}

/// Progress of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub asked: Asked,
    /// Failed attempts with all workers.
    pub failed: u32,
    /// Arrival or final failure.
    pub outcome: Option<Result<(), String>>,
}

/// A block in flight, shared by all callers.
#[derive(Debug)]
pub struct Open {
    pub wishes: Arc<Wishes>,
    stage: watch::Sender<Stage>,
}

impl Open {
    pub fn new(wish: Wish) -> Self {
        Self { wishes: Arc::new(Wishes::new(wish)), stage: watch::channel(Stage::default()).0 }
    }

    pub fn now_asks(&self, asked: Asked) {
        self.stage.send_if_modified(|stage| std::mem::replace(&mut stage.asked, asked) != asked);
    }

    /// Notes that all were asked in vain.
    pub fn note_failed(&self) {
        self.stage.send_modify(|stage| (stage.asked, stage.failed) = (Asked::Nobody, stage.failed + 1));
    }

    pub fn end(&self, outcome: Result<(), String>) {
        self.stage.send_modify(|stage| stage.outcome = Some(outcome));
    }

    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Waits for the block for a neighbour, which may rely on this worker to fetch it; reports whether it arrived. Gives up once the block does not come by
    /// itself, or after a few seconds for a non-relying neighbour. Keepers do not wait for keepers, and other workers only for blocks from afar: so waits
    /// within the site form no cycle.
    pub async fn wait_for_another(&self, is_relied_on: bool) -> bool {
        let mut stage = self.stage();
        let failed = stage.borrow().failed;
        let is_worth_it = |stage: &Stage| match stage.asked {
            Asked::Keeper => false,
            Asked::Afar => stage.failed == failed,
            Asked::Near | Asked::Nobody => is_relied_on && stage.failed == failed,
        };
        let ends = stage.wait_for(|stage| stage.outcome.is_some() || !is_worth_it(stage));
        let most = if is_relied_on { Duration::MAX } else { UNRELIED_MAX };
        let ended = timeout(most, ends).await;
        ended.is_ok_and(|ended| ended.is_ok_and(|stage| stage.outcome == Some(Ok(()))))
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns the immediate answer to a neighbour's request at this stage, after `then`.
    fn told(is_relied_on: bool, before: impl Fn(&Open), then: impl Fn(&Open)) -> Poll<bool> {
        let open = Open::new(Wish::Expected);
        before(&open);
        let mut waiting = Box::pin(open.wait_for_another(is_relied_on));
        let mut context = Context::from_waker(Waker::noop());
        let first = waiting.as_mut().poll(&mut context);
        if first.is_ready() {
            return first;
        }
        then(&open);
        waiting.as_mut().poll(&mut context)
    }

    #[tokio::test(start_paused = true)]
    async fn who_hears_nothing_meanwhile_is_told_before_it_gives_up() {
        let open = Open::new(Wish::Expected);
        open.now_asks(Asked::Afar);
        assert_eq!(timeout(ANSWER_MAX, open.wait_for_another(false)).await, Ok(false));
        // A relying neighbour receives signs meanwhile.
        assert!(timeout(2 * ANSWER_MAX, open.wait_for_another(true)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_who_waits_for_a_keeper_or_has_asked_all_for_nothing() {
        let asks = |asked| move |open: &Open| open.now_asks(asked);
        for is_relied_on in [false, true] {
            assert_eq!(told(is_relied_on, asks(Asked::Keeper), |_| ()), Poll::Ready(false));
            assert_eq!(told(is_relied_on, asks(Asked::Afar), |_| ()), Poll::Pending);
            assert_eq!(told(is_relied_on, asks(Asked::Afar), asks(Asked::Keeper)), Poll::Ready(false));
            assert_eq!(told(is_relied_on, asks(Asked::Afar), Open::note_failed), Poll::Ready(false));
            assert_eq!(told(is_relied_on, asks(Asked::Afar), |open| open.end(Ok(()))), Poll::Ready(true));
        }
        for asked in [Asked::Nobody, Asked::Near] {
            assert_eq!(told(false, asks(asked), |_| ()), Poll::Ready(false));
            assert_eq!(told(true, asks(asked), asks(Asked::Afar)), Poll::Pending);
            assert_eq!(told(true, asks(asked), Open::note_failed), Poll::Ready(false));
        }
        let failed = |open: &Open| open.end(Err("no room".to_owned()));
        assert_eq!(told(true, |_| (), failed), Poll::Ready(false));
    }
}
