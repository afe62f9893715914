//! Writes the history to its files, on a thread of its own: a disk that takes its time holds nothing up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::history::SharedHistory;
use crate::history::{Folder, Last, Rest};
use crate::journal::Journal;
use longhaul_run::Status;

/// The newest status for readers after the coordinator's end, with its Unix time in milliseconds, until it is written.
type Newest = Arc<Mutex<Option<(u64, Arc<Status>)>>>;

/// How long the end of the coordinator waits for the last words to be written.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);

/// The writing thread. It reads the news from the history itself, from its last position: no queue grows while the disk is slow.
#[derive(Debug)]
pub struct HistoryWriter {
    last: Newest,
    /// Wakes it up: one signal is enough. `None`: it has to end.
    wake: Option<SyncSender<()>>,
    /// Nothing is ever sent; it is closed when the thread has ended.
    ended: Receiver<()>,
}

/// State of the thread.
struct HistoryThread {
    history: SharedHistory,
    journal: Arc<Journal>,
    state_dir: PathBuf,
    last: Newest,
}

impl HistoryWriter {
    /// Starts it. It writes the whole history first.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub fn start(history: SharedHistory, journal: Arc<Journal>, state_dir: &Path) -> io::Result<Self> {
        let last = Newest::default();
        let thread =
            HistoryThread { history, journal, state_dir: state_dir.to_owned(), last: Arc::clone(&last) };
        let (wake, woken) = sync_channel(1);
        let (has_ended, ended) = sync_channel(1);
        thread::Builder::new().name("history".to_owned()).spawn(move || {
            thread.write_until_the_end(&woken);
            drop::<SyncSender<()>>(has_ended);
        })?;
        Ok(Self { last, wake: Some(wake), ended })
    }

    /// There may be something new.
    pub fn wake(&self) {
        // It is awake already, or has given up, which it has reported.
        let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
    }

    /// Sets the last values; they replace ones that are not written yet.
    pub fn put_last(&self, at_ms: u64, status: Arc<Status>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((at_ms, status));
        self.wake();
    }
}

/// It ends when all is written, or when that takes too long.
impl Drop for HistoryWriter {
    fn drop(&mut self) {
        self.wake = None;
        if self.ended.recv_timeout(LAST_WORDS_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the disk is slow: the end of the dashboard's history may be missing");
        }
    }
}

impl HistoryThread {
    fn write_until_the_end(self, woken: &Receiver<()>) {
        let written = self.begin().and_then(|mut folder| {
            while woken.recv().is_ok() {
                self.write(&mut folder)?;
            }
            self.write(&mut folder)
        });
        if let Err(error) = written {
            let folder = self.state_dir.display();
            tracing::warn!(%error, %folder, "the dashboard's history is no longer written; the run goes on. Is the disk full?");
        }
    }

    fn begin(&self) -> io::Result<Folder> {
        let history = self.history.look(Clone::clone);
        Folder::begin(&self.state_dir, &history)
    }

    fn write(&self, folder: &mut Folder) -> io::Result<()> {
        let new = self
            .history
            .look(|history| history.since(folder.mark()).ok_or_else(|| Box::new(history.clone())));
        match new {
            Ok(news) => folder.append(news)?,
            Err(history) => folder.write_anew(&history)?,
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((at_ms, status)) = last else { return Ok(()) };
        let events = self.journal.after(0);
        let rest = self.history.look(|history| Rest {
            activity: history.activity().clone(),
            events,
            recent: history.recent().iter().cloned().collect(),
            open: history.open(),
        });
        folder.put_last(&Last { at_ms, status, rest })
    }
}
