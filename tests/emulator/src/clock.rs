//! The emulator's single clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the monotonic time since the first call in this process, the `now` of each [`super::LinkState`].
#[allow(clippy::disallowed_methods, reason = "the emulator's runtime: links carry real packets in real time")]
pub(super) fn now() -> Duration {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    EPOCH.get_or_init(Instant::now).elapsed()
}
