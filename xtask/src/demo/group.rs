//! The demo's processes, which die with it.
//!
//! All are in one process group whose leader is a shell that reads from a pipe of ours. Whatever ends this
//! process, SIGKILL included, closes the pipe; the shell then kills its group. No process has to take part in that,
//! and a reused process id cannot be hit, because the group lives as long as its leader.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// Signals that the terminal or the user sends are for the demo; the leader goes when the pipe closes.
const LEADER_SCRIPT: &str = "trap '' HUP INT TERM; cat > /dev/null; kill -KILL 0";

/// Lines of a log that a failure shows.
const LOG_LINES_SHOWN: usize = 20;

/// Processes that end when this value is dropped, or when this process ends in any way.
pub struct Group {
    leader: Child,
    /// Closing it is the leader's cue.
    lifeline: Option<ChildStdin>,
    processes: Vec<Process>,
    logs: PathBuf,
}

/// One member of the group.
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Group {
    /// An empty group; the output of its processes goes to files in `logs`.
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
        Ok(Self { leader, lifeline, processes: Vec::new(), logs: logs.to_path_buf() })
    }

    /// Starts a process that nobody talks to.
    pub fn spawn(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let output = self.create_log(name)?;
        command.stdin(Stdio::null()).stdout(output.try_clone().context("share a log file")?);
        self.spawn_logged(name, command, output).map(|_| ())
    }

    /// Starts a process whose standard input and output are pipes; only its errors go to the log.
    pub fn spawn_piped(&mut self, name: &str, command: &mut Command) -> Result<&mut Child> {
        let output = self.create_log(name)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        self.spawn_logged(name, command, output)
    }

    fn create_log(&self, name: &str) -> Result<File> {
        let log = self.log(name);
        File::create(&log).with_context(|| format!("create {}", log.display()))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    fn spawn_logged(&mut self, name: &str, command: &mut Command, stderr: File) -> Result<&mut Child> {
        let leader = i32::try_from(self.leader.id()).context("read the process group's number")?;
        let child = command
            .stderr(stderr)
            .process_group(leader)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        self.processes.push(Process { name: name.to_owned(), log: self.log(name), child });
        let process = self.processes.last_mut().context("find the process that was just started")?;
        Ok(&mut process.child)
    }

    /// Waits for the process that was started last, and says why it failed.
    ///
    /// # Errors
    /// It did fail; the error shows the end of its log.
    pub fn wait_for_last(&mut self) -> Result<()> {
        let Some(process) = self.processes.last_mut() else { return Ok(()) };
        let status = process.child.wait().with_context(|| format!("wait for {}", process.name))?;
        if !status.success() {
            bail!("{}", process.failure(status));
        }
        Ok(())
    }

    /// Looks at all processes; whether all whose name starts with `prefix` have ended.
    ///
    /// # Errors
    /// A process has failed; the error shows the end of its log.
    pub fn check(&mut self, prefix: &str) -> Result<bool> {
        let mut all_ended = true;
        for process in &mut self.processes {
            match process.child.try_wait().with_context(|| format!("look at {}", process.name))? {
                Some(status) if !status.success() => bail!("{}", process.failure(status)),
                Some(_) => {}
                None if process.name.starts_with(prefix) => all_ended = false,
                None => {}
            }
        }
        Ok(all_ended)
    }
}

impl Process {
    fn failure(&self, status: ExitStatus) -> String {
        let tail = match fs::read(&self.log) {
            Ok(bytes) => last_lines(&String::from_utf8_lossy(&bytes)),
            Err(error) => format!("(its log cannot be read: {error})"),
        };
        format!("{} ended: {status}; the end of {}:\n{tail}", self.name, self.log.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        // Both only fail for a process that was reaped before, and then there is nothing left to do.
        let _: io::Result<ExitStatus> = self.leader.wait();
        for process in &mut self.processes {
            let _: io::Result<ExitStatus> = process.child.wait();
        }
    }
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
        // The grandchild holds the pipe open as long as it lives, and ignores a polite signal.
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
    fn a_failure_shows_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Group::new(dir.path()).unwrap();
        let mut command = Command::new("sh");
        group.spawn("worker-0", command.args(["-c", "echo the reason >&2; exit 3"])).unwrap();
        group.processes[0].child.wait().unwrap();
        let error = group.check("worker").unwrap_err().to_string();
        assert!(error.contains("worker-0 ended: exit status: 3"), "{error}");
        assert!(error.ends_with("the reason"), "{error}");
    }

    #[test]
    fn processes_with_another_prefix_are_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Group::new(dir.path()).unwrap();
        group.spawn_piped("coordinator", &mut Command::new("cat")).unwrap();
        assert!(group.check("worker").unwrap());
        assert!(!group.check("coordinator").unwrap());
    }
}
