//! The heartbeat of a worker.

use serde::{Deserialize, Serialize};

/// Status of a worker, sent twice a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Step in progress.
    pub step: u64,
    /// Tokens of processed samples. Like all following counters, since the start of the process or of its
    /// part in the run.
    pub tokens: u64,
    /// Tokens of samples selected for backward passes: all, without selection.
    pub selected_tokens: u64,
    /// Seconds by use.
    pub time: TimeSpent,
    /// Bytes to and from others.
    pub traffic: Traffic,
    /// Mean training loss of the last finished step, in nats per token; NaN: withheld, or nothing was trained
    /// on.
    pub loss: f32,
    /// Encoding of the last own update sent to other sites; `None`: none yet, or in a form without such
    /// numbers.
    pub encoding: Option<Encoding>,
}

/// Seconds that a worker spent since the start of its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSpent {
    /// Seconds in forward, backward and optimiser.
    pub compute_s: f64,
    /// Seconds in which the device waited for the network.
    pub wait_s: f64,
    /// Seconds in which the device waited for training data.
    pub data_wait_s: f64,
    /// Seconds in which training paused to copy the device's state for checkpoints.
    pub checkpoint_s: f64,
    /// Seconds of encoding or decoding updates, whatever the device did meanwhile; parallel work counts once.
    pub encode_s: f64,
    /// Part of `wait_s` that overlapped it while the device waited for a round's result.
    pub encode_wait_s: f64,
    /// Part of `wait_s` spent, within a step, on other ranks of the pipeline: the pipeline's bubble.
    pub bubble_s: f64,
}

/// Bytes that a worker moved since the start of its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes sent to other sites.
    pub wan_sent_bytes: u64,
    /// Bytes received from other sites.
    pub wan_received_bytes: u64,
    /// Bytes sent within the site.
    pub lan_sent_bytes: u64,
    /// Bytes that the same rounds would have sent to other sites as dense f32.
    pub dense_bytes: u64,
    /// Bytes of training data received from other sites.
    pub data_wan_bytes: u64,
    /// Bytes of training data received from workers of the own site.
    pub data_lan_bytes: u64,
}

/// Encoding of updates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Encoding {
    /// Share of an update's values that is sent: its density.
    pub density: f32,
    /// Bits per sent value, including its share of scales, without positions and before entropy coding.
    pub value_bits: f32,
}
