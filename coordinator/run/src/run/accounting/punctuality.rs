//! Workers whose contributions repeatedly miss the result of their round: they come too late, or are refused.

use serde::{Deserialize, Serialize};

/// Rounds that are remembered.
const ROUNDS: u32 = u8::BITS;
/// With so many late ones among them a worker is slow,
const SLOW_FROM: u32 = 4;
/// and with so few it keeps up again.
const STEADY_UNTIL: u32 = 1;

/// A worker's last rounds. One late round is bad luck: a link that lost a burst. Half of them are a worker, or a site, that does not keep up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Punctuality {
    /// A bit for each of the last rounds, which is set where the result was made without it.
    late: u8,
    is_slow: bool,
}

impl Punctuality {
    /// The result of another round has its contribution, or not. Says whether it is slow, when that has changed.
    pub fn note(&mut self, is_in_time: bool) -> Option<bool> {
        self.late = self.late << 1 | u8::from(!is_in_time);
        let (late, was_slow) = (self.late.count_ones(), self.is_slow);
        self.is_slow = if was_slow { late > STEADY_UNTIL } else { late >= SLOW_FROM };
        (self.is_slow != was_slow).then_some(self.is_slow)
    }

    /// Whether it does not keep up.
    pub fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// "4 of its last 8 contributions".
    pub fn describe(&self) -> String {
        format!("{} of its last {ROUNDS} contributions", self.late.count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes at each of these rounds; `.` is in time.
    fn changes(rounds: &str) -> Vec<(usize, bool)> {
        let mut punctuality = Punctuality::default();
        let noted = rounds.chars().map(|round| punctuality.note(round == '.'));
        let changes = (0..).zip(noted).filter_map(|(at, change)| Some((at, change?))).collect();
        assert_eq!(punctuality.is_slow(), rounds.ends_with('L'), "{rounds}");
        changes
    }

    #[test]
    fn half_of_the_last_rounds_make_a_worker_slow_and_one_does_not() {
        assert_eq!(changes("..L.......L....."), []);
        assert_eq!(changes("L.L.L.L"), [(6, true)]);
        // Late in three of eight at any time.
        assert_eq!(changes("L..L..L..L..L..L..."), []);
    }

    #[test]
    fn who_was_slow_is_not_forgiven_at_once() {
        assert_eq!(changes("LLLL......."), [(3, true), (10, false)]);
        assert_eq!(changes("LLLL....LLLL"), [(3, true)]);
    }

    #[test]
    fn it_is_said_how_many_were_late() {
        let mut punctuality = Punctuality::default();
        [true, false, true, false].into_iter().for_each(|is_in_time| _ = punctuality.note(is_in_time));
        assert_eq!(punctuality.describe(), "2 of its last 8 contributions");
    }
}
