//! Retries and back-off.

use std::time::Duration;

use longhaul_common::back_off::BackOff;

/// Retries of a read without progress: with pauses about 15 s.
pub(super) const READS_MAX: u32 = 6;
/// Retries of a look at a file's version: a few seconds, as prepared data may do without it.
pub(super) const LOOKS_MAX: u32 = 4;
/// Bytes of progress that reset the count of attempts: a large file over a bad link may be cut often.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Time in which that progress is required: 70 kbit/s.
const STRETCH: Duration = Duration::from_secs(120);

/// Attempts at one place of a file.
#[derive(Debug)]
pub(super) struct Attempts {
    max: u32,
    failed: u32,
    /// Offset of the last failure.
    at: u64,
    back_off: BackOff,
}

impl Attempts {
    /// Allows `max` consecutive attempts.
    pub(super) fn new(max: u32) -> Self {
        Self { max, failed: 0, at: 0, back_off: BackOff::default() }
    }

    /// Returns the pause before the next attempt; `None`: no attempts left.
    pub(super) fn next_pause(&mut self, offset: u64) -> Option<Duration> {
        if offset >= self.at + PROGRESS_BYTES {
            *self = Self::new(self.max);
        }
        self.at = offset;
        self.failed += 1;
        (self.failed <= self.max).then(|| self.back_off.next_pause())
    }
}

/// Minimum transfer rate of a file: a server that trickles bytes never ends a response.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Start of this stretch, and the time spent waiting in it.
    at: u64,
    waited: Duration,
}

impl Pace {
    /// Adds a wait, and returns whether less than [`PROGRESS_BYTES`] arrived during [`STRETCH`]. Then another stretch begins. Time without a read does not count.
    pub(super) fn is_too_slow(&mut self, offset: u64, waited: Duration) -> bool {
        self.waited += waited;
        let is_enough = offset >= self.at + PROGRESS_BYTES;
        let is_over = self.waited >= STRETCH;
        if is_enough || is_over {
            *self = Self { at: offset, waited: Duration::ZERO };
        }
        is_over && !is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_without_progress_come_to_an_end_and_those_with_some_do_not() {
        let mut attempts = Attempts::new(READS_MAX);
        let pauses: Vec<bool> = (0..8).map(|_| attempts.next_pause(5).is_some()).collect();
        assert_eq!(pauses, [true, true, true, true, true, true, false, false]);
        let mut attempts = Attempts::new(READS_MAX);
        assert!((0..100).all(|n| attempts.next_pause(n * PROGRESS_BYTES).is_some()));
        let mut attempts = Attempts::new(READS_MAX);
        let few = (0..100).filter(|n| attempts.next_pause(*n).is_some()).count();
        assert_eq!(few, 6, "a server that gives a byte at a time is given up");
    }

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let mut pace = Pace::default();
        let second = Duration::from_secs(1);
        let slow: Vec<u64> = (1..=400).filter(|s| pace.is_too_slow(*s, second)).collect();
        assert_eq!(slow, [120, 240, 360]);
        let mut pace = Pace::default();
        assert!(!(1..=400).any(|s| pace.is_too_slow(s * 10_000, second)), "80 kbit/s");
    }
}
