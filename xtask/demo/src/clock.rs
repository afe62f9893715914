//! The only reader of a clock.

use std::time::Instant;

/// Returns the current time.
#[allow(clippy::disallowed_methods, reason = "the demo is all effects: it times what it runs")]
pub fn now() -> Instant {
    Instant::now()
}
