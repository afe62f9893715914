//! Two coordinators with failover, and workers that know both.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::{POLL, Process, free_address, now, status_at};
use crate::etcd::EtcdServer;
use crate::interrupt;

/// Timeout for a coordinator to respond, or to learn of the leader.
const START_MAX: Duration = Duration::from_secs(30);

/// Two coordinators with their state in one etcd. Dropping it ends every process.
#[derive(Debug)]
pub struct Pair {
    folder: PathBuf,
    state: String,
    coordinators: [Coordinator; 2],
    workers: Vec<Process>,
    /// Lives as long as the coordinators.
    pub etcd: EtcdServer,
}

#[derive(Debug)]
struct Coordinator {
    listen: SocketAddr,
    http: SocketAddr,
    process: Option<Process>,
}

impl Pair {
    /// Starts etcd and both coordinators in `folder`: on return the first leads, and the second is on
    /// standby. `None`, with a notice: this machine has no `etcd`.
    ///
    /// # Errors
    /// A process could not be started; the error ends with its log.
    pub fn start(folder: &Path, run_toml: &str) -> Result<Option<Self>> {
        std::fs::create_dir_all(folder)?;
        EtcdServer::start(folder)?.map(|etcd| Self::start_on(etcd, folder, run_toml)).transpose()
    }

    /// The same with a running etcd.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_on(etcd: EtcdServer, folder: &Path, run_toml: &str) -> Result<Self> {
        std::fs::write(folder.join("run.toml"), run_toml)?;
        let coordinator = || -> Result<Coordinator> {
            Ok(Coordinator { listen: free_address()?, http: free_address()?, process: None })
        };
        let (state, coordinators) = (etcd.state("test"), [coordinator()?, coordinator()?]);
        let mut pair = Self { folder: folder.to_owned(), state, coordinators, workers: Vec::new(), etcd };
        pair.start_coordinator(0)?;
        pair.wait_for(0, "the first coordinator to lead", START_MAX, |status| !status.is_null())?;
        pair.start_coordinator(1)?;
        pair.wait_for_words(1, "another coordinator leads")?;
        Ok(pair)
    }

    /// Starts (or restarts) a coordinator.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub fn start_coordinator(&mut self, index: usize) -> Result<()> {
        let [own, other] = [index, 1 - index].map(|index| self.coordinators[index].listen.to_string());
        let process = Process::start_as("coordinator", &name(index), &self.folder, |command| {
            command.args(["up", "--stay", "--config", "run.toml", "--state", &self.state]);
            command.arg("--state-dir").arg(format!("state-{index}"));
            command.arg("--token-file").arg(format!("join-{index}.txt"));
            command.arg("--listen").arg(&own).arg("--advertise").arg(format!("{own},{other}"));
            command.arg("--http").arg(self.coordinators[index].http.to_string());
        })?;
        self.coordinators[index].process = Some(process);
        Ok(())
    }

    /// Starts a worker at its own site, with the join line of the first coordinator.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub fn start_worker(&mut self) -> Result<()> {
        let (index, line) = (self.workers.len(), std::fs::read_to_string(self.folder.join("join-0.txt"))?);
        let name = format!("worker-{index}");
        let process = Process::start_as("worker", &name, &self.folder, |command| {
            command.args(line.split_whitespace().skip(1));
            command.arg("--site").arg(format!("site-{index}")).args([
                "--device",
                &super::device(),
                "--threads",
                "1",
            ]);
            command.arg("--cache-dir").arg(format!("cache-{index}")).args(["--listen", "127.0.0.1:0"]);
        })?;
        self.workers.push(process);
        Ok(())
    }

    /// Kills a coordinator with `kill -9`.
    pub fn kill_coordinator(&mut self, index: usize) {
        self.coordinators[index].process = None;
    }

    /// Ends the run by `coordinator stop`.
    ///
    /// # Errors
    /// The coordinator refuses, or does not lead.
    pub fn stop(&self, index: usize) -> Result<()> {
        let mut command = Command::new(super::binary("coordinator")?);
        command.args(["stop", "--state-dir"]).arg(self.folder.join(format!("state-{index}")));
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Sends a signal to a coordinator by name, such as `STOP`.
    ///
    /// # Errors
    /// `kill` fails, or it is not running.
    pub fn signal(&self, index: usize, signal: &str) -> Result<()> {
        match &self.coordinators[index].process {
            Some(process) => process.signal(signal),
            None => bail!("{} is dead", name(index)),
        }
    }

    /// Returns a coordinator's status if it leads; otherwise null.
    #[must_use]
    pub fn status(&self, index: usize) -> Value {
        status_at(self.coordinators[index].http)
    }

    /// Waits until a coordinator has printed these words.
    ///
    /// # Errors
    /// It does not; the error ends with its log.
    pub fn wait_for_words(&mut self, index: usize, words: &str) -> Result<()> {
        match &mut self.coordinators[index].process {
            Some(process) => process.wait_for_words(words, START_MAX),
            None => bail!("{} is dead", name(index)),
        }
    }

    /// Polls a coordinator's status until it satisfies a condition; returns that status.
    ///
    /// # Errors
    /// A timeout, or a process failed; the error ends with the logs.
    pub fn wait_for(
        &mut self,
        index: usize,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = now() + limit;
        loop {
            interrupt::check()?;
            let status = self.status(index);
            if condition(&status) {
                return Ok(status);
            }
            let failed = self.processes().find_map(Process::failure);
            if failed.is_some() || now() > deadline {
                let why = failed.unwrap_or_else(|| format!("waited {limit:?}"));
                let logs: String = self.processes().map(|process| process.log_tail()).collect();
                bail!("{why}, for {what}; the status is {status:#}\n{logs}");
            }
            // Polls, as changes of other processes do not wake this one.
            std::thread::park_timeout(POLL);
        }
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        self.coordinators
            .iter_mut()
            .filter_map(|coordinator| coordinator.process.as_mut())
            .chain(&mut self.workers)
    }
}

fn name(index: usize) -> String {
    format!("coordinator-{index}")
}
