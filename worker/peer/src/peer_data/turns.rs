//! Turns to fetch: the most urgent waiting block is next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Reason to fetch a block, in ascending urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Wish {
    /// This worker will read it in some steps.
    Expected = 1,
    /// Another worker of the site waits for it.
    ForAnother = 2,
    /// This worker waits for it.
    Needed = 4,
}

/// All wishes for a block: a bit each.
#[derive(Debug)]
pub struct Wishes(AtomicU8);

impl Wishes {
    pub fn new(wish: Wish) -> Self {
        Self(AtomicU8::new(wish as u8))
    }

    pub fn add(&self, wish: Wish) {
        self.0.fetch_or(wish as u8, Ordering::Relaxed);
    }

    /// Reports whether this worker wants it for itself.
    pub fn are_own(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (Wish::Expected as u8 | Wish::Needed as u8) != 0
    }

    /// Returns the urgency; higher ones are fetched sooner.
    fn urgency(&self) -> u32 {
        u8::BITS - self.0.load(Ordering::Relaxed).leading_zeros()
    }
}

/// A bounded number of parallel fetches.
pub struct Turns {
    queue: Mutex<Queue>,
}

struct Queue {
    free: usize,
    next: u64,
    /// By order of arrival.
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    wishes: Arc<Wishes>,
    told: oneshot::Sender<Turn>,
}

/// Passed on when dropped.
pub struct Turn(Arc<Turns>);

impl Turns {
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(Queue { free: count, next: 0, waiting: BTreeMap::new() }) })
    }

    /// Waits for a turn to fetch a block with these wishes, which may change meanwhile. `None`: the turns have ended.
    pub async fn take(self: &Arc<Self>, wishes: &Arc<Wishes>) -> Option<Turn> {
        let turn = {
            let mut queue = self.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Some(Turn(Arc::clone(self)));
            }
            let (told, turn) = oneshot::channel();
            let number = queue.next;
            queue.next += 1;
            queue.waiting.insert(number, Waiting { wishes: Arc::clone(wishes), told });
            turn
        };
        turn.await.ok()
    }

    fn pass_on(self: &Arc<Self>) {
        let next = {
            let mut queue = self.lock();
            queue.waiting.retain(|_, waiting| !waiting.told.is_closed());
            // Among equally urgent ones, the first to come.
            let most = queue.waiting.iter().rev().max_by_key(|(_, waiting)| waiting.wishes.urgency());
            let number = most.map(|(number, _)| *number);
            let next = number.and_then(|number| queue.waiting.remove(&number));
            if next.is_none() {
                queue.free += 1;
            }
            next
        };
        if let Some(next) = next {
            // A receiver that left drops it, and so passes it on.
            drop(next.told.send(Turn(Arc::clone(self))));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Polls a future once.
    fn poll<T>(future: &mut Pin<Box<impl Future<Output = Option<T>>>>) -> Option<T> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done,
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_waits_for_a_block_goes_before_a_neighbour_and_that_one_before_what_is_only_expected() {
        let turns = Turns::new(1);
        let [expected, other, needed] =
            [Wish::Expected, Wish::ForAnother, Wish::Needed].map(|wish| Arc::new(Wishes::new(wish)));
        let first = poll(&mut Box::pin(turns.take(&expected))).unwrap();
        let (mut one, mut two) = (Box::pin(turns.take(&expected)), Box::pin(turns.take(&other)));
        let (mut three, mut left) = (Box::pin(turns.take(&needed)), Box::pin(turns.take(&needed)));
        assert!(poll(&mut one).is_none() && poll(&mut two).is_none());
        assert!(poll(&mut left).is_none() && poll(&mut three).is_none());
        drop(left);
        drop(first);
        assert!(poll(&mut one).is_none() && poll(&mut two).is_none());
        let turn = poll(&mut three).unwrap();
        // An expected block becomes needed.
        expected.add(Wish::Needed);
        drop(turn);
        assert!(poll(&mut two).is_none());
        drop(poll(&mut one).unwrap());
        // A turn given to a dropped future returns.
        drop(two);
        assert!(poll(&mut Box::pin(turns.take(&other))).is_some());
        assert_eq!(turns.lock().free, 1);
    }
}
