//! Batches that are ready before the device wants them.

mod queue;

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub use self::queue::Wanted;
use self::queue::{Numbered, Queue};
use super::{DataError, Dataset, HostBatch};

/// Steps for which [`ReadAhead::take`] wants to know what is trained on, the one that is taken included.
pub const STEPS_AHEAD: usize = queue::EXPECTED_MAX;

/// Two threads that read the samples of the next steps while the device computes, and make of them what it takes, `T`: one tells the system what will be read, the other one
/// reads it. They end with this.
#[derive(Debug)]
pub struct ReadAhead<T> {
    shared: Arc<Shared<T>>,
    reader: Reader<T>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    queue: Queue<T>,
    /// Nobody wants anything any more.
    is_over: bool,
    /// A thread is gone: whoever wants something reads it.
    is_alone: bool,
}

/// What reads.
struct Reader<T> {
    data: Arc<Dataset>,
    seed: u64,
    make: Make<T>,
}

/// What is made of the samples of a step, with how many of them go through the model at once.
type Make<T> = Arc<dyn Fn(HostBatch, usize) -> T + Send + Sync>;

impl<T: Send + 'static> ReadAhead<T> {
    /// Starts the threads: they read by the order that the run's seed makes, and call `make` with the samples of a step and how many of them go through the model at once.
    ///
    /// # Errors
    /// The system has no threads to give.
    pub fn start(
        data: Arc<Dataset>,
        seed: u64,
        make: impl Fn(HostBatch, usize) -> T + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (shared, reader) = (Arc::<Shared<T>>::default(), Reader { data, seed, make: Arc::new(make) });
        // What is started already ends with this, where there is no thread for the other one.
        let mut ahead = Self { shared, reader, threads: Vec::new() };
        for (name, work) in [("expect", expect as fn(&Shared<T>, &Reader<T>)), ("read-ahead", read)] {
            let (shared, reader) = (Arc::clone(&ahead.shared), ahead.reader.clone());
            let thread =
                std::thread::Builder::new().name(name.into()).spawn(move || work(&shared, &reader))?;
            ahead.threads.push(thread);
        }
        Ok(ahead)
    }

    /// The samples of the first of these steps; the others, up to [`STEPS_AHEAD`] in all, are read ahead as far as there is room. They may be others at each call: what was
    /// read for nothing is thrown away.
    ///
    /// # Errors
    /// Prepared data of the first step is damaged, and cannot be made again.
    pub fn take(&self, steps: impl IntoIterator<Item = Wanted>) -> Result<T, DataError> {
        let mut steps = steps.into_iter().peekable();
        let Some(first) = steps.peek().cloned() else {
            return self.reader.read(&Wanted { positions: Vec::new(), micro_batch: 1 });
        };
        let mut state = self.shared.lock();
        state.queue.want(steps);
        self.shared.changed.notify_all();
        loop {
            if let Some(batch) = state.queue.poll_batch() {
                self.shared.changed.notify_all();
                return batch;
            }
            if state.is_alone {
                drop(state);
                return self.reader.read(&first);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for ReadAhead<T> {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        let state = State { queue: Queue::default(), is_over: false, is_alone: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<T> Shared<T> {
    /// The state is consistent after each statement that changes it.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be done next, as soon as there is something; none: it is over.
    fn next(&self, poll: impl Fn(&mut Queue<T>) -> Option<Numbered>) -> Option<Numbered> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(next) = poll(&mut state.queue) {
                // What one thread has begun may be what the other one waits for.
                self.changed.notify_all();
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Says that a thread is gone, however it went.
struct Alone<'a, T>(&'a Shared<T>);

impl<T> Drop for Alone<'_, T> {
    fn drop(&mut self) {
        self.0.lock().is_alone = true;
        self.0.changed.notify_all();
    }
}

/// Tells the system what will be read, which takes as long as reading where much of it comes from the disk; and has images decoded, while others are made into what the device takes.
fn expect<T>(shared: &Shared<T>, reader: &Reader<T>) {
    let _alone = Alone(shared);
    while let Some((number, wanted)) = shared.next(|queue| queue.poll_expect()) {
        let bytes = reader.expect(&wanted);
        shared.lock().queue.handle_expected(number, bytes);
        shared.changed.notify_all();
    }
}

fn read<T>(shared: &Shared<T>, reader: &Reader<T>) {
    let _alone = Alone(shared);
    while let Some((number, wanted)) = shared.next(Queue::poll_read) {
        let batch = reader.read(&wanted);
        shared.lock().queue.handle_read(number, batch);
        shared.changed.notify_all();
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self { data: Arc::clone(&self.data), seed: self.seed, make: Arc::clone(&self.make) }
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl<T> Reader<T> {
    fn expect(&self, wanted: &Wanted) -> u64 {
        self.data.expect(&wanted.positions, self.seed)
    }

    fn read(&self, wanted: &Wanted) -> Result<T, DataError> {
        let samples = self.data.batch(wanted.positions.iter().copied(), self.seed)?;
        Ok((self.make)(samples, wanted.micro_batch))
    }
}
