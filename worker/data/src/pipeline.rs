//! Threads that make tokens and samples, shared by all readers of pieces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::cache::Cache;
use super::chat::ConversationCounts;
use super::lease::Lease;
use super::notes::Notes;
use super::origin::Origin;
use super::piece::{BadRecords, Piece, Pieces};
use super::prepared::{ListedPiece, MadePiece, Maker};
use super::text_counts::TextCounts;
use super::work::FileWork;
use super::{DataError, Recipe};

/// Upper bound of threads: each holds a piece and its result in memory, some 100 MB.
const THREADS_MAX: usize = 32;
/// Threads beyond the cores: while one waits for its shard to reach the disk, another decodes.
const THREADS_BEYOND_CORES: usize = 2;
/// Pieces waiting for a thread: back-pressure on the readers beyond this.
const WAITING_MAX: usize = 1;

/// The results of a file's pieces, in order.
pub(super) struct Tokenised {
    pub(super) pieces: Vec<ListedPiece>,
    pub(super) bad: BadRecords,
    /// The class of each image.
    pub(super) labels: Vec<u32>,
    /// Counts of its texts.
    pub(super) counts: TextCounts,
    pub(super) conversations: ConversationCounts,
    pub(super) notes: Notes,
}

/// Threads that make tokens of pieces.
pub(super) struct Makers<'a> {
    pub(super) lease: &'a Lease,
    queue: SyncSender<Job<'a>>,
    cache: &'a Cache,
    /// A thread failed: the work of the others is useless.
    pub(super) has_failed: AtomicBool,
}

/// A piece's index, the bytes of the file that were read for it, and the result.
type Told = (usize, u64, Result<MadePiece, DataError>);

/// A piece, with the channel for its result.
struct Job<'a> {
    index: usize,
    /// Bytes of the file that were read for it.
    bytes: u64,
    piece: Piece,
    file: &'a Origin,
    recipe: (&'a Recipe, blake3::Hash),
    tell: Sender<Told>,
}

/// Runs the threads while `read` runs. The lease holds the results.
pub(super) fn with_makers<'a, T>(
    maker: Maker<'a>,
    lease: &'a Lease,
    read: impl FnOnce(&Makers<'a>) -> T,
) -> T {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores + THREADS_BEYOND_CORES).min(THREADS_MAX);
    thread::scope(|scope| {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..threads {
            let waiting = Arc::clone(&waiting);
            scope.spawn(move || take_jobs(&waiting, maker, lease));
        }
        // The queue closes with its last receiver, so that senders do not wait for threads that panicked.
        drop(waiting);
        read(&Makers { lease, queue, cache: maker.cache, has_failed: AtomicBool::new(false) })
    })
}

fn take_jobs<'a>(waiting: &Mutex<Receiver<Job<'a>>>, maker: Maker<'a>, lease: &Lease) {
    loop {
        let Ok(job) = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv() else { return };
        let made = maker.make_piece(job.piece, job.file, job.recipe, lease);
        // A closed receiver means that its owner failed.
        let _ = job.tell.send((job.index, job.bytes, made));
    }
}

impl<'a> Makers<'a> {
    /// A thread failed: the work of the others is useless.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Tokenises each piece of a file. Ends early on a failure, on too many bad records, or on a stop.
    pub(super) fn tokenise(
        &self,
        file: &'a Origin,
        recipe: &'a Recipe,
        accept: impl Fn(&BadRecords) -> Result<(), DataError>,
        work: &mut FileWork<'_>,
    ) -> Result<Tokenised, DataError> {
        let mut pieces = Pieces::open(file, recipe, self.cache)?;
        let recipe = (recipe, recipe.hash(file.path()));
        let (tell, told) = channel();
        let (mut unread, mut made) = (Vec::new(), Vec::new());
        let (mut before, mut done) = (0, 0);
        let mut take = |(index, bytes, piece): Told, work: &mut FileWork<'_>| {
            let piece = piece?;
            accept(&piece.bad)?;
            made.push((index, piece));
            done += bytes;
            work.has_prepared(done);
            Ok(())
        };
        while let Some(mut piece) = pieces.next_piece()? {
            let bytes = pieces.read_bytes().saturating_sub(before);
            before += bytes;
            let (bad, notes) = (std::mem::take(&mut piece.bad), std::mem::take(&mut piece.notes));
            accept(&bad)?;
            work.goes_on()?;
            told.try_iter().try_for_each(|told| take(told, work))?;
            let job = Job { index: unread.len(), bytes, piece, file, recipe, tell: tell.clone() };
            unread.push((bad, notes));
            // The queue is closed only if a thread panicked, and then the scope panics too.
            self.queue.send(job).map_err(|_| DataError::Stopped)?;
        }
        drop(tell);
        told.into_iter().try_for_each(|told| take(told, work))?;
        if made.len() < unread.len() {
            return Err(DataError::Stopped);
        }
        made.sort_unstable_by_key(|(index, _)| *index);
        Ok(Tokenised::of(unread.into_iter().zip(made.into_iter().map(|(_, piece)| piece))))
    }
}

impl Tokenised {
    /// Collects pieces in order, each with its unreadable records and the reader's notes.
    fn of(made: impl Iterator<Item = ((BadRecords, Notes), MadePiece)>) -> Self {
        let (mut pieces, mut bad) = (Vec::new(), BadRecords::default());
        let (mut labels, mut counts, mut notes) = (Vec::new(), TextCounts::default(), Notes::default());
        let mut conversations = ConversationCounts::default();
        for ((unread, read), piece) in made {
            pieces.push(piece.listed);
            bad.add(&unread);
            bad.add(&piece.bad);
            counts.add(&piece.counts);
            conversations.add(&piece.conversations);
            notes.add(&read);
            notes.add(&piece.notes);
            labels.extend(piece.labels);
        }
        Self { pieces, bad, labels, counts, conversations, notes }
    }
}
