//! The time after which a silent worker is taken for lost.

use std::time::Duration;

use longhaul_common::config::FaultConfig;
use longhaul_proto::control::message::{ASKED_AFTER_MS, HEARTBEAT_INTERVAL_MS, OWN_WORD_EVERY};
use serde::{Deserialize, Serialize};

/// Time constant with which the longest silence fades, in milliseconds: about a third is left after this time.
const MEMORY_MS: u64 = 30_000;
/// Assumed silence of a new worker: it loads a model, and its link is unknown.
const AT_FIRST: Duration = Duration::from_millis(5 * HEARTBEAT_INTERVAL_MS);
/// Two heartbeats, lost one after the other.
const MARGIN: Duration = Duration::from_millis(2 * HEARTBEAT_INTERVAL_MS);
/// Time after a worker's own last message for which others can report for it: until its own next message, and two heartbeats more. A worker with a broken connection, or
/// a dead one reported alive, is missed this much later at most.
const SPOKEN_FOR_MAX: Duration =
    Duration::from_millis(OWN_WORD_EVERY * HEARTBEAT_INTERVAL_MS).saturating_add(MARGIN);
/// Silence after which a worker is asked for a sign of life.
const ASKED_AFTER: Duration = Duration::from_millis(ASKED_AFTER_MS);
/// Longest time between looks at silent workers. A look that comes later shows that this process stood still.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);
/// Delay of a look from which on it is late because this process stood still.
const PUNCTUAL: Duration = Duration::from_millis(250);

/// The last sign of a worker and its recent silences. A worker on a link that stalls has more time than others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Silence {
    /// Time of the last sign, its own or another's report.
    last: Duration,
    longest: Duration,
    /// Time of its own last message.
    own: Duration,
    /// Asked for a sign of life, without one since.
    asked: bool,
}

impl Silence {
    /// Starts with a worker that has just come.
    pub fn new(now: Duration) -> Self {
        Self { last: now, longest: AT_FIRST, own: now, asked: false }
    }

    /// Records a message of the worker.
    pub fn heard(&mut self, now: Duration) {
        self.own = self.own.max(now);
        self.note(now);
    }

    /// Records a report that the worker was alive at this past time.
    pub fn heard_of(&mut self, at: Duration) {
        self.note(at.min(self.own + SPOKEN_FOR_MAX));
    }

    fn note(&mut self, at: Duration) {
        // Messages overtake each other on two connections: an older one proves nothing.
        let Some(gap) = at.checked_sub(self.last).filter(|gap| !gap.is_zero()) else { return };
        let passed = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX).min(MEMORY_MS);
        // In whole milliseconds, so that a replay elsewhere decides alike.
        let longest = u64::try_from(self.longest.as_millis()).unwrap_or(u64::MAX);
        let faded = longest - longest.saturating_mul(passed).div_ceil(MEMORY_MS).min(longest);
        (self.last, self.longest) = (at, gap.max(Duration::from_millis(faded)));
        self.asked = false;
    }

    /// Whether to ask it for a sign of life: once in each silence, and earlier where others find it out of reach.
    pub fn is_to_be_asked(&mut self, now: Duration, is_doubted: bool) -> bool {
        let after = if is_doubted { ASKED_AFTER / 4 } else { ASKED_AFTER };
        let is_due = !self.asked && now >= self.last + after;
        self.asked |= is_due;
        is_due
    }

    /// Time of its last sign.
    pub fn last(&self) -> Duration {
        self.last
    }

    /// Time at which it is taken for lost without a sign: after twice its longest recent silence, within the user's
    /// bounds.
    pub fn over_at(&self, faults: &FaultConfig) -> Duration {
        let most = Duration::from_millis(faults.silent_after_ms);
        let least = Duration::from_millis(faults.suspect_after_ms).min(most);
        self.last + (2 * self.longest + MARGIN).clamp(least, most)
    }

    /// Time at which it is taken for lost where others find it out of reach: after its longest recent silence, counted as two heartbeats at most, and one heartbeat; and
    /// at least half of the user's lower bound.
    pub fn over_for_doubted_at(&self, faults: &FaultConfig) -> Duration {
        let least = Duration::from_millis(faults.suspect_after_ms / 2);
        self.over_at(faults).min(self.last + (self.longest.min(MARGIN) + LOOK_INTERVAL).max(least))
    }

    /// The same where others of its site are taken for lost, as the site's link may be down: no later than for a regularly heard worker. The reporter may be at that
    /// site, too.
    pub fn over_beside_doubted_at(&self, faults: &FaultConfig) -> Duration {
        self.over_at(faults).min(self.last + Duration::from_millis(faults.suspect_after_ms))
    }

    /// Whether the silence exceeds all recent ones, though not long enough to give the worker up.
    pub fn is_unusual(&self, now: Duration) -> bool {
        now > self.last + self.longest + MARGIN
    }

    /// Discounts a stall of this process since `due`. Messages received meanwhile are unread, and some are repeated only after as long a wait again (RFC 9002, section
    /// 6.2: each probe waits for twice as long as the one before). So twice the stall does not count, and an overdue worker has as much again. The silence is not
    /// forgotten: where many looks are late, as on a loaded machine, dead workers are still found.
    pub fn forgive(&mut self, due: Duration, now: Duration) {
        let late = now.saturating_sub(due);
        if late > PUNCTUAL {
            self.last = (self.last + 2 * late).min(now);
            self.own = (self.own + 2 * late).min(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: u64 = HEARTBEAT_INTERVAL_MS;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns the permitted silence after messages with these gaps.
    fn patience(gaps: impl IntoIterator<Item = u64>) -> Duration {
        let (mut silence, mut now) = (Silence::new(ms(0)), 0);
        for gap in gaps {
            now += gap;
            silence.heard(ms(now));
        }
        silence.over_at(&FaultConfig::default()) - ms(now)
    }

    #[test]
    fn who_is_regular_is_missed_after_three_more_heartbeats_and_who_just_came_is_not() {
        assert_eq!(patience([]), ms(6000));
        assert_eq!(patience([BEAT; 400]), ms(2000));
        // Reports between heartbeats do not shorten the permitted silence below the minimum.
        assert_eq!(patience([10; 20_000]), ms(2000));
    }

    #[test]
    fn who_was_silent_for_long_lately_is_given_twice_that() {
        let after = |rest: usize| patience([BEAT; 400].into_iter().chain([2200]).chain(vec![BEAT; rest]));
        assert_eq!(after(0), ms(5400));
        assert!(after(20) < after(2) && after(20) > ms(3000), "{:?} {:?}", after(2), after(20));
        assert_eq!(after(400), ms(2000));
        assert_eq!(patience([BEAT, 30_000]), ms(6000), "no longer than the user says");
    }

    #[test]
    fn who_is_out_of_others_reach_is_missed_within_three_heartbeats_whatever_was_lately() {
        let faults = FaultConfig::default();
        let mut silence = Silence::new(ms(0));
        assert_eq!(silence.over_for_doubted_at(&faults), ms(1500), "who has just come");
        (1..400).for_each(|beat| silence.heard(ms(beat * BEAT)));
        assert_eq!(silence.over_for_doubted_at(&faults) - silence.last(), ms(1000));
        silence.heard(ms(400 * BEAT + 4000));
        assert_eq!(silence.over_for_doubted_at(&faults) - silence.last(), ms(1500));
        assert_eq!(silence.over_at(&faults) - silence.last(), ms(6000));
        assert_eq!(silence.over_beside_doubted_at(&faults) - silence.last(), ms(2000));
        let hasty = FaultConfig { silent_after_ms: 1200, ..FaultConfig::default() };
        assert_eq!(silence.over_for_doubted_at(&hasty), silence.over_at(&hasty));
        let patient =
            FaultConfig { suspect_after_ms: 9000, silent_after_ms: 20_000, ..FaultConfig::default() };
        assert_eq!(silence.over_for_doubted_at(&patient) - silence.last(), ms(4500));
    }

    #[test]
    fn silence_is_unusual_before_it_is_over() {
        let mut silence = Silence::new(ms(0));
        (1..400).for_each(|beat| silence.heard(ms(beat * BEAT)));
        let last = silence.last();
        assert!(!silence.is_unusual(last + ms(3 * BEAT)) && silence.is_unusual(last + ms(3 * BEAT + 1)));
        assert!(silence.over_at(&FaultConfig::default()) > last + ms(3 * BEAT + 1));
    }

    #[test]
    fn what_others_say_counts_as_its_own_words_do_until_two_heartbeats_after_the_next_one_of_those_is_due() {
        let (mut by_itself, mut through_others) = (Silence::new(ms(0)), Silence::new(ms(0)));
        for beat in 1..=401 {
            by_itself.heard(ms(beat * BEAT));
            match beat % OWN_WORD_EVERY {
                1 => through_others.heard(ms(beat * BEAT)),
                _ => through_others.heard_of(ms(beat * BEAT)),
            }
        }
        assert_eq!(by_itself, through_others);
        let own = by_itself.last();
        for later in (1..20).map(|beat| own + ms(beat * BEAT)) {
            through_others.heard_of(later);
        }
        assert_eq!(through_others.last(), own + ms(3500));
        assert_eq!(through_others.over_at(&FaultConfig::default()), own + ms(5500));
        through_others.heard_of(own);
        assert_eq!(through_others.last(), own + ms(3500), "what is older says nothing");
    }

    #[test]
    fn who_is_silent_is_asked_once_to_speak() {
        let mut silence = Silence::new(ms(0));
        let asked = |silence: &mut Silence, at: u64| silence.is_to_be_asked(ms(at), false);
        assert!(!asked(&mut silence, 999) && asked(&mut silence, 1000) && !asked(&mut silence, 1500));
        silence.heard(ms(1600));
        assert!(!asked(&mut silence, 2599) && asked(&mut silence, 2600));
        silence.heard(ms(3000));
        assert!(!silence.is_to_be_asked(ms(3249), true) && silence.is_to_be_asked(ms(3250), true));
    }

    #[test]
    fn bounds_are_the_users() {
        let faults = FaultConfig { suspect_after_ms: 9000, silent_after_ms: 1500, ..FaultConfig::default() };
        assert_eq!(Silence::new(ms(7)).over_at(&faults), ms(1507));
        let faults = FaultConfig { suspect_after_ms: 9000, silent_after_ms: 20_000, ..faults };
        assert_eq!(Silence::new(ms(7)).over_at(&faults), ms(9007));
    }

    #[test]
    fn the_time_in_which_nobody_listened_does_not_count() {
        let mut silence = Silence::new(ms(0));
        silence.forgive(ms(1000), ms(1100));
        assert_eq!(silence.last(), ms(0), "as punctual as a loaded machine is");
        silence.forgive(ms(1000), ms(1300));
        assert_eq!(silence.last(), ms(600));
        silence.forgive(ms(6600), ms(16_000));
        assert_eq!(silence.last(), ms(16_000), "not in the future");
    }

    /// A worker due during the stall gets as much time again as the stall lasted.
    #[test]
    fn who_was_due_when_nobody_listened_is_not_missed_at_once() {
        let faults = FaultConfig::default();
        for late in [251, 400, 749, 2000, 60_000] {
            let mut silence = Silence::new(ms(0));
            (1..400).for_each(|beat| silence.heard(ms(beat * BEAT)));
            let due = silence.over_at(&faults);
            silence.forgive(due, due + ms(late));
            let more = silence.over_at(&faults) - (due + ms(late));
            assert_eq!(more, ms(late.min(2000)), "late by {late} ms");
        }
    }

    #[test]
    fn who_says_nothing_is_missed_by_a_coordinator_whose_looks_are_often_late() {
        let faults = FaultConfig::default();
        let (mut silence, mut now) = (Silence::new(ms(0)), ms(0));
        while silence.over_at(&faults) > now {
            let due = now + LOOK_INTERVAL;
            now = due + ms(300);
            silence.forgive(due, now);
            assert!(now < ms(60_000));
        }
    }
}
