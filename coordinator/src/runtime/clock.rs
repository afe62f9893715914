//! The only clock of the coordinator.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time since the process started, which never goes back, and what the calendar says.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    started_unix_ms: u64,
}

impl Clock {
    /// A clock that begins now.
    #[allow(clippy::disallowed_methods, reason = "this is where time enters the coordinator")]
    #[must_use]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), started_unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Time since it began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The same as a point in time to sleep until.
    #[must_use]
    pub fn at(&self, since_start: Duration) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.start) + since_start
    }

    /// The Unix time at which it began, in milliseconds.
    #[must_use]
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Unix time in milliseconds: by the monotonic clock since the start, so that it never goes back.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        self.started_unix_ms.saturating_add(u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX))
    }

    /// Unix time in seconds: by the monotonic clock since the start, so that a stepped calendar expires nothing.
    #[must_use]
    pub fn unix_s(&self) -> u64 {
        self.started_unix_ms / 1000 + self.now().as_secs()
    }
}
