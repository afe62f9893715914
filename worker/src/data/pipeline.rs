//! One thread reads a file's pieces, and several make tokens of them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::piece::{BadRecords, Piece, Pieces};
use super::prepared::ListedPiece;
use super::{DataError, Work};

/// Threads that make tokens, at most: each has a piece and its tokens in memory, some 100 MB.
const THREADS_MAX: usize = 32;
/// Pieces that were read and wait for a thread: the reader waits when there are more.
const WAITING_MAX: usize = 1;

/// What a file's pieces became, in order.
pub(super) struct Tokenised {
    pub(super) pieces: Vec<ListedPiece>,
    pub(super) bad: BadRecords,
}

/// Gives each piece to `make`, several at a time, until all are made, something fails, more than `bad_max` records are bad, or a stop is asked for.
pub(super) fn tokenise(
    pieces: Pieces,
    bad_max: u64,
    work: &Work,
    make: impl Fn(Piece) -> Result<ListedPiece, DataError> + Sync,
) -> Result<Tokenised, DataError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let (queue, waiting) = sync_channel(WAITING_MAX);
    let (waiting, made, failure) = (Mutex::new(waiting), Mutex::new(Vec::new()), Mutex::new(None));
    let bad = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| take_pieces(&waiting, &made, &failure, &make));
        }
        read_pieces(pieces, bad_max, work, queue, &failure)
    })?;
    if let Some(error) = lock(&failure).take() {
        return Err(error);
    }
    let mut made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    made.sort_unstable_by_key(|(index, _)| *index);
    Ok(Tokenised { pieces: made.into_iter().map(|(_, piece)| piece).collect(), bad })
}

/// Reads until the end, or somebody failed; the queue is closed behind the last.
fn read_pieces(
    mut pieces: Pieces,
    bad_max: u64,
    work: &Work,
    queue: SyncSender<(usize, Piece)>,
    failure: &Mutex<Option<DataError>>,
) -> Result<BadRecords, DataError> {
    let (mut index, mut bad) = (0, BadRecords::default());
    while let Some(mut piece) = pieces.next_piece()? {
        work.has_read(pieces.read_bytes());
        bad.add(&std::mem::take(&mut piece.bad));
        if bad.count > bad_max {
            return Err(bad.refused(bad_max));
        }
        if work.is_stopped() {
            return Err(DataError::Stopped);
        }
        // Nobody takes it only where a thread panicked, and then so does the scope.
        if lock(failure).is_some() || queue.send((index, piece)).is_err() {
            break;
        }
        index += 1;
    }
    Ok(bad)
}

fn take_pieces(
    waiting: &Mutex<Receiver<(usize, Piece)>>,
    made: &Mutex<Vec<(usize, ListedPiece)>>,
    failure: &Mutex<Option<DataError>>,
    make: impl Fn(Piece) -> Result<ListedPiece, DataError>,
) {
    loop {
        let Ok((index, piece)) = lock(waiting).recv() else { return };
        if lock(failure).is_some() {
            continue;
        }
        match make(piece) {
            Ok(piece) => lock(made).push((index, piece)),
            Err(error) => {
                lock(failure).get_or_insert(error);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
