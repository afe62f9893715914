//! The delay before a worker that fell behind rejoins.

use std::time::Duration;

use longhaul_common::back_off::BackOff;
use tokio::time::Instant;

/// Minimum interval for an immediate rejoin: decisions of the coordinator for all members, such as another plan, are rarer. Each rejoin costs a session with a
/// new model and
/// a fetched state, and a settlement of all members.
const APART: Duration = Duration::from_secs(60);

/// The recent rejoins of this worker.
#[derive(Debug, Default)]
pub(super) struct Rejoins {
    last: Option<Instant>,
    back_off: BackOff,
}

impl Rejoins {
    /// Returns the delay before a rejoin after a session that ends now.
    pub fn pause(&mut self, now: Instant) -> Duration {
        let before = self.last.replace(now);
        if before.is_none_or(|before| now >= before + APART) {
            self.back_off = BackOff::default();
            return Duration::ZERO;
        }
        self.back_off.next_pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_joins_again_at_once_and_after_growing_pauses_when_that_was_of_no_use() {
        let (mut rejoins, start) = (Rejoins::default(), Instant::now());
        let mut pause_ms = |at_s| rejoins.pause(start + Duration::from_secs(at_s)).as_millis();
        assert_eq!([0, 1, 2, 3].map(&mut pause_ms), [0, 250, 500, 1000]);
        assert_eq!(pause_ms(62), 2000, "not a minute after the last time");
        assert_eq!([122, 123].map(pause_ms), [0, 250]);
    }
}
