//! A real etcd, where the machine has one.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::{Process, free_address};

/// How long it may take to elect itself.
const START_MAX: Duration = Duration::from_secs(30);

/// A cluster of one member. Dropping it kills it.
#[derive(Debug)]
pub struct EtcdServer {
    process: Process,
    /// HOST:PORT for its clients.
    pub endpoint: String,
}

impl EtcdServer {
    /// Starts one with its data in `folder`, and waits until it answers. None, with a notice: there is no `etcd` on this machine.
    ///
    /// # Errors
    /// It does not start; the error ends with its log.
    #[allow(clippy::print_stderr, reason = "whoever reads a test's output should know what it did not do")]
    pub fn start(folder: &Path) -> Result<Option<Self>> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
        {
            eprintln!("skipped: there is no `etcd` in PATH (Debian and Ubuntu: apt-get install etcd-server)");
            return Ok(None);
        }
        let endpoint = free_address()?.to_string();
        let (clients, peers) = (format!("http://{endpoint}"), format!("http://{}", free_address()?));
        let process = Process::start_program(Path::new("etcd"), "etcd", folder, |command| {
            command.args(["--name", "test", "--data-dir", "etcd-data"]);
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            command.args(["--initial-cluster", &format!("test={peers}")]);
        })?;
        let server = Self { process, endpoint };
        let deadline = crate::cluster::now() + START_MAX;
        while !server.is_healthy() {
            anyhow::ensure!(
                crate::cluster::now() < deadline,
                "etcd does not answer\n{}",
                server.process.log_tail()
            );
            // Another process is waited for: nothing wakes this one when it is ready.
            std::thread::park_timeout(Duration::from_millis(50));
        }
        Ok(Some(server))
    }

    /// What `coordinator up --state` takes for a run with this prefix.
    #[must_use]
    pub fn state(&self, prefix: &str) -> String {
        format!("etcd://{}/{prefix}", self.endpoint)
    }

    /// Sends a signal by its name, such as `STOP`.
    ///
    /// # Errors
    /// `kill` says no.
    pub fn signal(&self, signal: &str) -> Result<()> {
        self.process.signal(signal)
    }

    /// Ends every lease now, as if its time were over.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn revoke_all_leases(&self) -> Result<()> {
        let leases = self.ask("lease/leases", &json!({}))?;
        for lease in leases["leases"].as_array().into_iter().flatten() {
            self.ask("lease/revoke", &json!({ "ID": lease["ID"] }))?;
        }
        Ok(())
    }

    fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let mut answer = ureq::post(format!("http://{}/v3/{path}", self.endpoint)).send_json(body)?;
        answer.body_mut().read_json().context("read etcd's answer")
    }

    fn is_healthy(&self) -> bool {
        let answer = ureq::get(format!("http://{}/health", self.endpoint)).call();
        answer.is_ok_and(|answer| answer.status().is_success())
    }
}
