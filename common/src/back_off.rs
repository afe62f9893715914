//! Exponential back-off.

use std::time::Duration;

/// First pause; each is twice the previous one, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// A restarted coordinator should see its workers again well within its grace period.
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Pauses before the next attempts.
#[derive(Debug)]
pub struct BackOff {
    next: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { next: PAUSE_MIN }
    }
}

impl BackOff {
    /// Returns the pause after a failed attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut back_off = BackOff::default();
        let pauses: Vec<u128> = (0..6).map(|_| back_off.next_pause().as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 4000]);
    }
}
