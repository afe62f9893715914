//! The threads that decode images, for all sources of this process.

use std::sync::LazyLock;
use std::thread;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Most images decoded at once: one takes up to 64 MiB, and larger ones are decoded one by one.
const DECODERS_MAX: usize = 32;
/// Most decoders of images not needed yet: half of the cores, up to this number.
const AHEAD_MAX: usize = 8;
/// Niceness of these threads (`nice(2)`).
const NICENESS: i32 = 19;

/// Threads for images of the next steps; `None`: the system cannot start them, and the caller decodes.
static WANTED: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let threads = cores().min(DECODERS_MAX - AHEAD_MAX);
    ThreadPoolBuilder::new().thread_name(|at| format!("decoder {at}")).num_threads(threads).build().ok()
});

/// Threads for images not needed yet.
static AHEAD: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let pool = ThreadPoolBuilder::new().thread_name(|at| format!("decoder ahead {at}"));
    pool.num_threads((cores() / 2).clamp(1, AHEAD_MAX)).start_handler(|_| give_way()).build().ok()
});

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Lowers the priority of this thread to run only on otherwise idle cores.
pub(super) fn give_way() {
    // On Linux each thread has its own niceness. A refusal leaves all threads equal.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// Decodes all items, in order, at high priority.
pub(super) fn wanted<T: Send, R: Send>(items: Vec<T>, decode: impl Fn(T) -> R + Sync) -> Vec<R> {
    each(&WANTED, items, decode)
}

/// The same at low priority.
pub(super) fn ahead<T: Send, R: Send>(items: Vec<T>, decode: impl Fn(T) -> R + Sync) -> Vec<R> {
    each(&AHEAD, items, decode)
}

fn each<T: Send, R: Send>(
    pool: &Option<ThreadPool>,
    items: Vec<T>,
    decode: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    match pool {
        Some(pool) => pool.install(|| items.into_par_iter().map(&decode).collect()),
        None => items.into_iter().map(decode).collect(),
    }
}
