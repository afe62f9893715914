//! Notes down how a run goes, for the dashboard: in memory, where the HTTP API reads it, and in files, for those who look later.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::journal::Journal;
use crate::history::{FORMAT, Folder, History, Last, Meta, RoundPoint, Told};
use crate::run::{Phase, RoundSummary, Run, Status};

/// How often what is now is written to its file, in milliseconds, where the phase does not change.
const LAST_INTERVAL_MS: u64 = 60_000;

/// The curves of a run, which its owner writes and the HTTP API reads.
#[derive(Clone, Debug)]
pub struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    /// Shares a history.
    #[must_use]
    pub fn new(history: History) -> Self {
        Self(Arc::new(Mutex::new(history)))
    }

    /// Looks at it; the owner of the run waits meanwhile.
    pub fn look<T>(&self, at: impl FnOnce(&History) -> T) -> T {
        at(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who notes it down. It never stops a run: where its files cannot be written, there are none.
#[derive(Debug)]
pub struct Chronicler {
    history: SharedHistory,
    /// The state directory.
    state_dir: PathBuf,
    folder: Option<Folder>,
    last_written_ms: u64,
    phase: Option<Phase>,
}

impl Chronicler {
    /// Goes on with what is in the state directory of this run. `rounds` are those that its store has, for a coordinator on another machine than the one before.
    #[must_use]
    pub fn start(state_dir: &Path, run: &Run, rounds: &[RoundSummary], now_ms: u64) -> Self {
        let found = Folder::read(state_dir, &run.state().run.to_string());
        let found = found.unwrap_or_else(|error| {
            tracing::warn!("{error}: its curves begin anew");
            None
        });
        let history = found.unwrap_or_else(|| begun(run, rounds, now_ms));
        let folder = Folder::begin(state_dir, &history);
        let mut chronicler = Self {
            history: SharedHistory::new(history),
            state_dir: state_dir.to_owned(),
            folder: None,
            last_written_ms: 0,
            phase: None,
        };
        chronicler.folder = chronicler.unless_failed(folder);
        chronicler
    }

    /// What the HTTP API reads.
    #[must_use]
    pub fn history(&self) -> SharedHistory {
        self.history.clone()
    }

    /// The state directory, in whose `history/` there may be earlier runs.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The owner publishes how it goes.
    pub fn note(&mut self, now_ms: u64, run: &Run, status: &Status, journal: &Journal) {
        let told = self.history.lock().note(now_ms, status, run.heartbeats());
        self.write(told);
        if self.phase != Some(status.phase) || now_ms >= self.last_written_ms.saturating_add(LAST_INTERVAL_MS)
        {
            self.write_last(now_ms, status, journal);
        }
    }

    /// A round counts.
    pub fn note_round(&mut self, now_ms: u64, run: &Run, summary: &RoundSummary) {
        let point = RoundPoint::of(now_ms, summary, &run.state().schedule, &run.config().train);
        let told = self.history.lock().note_round(point);
        self.write(told);
    }

    /// What is shown of now, also when the coordinator is gone.
    pub fn write_last(&mut self, now_ms: u64, status: &Status, journal: &Journal) {
        (self.last_written_ms, self.phase) = (now_ms, Some(status.phase));
        let Some(folder) = &self.folder else { return };
        let activity = self.history.look(|history| history.activity().clone());
        let last = Last { at_ms: now_ms, status: status.clone(), activity, events: journal.after(0) };
        let written = folder.put_last(&last);
        self.unless_failed(written);
    }

    fn write(&mut self, told: Vec<Told>) {
        if told.is_empty() {
            return;
        }
        let Some(folder) = &mut self.folder else { return };
        let written = self.history.look(|history| folder.append(history, told));
        self.unless_failed(written);
    }

    fn unless_failed<T>(&mut self, done: std::io::Result<T>) -> Option<T> {
        done.inspect_err(|error| {
            self.folder = None;
            let folder = self.state_dir.display();
            tracing::warn!(%error, %folder, "the dashboard's history is not written any more; the run goes on. Is the disk full?");
        })
        .ok()
    }
}

/// A history that begins now, with the rounds that the store has.
fn begun(run: &Run, rounds: &[RoundSummary], now_ms: u64) -> History {
    let config = run.config();
    let word = |value: serde_json::Result<serde_json::Value>| {
        value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let (kind, preset) =
        (word(serde_json::to_value(config.model.kind)), word(serde_json::to_value(config.sync.preset)));
    let mut history = History::new(Meta {
        format: FORMAT,
        run: run.state().run.to_string(),
        name: config.run.name.clone(),
        begun_ms: now_ms,
        images: config.data.image.is_some(),
        steps: config.run.steps,
        batch: config.train.batch,
        about: format!("{kind}, {preset}, batch {}", config.train.batch),
    });
    for summary in rounds {
        history.note_round(RoundPoint::of(now_ms, summary, &run.state().schedule, &config.train));
    }
    history
}
