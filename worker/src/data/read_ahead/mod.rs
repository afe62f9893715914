//! Batches that are ready before the device wants them.

mod queue;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tch::Device;

pub use self::queue::Wanted;
use self::queue::{Queue, Task};
use super::{Batch, DataError, Dataset};

/// Steps for which [`ReadAhead::take`] wants to know what is trained on, the one that is taken included.
pub const STEPS_AHEAD: usize = queue::EXPECTED_MAX;

/// A thread that reads the samples of the next steps while the device computes, and makes tensors of them. It ends with this.
#[derive(Debug)]
pub struct ReadAhead {
    shared: Arc<Shared>,
    reader: Reader,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    /// Nobody wants anything any more.
    is_over: bool,
    /// The thread is gone: whoever wants something reads it.
    is_alone: bool,
}

/// What reads.
#[derive(Clone, Debug)]
struct Reader {
    data: Arc<Dataset>,
    seed: u64,
    device: Device,
}

impl ReadAhead {
    /// Starts the thread: it reads for `device`, by the order that the run's seed makes.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(data: Arc<Dataset>, seed: u64, device: Device) -> io::Result<Self> {
        let (shared, reader) = (Arc::<Shared>::default(), Reader { data, seed, device });
        let thread = std::thread::Builder::new().name("read-ahead".into()).spawn({
            let (shared, reader) = (Arc::clone(&shared), reader.clone());
            move || serve(&shared, &reader)
        })?;
        Ok(Self { shared, reader, thread: Some(thread) })
    }

    /// The samples of the first of these steps; the others, up to [`STEPS_AHEAD`] in all, are read ahead as far as there is room. They may be others at each call: what was
    /// read for nothing is thrown away.
    ///
    /// # Errors
    /// Prepared data of the first step is damaged, and cannot be made again.
    pub fn take(&self, steps: impl IntoIterator<Item = Wanted>) -> Result<Batch, DataError> {
        let mut steps = steps.into_iter().peekable();
        let Some(first) = steps.peek().cloned() else { return self.reader.data.batch([], self.reader.seed) };
        let mut state = self.shared.lock();
        state.queue.want(steps);
        self.shared.changed.notify_all();
        loop {
            if let Some(batch) = state.queue.poll_batch() {
                self.shared.changed.notify_all();
                return batch;
            }
            if state.is_alone {
                return self.reader.read(&first);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        // One that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    /// The state is consistent after each statement that changes it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread is gone, however it went.
struct Alone<'a>(&'a Shared);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.lock().is_alone = true;
        self.0.changed.notify_all();
    }
}

fn serve(shared: &Shared, reader: &Reader) {
    let _alone = Alone(shared);
    let mut state = shared.lock();
    while !state.is_over {
        let Some(task) = state.queue.poll_task() else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        match task {
            Task::Expect(number, wanted) => {
                let bytes = reader.expect(&wanted);
                state = shared.lock();
                state.queue.handle_expected(number, bytes);
            }
            Task::Read(number, wanted) => {
                let batch = reader.read(&wanted);
                state = shared.lock();
                state.queue.handle_read(number, batch);
                shared.changed.notify_all();
            }
        }
    }
}

impl Reader {
    fn expect(&self, wanted: &Wanted) -> u64 {
        wanted.positions.iter().map(|&position| self.data.expect(position, self.seed)).sum()
    }

    fn read(&self, wanted: &Wanted) -> Result<Batch, DataError> {
        let mut batch = self.data.batch(wanted.positions.iter().copied(), self.seed)?;
        // Where libtorch has no memory for it, the device finds out, and says so where it can be mended.
        let _ = batch.stage(wanted.micro_batch, self.device);
        Ok(batch)
    }
}
