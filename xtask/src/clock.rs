//! The only place that reads a clock.

use std::time::Instant;

/// The current time.
#[allow(clippy::disallowed_methods, reason = "xtask is all effects: it times what it runs")]
pub fn now() -> Instant {
    Instant::now()
}
