//! Division of the device's time into kinds of waiting, and the time of encoding.

use std::time::{Duration, Instant};

/// Reason of a device's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A round's result.
    Result,
    /// Output of another rank of its pipeline.
    Neighbour,
    /// Any other work of workers that compute with it.
    Others,
}

/// A finished wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Duration.
    pub all: Duration,
    /// Part of it during encoding or decoding here, in a wait for a result.
    pub encoding: Duration,
    /// Part of it in a pipeline's bubble: for a neighbour, within a step.
    pub bubble: Duration,
    /// Time of encoding or decoding not counted at its end, so that it is counted together with `encoding`.
    pub coded: Duration,
}

/// The present wait, and encoding meanwhile on any threads. Pure: time is an argument. No moment counts twice.
#[derive(Debug, Default)]
pub struct Waits {
    wait: Option<Wait>,
    is_in_step: bool,
    /// Encodings and decodings in progress.
    coding: u32,
    /// Start of the period with any.
    coding_since: Option<Instant>,
}

#[derive(Debug)]
struct Wait {
    awaited: Awaited,
    since: Instant,
    /// For a result: finished encoding within the wait.
    encoding: Duration,
}

impl Waits {
    /// Begins a wait.
    pub fn begin(&mut self, awaited: Awaited, now: Instant) {
        self.wait = Some(Wait { awaited, since: now, encoding: Duration::ZERO });
    }

    /// Ends a wait; returns zeros without one.
    pub fn end(&mut self, now: Instant) -> Waited {
        let Some(wait) = self.wait.take() else { return Waited::default() };
        let all = now.saturating_duration_since(wait.since);
        match wait.awaited {
            Awaited::Result => {
                let (mut encoding, mut coded) = (wait.encoding, wait.encoding);
                if let Some(since) = &mut self.coding_since {
                    encoding += wait.from(*since, now);
                    coded += now.saturating_duration_since(*since);
                    *since = now;
                }
                Waited { all, encoding: encoding.min(all), coded, ..Waited::default() }
            }
            Awaited::Neighbour if self.is_in_step => Waited { all, bubble: all, ..Waited::default() },
            Awaited::Neighbour | Awaited::Others => Waited { all, ..Waited::default() },
        }
    }

    /// Returns the start of the present wait, if any.
    #[must_use]
    pub fn since(&self) -> Option<Instant> {
        self.wait.as_ref().map(|wait| wait.since)
    }

    /// Sets whether the device computes a step, in which it may wait for others.
    pub fn set_in_step(&mut self, is_in_step: bool) {
        self.is_in_step = is_in_step;
    }

    /// Begins an encoding or decoding.
    pub fn begin_coding(&mut self, now: Instant) {
        self.coding += 1;
        self.coding_since.get_or_insert(now);
    }

    /// Ends one. Returns the time of the whole period once none is left, except the part that [`Self::end`] will return.
    pub fn end_coding(&mut self, now: Instant) -> Duration {
        self.coding = self.coding.saturating_sub(1);
        let Some(since) = self.coding_since.take_if(|_| self.coding == 0) else { return Duration::ZERO };
        let coded = now.saturating_duration_since(since);
        let Some(wait) = self.wait.as_mut().filter(|wait| wait.awaited == Awaited::Result) else {
            return coded;
        };
        let meanwhile = wait.from(since, now);
        wait.encoding += meanwhile;
        coded.saturating_sub(meanwhile)
    }
}

impl Wait {
    /// Returns the overlap of this wait with a period from `began` to now.
    fn from(&self, began: Instant, now: Instant) -> Duration {
        now.saturating_duration_since(self.since.max(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(Instant);

    impl Clock {
        #[allow(clippy::disallowed_methods, reason = "a time to count from")]
        fn new() -> Self {
            Self(Instant::now())
        }

        fn at(&self, ms: u64) -> Instant {
            self.0 + Duration::from_millis(ms)
        }
    }

    fn waited(all: u64, encoding: u64, bubble: u64, coded: u64) -> Waited {
        let [all, encoding, bubble, coded] = [all, encoding, bubble, coded].map(Duration::from_millis);
        Waited { all, encoding, bubble, coded }
    }

    #[test]
    fn what_is_encoded_side_by_side_counts_once_and_costs_the_device_what_it_waited_meanwhile() {
        let (clock, mut waits) = (Clock::new(), Waits::default());
        waits.begin_coding(clock.at(0));
        waits.begin(Awaited::Result, clock.at(10));
        waits.begin_coding(clock.at(20));
        assert_eq!(waits.end_coding(clock.at(30)), Duration::ZERO, "the first one continues");
        assert_eq!(waits.end_coding(clock.at(40)), Duration::from_millis(10), "the rest with the wait");
        waits.begin_coding(clock.at(90));
        assert_eq!(waits.end(clock.at(100)), waited(90, 30 + 10, 0, 30 + 10));
        assert_eq!(waits.end_coding(clock.at(150)), Duration::from_millis(50), "10 are counted already");
        waits.begin(Awaited::Result, clock.at(200));
        assert_eq!(waits.end(clock.at(207)), waited(7, 0, 0, 0));
        assert_eq!(waits.end(clock.at(300)), waited(0, 0, 0, 0), "no wait");
        waits.begin_coding(clock.at(400));
        waits.begin(Awaited::Result, clock.at(410));
        assert_eq!(waits.end(clock.at(420)), waited(10, 10, 0, 20), "including the time before the wait");
        assert_eq!(waits.end_coding(clock.at(425)), Duration::from_millis(5));
    }

    #[test]
    fn a_bubble_is_what_a_rank_waits_for_a_neighbour_within_a_step() {
        let (clock, mut waits) = (Clock::new(), Waits::default());
        let mut wait = |awaited, is_in_step| {
            waits.set_in_step(is_in_step);
            waits.begin_coding(clock.at(0));
            waits.begin(awaited, clock.at(0));
            let ended = waits.end(clock.at(5));
            waits.end_coding(clock.at(5));
            ended
        };
        assert_eq!(wait(Awaited::Neighbour, true), waited(5, 0, 5, 0));
        assert_eq!(wait(Awaited::Neighbour, false), waited(5, 0, 0, 0), "in an evaluation");
        assert_eq!(wait(Awaited::Others, true), waited(5, 0, 0, 0), "for the sums of a tensor group");
        assert_eq!(wait(Awaited::Result, false), waited(5, 5, 0, 5));
    }
}
