//! The workers of a [`Cluster`]: started normally, with output into a pipe, with little memory, or from a
//! copy of another one's cache folder.

use std::io::PipeReader;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Cluster, Process, binary, device};

/// Limits a program's data in KiB: `sh -c SCRIPT KIB PROGRAM ARGUMENTS`. Running out of memory leaves no core
/// file.
const LIMITED: &str = "ulimit -c 0; ulimit -d \"$0\" && exec \"$@\"";

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) site: usize,
    pub(super) listen: SocketAddr,
    pub(super) process: Option<Process>,
}

impl Cluster {
    /// Starts (or restarts) a worker, with its cache folder.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub fn start_worker(&mut self, index: usize) -> Result<()> {
        self.start_worker_with(index, &[])
    }

    /// The same with further arguments.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub fn start_worker_with(&mut self, index: usize, arguments: &[&str]) -> Result<()> {
        self.start_worker_by(index, &binary("worker")?, arguments, |_| ())
    }

    /// The same with output into a pipe instead of its log. Returns the reading end: closing it leaves no
    /// reader.
    ///
    /// # Errors
    /// The pipe cannot be created, or the binary cannot be started.
    pub fn start_worker_in_pipe(&mut self, index: usize) -> Result<PipeReader> {
        let (reader, writer) = std::io::pipe().context("make a pipe")?;
        let other = writer.try_clone().context("share a pipe")?;
        self.start_worker_by(index, &binary("worker")?, &[], |command| {
            command.stdout(writer).stderr(other);
        })?;
        Ok(reader)
    }

    /// The same with a limit on its data (`RLIMIT_DATA`), beyond which it gets no memory.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub fn start_worker_in_memory(&mut self, index: usize, bytes: u64) -> Result<()> {
        let worker = binary("worker")?;
        self.start_worker_by(index, Path::new("sh"), &[], |command| {
            command.args(["-c", LIMITED]).arg((bytes >> 10).to_string()).arg(worker);
        })
    }

    /// Returns the index of a worker's copy, after all workers: one per site.
    #[must_use]
    pub fn copy_of(&self, index: usize) -> usize {
        self.workers_of_run() + self.workers[index].site
    }

    /// Starts another worker at the same site, from a copy of a running one's cache folder.
    ///
    /// # Errors
    /// The error of `cp`, or the binary cannot be started.
    pub fn start_copy_of(&mut self, index: usize) -> Result<()> {
        let copy = self.copy_of(index);
        let run = |program: &str, words: &[&str]| {
            Command::new(program).args(words).current_dir(self.folder()).output().context("start cp or rm")
        };
        let (from, to) = (format!("cache-{index}"), format!("cache-{copy}"));
        let mut output = run("cp", &["-r", &from, &to])?;
        if !output.status.success() {
            // A file may have been renamed meanwhile.
            run("rm", &["-r", &to])?;
            output = run("cp", &["-r", &from, &to])?;
        }
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "copy the cache folder of worker {index}: {}", error.trim());
        self.start_worker(copy)
    }

    /// Kills that copy if it runs, and removes its folders.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn remove_copy_of(&mut self, index: usize) -> Result<()> {
        let copy = self.copy_of(index);
        self.kill_worker(copy);
        let folders = ["cache", "checkpoints"].map(|what| self.folder().join(format!("{what}-{copy}")));
        for folder in folders.iter().filter(|folder| folder.exists()) {
            std::fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        Ok(())
    }

    /// Returns the number of workers without copies.
    pub(super) fn workers_of_run(&self) -> usize {
        self.config.sites.iter().sum()
    }

    /// Starts a worker by this program, which is the worker or starts it; `begin` modifies the command first.
    fn start_worker_by(
        &mut self,
        index: usize,
        program: &Path,
        arguments: &[&str],
        begin: impl FnOnce(&mut Command),
    ) -> Result<()> {
        let token = self.token()?;
        let worker = &mut self.workers[index];
        let (coordinator, advertise) = self.wan.addresses_for(worker.site, index);
        let name = format!("worker-{index}");
        let mut given = Ok(());
        let process = Process::start_program(program, &name, &self.config.folder, |command| {
            given = self.calendars.iter().try_for_each(|calendars| calendars.give(&name, command));
            begin(command);
            command.arg("join").arg(coordinator.to_string()).args(["--token", &token]);
            command.arg("--site").arg(format!("site-{}", worker.site)).args(["--device", &device()]);
            command.arg("--threads").arg(self.config.threads.to_string());
            command.arg("--cache-dir").arg(format!("cache-{index}"));
            command.arg("--listen").arg(worker.listen.to_string());
            command.arg("--advertise").arg(advertise.to_string());
            if self.config.own_checkpoints {
                command.arg("--checkpoint-dir").arg(format!("checkpoints-{index}"));
            }
            command.args(&self.config.worker_arguments).args(arguments);
        })?;
        worker.process = Some(process);
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_limit_gets_that_memory_and_no_more() {
        let has_room_in = |mib: u32| {
            let mut limited = Command::new("sh");
            limited.args(["-c", LIMITED]).arg((mib << 10).to_string());
            limited.args(["dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"]);
            limited.output().unwrap().status.success()
        };
        assert!(has_room_in(256) && !has_room_in(16));
    }
}
