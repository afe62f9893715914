//! Changes of pace during a run.

use serde::{Deserialize, Serialize};

use crate::id::Round;

/// Maximum changes of pace kept. Rounds before the oldest one are unknown and cannot be resumed. A schedule
/// is copied often, and sent to each member with each generation, so the number is small.
pub const CHANGES_KEPT_MAX: usize = 16;

/// Lateness of results, the share of the model in each round, and the distance between rounds: in this order, as a slower link has later
/// results first, and more turns next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pace {
    /// Local steps between a round's contribution and its result (τ): at most `every`.
    pub overlap: u64,
    /// Turns of the fragments: each is due every `groups` rounds.
    pub groups: u32,
    /// Local steps per round.
    pub every: u64,
}

impl Pace {
    /// Returns the steps between two exchanges of a fragment.
    #[must_use]
    pub fn turn(self) -> u64 {
        u64::from(self.groups).saturating_mul(self.every)
    }

    /// Returns the turns with which a fragment is exchanged about as often in rounds `every` steps apart.
    #[must_use]
    pub fn turns_as_often(self, every: u64) -> u32 {
        let turns = self.turn().div_ceil(every.max(1));
        u32::try_from(turns).unwrap_or(u32::MAX)
    }
}

/// A pace, with its rounds up to the next change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// First round.
    pub round: Round,
    /// First step.
    pub step: u64,
    /// Pace.
    pub pace: Pace,
}

/// The latest [`CHANGES_KEPT_MAX`] changes of pace, in order, as a plain value.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Listed", into = "Listed")]
pub struct Changes {
    /// Slots beyond `count` are equal.
    slots: [Change; CHANGES_KEPT_MAX],
    count: usize,
    /// Whether older ones are forgotten.
    is_cut: bool,
}

/// Serialised form.
#[derive(Serialize, Deserialize)]
struct Listed {
    is_cut: bool,
    kept: Vec<Change>,
}

impl Changes {
    /// No changes.
    pub const NONE: Self = Self {
        slots: [Change { round: Round(0), step: 0, pace: Pace { overlap: 0, groups: 0, every: 0 } }; _],
        count: 0,
        is_cut: false,
    };

    /// Returns the known changes, oldest first.
    #[must_use]
    pub fn kept(&self) -> &[Change] {
        &self.slots[..self.count]
    }

    /// Returns the change that a round follows.
    #[must_use]
    pub fn before(&self, round: Round) -> Option<&Change> {
        self.kept().iter().rfind(|change| change.round <= round)
    }

    /// Returns the first known change, if earlier ones are forgotten.
    #[must_use]
    pub fn cut_at(&self) -> Option<&Change> {
        self.kept().first().filter(|_| self.is_cut)
    }

    /// Adds a change, replacing those it precedes; forgets the oldest of too many.
    #[must_use]
    pub(super) fn with(mut self, change: Change) -> Self {
        self.truncate(change.round);
        if self.count == CHANGES_KEPT_MAX {
            self.slots.rotate_left(1);
            self.count -= 1;
            self.is_cut = true;
        }
        self.slots[self.count] = change;
        self.count += 1;
        self
    }

    /// Removes the changes from `round` on.
    pub(super) fn truncate(&mut self, round: Round) {
        while self.kept().last().is_some_and(|last| last.round >= round) {
            self.count -= 1;
            self.slots[self.count] = Change::default();
        }
    }

    /// Maps each pace.
    #[must_use]
    pub(super) fn map(mut self, change: impl Fn(Pace) -> Pace) -> Self {
        self.slots[..self.count].iter_mut().for_each(|kept| kept.pace = change(kept.pace));
        self
    }
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut list = formatter.debug_list();
        list.entries(self.kept());
        if self.is_cut { list.finish_non_exhaustive() } else { list.finish() }
    }
}

impl From<Changes> for Listed {
    fn from(changes: Changes) -> Self {
        Self { is_cut: changes.is_cut, kept: changes.kept().to_vec() }
    }
}

impl TryFrom<Listed> for Changes {
    type Error = &'static str;

    fn try_from(listed: Listed) -> Result<Self, Self::Error> {
        let Listed { is_cut, kept } = listed;
        if kept.len() > CHANGES_KEPT_MAX {
            return Err("a schedule has more changes of pace than are kept");
        }
        let mut changes = Self { is_cut, ..Self::NONE };
        changes.slots[..kept.len()].copy_from_slice(&kept);
        changes.count = kept.len();
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(round: u64) -> Change {
        Change { round: Round(round), step: 10 * round, pace: Pace { overlap: 10, groups: 1, every: 10 } }
    }

    fn rounds(changes: &Changes) -> Vec<u64> {
        changes.kept().iter().map(|change| change.round.0).collect()
    }

    #[test]
    fn a_change_takes_the_place_of_later_ones_and_the_oldest_are_forgotten() {
        let changes = [3, 5, 9].into_iter().fold(Changes::NONE, |changes, round| changes.with(change(round)));
        assert_eq!(rounds(&changes.with(change(5))), [3, 5]);
        assert_eq!(rounds(&changes.with(change(6))), [3, 5, 6]);
        assert_eq!(changes.with(change(3)), Changes::NONE.with(change(3)));
        let many = (0..20).fold(Changes::NONE, |changes, round| changes.with(change(round)));
        assert_eq!(rounds(&many), (4..20).collect::<Vec<_>>());
        assert_eq!((changes.cut_at(), many.cut_at()), (None, Some(&change(4))));
        assert_eq!((many.before(Round(3)), many.before(Round(7))), (None, Some(&change(7))));
    }

    #[test]
    fn what_is_written_is_read_again_and_no_more_than_can_be_kept() {
        let many = (0..20).fold(Changes::NONE, |changes, round| changes.with(change(round)));
        for changes in [Changes::NONE, Changes::NONE.with(change(2)), many] {
            let bytes = toml::to_string(&changes).unwrap();
            assert_eq!(toml::from_str::<Changes>(&bytes).unwrap(), changes);
        }
        let listed = Listed { is_cut: false, kept: vec![change(1); CHANGES_KEPT_MAX + 1] };
        assert!(toml::from_str::<Changes>(&toml::to_string(&listed).unwrap()).is_err());
    }
}
