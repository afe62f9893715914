//! The files of a history: `history/RUN/` in a state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::lines::{Line, Lines, first};
use super::news::{Mark, News, Open};
use super::note::{History, Meta};
use super::points::Sample;
use crate::journal::NumberedEvent;
use longhaul_run::Status;

/// The folder of all histories in a state directory.
pub const FOLDER: &str = "history";
const POINTS_FILE: &str = "points.jsonl";
const LAST_FILE: &str = "last.json";
/// Longest file of points, in bytes: all points with all sites.
const POINTS_BYTES_MAX: u64 = 64 << 20;
/// Longest `last.json`, in bytes: a status of ten thousand workers.
const LAST_BYTES_MAX: u64 = 32 << 20;
/// Histories examined in one state directory: the newest.
const RUNS_MAX: usize = 64;

/// Reason why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A system error.
    #[error("read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has another format.
    #[error("this release cannot read the history {} ({reason}); use the release that wrote it", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The fault found.
        reason: String,
    },
}

/// The dashboard's present values: `last.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Last {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// The run's status then.
    pub status: Arc<Status>,
    /// All but the status, which varies between releases.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Content of [`Last`] beside the status.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rest {
    /// Recent activity of workers.
    pub activity: Activity,
    /// The newest events, oldest first.
    pub events: Vec<NumberedEvent>,
    /// The newest samples, likewise.
    pub recent: Vec<Sample>,
    /// Points that are not in `points.jsonl` yet.
    pub open: Open,
}

/// A history as read.
#[derive(Clone, Debug)]
pub struct Found {
    /// The curves.
    pub history: History,
    /// The newest events, oldest first.
    pub events: Vec<NumberedEvent>,
    /// Files with unreadable parts: they are kept rather than overwritten.
    pub damaged: Vec<PathBuf>,
}

/// The files of one run's history, open for writing.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    points: BufWriter<File>,
    /// State of the files.
    mark: Mark,
    sites: usize,
    ways: usize,
}

impl Folder {
    /// Creates the folder of this run, and writes its history to new files.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(state_dir: &Path, history: &History) -> io::Result<Self> {
        let path = state_dir.join(FOLDER).join(&history.meta().run);
        fs::create_dir_all(&path)?;
        let points = write_points(&path, history)?;
        Ok(Self {
            path,
            points,
            mark: history.mark(),
            sites: history.sites().len(),
            ways: history.ways().len(),
        })
    }

    /// State of the history's files.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Appends the news since [`Self::mark`].
    ///
    /// # Errors
    /// The system's error.
    pub fn append(&mut self, news: News) -> io::Result<()> {
        for (at, site) in news.sites.into_iter().enumerate().skip(self.sites) {
            write_line(&mut self.points, &Line::Site(at, site))?;
            self.sites = at + 1;
        }
        for (at, (from, to)) in news.ways.into_iter().enumerate().skip(self.ways) {
            write_line(&mut self.points, &Line::Way(at, from, to))?;
            self.ways = at + 1;
        }
        for sample in news.samples {
            write_line(&mut self.points, &Line::Sample(sample))?;
        }
        for round in news.rounds {
            write_line(&mut self.points, &Line::Round(round))?;
        }
        self.mark = news.mark;
        self.points.flush()
    }

    /// Rewrites the history: points in the files have changed.
    ///
    /// # Errors
    /// The system's error.
    pub fn write_anew(&mut self, history: &History) -> io::Result<()> {
        self.points = write_points(&self.path, history)?;
        (self.mark, self.sites, self.ways) = (history.mark(), history.sites().len(), history.ways().len());
        Ok(())
    }

    /// Replaces the last values. They are not synced to the disk: new ones follow a minute later.
    ///
    /// # Errors
    /// The system's error.
    pub fn put_last(&self, last: &Last) -> io::Result<()> {
        write_last(&self.path, last)
    }

    /// Puts this status into a run's last values before anything else happens, so that no reader takes the run for over.
    ///
    /// # Errors
    /// The system's error. An unreadable file stays as it is.
    pub fn renew_last(state_dir: &Path, at_ms: u64, status: Status) -> io::Result<()> {
        let Ok(Some(last)) = Self::read_last(state_dir, &status.run.id) else { return Ok(()) };
        let path = state_dir.join(FOLDER).join(&status.run.id);
        write_last(&path, &Last { at_ms, status: Arc::new(status), ..last })
    }

    /// Reads the history of a run from a state directory, as one that goes on now; `None`: absent. With the latest time as `now_ms`, returns all of
    /// it.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub fn read(state_dir: &Path, run: &str, now_ms: u64) -> Result<Option<Found>, HistoryError> {
        read_points(&state_dir.join(FOLDER).join(run), now_ms)
    }

    /// Renames a file of a history so that it is not overwritten. Returns its new name.
    ///
    /// # Errors
    /// The system's error.
    pub fn put_aside(file: &Path, now_ms: u64) -> io::Result<PathBuf> {
        let mut name = file.as_os_str().to_owned();
        name.push(format!(".unreadable-{now_ms}"));
        fs::rename(file, &name)?;
        Ok(name.into())
    }

    /// Returns the last values of a run; `None`: never written.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub fn read_last(state_dir: &Path, run: &str) -> Result<Option<Last>, HistoryError> {
        read_json(&state_dir.join(FOLDER).join(run).join(LAST_FILE))
    }

    /// Returns the runs with a history in a state directory, newest first. Other folders are left out.
    ///
    /// # Errors
    /// [`HistoryError::Io`]
    pub fn runs(state_dir: &Path) -> Result<Vec<Meta>, HistoryError> {
        let path = state_dir.join(FOLDER);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|source| HistoryError::Io { path, source })?,
        };
        let metas = entries.flatten().filter_map(|entry| read_meta(&entry.path()).ok().flatten());
        let mut metas: Vec<Meta> = metas.collect();
        metas.sort_by_key(|meta| std::cmp::Reverse(meta.begun_ms));
        metas.truncate(RUNS_MAX);
        Ok(metas)
    }
}

fn write_last(path: &Path, last: &Last) -> io::Result<()> {
    let partial = path.join("last.partial");
    let mut file = BufWriter::new(private(&partial)?);
    serde_json::to_writer(&mut file, last)?;
    file.flush()?;
    fs::rename(partial, path.join(LAST_FILE))
}

/// A complete file replaces the present one, once it is on the disk.
fn write_points(folder: &Path, history: &History) -> io::Result<BufWriter<File>> {
    let (path, partial) = (folder.join(POINTS_FILE), folder.join("points.partial"));
    let mut file = BufWriter::new(private(&partial)?);
    write_line(&mut file, &Line::Run(history.meta().clone()))?;
    write_line(&mut file, &Line::PerPoint(history.samples().per_point(), history.rounds().per_point()))?;
    for (at, site) in history.sites().iter().enumerate() {
        write_line(&mut file, &Line::Site(at, site.clone()))?;
    }
    for (at, (from, to)) in history.ways().iter().enumerate() {
        write_line(&mut file, &Line::Way(at, from.clone(), to.clone()))?;
    }
    for sample in history.samples().kept() {
        write_line(&mut file, &Line::Sample(sample.clone()))?;
    }
    for round in history.rounds().kept() {
        write_line(&mut file, &Line::Round(round.clone()))?;
    }
    file.flush()?;
    file.get_ref().sync_all()?;
    fs::rename(&partial, &path)?;
    Ok(BufWriter::new(OpenOptions::new().append(true).open(&path)?))
}

/// Creates an empty file that only its owner may read.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn write_line(file: &mut BufWriter<File>, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *file, line)?;
    file.write_all(b"\n")
}

fn opened(path: &Path) -> Result<Option<File>, HistoryError> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(|source| HistoryError::Io { path: path.to_owned(), source }),
    }
}

fn read_meta(folder: &Path) -> Result<Option<Meta>, HistoryError> {
    let path = folder.join(POINTS_FILE);
    let Some(file) = opened(&path)? else { return Ok(None) };
    meta_of(&path, &mut BufReader::new(file.take(POINTS_BYTES_MAX))).map(Some)
}

fn meta_of(path: &Path, from: &mut impl io::BufRead) -> Result<Meta, HistoryError> {
    let first = first(from).map_err(|source| HistoryError::Io { path: path.to_owned(), source })?;
    first.map_err(|reason| HistoryError::Foreign { path: path.to_owned(), reason })
}

fn read_points(folder: &Path, now_ms: u64) -> Result<Option<Found>, HistoryError> {
    let path = folder.join(POINTS_FILE);
    let Some(file) = opened(&path)? else { return Ok(None) };
    let mut file = BufReader::new(file.take(POINTS_BYTES_MAX));
    let meta = meta_of(&path, &mut file)?;
    let lines = Lines::read(&mut file).map_err(|source| HistoryError::Io { path: path.clone(), source })?;
    let mut damaged = if lines.is_damaged { vec![path] } else { Vec::new() };
    // The curves matter more than the last values.
    let last = folder.join(LAST_FILE);
    let Rest { activity, events, recent, open } = read_json(&last)
        .unwrap_or_else(|_| {
            damaged.push(last);
            None
        })
        .unwrap_or_default();
    let history = lines.history(meta, open, recent, activity, now_ms);
    Ok(Some(Found { history, events, damaged }))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, HistoryError> {
    let Some(file) = opened(path)? else { return Ok(None) };
    let read = serde_json::from_reader(BufReader::new(file.take(LAST_BYTES_MAX)));
    read.map(Some).map_err(|error| HistoryError::Foreign { path: path.to_owned(), reason: error.to_string() })
}
