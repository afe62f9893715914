//! Batches read before the device needs them.

mod queue;

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub use self::queue::ReadRequest;
use self::queue::{Numbered, Queue};
use super::{DataError, Dataset, HostBatch};

/// Steps that [`ReadAhead::take`] expects, including the one taken.
pub const STEPS_AHEAD: usize = queue::EXPECTED_MAX;

/// Two threads that read the samples of the next steps while the device computes, and convert them to its input, `T`: one announces reads to the
/// operating system, the other reads. Both end on drop.
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
    /// Shutting down.
    is_over: bool,
    /// A thread has ended: callers read for themselves.
    is_alone: bool,
}

/// The inputs of the reading threads.
struct Reader<T> {
    data: Arc<Dataset>,
    seed: u64,
    make: Make<T>,
}

/// Converts the samples of a step, given the micro-batch size.
type Make<T> = Arc<dyn Fn(HostBatch, usize) -> T + Send + Sync>;

impl<T: Send + 'static> ReadAhead<T> {
    /// Starts the threads. They read in the order given by the run's seed, and call `make` with the samples of a step and the micro-batch size.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        data: Arc<Dataset>,
        seed: u64,
        make: impl Fn(HostBatch, usize) -> T + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (shared, reader) = (Arc::<Shared<T>>::default(), Reader { data, seed, make: Arc::new(make) });
        // Dropping this ends the first thread if the second cannot start.
        let mut ahead = Self { shared, reader, threads: Vec::new() };
        for (name, work) in [("expect", expect as fn(&Shared<T>, &Reader<T>)), ("read-ahead", read)] {
            let (shared, reader) = (Arc::clone(&ahead.shared), ahead.reader.clone());
            let thread =
                std::thread::Builder::new().name(name.into()).spawn(move || work(&shared, &reader))?;
            ahead.threads.push(thread);
        }
        Ok(ahead)
    }

    /// Returns the samples of the first step; the others, up to [`STEPS_AHEAD`] in all, are read ahead as room permits. The steps may differ at each
    /// call: unused reads are discarded.
    ///
    /// # Errors
    /// Prepared data of the first step is damaged and cannot be rebuilt.
    pub fn take(&self, steps: impl IntoIterator<Item = ReadRequest>) -> Result<T, DataError> {
        let mut steps = steps.into_iter().peekable();
        let Some(first) = steps.peek().cloned() else {
            return self.reader.read(&ReadRequest { positions: Vec::new(), micro_batch: 1 });
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
            // A panic has already been reported.
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
    /// Locks the state, which is consistent after each statement that changes it.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next task; `None`: shutting down.
    fn next(&self, poll: impl Fn(&mut Queue<T>) -> Option<Numbered>) -> Option<Numbered> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(next) = poll(&mut state.queue) {
                // The other thread may wait for this task to begin.
                self.changed.notify_all();
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Marks a thread as ended on drop, also after a panic.
struct Alone<'a, T>(&'a Shared<T>);

impl<T> Drop for Alone<'_, T> {
    fn drop(&mut self) {
        self.0.lock().is_alone = true;
        self.0.changed.notify_all();
    }
}

/// Announces reads to the operating system, which takes as long as reading if much of the data is on disk, and decodes images while the other
/// thread converts samples for the device.
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
    fn expect(&self, wanted: &ReadRequest) -> u64 {
        self.data.expect(&wanted.positions, self.seed)
    }

    fn read(&self, wanted: &ReadRequest) -> Result<T, DataError> {
        let samples = self.data.batch(wanted.positions.iter().copied(), self.seed)?;
        Ok((self.make)(samples, wanted.micro_batch))
    }
}
