//! Where time enters: limits of waiting, nothing that is computed.

use std::time::{Duration, Instant};

#[allow(clippy::disallowed_methods, reason = "waiting for other machines is limited in real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The time left.
pub(super) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(now())
}
