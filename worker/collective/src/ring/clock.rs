//! Where time enters: limits of waiting, nothing that is computed.

use std::time::{Duration, Instant};

#[allow(clippy::disallowed_methods, reason = "waiting for other machines is limited in real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The time left.
#[must_use]
pub fn left(until: Instant) -> Duration {
    until.saturating_duration_since(now())
}

/// A call's limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// When it ends.
    pub until: Instant,
    /// From the call's begin until then.
    pub whole: Duration,
}

impl Limit {
    /// So long from now.
    #[must_use]
    pub fn of(whole: Duration) -> Self {
        Self { until: now() + whole, whole }
    }
}
