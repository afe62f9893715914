//! Records the run's history for the dashboard: in memory for the HTTP API, and in files for later.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::curves::Curves;
use super::history_writer::HistoryWriter;
use super::telemetry::Exported;
use crate::history::{FORMAT, Folder, Found, History, HistoryError, Meta, RoundPoint, SharedHistory};
use crate::journal::Journal;
use longhaul_run::{Phase, RoundSummary, Run, RunStatus, Status, Suspended};

/// Time between writes of the last values, in milliseconds, while the run stays at its stage.
const LAST_INTERVAL_MS: u64 = 60_000;

/// Recorder of the history. It neither stops the run nor delays it: unwritable files are left out.
#[derive(Debug)]
pub struct HistoryRecorder {
    history: SharedHistory,
    /// The state directory.
    state_dir: PathBuf,
    writer: Option<HistoryWriter>,
    curves: Option<Curves>,
    exported: Option<Exported>,
    last_written_ms: u64,
    /// As it was written last.
    stage: Option<Stage>,
}

/// Values to be written at once, as people look at them first when the coordinator has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stage {
    phase: Phase,
    paused: bool,
    stopping: bool,
    suspended: Option<Suspended>,
}

impl Stage {
    fn of(status: &Status) -> Self {
        let RunStatus { phase, paused, stopping, .. } = status.run;
        Self { phase, paused, stopping, suspended: status.suspended }
    }
}

impl HistoryRecorder {
    /// Goes on with this run's history in the state directory, and puts its kept events before those of `journal`. `rounds` are from the run's
    /// store, for a coordinator on another machine than the last.
    #[must_use]
    pub fn start(
        state_dir: &Path,
        run: &Run,
        rounds: &[RoundSummary],
        journal: &Arc<Journal>,
        now_ms: u64,
    ) -> Self {
        let (found, is_written) = found(state_dir, &run.state().run.to_string(), now_ms);
        let history = match found {
            Some(Found { mut history, events, .. }) => {
                journal.begin_with(events);
                history.set_steps(run.config().run.steps);
                history
            }
            None => begun(run, rounds, now_ms),
        };
        let history = SharedHistory::new(history);
        let writer =
            is_written.then(|| HistoryWriter::start(history.clone(), Arc::clone(journal), state_dir));
        let writer = writer.and_then(|writer| {
            writer.inspect_err(|error| tracing::warn!(%error, "the dashboard's history is not written")).ok()
        });
        Self {
            history,
            state_dir: state_dir.to_owned(),
            writer,
            curves: None,
            exported: None,
            last_written_ms: 0,
            stage: None,
        }
    }

    /// From now on, it writes curves for TensorBoard as well.
    pub fn draw(&mut self, curves: Curves) {
        self.curves = Some(curves);
    }

    /// Starts the export to an OpenTelemetry collector.
    pub fn export(&mut self, exported: Exported) {
        self.exported = Some(exported);
    }

    /// The history that the HTTP API reads.
    #[must_use]
    pub fn shared(&self) -> SharedHistory {
        self.history.clone()
    }

    /// The state directory, with earlier runs in its `history/`.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The owner publishes how it goes.
    pub fn note(&mut self, now_ms: u64, run: &Run, status: &Arc<Status>) {
        let before = self.history.look(History::mark);
        let after = {
            let mut history = self.history.lock();
            history.note(now_ms, status, run.heartbeats());
            history.mark()
        };
        if let Some(curves) = &mut self.curves {
            self.history.look(|history| curves.note(now_ms, status, history.recent().back()));
        }
        if let Some(exported) = &mut self.exported {
            exported.note(now_ms, status);
        }
        let is_due = now_ms >= self.last_written_ms.saturating_add(LAST_INTERVAL_MS);
        if is_due || self.stage != Some(Stage::of(status)) {
            self.write_last(now_ms, status);
        } else if before != after {
            self.wake();
        }
    }

    /// A round counts.
    pub fn note_round(&mut self, now_ms: u64, run: &Run, summary: &RoundSummary) {
        let point = RoundPoint::of(Some(now_ms), summary, &run.state().rounds.schedule);
        if let Some(curves) = &mut self.curves {
            curves.note_round(now_ms, &point);
        }
        if let Some(exported) = &mut self.exported {
            exported.note_round(now_ms, &point);
        }
        self.history.lock().note_round(point);
        self.wake();
    }

    /// Has the present values written for readers after the coordinator's end: soon, at the latest when this is
    /// dropped.
    pub fn write_last(&mut self, now_ms: u64, status: &Arc<Status>) {
        (self.last_written_ms, self.stage) = (now_ms, Some(Stage::of(status)));
        if let Some(writer) = &self.writer {
            writer.put_last(now_ms, Arc::clone(status));
        }
    }

    fn wake(&self) {
        if let Some(writer) = &self.writer {
            writer.wake();
        }
    }
}

/// Reads the history present, and whether its files may be overwritten. Unreadable ones are renamed, or left alone.
fn found(state_dir: &Path, run: &str, now_ms: u64) -> (Option<Found>, bool) {
    let (found, damaged) = match Folder::read(state_dir, run, now_ms) {
        Ok(found) => {
            let damaged = found.as_ref().map(|found| found.damaged.clone()).unwrap_or_default();
            (found, damaged)
        }
        Err(error) => {
            tracing::warn!("{error}: the dashboard's curves begin anew");
            match error {
                HistoryError::Foreign { path, .. } => (None, vec![path]),
                // It may be read again tomorrow.
                HistoryError::Io { path, .. } => {
                    tracing::warn!(file = %path.display(), "the file is left as it is, and no history is written until the coordinator restarts");
                    return (None, false);
                }
            }
        }
    };
    for file in damaged {
        let shown = file.display();
        match Folder::put_aside(&file, now_ms) {
            Ok(kept) => tracing::warn!("{shown} is damaged: it is kept as {}", kept.display()),
            Err(error) => {
                tracing::warn!(%error, "{shown} is damaged and cannot be renamed: it is left as it is, and no history is written");
                return (found, false);
            }
        }
    }
    (found, true)
}

/// Begins a history with the store's rounds, whose times are unknown.
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
        history.note_round(RoundPoint::of(None, summary, &run.state().rounds.schedule));
    }
    history
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longhaul_common::config::RunConfig;
    use longhaul_common::id::RunId;

    use super::*;
    use crate::history::FOLDER;
    use longhaul_run::{Notice, RunState, Severity};

    fn run() -> Run {
        let config = RunConfig::parse(include_str!("../../../examples/demo.toml")).unwrap();
        let state = RunState::new(RunId([7; 16]), &config);
        Run::new(config, state, std::time::Duration::ZERO).unwrap()
    }

    fn files(state_dir: &Path) -> Vec<(String, String)> {
        let folder = state_dir.join(FOLDER).join(run().state().run.to_string());
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, std::fs::read_to_string(&path).unwrap_or_default())
            })
            .collect();
        files.sort();
        files
    }

    fn started(state_dir: &Path, now_ms: u64) -> (HistoryRecorder, Arc<Journal>) {
        let journal = Arc::new(Journal::new(now_ms));
        (HistoryRecorder::start(state_dir, &run(), &[], &journal, now_ms), journal)
    }

    /// Begins, notes once, and ends.
    fn once(state_dir: &Path, now_ms: u64) {
        let (mut recorder, _) = started(state_dir, now_ms);
        recorder.note(now_ms + 5000, &run(), &Arc::new(run().status(0)));
    }

    #[test]
    fn a_history_that_cannot_be_read_is_kept_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        once(folder.path(), 1000);
        let points = folder.path().join(FOLDER).join(run().state().run.to_string()).join("points.jsonl");
        let foreign = std::fs::read_to_string(&points).unwrap().replacen("\"format\":1", "\"format\":2", 1);
        std::fs::write(&points, &foreign).unwrap();
        once(folder.path(), 9000);
        let files = files(folder.path());
        let kept = files.iter().find(|(name, _)| name == "points.jsonl.unreadable-9000");
        assert_eq!(kept.map(|(_, text)| text), Some(&foreign), "{files:?}");
        let new = Folder::read(folder.path(), &run().state().run.to_string(), u64::MAX).unwrap().unwrap();
        assert_eq!(new.history.samples().kept().len(), 1, "what comes now is written");
    }

    #[test]
    fn a_history_that_the_system_does_not_give_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let points = folder.path().join(FOLDER).join(run().state().run.to_string()).join("points.jsonl");
        // A folder can be opened and not be read.
        std::fs::create_dir_all(points.join("in it")).unwrap();
        once(folder.path(), 1000);
        assert!(points.join("in it").is_dir());
        assert_eq!(files(folder.path()).len(), 1);
    }

    #[test]
    fn events_and_curves_outlive_the_process() {
        let folder = tempfile::tempdir().unwrap();
        {
            let (mut recorder, journal) = started(folder.path(), 1000);
            let text = "something happened".to_owned();
            journal.add(&Notice { at_ms: 5, severity: Severity::Info, worker: None, text }, 1005);
            recorder.note(6000, &run(), &Arc::new(run().status(0)));
        }
        let (recorder, journal) = started(folder.path(), 20_000);
        assert_eq!(journal.after(0)[0].event.text, "something happened");
        let (first, second) = (recorder.shared(), started(folder.path(), 30_000).0.shared());
        assert_eq!(first.look(|history| history.samples().kept().len()), 1);
        assert_ne!(first.epoch(), second.epoch());
    }

    /// As where the process is killed within the minute.
    #[test]
    fn a_pause_and_its_end_are_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for paused in [true, false] {
            let (mut recorder, _) = started(folder.path(), 1000);
            let status = |paused| {
                let mut status = run().status(0);
                status.run.paused = paused;
                Arc::new(status)
            };
            recorder.note(6000, &run(), &status(!paused));
            recorder.note(6250, &run(), &status(paused));
            drop(recorder);
            let last = Folder::read_last(folder.path(), &run().state().run.to_string()).unwrap().unwrap();
            assert_eq!((last.at_ms, last.status.run.paused), (6250, paused));
        }
    }

    /// The run may have been extended since, which changes the learning rate of rounds to come.
    #[test]
    fn of_rounds_that_only_the_store_has_nobody_says_when_they_were() {
        let rounds = [RoundSummary { loss: Some(3.0), learning_rate: 0.25, ..RoundSummary::default() }];
        let history = begun(&run(), &rounds, 7000);
        let round = &history.rounds().kept()[0];
        assert_eq!((round.at_ms, round.loss, history.meta().begun_ms), (None, Some(3.0), 7000));
        assert_eq!(round.learning_rate, 0.25);
    }
}
