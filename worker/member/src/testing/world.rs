//! Shared state of a test's workers: the time, and events in flight.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use longhaul_common::id::WorkerId;

use crate::SyncEvent;

/// No step of a test takes this long, unless it hangs.
const HANG: Duration = Duration::from_secs(60);

/// An event, and the index of its worker.
pub type Arrival = (usize, SyncEvent);

/// Time passes by itself, and jumps to the next timer while no thread may be busy.
pub struct World {
    began: Instant,
    state: Mutex<State>,
    queue: Sender<Arrival>,
    /// Threads that may still send.
    threads: AtomicUsize,
    /// Time of each activity so far, of all workers.
    spent: Mutex<BTreeMap<&'static str, Duration>>,
}

/// An activity, which counts when it is dropped.
pub struct Spending {
    world: Arc<World>,
    name: &'static str,
    began: Duration,
}

impl Drop for Spending {
    fn drop(&mut self) {
        let took = self.world.began.elapsed().saturating_sub(self.began);
        *self.world.spent.lock().unwrap().entry(self.name).or_default() += took;
    }
}

#[derive(Default)]
struct State {
    skipped: Duration,
    places: BTreeMap<WorkerId, usize>,
    later: Vec<(Duration, Arrival)>,
}

/// Marks a thread that may still send, until dropped.
pub struct Busy(Arc<World>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

impl World {
    #[allow(clippy::disallowed_methods, reason = "threads of the site take real time")]
    pub fn new() -> (Arc<Self>, Receiver<Arrival>) {
        let (queue, events) = channel();
        let (began, state, threads) = (Instant::now(), Mutex::default(), AtomicUsize::new(0));
        (Arc::new(Self { began, state, queue, threads, spent: Mutex::default() }), events)
    }

    #[allow(clippy::disallowed_methods, reason = "threads of the site take real time")]
    pub fn now(&self) -> Duration {
        self.began.elapsed() + self.lock().skipped
    }

    /// Counts the time of an activity.
    pub fn spend(self: &Arc<Self>, name: &'static str) -> Spending {
        Spending { world: Arc::clone(self), name, began: self.began.elapsed() }
    }

    /// Returns the time of each activity since the last call.
    pub fn spent(&self) -> BTreeMap<&'static str, Duration> {
        std::mem::take(&mut self.spent.lock().unwrap())
    }

    /// Advances the time at once.
    pub fn pass(&self, time: Duration) {
        self.lock().skipped += time;
    }

    pub fn is_at(&self, worker: WorkerId, place: usize) {
        self.lock().places.insert(worker, place);
    }

    pub fn place_of(&self, worker: WorkerId) -> Option<usize> {
        self.lock().places.get(&worker).copied()
    }

    /// Events without a receiver belong to a finished test.
    pub fn post(&self, at: usize, event: SyncEvent) -> bool {
        self.queue.send((at, event)).is_ok()
    }

    pub fn post_after(&self, wait: Duration, at: usize, event: SyncEvent) {
        let due = self.now() + wait;
        self.lock().later.push((due, (at, event)));
    }

    pub fn busy(self: &Arc<Self>) -> Busy {
        self.threads.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(self))
    }

    /// Returns the next event; `None` once the timer expires.
    pub fn next(&self, events: &Receiver<Arrival>, timer: Option<Duration>) -> Option<Arrival> {
        if let Ok(arrival) = events.try_recv() {
            return Some(arrival);
        }
        let due = self.lock().later.iter().map(|(due, _)| *due).chain(timer).min();
        let wait = due.map(|due| due.saturating_sub(self.now()));
        if let Some(wait) = wait
            && self.threads.load(Ordering::Acquire) == 0
        {
            self.lock().skipped += wait;
        } else {
            match events.recv_timeout(wait.unwrap_or(HANG)) {
                Ok(arrival) => return Some(arrival),
                Err(RecvTimeoutError::Timeout) => assert!(wait.is_some(), "no event is left"),
                Err(RecvTimeoutError::Disconnected) => unreachable!("the world has a sender"),
            }
        }
        let now = self.now();
        let later = &mut self.lock().later;
        let at = later.iter().position(|(due, _)| *due <= now)?;
        Some(later.swap_remove(at).1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}
