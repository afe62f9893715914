//! `[faults]`: patience with silent workers.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::check::positive;

/// `[faults]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// Maximum silence before a worker counts as lost, on any link, ms.
    pub silent_after_ms: u64,
    /// Minimum, for a worker with regular heartbeats, ms. In between: one second plus twice its longest recent silence. That maximum decays to a third in 30
    /// s and a seventh in a minute. A regular worker that other members cannot reach either is lost after half this value. With either limit below 2000, each
    /// worker sends its own heartbeats; no other worker of its site does.
    pub suspect_after_ms: u64,
    /// Wait of a restarted coordinator for known workers, ms.
    pub reconnect_grace_ms: u64,
}

impl Default for FaultConfig {
    fn default() -> Self {
        Self { silent_after_ms: 6_000, suspect_after_ms: 2_000, reconnect_grace_ms: 20_000 }
    }
}

/// Minimum silence limit, in milliseconds, at which another worker of the site may report for a worker: the
/// reporter may fail, and its wards must report themselves in time.
pub const SPOKEN_FOR_SILENCE_MIN_MS: u64 = 2000;

impl FaultConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Self { silent_after_ms, suspect_after_ms, .. } = *self;
        positive("faults.silent_after_ms", silent_after_ms)?;
        positive("faults.suspect_after_ms", suspect_after_ms)?;
        // A user who only lowers the maximum has not set a minimum.
        if suspect_after_ms > silent_after_ms && suspect_after_ms != Self::default().suspect_after_ms {
            let reason = format!(
                "is the least, and faults.silent_after_ms = {silent_after_ms} the most that a worker may say nothing for: lower this one, or raise that one"
            );
            return Err(ConfigError::value("faults.suspect_after_ms", suspect_after_ms, reason));
        }
        Ok(())
    }

    /// Whether workers may let one of their site report for them.
    #[must_use]
    pub fn one_may_speak_for_a_site(&self) -> bool {
        self.silent_after_ms.min(self.suspect_after_ms) >= SPOKEN_FOR_SILENCE_MIN_MS
    }
}
