//! The files of a history: `history/RUN/` in a state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::note::{FORMAT, History, Meta, ROUNDS_MAX, SAMPLES_MAX, SITES_MAX, Told, WAYS_MAX};
use super::points::{RoundPoint, Sample};
use super::thinned::Thinned;
use crate::run::Status;
use crate::runtime::NumberedEvent;
use crate::store::write_private;

/// The folder of all histories in a state directory.
pub const FOLDER: &str = "history";
const POINTS_FILE: &str = "points.jsonl";
const LAST_FILE: &str = "last.json";
/// No line is longer, in bytes: a sample with all sites and ways has a few thousand.
const LINE_BYTES_MAX: u64 = 64 << 10;
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

/// A line of `points.jsonl`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// First: of which run.
    Run(Meta),
    /// Second, where the file was written anew: how many samples, and rounds, a point stands for.
    PerPoint(u64, u64),
    /// A site has got the next place.
    Site(String),
    /// A way has, from and to.
    Way(String, String),
    Sample(Sample),
    Round(RoundPoint),
}

/// What the dashboard shows of now: `last.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Last {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// The run's status then.
    pub status: Status,
    /// What workers did lately.
    pub activity: Activity,
    /// The newest events, oldest first.
    pub events: Vec<NumberedEvent>,
}

/// The files of one run's history, which it is written to.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    points: BufWriter<File>,
}

impl Folder {
    /// The folder of this run, whose history is written to its files anew.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin(state_dir: &Path, history: &History) -> io::Result<Self> {
        let path = state_dir.join(FOLDER).join(&history.meta().run);
        fs::create_dir_all(&path)?;
        Ok(Self { points: write_points(&path, history)?, path })
    }

    /// Writes on what was told, which is part of the history already. It reaches the file with [`Self::flush`].
    ///
    /// # Errors
    /// What the system says.
    pub fn append(&mut self, history: &History, told: Vec<Told>) -> io::Result<()> {
        if told.contains(&Told::Anew) {
            self.points = write_points(&self.path, history)?;
            return Ok(());
        }
        for one in told {
            let line = match one {
                Told::Site(site) => Line::Site(site),
                Told::Way(from, to) => Line::Way(from, to),
                Told::Sample(sample) => Line::Sample(sample),
                Told::Round(round) => Line::Round(round),
                Told::Anew => continue,
            };
            write_line(&mut self.points, &line)?;
        }
        self.points.flush()
    }

    /// Replaces what there was last.
    ///
    /// # Errors
    /// What the system says.
    pub fn put_last(&self, last: &Last) -> io::Result<()> {
        let text = serde_json::to_string(last)?;
        write_private(&self.path.join(LAST_FILE), &text)
    }

    /// The history of a run in a state directory; none if there is none.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub fn read(state_dir: &Path, run: &str) -> Result<Option<History>, HistoryError> {
        read_points(&state_dir.join(FOLDER).join(run))
    }

    /// What there was last of a run; none if nothing was written.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub fn read_last(state_dir: &Path, run: &str) -> Result<Option<Last>, HistoryError> {
        let path = state_dir.join(FOLDER).join(run).join(LAST_FILE);
        let Some(file) = opened(&path)? else { return Ok(None) };
        let read = serde_json::from_reader(BufReader::new(file.take(LAST_BYTES_MAX)));
        read.map(Some).map_err(|error| HistoryError::Foreign { path, reason: error.to_string() })
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

/// A whole file takes the place of the one that is.
fn write_points(folder: &Path, history: &History) -> io::Result<BufWriter<File>> {
    let (path, partial) = (folder.join(POINTS_FILE), folder.join("points.partial"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = BufWriter::new(options.open(&partial)?);
    write_line(&mut file, &Line::Run(history.meta().clone()))?;
    write_line(&mut file, &Line::PerPoint(history.samples().per_point(), history.rounds().per_point()))?;
    for site in history.sites() {
        write_line(&mut file, &Line::Site(site.clone()))?;
    }
    for (from, to) in history.ways() {
        write_line(&mut file, &Line::Way(from.clone(), to.clone()))?;
    }
    for sample in history.samples().kept() {
        write_line(&mut file, &Line::Sample(sample.clone()))?;
    }
    for round in history.rounds().kept() {
        write_line(&mut file, &Line::Round(round.clone()))?;
    }
    file.flush()?;
    fs::rename(&partial, &path)?;
    Ok(BufWriter::new(OpenOptions::new().append(true).open(&path)?))
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
    let mut first = Vec::new();
    let read = BufReader::new(file.take(LINE_BYTES_MAX)).read_until(b'\n', &mut first);
    read.map_err(|source| HistoryError::Io { path: path.clone(), source })?;
    meta_of(&first).map(Some).map_err(|reason| HistoryError::Foreign { path, reason })
}

fn meta_of(line: &[u8]) -> Result<Meta, String> {
    match serde_json::from_slice(line) {
        Ok(Line::Run(meta)) if meta.format == FORMAT => Ok(meta),
        Ok(Line::Run(meta)) => Err(format!("its format is {}, and this is {FORMAT}", meta.format)),
        Ok(_) => Err("it does not begin with a run".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn read_points(folder: &Path) -> Result<Option<History>, HistoryError> {
    let path = folder.join(POINTS_FILE);
    let Some(file) = opened(&path)? else { return Ok(None) };
    let mut lines = BufReader::new(file.take(POINTS_BYTES_MAX)).split(b'\n');
    let first = lines.next().transpose().map_err(|source| HistoryError::Io { path: path.clone(), source })?;
    let foreign = |reason| HistoryError::Foreign { path: path.clone(), reason };
    let meta = meta_of(&first.unwrap_or_default()).map_err(foreign)?;
    let (mut sites, mut ways, mut per_point) = (Vec::new(), Vec::new(), (1, 1));
    let (mut samples, mut rounds) = (Vec::new(), Vec::new());
    for line in lines {
        let line = line.map_err(|source| HistoryError::Io { path: path.clone(), source })?;
        // One that a crash has cut short, and all that nobody can have written.
        let Ok(line) = serde_json::from_slice(&line) else { continue };
        match line {
            Line::Run(_) => {}
            Line::PerPoint(samples, rounds) => per_point = (samples, rounds),
            Line::Site(site) if sites.len() < SITES_MAX => sites.push(site),
            Line::Way(from, to) if ways.len() < WAYS_MAX => ways.push((from, to)),
            Line::Sample(sample) if samples.len() < SAMPLES_MAX => samples.push(sample),
            Line::Round(round) if rounds.len() < ROUNDS_MAX => rounds.push(round),
            Line::Site(_) | Line::Way(..) | Line::Sample(_) | Line::Round(_) => {}
        }
    }
    let samples = Thinned::taken_up(samples, per_point.0, SAMPLES_MAX);
    let rounds = Thinned::taken_up(rounds, per_point.1, ROUNDS_MAX);
    let activity = last_activity(folder);
    Ok(Some(History::taken_up(meta, sites, ways, samples, rounds, activity)))
}

/// What workers did lately; nothing where that cannot be read: the curves are more.
fn last_activity(folder: &Path) -> Activity {
    #[derive(Deserialize)]
    struct Part {
        activity: Activity,
    }
    let file = File::open(folder.join(LAST_FILE)).ok();
    let part: Option<Part> =
        file.and_then(|file| serde_json::from_reader(BufReader::new(file.take(LAST_BYTES_MAX))).ok());
    part.map(|part| part.activity).unwrap_or_default()
}
