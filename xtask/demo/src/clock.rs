//! The one place that reads a clock.

use std::time::Instant;

/// The time now.
#[allow(clippy::disallowed_methods, reason = "the demo is all effects: it times what it runs")]
pub fn now() -> Instant {
    Instant::now()
}
