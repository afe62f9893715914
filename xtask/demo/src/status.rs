//! What the coordinator's `/api/v1/status` says, as far as the demo shows it.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::http;

/// Where a coordinator tells it.
const PATH: &str = "/api/v1/status";

/// How the run goes. What is not known yet is absent.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// `gathering`, `preparing`, `training`, `draining` or `finished`.
    pub phase: String,
    /// Steps in the rounds that are applied everywhere.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Mean training loss of the newest round, nats a token.
    pub loss: Option<f64>,
    /// The newest validation loss, nats a token.
    pub validation_loss: Option<f64>,
    /// Tokens trained on, over all workers and the whole run.
    pub tokens: u64,
    /// Tokens a second over the last seconds, all workers.
    pub tokens_per_s: Option<f64>,
    /// The same over the whole run.
    #[serde(default)]
    pub tokens_per_s_mean: Option<f64>,
    /// The share of the speed without any network that was reached over the last seconds, 0 to 1.
    pub share_of_local_speed: Option<f64>,
    /// The same over the whole run.
    #[serde(default)]
    pub share_of_local_speed_mean: Option<f64>,
    /// Bytes sent to other sites.
    pub wan_bytes: u64,
    /// What the same rounds would have sent as dense f32.
    pub dense_bytes: u64,
    /// How many times less was sent than that.
    pub bytes_ratio: Option<f64>,
    /// Seconds to the end at the present speed.
    pub eta_s: Option<f64>,
    /// The newest comparison of all replicas.
    pub parity: Option<Parity>,
    /// Newest first.
    pub checkpoints: Vec<Checkpoint>,
    /// What happened lately.
    pub events: Vec<Event>,
}

impl Status {
    /// Whether all rounds are applied and all workers dismissed.
    pub fn is_finished(&self) -> bool {
        self.phase == "finished"
    }
}

/// Something that happened in the run.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Unix time in milliseconds.
    pub at_unix_ms: u64,
    /// How much it matters.
    pub severity: Severity,
    /// Whom it concerns.
    pub worker: Option<String>,
    /// A sentence, or the rest of one that begins with the worker.
    pub text: String,
}

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run goes its way.
    Info,
    /// Something went wrong, and the run copes.
    Warning,
    /// A promise is broken, or a person must act.
    Error,
}

/// Whether all replicas hold the same bits.
#[derive(Debug, Clone, Deserialize)]
pub struct Parity {
    /// The round after which they were compared.
    pub round: u64,
    /// Hash of the synchronised state, in hexadecimal.
    pub hash: String,
    /// Whether all reported it.
    pub equal: bool,
}

/// A checkpoint that a worker wrote, or could not write.
#[derive(Debug, Clone, Deserialize)]
pub struct Checkpoint {
    /// Where, on the worker's machine.
    pub path: String,
    /// Why it is not there.
    pub error: Option<String>,
}

/// The status of the coordinator at this address; none while nobody answers.
///
/// # Errors
/// The answer is not a status.
pub fn ask(coordinator: SocketAddr) -> Result<Option<Status>> {
    let Some(body) = http::get(coordinator, PATH)? else { return Ok(None) };
    serde_json::from_slice(&body).context("read the coordinator's status").map(Some)
}
