//! The only use of time: limits of waiting, never results.

use std::time::{Duration, Instant};

#[allow(clippy::disallowed_methods, reason = "waiting for other machines is limited in real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Returns the time left.
#[must_use]
pub fn left(until: Instant) -> Duration {
    until.saturating_duration_since(now())
}

/// A call's limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// End.
    pub until: Instant,
    /// Duration from the start of the call.
    pub whole: Duration,
}

impl Limit {
    /// Creates a limit from now on.
    #[must_use]
    pub fn of(whole: Duration) -> Self {
        Self { until: now() + whole, whole }
    }
}
