//! The threads that decode images, of all sources of this process.

use std::sync::LazyLock;
use std::thread;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Images that are decoded at once, at most: one takes up to 64 MiB, and larger ones are decoded one by one.
const DECODERS_MAX: usize = 32;
/// Those of them that nobody waits for: half of the cores, and no more than these.
const AHEAD_MAX: usize = 8;
/// How far such threads give way to others (`nice(2)`).
const NICENESS: i32 = 19;

/// Threads for images of the next steps, which somebody waits for or soon will; none: the system gives none, and whoever has the images decodes them.
static WANTED: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let threads = cores().min(DECODERS_MAX - AHEAD_MAX);
    ThreadPoolBuilder::new().thread_name(|at| format!("decoder {at}")).num_threads(threads).build().ok()
});

/// Those for images that are not wanted yet.
static AHEAD: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let pool = ThreadPoolBuilder::new().thread_name(|at| format!("decoder ahead {at}"));
    pool.num_threads((cores() / 2).clamp(1, AHEAD_MAX)).start_handler(|_| give_way()).build().ok()
});

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// From now on this thread runs when nobody else wants its core, but for a little.
pub(super) fn give_way() {
    // On Linux a thread has a niceness of its own. Where it is refused, all are alike.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// What becomes of each, in order, as somebody waits for it.
pub(super) fn wanted<T: Send, R: Send>(items: Vec<T>, decode: impl Fn(T) -> R + Sync) -> Vec<R> {
    each(&WANTED, items, decode)
}

/// The same as nobody waits for it.
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
