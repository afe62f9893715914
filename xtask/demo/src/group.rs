//! The demo's processes, which die with it.
//!
//! All are in one process group whose leader is a shell that reads from a pipe of ours. Any end of this
//! process, including SIGKILL, closes the pipe; the shell then kills its group. No other process takes part,
//! and a reused process id cannot be hit, because the group lives as long as its leader.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// Signals from the terminal or the user are for the demo; the leader ends when the pipe closes.
const LEADER_SCRIPT: &str = "trap '' HUP INT TERM; cat > /dev/null; kill -KILL 0";

/// Log lines shown on a failure.
const LOG_LINES_SHOWN: usize = 20;

/// Processes that end when this value is dropped, or when this process ends in any way.
pub struct Group {
    leader: Child,
    /// Closing it ends the leader.
    lifeline: Option<ChildStdin>,
    running: Vec<Process>,
    logs: PathBuf,
}

/// One member of the group.
struct Process {
    name: String,
    child: Child,
}

/// An ended process.
pub struct Ended {
    /// Name of the process.
    pub name: String,
    /// Exit status.
    pub status: ExitStatus,
    log: PathBuf,
}

impl Group {
    /// Creates an empty group; the output of its processes goes to files in `logs`.
    pub fn new(logs: &Path) -> Result<Self> {
        let mut leader = Command::new("sh")
            .args(["-c", LEADER_SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start sh")?;
        let lifeline = leader.stdin.take();
        Ok(Self { leader, lifeline, running: Vec::new(), logs: logs.to_path_buf() })
    }

    /// Starts a process without input. A restarted one appends to its log.
    pub fn spawn(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let output = self.open_log(name)?;
        command.stdin(Stdio::null()).stdout(output.try_clone().context("share a log file")?);
        self.spawn_logged(name, command, output).map(|_| ())
    }

    /// Starts a process with piped standard input and output; only its errors go to the log.
    pub fn spawn_piped(&mut self, name: &str, command: &mut Command) -> Result<&mut Child> {
        let output = self.open_log(name)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        self.spawn_logged(name, command, output)
    }

    /// Removes and returns the processes that have ended since the last call.
    pub fn take_ended(&mut self) -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        let mut running = Vec::with_capacity(self.running.len());
        for mut process in self.running.drain(..) {
            match process.child.try_wait().with_context(|| format!("look at {}", process.name))? {
                Some(status) => {
                    let log = log_path(&self.logs, &process.name);
                    ended.push(Ended { name: process.name, status, log });
                }
                None => running.push(process),
            }
        }
        self.running = running;
        Ok(ended)
    }

    /// Waits for the end of the process started last.
    pub fn wait_for_last(&mut self) -> Result<Option<Ended>> {
        let Some(mut process) = self.running.pop() else { return Ok(None) };
        let status = process.child.wait().with_context(|| format!("wait for {}", process.name))?;
        let log = log_path(&self.logs, &process.name);
        Ok(Some(Ended { name: process.name, status, log }))
    }

    /// Returns the names of the processes still running at the last check.
    pub fn running(&self) -> impl Iterator<Item = &str> {
        self.running.iter().map(|process| process.name.as_str())
    }

    fn open_log(&self, name: &str) -> Result<File> {
        let log = log_path(&self.logs, name);
        File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("create {}", log.display()))
    }

    fn spawn_logged(&mut self, name: &str, command: &mut Command, stderr: File) -> Result<&mut Child> {
        let leader = i32::try_from(self.leader.id()).context("read the process group's number")?;
        let child = command
            .stderr(stderr)
            // The logs are files: no colours.
            .env("NO_COLOR", "1")
            .process_group(leader)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        self.running.push(Process { name: name.to_owned(), child });
        let process = self.running.last_mut().context("find the process that was just started")?;
        Ok(&mut process.child)
    }
}

impl Ended {
    /// Describes its end, with the end of its log.
    pub fn describe(&self) -> String {
        let tail = match fs::read(&self.log) {
            Ok(bytes) => last_lines(&String::from_utf8_lossy(&bytes)),
            Err(error) => format!("(its log cannot be read: {error})"),
        };
        format!("{} ended: {}; the end of {}:\n{tail}", self.name, self.status, self.log.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // Both fail only for a reaped process, with nothing left to do.
        let _: io::Result<ExitStatus> = self.leader.wait();
        for process in &mut self.running {
            let _: io::Result<ExitStatus> = process.child.wait();
        }
    }
}

fn log_path(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.log"))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn dropping_the_group_ends_its_processes_and_their_children() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Group::new(dir.path()).unwrap();
        // The grandchild keeps the pipe open while it lives, and ignores a polite signal.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM INT; sleep 1000 & echo started; wait"]);
        let child = group.spawn_piped("stubborn", &mut command).unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut started = [0; 8];
        output.read_exact(&mut started).unwrap();
        assert_eq!(&started, b"started\n");
        drop(group);
        assert_eq!(output.read(&mut started).unwrap(), 0, "nobody holds the pipe any more");
    }

    #[test]
    fn an_ended_process_is_told_of_once_with_the_end_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Group::new(dir.path()).unwrap();
        group.spawn_piped("coordinator", &mut Command::new("cat")).unwrap();
        group.spawn("worker-0", Command::new("sh").args(["-c", "echo the reason >&2; exit 3"])).unwrap();
        group.running[1].child.wait().unwrap();
        let ended = group.take_ended().unwrap();
        let [ended] = ended.as_slice() else { panic!("{} processes ended", ended.len()) };
        let text = ended.describe();
        assert!(text.contains("worker-0 ended: exit status: 3") && text.ends_with("the reason"), "{text}");
        assert!(group.take_ended().unwrap().is_empty());
        assert_eq!(group.running().collect::<Vec<_>>(), ["coordinator"]);
    }

    #[test]
    fn a_process_that_is_started_again_goes_on_in_its_old_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Group::new(dir.path()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo a line"]);
        for _ in 0..2 {
            group.spawn("twice", &mut command).unwrap();
            group.wait_for_last().unwrap().unwrap();
        }
        assert_eq!(fs::read_to_string(dir.path().join("twice.log")).unwrap(), "a line\na line\n");
    }
}
