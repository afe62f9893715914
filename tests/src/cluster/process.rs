//! One of our binaries as a child process, with its output in a file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

/// Log lines in an error.
const LOG_TAIL_LINES: usize = 40;

/// A running binary. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts a binary of this workspace in `folder`; its output goes to `NAME.log` there.
    ///
    /// # Errors
    /// The binary is not built, or cannot be started.
    pub fn start(binary_name: &str, folder: &Path, arguments: impl FnOnce(&mut Command)) -> Result<Self> {
        Self::start_as(binary_name, binary_name, folder, arguments)
    }

    /// The same under another name.
    ///
    /// # Errors
    /// The binary is not built, or cannot be started.
    pub fn start_as(
        binary_name: &str,
        name: &str,
        folder: &Path,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        Self::start_program(&binary(binary_name)?, name, folder, arguments)
    }

    /// The same for any program, such as a wrapper of ours.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_program(
        program: &Path,
        name: &str,
        folder: &Path,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(program);
        command.current_dir(folder).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        arguments(&mut command);
        let child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        Ok(Self { name: name.to_owned(), log, child })
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, such as `STOP`.
    ///
    /// # Errors
    /// `kill` fails.
    pub fn signal(&self, signal: &str) -> Result<()> {
        let status = kill(self.id(), signal)?;
        anyhow::ensure!(status.success(), "kill -{signal} {}: {status}", self.name);
        Ok(())
    }

    /// Slows the process to a third of its speed until the returned value is dropped, which must precede the
    /// process.
    #[must_use]
    pub fn slow_down(&self) -> Slowed {
        Slowed::begin(self.id())
    }

    /// Returns its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It runs longer than `limit`; the error ends with its log.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = super::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            anyhow::ensure!(
                super::now() < deadline,
                "{} is still running after {limit:?}\n{}",
                self.name,
                self.log_tail()
            );
            // Polls, as a child's end does not wake this thread.
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Waits until it has printed these words.
    ///
    /// # Errors
    /// It ends without them, or after `limit`; the error ends with its log.
    pub fn wait_for_words(&mut self, words: &str, limit: Duration) -> Result<()> {
        let deadline = super::now() + limit;
        loop {
            // Checked first, so that the log is complete.
            let ended = self.ended().is_some();
            if self.log().contains(words) {
                return Ok(());
            }
            let waits = !ended && super::now() < deadline;
            anyhow::ensure!(waits, "{} did not print {words:?}\n{}", self.name, self.log_tail());
            // Polls, as a line in a file does not wake this thread.
            thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Describes its failure, if it failed.
    pub fn failure(&mut self) -> Option<String> {
        self.ended()
            .filter(|status| !status.success())
            .map(|status| format!("{} ended with {status}", self.name))
    }

    /// Returns its output.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns the end of its log, headed by its name.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
        format!("--- {} ({})\n{tail}\n", self.name, self.log.display())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A slowed process runs for a tenth of a second and pauses for two: short relative to a training step, so
/// that each step is slow.
const RUNS: Duration = Duration::from_millis(100);
const STANDS: Duration = Duration::from_millis(200);

/// A process that runs for a part of the time. Dropping it restores full speed.
#[derive(Debug)]
pub struct Slowed {
    /// Dropped first, which ends the thread.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    fn begin(id: u32) -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let goes_on = move |pause| ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
        let signal = move |signal: &str| kill(id, signal).is_ok_and(|status| status.success());
        let thread = thread::spawn(move || {
            // Ends if the process has ended.
            while signal("STOP") {
                let goes_on = goes_on(STANDS) && signal("CONT") && goes_on(RUNS);
                if !goes_on {
                    signal("CONT");
                    return;
                }
            }
        });
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

fn kill(id: u32, signal: &str) -> io::Result<ExitStatus> {
    // An ended process is no error here.
    Command::new("kill").arg(format!("-{signal}")).arg(id.to_string()).stderr(Stdio::null()).status()
}

/// Returns the path of a binary of this workspace, next to the running one.
///
/// # Errors
/// It is not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("find the running binary")?;
    // A test is in `deps`, an example in `examples`, a binary in the folder itself.
    let found = here.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("{name} is not built; run `cargo build --workspace --bins` with the same profile")
    })
}
