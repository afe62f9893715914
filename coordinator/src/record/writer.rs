//! Writes records, and sees to it that they do not fill the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::trace::Trace;
use super::{DECIDED, IMAGE, MAGIC, SCHEMA};
use longhaul_run::{Command, Event, Run};

/// The folder of the records in the state directory.
pub const FOLDER: &str = "decisions";
/// A file that is longer is followed by another, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Files that are kept, the newest one included.
pub const FILES_KEPT: usize = 8;
/// Until another file is tried where one could not be written.
pub(super) const AGAIN_AFTER: Duration = Duration::from_mins(1);

/// Records the decisions of one coordinator, and never stops it: on a full disk the record has a gap, and goes on in another file when there is room.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    clock_started_unix_ms: u64,
    file_bytes_max: u64,
    /// Files that were begun.
    begun: u64,
    file: Option<BufWriter<File>>,
    written: u64,
    /// When the last event came.
    now: Duration,
    /// When another file is tried; it matters while there is none.
    again_at: Duration,
    /// The event that is being decided about.
    entry: Vec<u8>,
}

impl Recorder {
    /// Begins a record of this run in the folder. If that fails, a notice reports it, and nothing is recorded.
    #[must_use]
    pub fn start(state_dir: &Path, run: &Run, clock_started_unix_ms: u64) -> Self {
        Self::with_file_bytes(state_dir, run, clock_started_unix_ms, FILE_BYTES_MAX)
    }

    pub(super) fn with_file_bytes(
        state_dir: &Path,
        run: &Run,
        clock_started_unix_ms: u64,
        file_bytes_max: u64,
    ) -> Self {
        let mut recorder = Self {
            folder: state_dir.join(FOLDER),
            clock_started_unix_ms,
            file_bytes_max,
            begun: 0,
            file: None,
            written: 0,
            now: Duration::ZERO,
            again_at: Duration::ZERO,
            entry: Vec::new(),
        };
        let begun = recorder.begin_file(run);
        recorder.unless_failed(begun);
        recorder
    }

    /// An event is about to be decided about.
    pub fn before(&mut self, now: Duration, event: &Event) {
        self.now = now;
        if self.file.is_none() {
            return;
        }
        self.entry.clear();
        self.entry.push(DECIDED);
        let written = postcard::to_io(&(now, event), &mut self.entry).map(drop);
        self.unless_failed(written.map_err(io::Error::other));
    }

    /// It was decided.
    pub fn after(&mut self, run: &Run, commands: &[Command]) {
        if self.file.is_none() {
            return self.try_again(run);
        }
        let appended = self.append(run, commands);
        self.unless_failed(appended);
    }

    /// Hands all records to the files, not yet to the disk.
    pub fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            let flushed = file.flush();
            self.unless_failed(flushed);
        }
    }

    /// Begins a new file with the present run, so that only the decisions meanwhile are missing.
    fn try_again(&mut self, run: &Run) {
        if self.now < self.again_at {
            return;
        }
        match self.begin_file(run) {
            Ok(()) => tracing::info!("decisions are recorded again"),
            Err(error) => {
                tracing::debug!(%error, "decisions still cannot be recorded");
                self.again_at = self.now + AGAIN_AFTER;
            }
        }
    }

    fn append(&mut self, run: &Run, commands: &[Command]) -> io::Result<()> {
        let traces: Vec<Trace> = commands.iter().map(Trace::of).collect();
        postcard::to_io(&traces, &mut self.entry).map_err(io::Error::other)?;
        let entry = std::mem::take(&mut self.entry);
        self.write(&entry)?;
        self.entry = entry;
        if self.written > self.file_bytes_max {
            self.begin_file(run)?;
        }
        Ok(())
    }

    fn write(&mut self, entry: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let length = u32::try_from(entry.len()).map_err(io::Error::other)?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(entry)?;
        self.written += 4 + entry.len() as u64;
        Ok(())
    }

    fn begin_file(&mut self, run: &Run) -> io::Result<()> {
        if let Some(mut before) = self.file.take() {
            before.flush()?;
        }
        fs::create_dir_all(&self.folder)?;
        let name = format!("{:016}-{:06}.log", self.clock_started_unix_ms, self.begun);
        let path = self.folder.join(name);
        if let Err(error) = self.begin_file_at(&path, run) {
            self.file = None;
            // The beginning of an image is of no use, and would take the place of a record.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.begun += 1;
        self.forget_old()
    }

    fn begin_file_at(&mut self, path: &Path, run: &Run) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = BufWriter::new(options.open(path)?);
        file.write_all(MAGIC)?;
        file.write_all(&SCHEMA.to_le_bytes())?;
        self.file = Some(file);
        let mut entry = vec![IMAGE];
        let image = (env!("CARGO_PKG_VERSION"), self.clock_started_unix_ms, run);
        postcard::to_io(&image, &mut entry).map_err(io::Error::other)?;
        self.write(&entry)?;
        // The image does not count, so that a large run's file is not followed by another at once.
        self.written = 0;
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    /// Names sort by time.
    fn forget_old(&self) -> io::Result<()> {
        let files = fs::read_dir(&self.folder)?.map(|file| file.map(|file| file.path()));
        let mut files: Vec<PathBuf> = files.collect::<io::Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "log"));
        files.sort_unstable();
        let surplus = files.len().saturating_sub(FILES_KEPT);
        files.iter().take(surplus).try_for_each(fs::remove_file)
    }

    fn unless_failed(&mut self, done: io::Result<()>) {
        if let Err(error) = done {
            self.file = None;
            self.again_at = self.now + AGAIN_AFTER;
            let folder = self.folder.display();
            tracing::warn!(
                %error, %folder,
                "decisions cannot be recorded; the run goes on, and recording is retried every minute. Is the disk full?"
            );
        }
    }
}
