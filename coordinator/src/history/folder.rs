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
/// No file of points is longer, in bytes: all points with all sites.
const POINTS_BYTES_MAX: u64 = 64 << 20;
/// No `last.json` is longer, in bytes: a status of ten thousand workers.
const LAST_BYTES_MAX: u64 = 32 << 20;
/// Histories that are looked at in one state directory: the newest.
const RUNS_MAX: usize = 64;

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The system.
    #[error("read {}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is no history that this release can read ({reason}); the release that wrote it shows it", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What is odd.
        reason: String,
    },
}

/// What the dashboard shows of now: `last.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Last {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// The run's status then.
    pub status: Arc<Status>,
    /// All but the status, which is another one with each release.
    #[serde(flatten)]
    pub rest: Rest,
}

/// What [`Last`] has beside the status.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rest {
    /// What workers did lately.
    pub activity: Activity,
    /// The newest events, oldest first.
    pub events: Vec<NumberedEvent>,
    /// The newest samples, likewise.
    pub recent: Vec<Sample>,
    /// Points that are not in `points.jsonl` yet.
    pub open: Open,
}

/// A history as it was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The curves.
    pub history: History,
    /// The newest events, oldest first.
    pub events: Vec<NumberedEvent>,
    /// Files of which something could not be read: they are of more worth as they are than written over.
    pub damaged: Vec<PathBuf>,
}

/// The files of one run's history, which it is written to.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    points: BufWriter<File>,
    /// What is in it.
    mark: Mark,
    sites: usize,
    ways: usize,
}

impl Folder {
    /// The folder of this run, whose history is written to its files anew.
    ///
    /// # Errors
    /// What the system says.
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

    /// What is in the files of the history.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Writes on what came since [`Self::mark`].
    ///
    /// # Errors
    /// What the system says.
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

    /// Writes the history anew: points that are in the files are not so any more.
    ///
    /// # Errors
    /// What the system says.
    pub fn write_anew(&mut self, history: &History) -> io::Result<()> {
        self.points = write_points(&self.path, history)?;
        (self.mark, self.sites, self.ways) = (history.mark(), history.sites().len(), history.ways().len());
        Ok(())
    }

    /// Replaces what there was last. It is not synced to the disk: a minute later there is another one.
    ///
    /// # Errors
    /// What the system says.
    pub fn put_last(&self, last: &Last) -> io::Result<()> {
        write_last(&self.path, last)
    }

    /// Gives what there was last of a run this status, before anything else is done with it: nobody is to read that it is over.
    ///
    /// # Errors
    /// What the system says. What cannot be read stays as it is.
    pub fn renew_last(state_dir: &Path, at_ms: u64, status: Status) -> io::Result<()> {
        let Ok(Some(last)) = Self::read_last(state_dir, &status.run) else { return Ok(()) };
        let path = state_dir.join(FOLDER).join(&status.run);
        write_last(&path, &Last { at_ms, status: Arc::new(status), ..last })
    }

    /// The history of a run in a state directory, as one that goes on now; none if there is none. With the latest time as `now_ms`, all that is there.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub fn read(state_dir: &Path, run: &str, now_ms: u64) -> Result<Option<Found>, HistoryError> {
        read_points(&state_dir.join(FOLDER).join(run), now_ms)
    }

    /// Gives a file of a history another name, under which nothing writes over it. Answers that.
    ///
    /// # Errors
    /// What the system says.
    pub fn put_aside(file: &Path, now_ms: u64) -> io::Result<PathBuf> {
        let mut name = file.as_os_str().to_owned();
        name.push(format!(".unreadable-{now_ms}"));
        fs::rename(file, &name)?;
        Ok(name.into())
    }

    /// What there was last of a run; none if nothing was written.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub fn read_last(state_dir: &Path, run: &str) -> Result<Option<Last>, HistoryError> {
        read_json(&state_dir.join(FOLDER).join(run).join(LAST_FILE))
    }

    /// The runs with a history in a state directory, the newest first. Folders with something else are left out.
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

/// A whole file takes the place of the one that is, once it is on the disk.
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

/// An empty file that only its owner may read.
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
    // The curves are more than what was last.
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
