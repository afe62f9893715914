//! Threads that make tokens, for all who read pieces of files.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::cache::Cache;
use super::lease::Lease;
use super::origin::Origin;
use super::piece::{BadRecords, Piece, Pieces};
use super::prepared::{ListedPiece, Maker};
use super::work::FileWork;
use super::{DataError, Recipe};

/// Threads that make tokens, at most: each has a piece and its tokens in memory, some 100 MB.
const THREADS_MAX: usize = 32;
/// Pieces that were read and wait for a thread: readers wait when there are more.
const WAITING_MAX: usize = 1;

/// What a file's pieces became, in order.
pub(super) struct Tokenised {
    pub(super) pieces: Vec<ListedPiece>,
    pub(super) bad: BadRecords,
}

/// Threads that make tokens of pieces.
pub(super) struct Makers<'a> {
    pub(super) lease: &'a Lease,
    queue: SyncSender<Job<'a>>,
    cache: &'a Cache,
    /// Something failed, and what others do is of no use.
    pub(super) has_failed: AtomicBool,
}

/// A piece, and who waits for what it becomes.
struct Job<'a> {
    index: usize,
    piece: Piece,
    file: &'a Origin,
    recipe: blake3::Hash,
    tell: Sender<(usize, Result<ListedPiece, DataError>)>,
}

/// Has threads as long as `read` runs. What is made is in the lease.
pub(super) fn with_makers<'a, T>(
    maker: Maker<'a>,
    lease: &'a Lease,
    read: impl FnOnce(&Makers<'a>) -> T,
) -> T {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    thread::scope(|scope| {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..threads {
            let waiting = Arc::clone(&waiting);
            scope.spawn(move || take_jobs(&waiting, maker, lease));
        }
        // With the last thread that takes from it, it is closed: nobody waits for threads that have panicked.
        drop(waiting);
        read(&Makers { lease, queue, cache: maker.cache, has_failed: AtomicBool::new(false) })
    })
}

fn take_jobs<'a>(waiting: &Mutex<Receiver<Job<'a>>>, maker: Maker<'a>, lease: &Lease) {
    loop {
        let Ok(job) = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv() else { return };
        let made = maker.make_piece(job.piece, job.file, &job.recipe, lease);
        // Whoever does not listen any more has failed.
        let _ = job.tell.send((job.index, made));
    }
}

impl<'a> Makers<'a> {
    /// Something failed, and what others do is of no use.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Has tokens made of each piece of a file, until all are made, something fails, bad records are not accepted, or a stop is asked for.
    pub(super) fn tokenise(
        &self,
        file: &'a Origin,
        recipe: &Recipe,
        accept: impl Fn(&BadRecords) -> Result<(), DataError>,
        work: &mut FileWork<'_>,
    ) -> Result<Tokenised, DataError> {
        let (mut pieces, recipe) = (Pieces::open(file, recipe, self.cache)?, recipe.hash(file.path()));
        let (tell, told) = channel();
        let (mut ordered, mut made, mut bad) = (0, Vec::new(), BadRecords::default());
        while let Some(mut piece) = pieces.next_piece()? {
            work.has_read(pieces.read_bytes());
            let more = std::mem::take(&mut piece.bad);
            accept(&more)?;
            bad.add(&more);
            work.goes_on()?;
            for (index, piece) in told.try_iter() {
                made.push((index, piece?));
            }
            let job = Job { index: ordered, piece, file, recipe, tell: tell.clone() };
            // Nobody takes it, or says what became of it, only where a thread panicked, and then so does the scope.
            self.queue.send(job).map_err(|_| DataError::Stopped)?;
            ordered += 1;
        }
        drop(tell);
        for (index, piece) in told {
            made.push((index, piece?));
        }
        if made.len() < ordered {
            return Err(DataError::Stopped);
        }
        made.sort_unstable_by_key(|(index, _)| *index);
        Ok(Tokenised { pieces: made.into_iter().map(|(_, piece)| piece).collect(), bad })
    }
}
