//! One of our binaries as a child process, with its output in a file.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

/// Lines of a log that an error shows.
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

    /// The same under a name of its own.
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

    /// The same with any program, such as one that starts ours in surroundings of its own.
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

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name, such as `STOP`.
    ///
    /// # Errors
    /// `kill` says no.
    pub fn signal(&self, signal: &str) -> Result<()> {
        let status = kill(self.id(), signal)?;
        anyhow::ensure!(status.success(), "kill -{signal} {}: {status}", self.name);
        Ok(())
    }

    /// Lets it run for a third of the time only, as if its machine were that slow, until what this returns is dropped; that must be before this process is.
    #[must_use]
    pub fn slow_down(&self) -> Slowed {
        Slowed::begin(self.id())
    }

    /// How it ended, when it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It goes on for longer than `limit`; the error ends with its log.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = super::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            anyhow::ensure!(
                super::now() < deadline,
                "{} still runs after {limit:?}\n{}",
                self.name,
                self.log_tail()
            );
            // A child's end wakes nobody here.
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Waits until it has printed these words.
    ///
    /// # Errors
    /// It ends without them, or `limit` is over; the error ends with its log.
    pub fn wait_for_words(&mut self, words: &str, limit: Duration) -> Result<()> {
        let deadline = super::now() + limit;
        loop {
            // Asked first, so that the log is complete when it has.
            let ended = self.ended().is_some();
            if self.log().contains(words) {
                return Ok(());
            }
            let waits = !ended && super::now() < deadline;
            anyhow::ensure!(waits, "{} did not say {words:?}\n{}", self.name, self.log_tail());
            // A line in a file wakes nobody here.
            thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// A description of its failure, when it ended with one.
    pub fn failure(&mut self) -> Option<String> {
        self.ended()
            .filter(|status| !status.success())
            .map(|status| format!("{} ended with {status}", self.name))
    }

    /// All that it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of its log, headed by its name.
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
        // It may have ended by itself; then there is nobody to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of a tenth of a second and two, a slowed process runs in the first and stands still in the rest: short beside a step of what trains, so that each step is slow.
const RUNS: Duration = Duration::from_millis(100);
const STANDS: Duration = Duration::from_millis(200);

/// A process that runs for a part of the time. Dropped, it lets it run on.
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
            // Where the process is gone there is nothing to do any more.
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
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn kill(id: u32, signal: &str) -> io::Result<ExitStatus> {
    // A process that is gone is nothing to complain of here.
    Command::new("kill").arg(format!("-{signal}")).arg(id.to_string()).stderr(Stdio::null()).status()
}

/// The path of a binary of this workspace, beside the one that runs now.
///
/// # Errors
/// It is not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("find the running binary")?;
    // A test lies in `deps`, an example in `examples`, a binary in the folder itself.
    let found = here.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("{name} is not built; run `cargo build --workspace --bins` with the same profile")
    })
}
