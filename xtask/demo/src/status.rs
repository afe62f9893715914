//! The fields of the coordinator's `/api/v1/status` that the demo shows.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::http;

/// Path of the status.
const PATH: &str = "/api/v1/status";

/// The state of the run. Unknown values are absent.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// `gathering`, `preparing`, `training`, `draining` or `finished`.
    pub phase: String,
    /// Steps of the rounds applied everywhere.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Mean training loss of the newest round, nats a token.
    pub loss: Option<f64>,
    /// The newest validation loss, nats a token.
    pub validation_loss: Option<f64>,
    /// The speed of training.
    #[serde(flatten)]
    pub throughput: Throughput,
    /// Updates between sites.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Seconds to the end at the present speed.
    pub eta_s: Option<f64>,
    /// The newest comparison of all replicas.
    pub parity: Option<Parity>,
    /// Newest first.
    pub checkpoints: Vec<Checkpoint>,
    /// Recent events.
    pub events: Vec<Event>,
}

impl Status {
    /// Whether all rounds are applied and all workers dismissed.
    pub fn is_finished(&self) -> bool {
        self.phase == "finished"
    }
}

/// The speed of training.
#[derive(Debug, Clone, Deserialize)]
pub struct Throughput {
    /// Tokens trained on, over all workers and the whole run.
    pub tokens: u64,
    /// Tokens a second over the last seconds, all workers.
    pub tokens_per_s: Option<f64>,
    /// The same over the whole run.
    #[serde(default)]
    pub tokens_per_s_mean: Option<f64>,
    /// The share of the speed without any network over the last seconds, 0 to 1.
    pub share_of_local_speed: Option<f64>,
    /// The same over the whole run.
    #[serde(default)]
    pub share_of_local_speed_mean: Option<f64>,
}

/// Updates between sites.
#[derive(Debug, Clone, Deserialize)]
pub struct Traffic {
    /// Bytes sent to other sites.
    pub wan_bytes: u64,
    /// Bytes that the same rounds would have sent as dense f32.
    pub dense_bytes: u64,
    /// Ratio of `dense_bytes` to `wan_bytes`.
    pub bytes_ratio: Option<f64>,
}

/// An event of the run.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Unix time in milliseconds.
    pub at_unix_ms: u64,
    /// Severity of the event.
    pub severity: Severity,
    /// The worker concerned.
    pub worker: Option<String>,
    /// A sentence, or its rest after the worker's name.
    pub text: String,
}

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Normal operation.
    Info,
    /// A problem that the run handles.
    Warning,
    /// A guarantee is broken, or someone must act.
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

/// A checkpoint that a worker wrote or failed to write.
#[derive(Debug, Clone, Deserialize)]
pub struct Checkpoint {
    /// Path on the worker's machine.
    pub path: String,
    /// Reason for a failure.
    pub error: Option<String>,
}

/// Returns the status of the coordinator at this address; `None`: no answer.
///
/// # Errors
/// Returns an error if the answer is not a status.
pub fn ask(coordinator: SocketAddr) -> Result<Option<Status>> {
    let Some(body) = http::get(coordinator, PATH)? else { return Ok(None) };
    serde_json::from_slice(&body).context("read the coordinator's status").map(Some)
}
