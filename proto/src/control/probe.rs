//! Probes of a coordinator without a token: its time, and the rate of an upload.
//!
//! No secret is sent, and replies are shorter than requests, so a probe is useless to strangers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::STRANGER_WINDOW_BYTES;

/// Maximum requests of one connection: enough for a median round trip.
pub const PROBE_REQUESTS_MAX: usize = 32;

/// Streams of one upload. Each fits the window of a stranger's stream, so that no window makes a long link
/// appear slow.
pub const PROBE_STREAMS: u32 = 8;

/// Maximum upload, in bytes: 2 MiB.
pub const PROBE_BYTES_MAX: u64 = PROBE_STREAMS as u64 * STRANGER_WINDOW_BYTES as u64;

/// Maximum duration of an upload.
pub const PROBE_UPLOAD_MAX: Duration = Duration::from_secs(3);

/// Maximum concurrent uploads: they hold at most 18 MiB of the coordinator's memory, and little of its
/// downlink.
pub const PROBE_UPLOADS_MAX: usize = 8;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeRequest {
    /// Returns the coordinator's time.
    Echo,
    /// Counts and discards the bytes on the following [`PROBE_STREAMS`] unidirectional streams. Once per
    /// connection.
    Upload,
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeReply {
    /// Reply to [`ProbeRequest::Echo`], sent at once.
    Echo {
        /// The coordinator's clock: milliseconds of Unix time.
        unix_ms: u64,
    },
    /// Reply to [`ProbeRequest::Upload`] when all streams have ended, or after [`PROBE_UPLOAD_MAX`].
    Uploaded {
        /// Bytes received.
        bytes: u64,
        /// Time from the first bytes to the last, in microseconds.
        span_us: u64,
    },
    /// Reply to [`ProbeRequest::Upload`]: [`PROBE_UPLOADS_MAX`] others are in progress.
    Busy,
}
