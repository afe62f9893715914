//! The only clock of the coordinator.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// If the calendar has moved by this much, the machine slept or its clock was set.
const MOVED_MIN_MS: u64 = 60_000;

/// Time since the process started, which never goes back, and calendar time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// Unix time at the start, for display: later than it was where the calendar has moved forward.
    started_unix_ms: u64,
    /// Unix time at the start, by the calendar as it was when it had moved last.
    calendar_started_ms: u64,
}

impl Clock {
    /// A clock that begins now.
    #[allow(clippy::disallowed_methods, reason = "this is where time enters the coordinator")]
    #[must_use]
    pub fn start() -> Self {
        let now = calendar_ms();
        Self { start: Instant::now(), started_unix_ms: now, calendar_started_ms: now }
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

    /// Unix time in milliseconds, for display and curves: it never goes back, and moves forward with the calendar in
    /// [`Clock::follow`].
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        self.started_unix_ms.saturating_add(self.now_ms())
    }

    /// Unix time in seconds by the present calendar, for certificates and tokens: others judge them by their own calendars, even after this machine has slept.
    #[must_use]
    pub fn unix_s(&self) -> u64 {
        calendar_ms() / 1000
    }

    /// Looks at the calendar. Answers by how many milliseconds it has moved since it was looked at last, if that was no drift: the machine has slept, or its clock was set.
    pub fn follow(&mut self) -> Option<i64> {
        self.follow_to(calendar_ms().saturating_sub(self.now_ms()))
    }

    fn follow_to(&mut self, calendar_started_ms: u64) -> Option<i64> {
        let before = self.calendar_started_ms;
        // Smaller steps add up.
        if calendar_started_ms.abs_diff(before) < MOVED_MIN_MS {
            return None;
        }
        self.calendar_started_ms = calendar_started_ms;
        self.started_unix_ms = self.started_unix_ms.max(calendar_started_ms);
        Some(
            calendar_started_ms.saturating_sub(before) as i64
                - before.saturating_sub(calendar_started_ms) as i64,
        )
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }
}

#[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
fn calendar_ms() -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(unix.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_people_follow_a_calendar_forward_and_never_go_back() {
        const DAY_MS: i64 = 86_400_000;
        let mut clock = Clock::start();
        let began = clock.started_unix_ms();
        let day = DAY_MS as u64;
        assert_eq!(clock.follow(), None);
        // NTP corrects a little.
        assert_eq!((clock.follow_to(began + 900), clock.started_unix_ms()), (None, began));
        assert_eq!(clock.follow_to(began + 900 + day), Some(DAY_MS + 900), "it slept");
        assert_eq!(clock.started_unix_ms(), began + 900 + day);
        assert_eq!(clock.follow_to(began + 900 + day), None, "that is told once");
        assert_eq!(clock.follow_to(began), Some(-900 - DAY_MS), "it was set back");
        assert_eq!(clock.started_unix_ms(), began + 900 + day, "what was written down stays in order");
        assert_eq!(clock.follow_to(began + 3 * day), Some(3 * DAY_MS));
        assert_eq!(clock.started_unix_ms(), began + 3 * day);
        // A laptop that sleeps for a moment again and again.
        assert_eq!(clock.follow_to(began + 3 * day + 40_000), None);
        assert_eq!(clock.follow_to(began + 3 * day + 80_000), Some(80_000));
    }
}
