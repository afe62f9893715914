//! Threads that encode beside the thread of the round protocol.

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// More threads do not pay: they would wait for memory, not arithmetic.
const CODEC_THREADS_MAX: usize = 8;

/// One thread per core that does not train, within bounds.
pub struct CodecPool {
    /// `None`: the caller's thread does everything.
    pool: Option<ThreadPool>,
}

impl CodecPool {
    /// Creates a pool on a machine with this many cores busy training. With fewer than two to spare, or if the system provides no threads, the caller does
    /// the work.
    #[must_use]
    pub fn beside(training: usize) -> Self {
        // The answer takes the system some files.
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
        Self::of(cores.saturating_sub(training).min(CODEC_THREADS_MAX))
    }

    pub(crate) fn of(threads: usize) -> Self {
        if threads < 2 {
            return Self { pool: None };
        }
        let pool =
            ThreadPoolBuilder::new().num_threads(threads).thread_name(|at| format!("codec {at}")).build();
        if let Err(error) = &pool {
            tracing::warn!(%error, threads, "no threads for the codec; updates are encoded one after the other");
        }
        Self { pool: pool.ok() }
    }

    /// Returns the number of parallel tasks.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, ThreadPool::current_num_threads)
    }

    /// Runs all tasks, and returns after the last one.
    pub fn run<T: Send>(&self, tasks: &mut [T], run: impl Fn(&mut T) + Send + Sync) {
        match &self.pool {
            Some(pool) if tasks.len() > 1 => pool.install(|| tasks.par_iter_mut().for_each(run)),
            _ => tasks.iter_mut().for_each(run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tasks_are_done_with_and_without_threads() {
        for threads in [0, 1, 3] {
            let pool = CodecPool::of(threads);
            assert_eq!(pool.threads(), threads.max(1));
            let mut tasks: Vec<usize> = (0..20).collect();
            pool.run(&mut tasks, |task| *task *= 2);
            assert!(tasks.iter().enumerate().all(|(at, task)| *task == 2 * at));
        }
        assert_eq!(CodecPool::beside(usize::MAX).threads(), 1, "all cores train");
    }
}
