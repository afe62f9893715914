//! Traces on disk: after failures and panics, and on request.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use longhaul_common::id::WorkerId;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;

use super::Recorder;
use super::trace::{self, Who};

/// Traces kept in the folder: each may have twenty megabytes.
const TRACES_KEPT: usize = 4;
/// Prefix of their names; the following time has a constant number of digits for two centuries, so names sort by time.
const BEGINNING: &str = "trace-";

/// A recorder, and the folder of its traces.
#[derive(Debug)]
pub struct FlightLog {
    folder: PathBuf,
    recorder: Arc<Recorder>,
    /// Held during a write, so that one happens at a time.
    who: Mutex<Who>,
}

impl FlightLog {
    /// Creates the log of a worker without a name yet. The folder is created on demand.
    #[must_use]
    pub fn new(folder: PathBuf) -> Arc<Self> {
        Arc::new(Self { folder, recorder: Arc::default(), who: Mutex::default() })
    }

    /// Returns the recorder of the traces' content.
    #[must_use]
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// Sets the worker's name.
    pub fn name(&self, worker: WorkerId, site: &str) {
        let who = Who { process: u64::from(worker.0), name: format!("{worker} at {site}") };
        *self.who.lock().unwrap_or_else(PoisonError::into_inner) = who;
    }

    /// Writes a trace on each panic, after the previous hook.
    pub fn write_on_panic(self: &Arc<Self>) {
        let (log, before) = (Arc::clone(self), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            log.write_and_tell("a thread panicked");
        }));
    }

    /// Writes a trace on each SIGUSR1.
    ///
    /// # Errors
    /// The system cannot deliver the signal.
    pub fn write_when_asked(self: &Arc<Self>) -> Result<()> {
        let mut asked = signal(SignalKind::user_defined1()).context("listen for SIGUSR1")?;
        let log = Arc::clone(self);
        tokio::spawn(async move {
            while asked.recv().await.is_some() {
                let log = Arc::clone(&log);
                // A panic has been reported.
                let _ = spawn_blocking(move || log.write_and_tell("SIGUSR1")).await;
            }
        });
        Ok(())
    }

    /// Writes a trace and logs its path; no trace without activities.
    pub fn write_and_tell(&self, why: &str) {
        if self.recorder.recording().records.is_empty() {
            return;
        }
        match self.write(why) {
            Ok(path) => tracing::info!(
                file = %path.display(),
                "trace of this worker's recent activity written; open it at https://ui.perfetto.dev"
            ),
            Err(error) => {
                tracing::warn!("the trace of this worker's recent activity could not be written: {error:#}")
            }
        }
    }

    fn write(&self, why: &str) -> Result<PathBuf> {
        let who = self.who.lock().unwrap_or_else(PoisonError::into_inner);
        let recording = self.recorder.recording();
        fs::create_dir_all(&self.folder).with_context(|| format!("create {}", self.folder.display()))?;
        let at_ms = (recording.began_unix_us + recording.now_us) / 1000;
        let path = self.folder.join(format!("{BEGINNING}{at_ms:013}-w{}.json", who.process));
        let partial = path.with_extension("partial");
        let written = File::create(&partial).and_then(|file| {
            let mut file = BufWriter::new(file);
            trace::write(&mut file, &recording, &who, why)?;
            file.flush()
        });
        written.with_context(|| format!("write {}", partial.display()))?;
        fs::rename(&partial, &path).with_context(|| format!("name {}", path.display()))?;
        prune(&self.folder).context("remove older traces")?;
        Ok(path)
    }
}

/// Keeps the newest traces.
fn prune(folder: &Path) -> std::io::Result<()> {
    let mut traces = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(BEGINNING) {
            traces.push(entry.path());
        }
    }
    traces.sort();
    let too_many = traces.len().saturating_sub(TRACES_KEPT);
    traces.into_iter().take(too_many).try_for_each(fs::remove_file)
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Round;
    use serde_json::Value;

    use super::*;
    use longhaul_member::activity::Activity;

    fn traces(folder: &Path) -> Vec<Value> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let whole = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        whole.map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).collect()
    }

    #[test]
    fn a_thread_that_panics_leaves_a_trace_of_what_it_did() {
        let folder = tempfile::tempdir().unwrap();
        let log = FlightLog::new(folder.path().join("traces"));
        let recorder = log.recorder();
        log.name(WorkerId(3), "amsterdam");
        log.write_on_panic();
        let thread = std::thread::spawn(move || {
            let _doing = recorder.begin(Activity::Compute { round: Round(0), step: 11 });
            panic!("as asked for by a test");
        });
        thread.join().unwrap_err();
        drop(std::panic::take_hook());
        let told = traces(&folder.path().join("traces"));
        // Other tests of this process may panic, too.
        let trace = told.first().unwrap();
        assert_eq!(trace["otherData"]["worker"], "w3 at amsterdam");
        let events = trace["traceEvents"].as_array().unwrap();
        let doing = events.iter().find(|event| event["name"] == "compute").unwrap();
        assert_eq!((&doing["args"]["step"], &doing["args"]["unfinished"]), (&11.into(), &true.into()));
    }

    #[test]
    fn a_worker_that_has_done_nothing_leaves_nothing_and_old_traces_go() {
        let folder = tempfile::tempdir().unwrap();
        let log = FlightLog::new(folder.path().to_owned());
        log.write_and_tell("nothing");
        assert!(traces(folder.path()).is_empty());
        log.recorder().note(Activity::Evaluate);
        for old in 0..TRACES_KEPT + 2 {
            fs::write(folder.path().join(format!("{BEGINNING}{old:013}-w1.json")), "{}").unwrap();
        }
        fs::write(folder.path().join("identity"), "{}").unwrap();
        let written = log.write("why").unwrap();
        assert!(written.is_file() && folder.path().join("identity").is_file());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), TRACES_KEPT + 1);
        assert_eq!(log.recorder.recording().records.len(), 1);
    }
}
