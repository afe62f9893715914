//! A block that is being fetched.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::fetch::ANSWER_MAX;
use super::turns::{Wish, Wishes};

/// For so long a neighbour that does not rely on this worker waits for what comes from afar: it hears nothing meanwhile, and after [`ANSWER_MAX`] takes this one for dead.
const UNRELIED_MAX: Duration = ANSWER_MAX.saturating_sub(Duration::from_secs(2));

/// Of whom it is asked just now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// It waits for a turn, or until all are asked again.
    #[default]
    Nobody,
    /// Of a worker of the site, which gives it if it has it.
    Near,
    /// Of its keeper, which fetches it.
    Keeper,
    /// Of a worker of another site, which gives it if it has it.
    Afar,
}

/// How far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub asked: Asked,
    /// How often all were asked for nothing.
    pub failed: u32,
    /// It is here, or why it cannot be.
    pub outcome: Option<Result<(), String>>,
}

/// A block that is being fetched, however many wait for it.
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

    /// All were asked, and nobody has given it.
    pub fn note_failed(&self) {
        self.stage.send_modify(|stage| (stage.asked, stage.failed) = (Asked::Nobody, stage.failed + 1));
    }

    pub fn end(&self, outcome: Result<(), String>) {
        self.stage.send_modify(|stage| stage.outcome = Some(outcome));
    }

    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Waits for it on behalf of a neighbour, which relies on this worker to fetch it or not: whether it is here then. Not longer than until it turns out that it
    /// does not come by itself, and who does not rely on it for a few seconds only. A keeper does not wait for another keeper, and who is none waits only for what comes from afar: so what waits for a worker of the site always waits for one that waits for less.
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

    /// What a neighbour is told at once that asks in such a stage, after `then`.
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
        // Who relies on it has signs meanwhile.
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
