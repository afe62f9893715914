//! Finished fragments of the round that the device still computes.

use std::collections::BTreeSet;

use longhaul_common::id::{FragmentId, Round};

/// The finished fragments of one round: the last one that had any before it was contributed as a whole.
#[derive(Debug, Default)]
pub(super) struct Ready {
    round: Option<Round>,
    weight: u32,
    fragments: BTreeSet<FragmentId>,
}

impl Ready {
    /// Notes a fragment; returns false if known.
    pub fn note(&mut self, round: Round, fragment: FragmentId, weight: u32) -> bool {
        if self.round != Some(round) {
            *self = Self { round: Some(round), weight, fragments: BTreeSet::new() };
        }
        self.fragments.insert(fragment)
    }

    /// Returns the samples behind a finished fragment.
    pub fn weight(&self, round: Round, fragment: FragmentId) -> Option<u32> {
        (self.round == Some(round) && self.fragments.contains(&fragment)).then_some(self.weight)
    }

    /// Removes and returns them, as the round is contributed as a whole.
    pub fn take(&mut self, round: Round) -> BTreeSet<FragmentId> {
        if self.round == Some(round) { std::mem::take(self).fragments } else { BTreeSet::new() }
    }
}
