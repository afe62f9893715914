//! What a machine may ask a coordinator before it has a token: what time it is there, and how fast bytes arrive.
//!
//! Nothing secret is said, and the answers are shorter than the questions, so a probe is of no use to strangers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::STRANGER_WINDOW_BYTES;

/// Requests on one connection: enough for a median round trip.
pub const PROBE_REQUESTS_MAX: usize = 32;

/// Streams on which one upload comes. Each fits into the window that a stranger's stream has, so that no window makes a
/// long link look slow.
pub const PROBE_STREAMS: u32 = 8;

/// The longest upload, in bytes: 2 MiB.
pub const PROBE_BYTES_MAX: u64 = PROBE_STREAMS as u64 * STRANGER_WINDOW_BYTES as u64;

/// How long an upload is listened to.
pub const PROBE_UPLOAD_MAX: Duration = Duration::from_secs(3);

/// Uploads that the coordinator takes at a time: they hold 18 MiB of its memory at most, and little of its downlink.
pub const PROBE_UPLOADS_MAX: usize = 8;

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeRequest {
    /// What time is it?
    Echo,
    /// What follows on [`PROBE_STREAMS`] unidirectional streams is to be counted and thrown away. Once a connection.
    Upload,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeReply {
    /// Answers [`ProbeRequest::Echo`], at once.
    Echo {
        /// The coordinator's clock: milliseconds of Unix time.
        unix_ms: u64,
    },
    /// Answers [`ProbeRequest::Upload`] when all streams have ended, or after [`PROBE_UPLOAD_MAX`].
    Uploaded {
        /// What has arrived.
        bytes: u64,
        /// From the first bytes to the last, in microseconds.
        span_us: u64,
    },
    /// Answers [`ProbeRequest::Upload`]: [`PROBE_UPLOADS_MAX`] others are at it.
    Busy,
}
