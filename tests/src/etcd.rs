//! A real etcd, if the machine has one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::{Value, json};

use crate::cluster::{Process, free_address};
use crate::tools::skipped;

/// Timeout of its election.
const START_MAX: Duration = Duration::from_secs(30);

/// A cluster of one member. Dropping it kills it.
#[derive(Debug)]
pub struct EtcdServer {
    process: Process,
    /// HOST:PORT for clients.
    pub endpoint: String,
    /// Address of its metrics.
    metrics: String,
    tls: Option<Certificates>,
}

/// Certificates of etcd and its clients, as PEM files.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// Certificate of the authority that signed the others.
    pub authority: PathBuf,
    /// For clients, with the key.
    pub client: (PathBuf, PathBuf),
    server: (PathBuf, PathBuf),
}

impl Certificates {
    /// Creates an authority of this name, with certificates for etcd on this machine and for a client, in
    /// `folder`.
    ///
    /// # Errors
    /// They cannot be created or written.
    pub fn create(folder: &Path, name: &str) -> Result<Self> {
        let named = |name: &str, hosts: &[&str]| -> Result<CertificateParams> {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let mut params = CertificateParams::new(hosts)?;
            params.distinguished_name.push(DnType::CommonName, name);
            Ok(params)
        };
        let mut params = named(name, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let authority = folder.join(format!("{name}.pem"));
        fs::write(&authority, issuer.pem())?;
        let signed = |of: &str, purposes: &[ExtendedKeyUsagePurpose]| -> Result<(PathBuf, PathBuf)> {
            let mut params = named(of, &["127.0.0.1"])?;
            params.extended_key_usages = purposes.to_vec();
            let key = KeyPair::generate()?;
            let [certificate, secret] =
                ["pem", "key"].map(|ending| folder.join(format!("{name}-{of}.{ending}")));
            fs::write(&certificate, params.signed_by(&key, &issuer)?.pem())?;
            fs::write(&secret, key.serialize_pem())?;
            Ok((certificate, secret))
        };
        // etcd's JSON gateway is a client of etcd, with the server's certificate.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let (server, client) = (signed("server", &both)?, signed("client", &both[1..])?);
        Ok(Self { authority, client, server })
    }
}

impl EtcdServer {
    /// Starts one with its data in `folder`, and waits until it responds. `None`, with a notice: this machine
    /// has no `etcd`.
    ///
    /// # Errors
    /// It does not start; the error ends with its log.
    pub fn start(folder: &Path) -> Result<Option<Self>> {
        Self::start_as(folder, None)
    }

    /// The same with TLS, for clients with a certificate of this authority.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_tls(folder: &Path, certificates: &Certificates) -> Result<Option<Self>> {
        Self::start_as(folder, Some(certificates.clone()))
    }

    fn start_as(folder: &Path, tls: Option<Certificates>) -> Result<Option<Self>> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
        {
            skipped("there is no `etcd` in PATH (Debian and Ubuntu: apt-get install etcd-server)");
            return Ok(None);
        }
        let endpoint = free_address()?.to_string();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let clients = format!("{scheme}://{endpoint}");
        let [peers, metrics] = [free_address()?, free_address()?].map(|address| format!("http://{address}"));
        let process = Process::start_program(Path::new("etcd"), "etcd", folder, |command| {
            command.args(["--name", "test", "--data-dir", "etcd-data"]);
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            command.args(["--initial-cluster", &format!("test={peers}"), "--listen-metrics-urls", &metrics]);
            if let Some(Certificates { authority, server: (certificate, key), .. }) = &tls {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(authority);
                command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
            }
        })?;
        let server = Self { process, endpoint, metrics, tls };
        let deadline = crate::cluster::now() + START_MAX;
        while !server.is_healthy() {
            anyhow::ensure!(
                crate::cluster::now() < deadline,
                "etcd does not answer\n{}",
                server.process.log_tail()
            );
            // Polls, as the other process does not wake this one.
            std::thread::park_timeout(Duration::from_millis(50));
        }
        Ok(Some(server))
    }

    /// Returns the argument of `coordinator up --state` for a run with this prefix.
    #[must_use]
    pub fn state(&self, prefix: &str) -> String {
        let endpoint = &self.endpoint;
        match &self.tls {
            None => format!("etcd://{endpoint}/{prefix}"),
            Some(Certificates { authority, client: (certificate, key), .. }) => format!(
                "etcds://{endpoint}/{prefix}?ca={}&cert={}&key={}",
                authority.display(),
                certificate.display(),
                key.display()
            ),
        }
    }

    /// Sends a signal by name, such as `STOP`.
    ///
    /// # Errors
    /// `kill` fails.
    pub fn signal(&self, signal: &str) -> Result<()> {
        self.process.signal(signal)
    }

    /// Ends every lease now, as if it had expired. Not with TLS.
    ///
    /// # Errors
    /// etcd does not respond.
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
        let answer = ureq::get(format!("{}/health", self.metrics)).call();
        answer.is_ok_and(|answer| answer.status().is_success())
    }
}
