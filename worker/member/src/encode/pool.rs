//! The threads that encode beside the one that follows the round protocol.

use std::num::NonZeroUsize;

use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// More threads than this are not worth it: memory, not arithmetic, is what they would wait for.
const CODEC_THREADS_MAX: usize = 8;

/// As many threads as the machine has cores that do not train, within bounds.
pub struct CodecPool {
    /// None: the caller's thread does everything.
    pool: Option<ThreadPool>,
}

impl CodecPool {
    /// A pool on a machine of which so many cores are busy with training. With fewer than two to spare, or if the system has no threads to give,
    /// the caller does the work.
    #[must_use]
    pub fn beside(training: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self::of(cores.saturating_sub(training).min(CODEC_THREADS_MAX))
    }

    /// A pool of so many threads.
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

    /// How many tasks make progress at a time.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, ThreadPool::current_num_threads)
    }

    /// Does all tasks, and returns when they are done.
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
