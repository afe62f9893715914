//! The members' messages within a step, until the world delivers them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_member::message::ToDevice;
use longhaul_member::{Answer, Reply, SyncEvent};
use longhaul_proto::control::message::ToCoordinator;

/// A process of a worker. Messages to one process never reach another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub worker: WorkerId,
    pub incarnation: u64,
}

/// A message.
#[derive(Debug)]
pub enum Said {
    /// To a worker, whichever process it has then.
    ToPeer {
        from: WorkerId,
        to: WorkerId,
        event: SyncEvent,
    },
    /// Another worker's answer, or its refusal.
    Answer {
        from: WorkerId,
        to: Process,
        event: SyncEvent,
    },
    /// Work that this process has done in the background.
    ToSelf {
        to: Process,
        event: SyncEvent,
    },
    ToDevice {
        to: Process,
        message: ToDevice,
    },
    ToCoordinator {
        from: Process,
        message: ToCoordinator,
    },
}

/// The time, and the messages. All in one world share it.
#[derive(Clone, Default)]
pub struct Bus(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    now: Duration,
    said: Vec<Said>,
}

impl Bus {
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    pub fn set_now(&self, now: Duration) {
        self.lock().now = now;
    }

    pub fn say(&self, said: Said) {
        self.lock().said.push(said);
    }

    /// Takes all messages since the last call, in order.
    pub fn take(&self) -> Vec<Said> {
        std::mem::take(&mut self.lock().said)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns an answer into a message; a dropped answer is `None`.
pub fn reply<T: Send + 'static>(then: impl FnOnce(Option<T>) + Send + 'static) -> Reply<T> {
    Box::new(Passed(Some(Box::new(then))))
}

struct Passed<T>(Option<Then<T>>);

type Then<T> = Box<dyn FnOnce(Option<T>) + Send>;

impl<T> fmt::Debug for Passed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passed")
    }
}

impl<T: Send> Answer<T> for Passed<T> {
    fn give(mut self: Box<Self>, answer: T) {
        if let Some(then) = self.0.take() {
            then(Some(answer));
        }
    }

    fn is_wanted(&self) -> bool {
        true
    }
}

impl<T> Drop for Passed<T> {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then(None);
        }
    }
}
