//! What the coordinator's `/api/v1/status` says, as far as the demo shows it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;

/// An answer comes from this machine; one that takes longer is asked for again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How the run goes.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// `gathering`, `preparing`, `training`, `draining` or `finished`.
    pub phase: String,
    /// The step that the run has reached.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Mean training loss of the newest round, nats a token.
    pub loss: Option<f64>,
    /// The newest validation loss, nats a token.
    pub validation_loss: Option<f64>,
    /// Tokens a second over the last seconds, all workers.
    pub tokens_per_s: Option<f64>,
    /// Sums over all workers.
    pub totals: Totals,
    /// The newest comparison of all replicas.
    pub parity: Option<Parity>,
    /// Newest first.
    #[serde(default)]
    pub checkpoints: Vec<Checkpoint>,
}

/// Sums over all workers since the run began.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Totals {
    /// Tokens trained on.
    pub tokens: u64,
    /// Bytes sent to other sites.
    pub wan_bytes: u64,
    /// What the same rounds would have sent as dense f32.
    pub dense_bytes: u64,
    /// Device seconds in forward, backward and optimiser.
    pub compute_s: f64,
    /// Device seconds spent waiting for the network.
    pub wait_s: f64,
}

impl Totals {
    /// The share of the speed without any network that is left, 0 to 1.
    pub fn share_of_local_speed(&self) -> Option<f64> {
        let total = self.compute_s + self.wait_s;
        (total > 0.0).then(|| self.compute_s / total)
    }

    /// How many times less was sent than dense f32.
    pub fn reduction(&self) -> Option<f64> {
        (self.wan_bytes > 0).then(|| self.dense_bytes as f64 / self.wan_bytes as f64)
    }
}

/// Whether all replicas hold the same bits.
#[derive(Debug, Clone, Deserialize)]
pub struct Parity {
    /// The round after which they were compared.
    pub round: u64,
    /// Hash of the synchronised state, in hexadecimal.
    pub hash: String,
    /// Workers that reported another one.
    pub odd: Vec<u64>,
}

/// A checkpoint that a worker wrote.
#[derive(Debug, Clone, Deserialize)]
pub struct Checkpoint {
    /// Where, on the worker's machine.
    pub path: String,
}

/// Asks a coordinator for its status.
pub struct StatusClient {
    agent: Agent,
    url: String,
}

impl StatusClient {
    /// A client of the coordinator at this address.
    pub fn new(http: SocketAddr) -> Self {
        let agent = Agent::config_builder().timeout_global(Some(ANSWER_TIMEOUT)).build().into();
        Self { agent, url: format!("http://{http}/api/v1/status") }
    }

    /// The status now; none while nobody answers.
    ///
    /// # Errors
    /// The answer is not a status.
    pub fn status(&self) -> anyhow::Result<Option<Status>> {
        match self.agent.get(&self.url).call() {
            Ok(mut response) => Ok(Some(response.body_mut().read_json()?)),
            Err(ureq::Error::StatusCode(code)) => anyhow::bail!("{} answered {code}", self.url),
            Err(_) => Ok(None),
        }
    }
}
