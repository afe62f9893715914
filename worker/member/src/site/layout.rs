//! Content and order of a site's reduction in a round.

use std::ops::Range;

use longhaul_common::id::FragmentId;
use longhaul_common::plan::FragmentLayout;

use crate::sparse_ranges::SparseRanges;

/// The fragments of a round, from the model's last to its first, as in back-propagation. Members reduce them in this order, as many at a time as all of them
/// have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteLayout {
    fragments: Vec<Placed>,
    members: usize,
    /// Partition of the exchanged values.
    of: FragmentLayout,
}

/// A fragment, and the rank of its uploader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub fragment: FragmentId,
    pub rank: usize,
}

impl SiteLayout {
    /// Creates the layout of these ascending fragments among `members` members.
    pub fn new(
        of: FragmentLayout,
        members: usize,
        ascending: impl DoubleEndedIterator<Item = Placed>,
    ) -> Self {
        Self { fragments: ascending.rev().collect(), members, of }
    }

    /// Returns the number of fragments.
    pub fn count(&self) -> usize {
        self.fragments.len()
    }

    /// Returns the fragments, by turn.
    pub fn fragments(&self) -> impl Iterator<Item = FragmentId> + '_ {
        self.fragments.iter().map(|placed| placed.fragment)
    }

    /// Returns the total number of values.
    pub fn values(&self) -> usize {
        self.fragments.iter().map(|placed| self.len_of(placed)).sum()
    }

    /// Returns a fragment's turn; `None` if it is not reduced in this round.
    pub fn turn_of(&self, fragment: FragmentId) -> Option<usize> {
        self.fragments.binary_search_by(|placed| fragment.cmp(&placed.fragment)).ok()
    }

    /// Returns a member's values of the fragment at this turn; zeros if absent.
    pub fn slice(&self, update: &SparseRanges, turn: usize) -> Vec<f32> {
        let Some(placed) = self.fragments.get(turn) else { return Vec::new() };
        let values = update.get(self.of.range(placed.fragment));
        values.map_or_else(|| vec![0.0; self.len_of(placed)], <[f32]>::to_vec)
    }

    /// Packs a member's update in the order of [`Self::part`] over all turns.
    pub fn pack(&self, update: &SparseRanges) -> Vec<f32> {
        let mut packed = Vec::with_capacity(self.values());
        for (turn, _) in self.part(0..self.count()) {
            let range = self.of.range(self.fragments[turn].fragment);
            let end = packed.len() + range.len();
            packed.extend_from_slice(update.get(range).unwrap_or_default());
            packed.resize(end, 0.0);
        }
        packed
    }

    /// Returns the fragments of these turns in the order of the reduced vector, which is by rank, each with its turn and its place.
    pub fn part(&self, turns: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let mut end = 0;
        (0..self.members)
            .flat_map(move |rank| turns.clone().filter(move |turn| self.fragments[*turn].rank == rank))
            .map(move |turn| {
                let start = end;
                end += self.len_of(&self.fragments[turn]);
                (turn, start..end)
            })
    }

    /// Returns each rank's range of [`Self::part`].
    pub fn ranges(&self, turns: Range<usize>) -> Vec<Range<usize>> {
        let mut ends = vec![0; self.members];
        for (turn, place) in self.part(turns) {
            ends[self.fragments[turn].rank] = place.end;
        }
        let mut start = 0;
        let range = |end: usize| {
            let range = start..end.max(start);
            start = range.end;
            range
        };
        ends.into_iter().map(range).collect()
    }

    /// Returns the fragments of these turns uploaded by a rank, each with its place in the rank's own range.
    pub fn fragments_of(&self, rank: usize, turns: Range<usize>) -> Vec<(FragmentId, Range<usize>)> {
        let mut end = 0;
        let own = self.fragments[turns].iter().filter(|placed| placed.rank == rank);
        own.map(|placed| {
            let start = end;
            end += self.len_of(placed);
            (placed.fragment, start..end)
        })
        .collect()
    }

    fn len_of(&self, placed: &Placed) -> usize {
        self.of.range(placed.fragment).len()
    }
}
