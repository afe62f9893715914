//! Answers shared by many requests, built once.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::value::RawValue;

use crate::history::{FOLDER, Folder, Meta};
use longhaul_run::Status;

/// A status as JSON, for all readers.
#[derive(Debug, Default)]
pub struct StatusText {
    made: Mutex<Option<(Arc<Status>, Arc<RawValue>)>>,
}

impl StatusText {
    /// That of this status: made now where it is another one than the last; others wait for it meanwhile.
    pub fn of(&self, status: &Arc<Status>) -> serde_json::Result<Arc<RawValue>> {
        let mut made = lock(&self.made);
        if let Some((_, text)) = made.as_ref().filter(|(of, _)| Arc::ptr_eq(of, status)) {
            return Ok(Arc::clone(text));
        }
        let text: Arc<RawValue> = serde_json::value::to_raw_value(status)?.into();
        *made = Some((Arc::clone(status), Arc::clone(&text)));
        Ok(text)
    }
}

/// The runs with a history in a state directory.
#[derive(Debug)]
pub struct Runs {
    state_dir: Arc<Path>,
    /// Time of the last change to their folder, and its content then.
    read: Mutex<Option<(SystemTime, Vec<Meta>)>>,
}

impl Runs {
    /// Those in this state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.into(), read: Mutex::default() }
    }

    /// The newest first; none where they cannot be read, as the run that is there is of more interest. Their files are opened only where others
    /// have come, or some have gone.
    pub fn all(&self) -> Vec<Meta> {
        let changed =
            std::fs::metadata(self.state_dir.join(FOLDER)).and_then(|folder| folder.modified()).ok();
        let mut read = lock(&self.read);
        if let Some((_, runs)) = read.as_ref().filter(|(then, _)| Some(*then) == changed) {
            return runs.clone();
        }
        let runs = Folder::runs(&self.state_dir).unwrap_or_else(|error| {
            tracing::debug!(%error, "earlier runs cannot be listed");
            Vec::new()
        });
        *read = changed.map(|changed| (changed, runs.clone()));
        runs
    }

    /// The state directory.
    pub fn state_dir(&self) -> &Arc<Path> {
        &self.state_dir
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{FORMAT, History};

    fn meta(run: &str) -> Meta {
        Meta {
            format: FORMAT,
            run: run.to_owned(),
            name: "tested".to_owned(),
            begun_ms: 0,
            images: false,
            steps: 1,
            batch: 1,
            about: String::new(),
        }
    }

    #[test]
    fn a_status_is_written_once_for_all_who_look_at_it() {
        let config =
            longhaul_common::config::RunConfig::parse(include_str!("../../../examples/demo.toml")).unwrap();
        let state = longhaul_run::RunState::new(longhaul_common::id::RunId([7; 16]), &config);
        let run = longhaul_run::Run::new(config, state, std::time::Duration::ZERO).unwrap();
        let (status, text) = (Arc::new(run.status(0)), StatusText::default());
        let (one, two) = (text.of(&status).unwrap(), text.of(&status).unwrap());
        assert!(Arc::ptr_eq(&one, &two) && one.get() == serde_json::to_string(&status).unwrap());
        assert!(!Arc::ptr_eq(&one, &text.of(&Arc::new(run.status(0))).unwrap()));
    }

    #[test]
    fn runs_are_read_again_only_where_their_folder_has_changed_and_a_folder_that_cannot_be_read_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Runs::new(folder.path());
        assert_eq!(runs.all(), []);
        Folder::begin(folder.path(), &History::new(meta("a"))).unwrap();
        assert_eq!(runs.all(), [meta("a")]);
        // Within it, nothing is looked at again.
        let points = folder.path().join(FOLDER).join("a").join("points.jsonl");
        std::fs::write(points, "something else\n").unwrap();
        assert_eq!(runs.all(), [meta("a")]);
        std::fs::remove_dir_all(folder.path().join(FOLDER)).unwrap();
        std::fs::write(folder.path().join(FOLDER), "no folder").unwrap();
        assert_eq!(runs.all(), []);
    }
}
