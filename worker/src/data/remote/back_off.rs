//! How often something is tried again.

use std::time::Duration;

use crate::back_off::BackOff;

/// How often a server is asked again that gives nothing more of a file: with its pauses about a quarter of a minute.
pub(super) const READS_MAX: u32 = 6;
/// How often it is asked again what it has: some seconds, as what is prepared may do without it.
pub(super) const LOOKS_MAX: u32 = 4;
/// So many bytes later, attempts are counted anew: a large file over a bad link may be cut often.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Attempts at one place of a file.
#[derive(Debug)]
pub(super) struct Attempts {
    max: u32,
    failed: u32,
    /// Where it failed last.
    at: u64,
    back_off: BackOff,
}

impl Attempts {
    /// So many in a row.
    pub(super) fn new(max: u32) -> Self {
        Self { max, failed: 0, at: 0, back_off: BackOff::default() }
    }

    /// How long to wait before the next attempt; none when there were enough.
    pub(super) fn next_pause(&mut self, offset: u64) -> Option<Duration> {
        if offset >= self.at + PROGRESS_BYTES {
            *self = Self::new(self.max);
        }
        self.at = offset;
        self.failed += 1;
        (self.failed <= self.max).then(|| self.back_off.next_pause())
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
}
