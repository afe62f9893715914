//! A member's share of a round's vector.

use std::ops::Range;
use std::sync::Arc;

use super::layout::SiteLayout;
use super::slot::Piece;

/// A member's update of a round as far as computed, and the site's progress in reducing it.
#[derive(Debug)]
pub(super) struct SiteVector {
    layout: Arc<SiteLayout>,
    held: Held,
    /// Fragments from the first turn on without a gap.
    ready: usize,
    reduced: usize,
}

#[derive(Debug)]
enum Held {
    /// In the order of the layout's whole.
    Whole(Vec<f32>),
    /// By turn; `None` before a fragment is here, or after its reduction.
    Fragments(Vec<Option<Vec<f32>>>),
}

impl SiteVector {
    /// Creates an empty vector.
    pub fn new(layout: Arc<SiteLayout>) -> Self {
        let fragments = vec![None; layout.count()];
        Self { layout, held: Held::Fragments(fragments), ready: 0, reduced: 0 }
    }

    /// Takes in new parts.
    pub fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match (piece, &mut self.held) {
                (Piece::Whole(values), held) => {
                    *held = Held::Whole(values);
                    self.ready = self.layout.count();
                }
                (Piece::Fragment { turn, values }, Held::Fragments(fragments)) => {
                    if let Some(place) = fragments.get_mut(turn) {
                        *place = Some(values);
                    }
                    while fragments.get(self.ready).is_some_and(Option::is_some) {
                        self.ready += 1;
                    }
                }
                // It is part of the whole.
                (Piece::Fragment { .. }, Held::Whole(_)) => {}
            }
        }
    }

    /// Returns the number of this member's fragments, including reduced ones.
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Reports whether the others need a message: about unreduced fragments, or that none are to be reduced.
    pub fn has_more(&self) -> bool {
        self.ready > self.reduced || self.layout.count() == 0
    }

    /// Returns the number of reduced fragments.
    pub fn reduced(&self) -> usize {
        self.reduced
    }

    /// Reports whether all are reduced.
    pub fn is_done(&self) -> bool {
        self.reduced == self.layout.count()
    }

    /// Returns the layout.
    pub fn layout(&self) -> &SiteLayout {
        &self.layout
    }

    /// Returns the values of the next turns up to `to`, all of which must be here, ordered by rank. They count as reduced from now on.
    pub fn next_part(&mut self, to: usize) -> (Range<usize>, Vec<f32>) {
        let turns = self.reduced..to;
        self.reduced = to;
        let layout = &self.layout;
        let values = match &mut self.held {
            Held::Whole(whole) if turns == (0..layout.count()) => std::mem::take(whole),
            Held::Whole(whole) => {
                let mut part = Vec::with_capacity(whole.len());
                let wanted = layout.part(0..layout.count()).filter(|(turn, _)| turns.contains(turn));
                wanted.for_each(|(_, place)| part.extend_from_slice(&whole[place]));
                part
            }
            Held::Fragments(fragments) => {
                let turn = layout.part(turns.clone());
                turn.filter_map(|(turn, _)| fragments[turn].take()).collect::<Vec<_>>().concat()
            }
        };
        (turns, values)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::FragmentId;
    use longhaul_common::plan::FragmentLayout;

    use super::super::layout::Placed;
    use super::*;
    use crate::sparse_ranges::SparseRanges;

    #[test]
    fn parts_are_what_is_here_without_a_gap_and_together_the_whole() {
        let of = FragmentLayout { values: 95, fragment_values: 10 };
        let placed = of.fragments().map(|fragment| Placed { fragment, rank: fragment.0 as usize * 5 % 3 });
        let placed: Vec<_> = placed.collect();
        let layout = Arc::new(SiteLayout::new(of, 3, placed.into_iter()));
        let update = SparseRanges::whole((0..95u8).map(f32::from).collect());
        let mut in_parts = SiteVector::new(Arc::clone(&layout));
        let mut whole = SiteVector::new(Arc::clone(&layout));
        whole.take(vec![Piece::Whole(layout.pack(&update))]);
        assert!(whole.has_more() && !in_parts.has_more());
        for (turns, ready) in [(vec![1, 2], 0), (vec![0, 4], 3), (vec![3], 5), ((5..10).collect(), 10)] {
            let pieces = turns.into_iter().map(|turn| {
                let values = layout.slice(&update, turn);
                Piece::Fragment { turn, values }
            });
            in_parts.take(pieces.collect());
            assert_eq!((in_parts.ready(), whole.ready()), (ready, 10));
            if !in_parts.has_more() {
                continue;
            }
            let (turns, values) = in_parts.next_part(ready);
            assert_eq!(whole.next_part(ready), (turns.clone(), values.clone()));
            for (rank, range) in layout.ranges(turns.clone()).into_iter().enumerate() {
                for (fragment, place) in layout.fragments_of(rank, turns.clone()) {
                    assert_eq!(Some(&values[range.clone()][place]), update.get(of.range(fragment)));
                    assert_eq!(fragment.0 as usize * 5 % 3, rank);
                }
            }
        }
        assert!(in_parts.is_done() && whole.is_done());
        assert_eq!(layout.turn_of(FragmentId(9)), Some(0), "the last is the first");
    }
}
