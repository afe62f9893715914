//! A whole run on one machine: the real binaries as processes, with sites joined by the WAN emulator.

mod calendar;
mod disk;
mod pair;
mod process;
mod wan;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use self::calendar::Calendars;
use crate::interrupt;
pub use disk::FullDisk;
use longhaul_emulator::LinkConfig;
pub use pair::Pair;
pub use process::{Process, Slowed, binary};
pub use wan::Wan;
use worker::Worker;

/// Name of the coordinator's calendar.
const COORDINATOR: &str = "coordinator";

/// Polling interval of a run.
const POLL: Duration = Duration::from_millis(50);

/// Configuration of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The run's `run.toml`. Relative paths in it start at `folder`.
    pub run_toml: String,
    /// Workers in each site; the coordinator is in the first.
    pub sites: Vec<usize>,
    /// Each direction of the links between sites.
    pub link: LinkConfig,
    /// Seed of the emulator's losses.
    pub seed: u64,
    /// Folder of state, caches, checkpoints and logs.
    pub folder: PathBuf,
    /// CPU threads of each worker.
    pub threads: u16,
    /// Whether each worker has its own checkpoint folder; otherwise all share the run's.
    pub own_checkpoints: bool,
    /// Further arguments of each worker.
    pub worker_arguments: Vec<String>,
    /// Whether each worker has its own adjustable calendar.
    pub own_calendars: bool,
}

/// A running run. Dropping it ends every process.
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    wan: Wan,
    coordinator: Option<Process>,
    /// All workers of the run, and one more slot per site, for a copy.
    workers: Vec<Worker>,
    calendars: Option<Calendars>,
    listen: SocketAddr,
    http: SocketAddr,
    /// Dropped last: live processes write to it.
    _folder: Option<TempDir>,
}

impl Cluster {
    /// Starts the coordinator and, once it is ready, all workers.
    ///
    /// # Errors
    /// A process could not be started; the error ends with its log.
    pub fn start(config: ClusterConfig) -> Result<Self> {
        let mut cluster = Self::start_coordinator_only(config)?;
        for index in 0..cluster.workers_of_run() {
            cluster.start_worker(index)?;
        }
        Ok(cluster)
    }

    /// Starts the coordinator; [`Self::start_worker`] starts the workers.
    ///
    /// # Errors
    /// It could not be started; the error ends with its log.
    pub fn start_coordinator_only(config: ClusterConfig) -> Result<Self> {
        std::fs::create_dir_all(&config.folder)?;
        std::fs::write(config.folder.join("run.toml"), &config.run_toml)?;
        let listen = free_address()?;
        let workers = config
            .sites
            .iter()
            .enumerate()
            .flat_map(|(site, &count)| std::iter::repeat_n(site, count))
            .chain(0..config.sites.len())
            .map(|site| Ok(Worker { site, listen: free_address()?, process: None }))
            .collect::<io::Result<Vec<_>>>()?;
        let addresses: Vec<_> = workers.iter().map(|worker| (worker.site, worker.listen)).collect();
        let wan = Wan::start(config.sites.len(), &config.link, config.seed, listen, &addresses)?;
        let http = free_address()?;
        let calendars = config.own_calendars.then(|| Calendars::build(&config.folder)).transpose()?;
        let mut cluster =
            Self { config, wan, coordinator: None, workers, calendars, listen, http, _folder: None };
        cluster.start_coordinator()?;
        Ok(cluster)
    }

    /// Keeps the folder until the end.
    #[must_use]
    pub fn with_folder(self, folder: TempDir) -> Self {
        Self { _folder: Some(folder), ..self }
    }

    /// Starts (or restarts) the coordinator, and waits until it responds.
    ///
    /// # Errors
    /// It does not start; the error ends with its log.
    pub fn start_coordinator(&mut self) -> Result<()> {
        let folder = &self.config.folder;
        let mut given = Ok(());
        let process = Process::start("coordinator", folder, |command| {
            given = self.calendars.iter().try_for_each(|calendars| calendars.give(COORDINATOR, command));
            command.args([
                "up",
                "--stay",
                "--config",
                "run.toml",
                "--state-dir",
                "state",
                "--token-file",
                "join.txt",
            ]);
            command.arg("--listen").arg(self.listen.to_string());
            command.arg("--http").arg(self.http.to_string());
        })?;
        self.coordinator = Some(process);
        given?;
        self.wait_for("the coordinator to answer", Duration::from_secs(30), |status| !status.is_null())?;
        Ok(())
    }

    /// Sets a worker's calendar this many seconds ahead of the machine's.
    ///
    /// # Errors
    /// It has no own calendar.
    pub fn set_calendar(&self, index: usize, ahead_s: i64) -> Result<()> {
        let calendars = self.calendars.as_ref().context("workers have no calendars of their own")?;
        calendars.set(&format!("worker-{index}"), ahead_s)
    }

    /// Sets the coordinator's calendar this many seconds ahead of the machine's.
    ///
    /// # Errors
    /// It has no own calendar.
    pub fn set_head_calendar(&self, ahead_s: i64) -> Result<()> {
        let calendars = self.calendars.as_ref().context("the coordinator has no calendar of its own")?;
        calendars.set(COORDINATOR, ahead_s)
    }

    /// Returns the token that the coordinator wrote.
    ///
    /// # Errors
    /// The file is missing.
    pub fn token(&self) -> Result<String> {
        let line =
            std::fs::read_to_string(self.config.folder.join("join.txt")).context("read the join line")?;
        let token = line.split_whitespace().find(|word| word.starts_with("lh1."));
        token.map(str::to_owned).with_context(|| format!("no token in the join line {line:?}"))
    }

    /// Creates a join token with this lifetime, such as `30d`, for workers started from now on.
    ///
    /// # Errors
    /// The error of `coordinator token create`.
    pub fn make_token(&self, life: &str) -> Result<()> {
        let mut create = Command::new(binary("coordinator")?);
        create.args(["token", "create", "--state-dir", "state", "--life", life]);
        let output =
            create.current_dir(self.folder()).output().context("start `coordinator token create`")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "make a join token: {}", error.trim());
        Ok(std::fs::write(self.folder().join("join.txt"), output.stdout)?)
    }

    /// Kills a worker with `kill -9`.
    pub fn kill_worker(&mut self, index: usize) {
        self.workers[index].process = None;
    }

    /// Kills the coordinator with `kill -9`.
    pub fn kill_coordinator(&mut self) {
        self.coordinator = None;
    }

    /// Returns a worker's process, if running.
    pub fn worker(&mut self, index: usize) -> Option<&mut Process> {
        self.workers[index].process.as_mut()
    }

    /// Returns the address at which a worker accepts its peers.
    #[must_use]
    pub fn worker_address(&self, index: usize) -> SocketAddr {
        self.workers[index].listen
    }

    /// Returns the coordinator's process, if running.
    pub fn coordinator(&mut self) -> Option<&mut Process> {
        self.coordinator.as_mut()
    }

    /// Returns the links between the sites.
    #[must_use]
    pub fn wan(&self) -> &Wan {
        &self.wan
    }

    /// Returns the coordinator's listening address.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Returns the coordinator's HTTP address.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Returns the folder of all files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.config.folder
    }

    /// Returns `/api/v1/status`, or null without a response.
    #[must_use]
    pub fn status(&self) -> Value {
        status_at(self.http)
    }

    /// Polls the status until it satisfies a condition; returns that status.
    ///
    /// # Errors
    /// A timeout, or a process failed; the error ends with the last status and the logs. Or the user
    /// interrupts.
    pub fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        condition: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        self.look_every(POLL, what, limit, condition)
    }

    /// As [`Self::wait_for`], with another polling interval: each request takes a millisecond or two from the
    /// measured processes.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn look_every(
        &mut self,
        pause: Duration,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        let deadline = now() + limit;
        loop {
            interrupt::check()?;
            let status = self.status();
            if condition(&status) {
                return Ok(status);
            }
            let failed = self.failed_process();
            if failed.is_some() || now() > deadline {
                let why = failed.unwrap_or_else(|| format!("waited {limit:?}"));
                bail!("{why}, for {what}; the status is {status:#}\n{}", self.logs());
            }
            // Polls, as changes of other processes do not wake this one.
            std::thread::park_timeout(pause);
        }
    }

    /// Waits until the run is finished and every worker has left.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn wait_until_finished(&mut self, limit: Duration) -> Result<Value> {
        self.wait_for("the run to finish", limit, |status| status["phase"] == "finished")
    }

    fn failed_process(&mut self) -> Option<String> {
        let workers = self.workers.iter_mut().filter_map(|worker| worker.process.as_mut());
        self.coordinator.iter_mut().chain(workers).find_map(Process::failure)
    }

    /// Returns the whole output of every process.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn whole_logs(&self) -> Result<String> {
        let files = std::fs::read_dir(self.folder())?.collect::<io::Result<Vec<_>>>()?;
        let logs = files.iter().map(std::fs::DirEntry::path);
        let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        Ok(logs
            .map(|path| std::fs::read(path).unwrap_or_default())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect())
    }

    /// Returns the last lines of every log.
    #[must_use]
    pub fn logs(&self) -> String {
        let workers = self.workers.iter().filter_map(|worker| worker.process.as_ref());
        self.coordinator.iter().chain(workers).map(Process::log_tail).collect()
    }
}

/// Returns the number of training workers in a status.
#[must_use]
pub fn training(status: &Value) -> usize {
    let members = status["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    members.iter().filter(|member| member["state"] == "training").count()
}

/// Returns a coordinator's status; null without a response, or from a standby.
fn status_at(http: SocketAddr) -> Value {
    answer(http, "status")
}

/// Returns a coordinator's `/api/v1/history`, or null without a response.
#[must_use]
pub fn history_at(http: SocketAddr) -> Value {
    answer(http, "history")
}

fn answer(http: SocketAddr, what: &str) -> Value {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(2))).build().into();
    agent
        .get(format!("http://{http}/api/v1/{what}"))
        .call()
        .ok()
        .and_then(|mut response| response.body_mut().read_json().ok())
        .unwrap_or_default()
}

#[allow(clippy::disallowed_methods, reason = "real processes live in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Range of ports to try: below those that systems assign automatically, which could be taken before use.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Returns an address that is free for UDP, and for TCP, which members of a site use. No two calls of this
/// process return the same; other processes search elsewhere.
///
/// # Errors
/// The system provides no socket, or no port is free.
pub fn free_address() -> io::Result<SocketAddr> {
    static LOOKED_AT: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    let begin = std::process::id().wrapping_mul(7919);
    for _ in 0..count {
        let place = begin.wrapping_add(LOOKED_AT.fetch_add(1, Ordering::Relaxed)) % count;
        let address = SocketAddr::from(([127, 0, 0, 1], PORTS.start + place as u16));
        match TcpListener::bind(address).and_then(|_| UdpSocket::bind(address)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound?.local_addr(),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no port of {PORTS:?} is free")))
}

/// Returns the workers' device: the CPU, or that of `LONGHAUL_TEST_DEVICE`.
#[must_use]
pub fn device() -> String {
    std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())
}
