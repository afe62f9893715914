//! What a site's members reduce in a round, and in which order.

use std::ops::Range;

use longhaul_common::id::FragmentId;
use longhaul_common::plan::FragmentLayout;

use crate::sparse_ranges::SparseRanges;

/// The fragments of a round, from the model's last to its first, as back-propagation gets to the last layers first: members reduce them in this
/// order, as many at a time as all of them have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteLayout {
    fragments: Vec<Placed>,
    members: usize,
    /// How what is exchanged is cut.
    of: FragmentLayout,
}

/// A fragment, and the rank that uploads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub fragment: FragmentId,
    pub rank: usize,
}

impl SiteLayout {
    /// Of these fragments, which ascend, among so many members.
    pub fn new(
        of: FragmentLayout,
        members: usize,
        ascending: impl DoubleEndedIterator<Item = Placed>,
    ) -> Self {
        Self { fragments: ascending.rev().collect(), members, of }
    }

    /// How many fragments there are.
    pub fn count(&self) -> usize {
        self.fragments.len()
    }

    /// Which they are, by turn.
    pub fn fragments(&self) -> impl Iterator<Item = FragmentId> + '_ {
        self.fragments.iter().map(|placed| placed.fragment)
    }

    /// Values of all of them.
    pub fn values(&self) -> usize {
        self.fragments.iter().map(|placed| self.len_of(placed)).sum()
    }

    /// When a fragment has its turn; none: it is not reduced in this round.
    pub fn turn_of(&self, fragment: FragmentId) -> Option<usize> {
        self.fragments.binary_search_by(|placed| fragment.cmp(&placed.fragment)).ok()
    }

    /// A member's values of the fragment that has this turn; zeros where it has none.
    pub fn slice(&self, update: &SparseRanges, turn: usize) -> Vec<f32> {
        let Some(placed) = self.fragments.get(turn) else { return Vec::new() };
        let values = update.get(self.of.range(placed.fragment));
        values.map_or_else(|| vec![0.0; self.len_of(placed)], <[f32]>::to_vec)
    }

    /// A member's update in the order of [`Self::part`] of everything.
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

    /// The fragments of these turns as they lie in the vector that is reduced: those of the first rank, those of the second, and so on. Each with
    /// its turn and its place.
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

    /// By rank: what of [`Self::part`] it uploads.
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

    /// The fragments of these turns that a rank uploads, each with its place in the rank's own range.
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
