//! Replies that are passed on as events, or taken by the test.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use crate::{Answer, Reply};

/// Returns a synchroniser's reply handle and the test's receiver.
pub fn reply<T: fmt::Debug + Send + 'static>() -> (Reply<T>, Answered<T>) {
    let (given, answer) = channel();
    let asks = Arc::new(());
    (Box::new(ToTest { given, asks: Arc::downgrade(&asks) }), Answered { answer, _asks: asks })
}

/// Waits for an answer, until it is dropped.
pub struct Answered<T> {
    answer: Receiver<T>,
    _asks: Arc<()>,
}

impl<T> Answered<T> {
    /// Returns the answer, if present; otherwise whether one may still come.
    pub fn try_recv(&self) -> Result<T, std::sync::mpsc::TryRecvError> {
        self.answer.try_recv()
    }
}

#[derive(Debug)]
struct ToTest<T> {
    given: Sender<T>,
    asks: Weak<()>,
}

impl<T: fmt::Debug + Send> Answer<T> for ToTest<T> {
    fn give(self: Box<Self>, answer: T) {
        let _ = self.given.send(answer);
    }

    fn is_wanted(&self) -> bool {
        self.asks.strong_count() > 0
    }
}

/// Passes an answer on; `None` if it is dropped.
pub fn passed_on<T: Send + 'static>(then: impl FnOnce(Option<T>) + Send + 'static) -> Reply<T> {
    Box::new(PassedOn { then: Some(Box::new(then)) })
}

struct PassedOn<T> {
    then: Option<Then<T>>,
}

type Then<T> = Box<dyn FnOnce(Option<T>) + Send>;

impl<T> fmt::Debug for PassedOn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassedOn").finish_non_exhaustive()
    }
}

impl<T: Send> Answer<T> for PassedOn<T> {
    fn give(mut self: Box<Self>, answer: T) {
        if let Some(then) = self.then.take() {
            then(Some(answer));
        }
    }

    fn is_wanted(&self) -> bool {
        true
    }
}

impl<T> Drop for PassedOn<T> {
    fn drop(&mut self) {
        if let Some(then) = self.then.take() {
            then(None);
        }
    }
}
