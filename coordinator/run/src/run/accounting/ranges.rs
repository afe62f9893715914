//! A set of stream positions, kept as few ranges.

use std::collections::BTreeMap;

use longhaul_common::sampler::Positions;
use serde::{Deserialize, Serialize};

/// A set of numbers as disjoint, non-adjacent half-open ranges. A run's counted positions are nearly contiguous, so
/// that the set stays small however long the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    /// Start → end.
    ranges: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range; returns how many of its numbers were new.
    pub fn insert(&mut self, range: Positions) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let added = range.end - range.start;
        let (mut start, mut end, mut known) = (range.start, range.end, 0);
        // Every range that touches [start, end] melts into it; they are the last ones that start at or before `end`.
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            known += e.min(range.end).saturating_sub(s.max(range.start));
            (start, end) = (start.min(s), end.max(e));
            self.ranges.remove(&s);
        }
        self.ranges.insert(start, end);
        added - known
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Positions) {
        if range.is_empty() {
            return;
        }
        let mut kept = Vec::new();
        while let Some((&s, &e)) = self.ranges.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            self.ranges.remove(&s);
            kept.push(s..range.start.max(s));
            kept.push(range.end.min(e)..e);
        }
        self.ranges.extend(kept.into_iter().filter(|r| !r.is_empty()).map(|r| (r.start, r.end)));
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Positions> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// How many numbers are in the set.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_behave_like_a_set_of_numbers_and_stay_merged(
            moves in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..40),
        ) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (adding, start, len) in moves {
                let range = start..start + len;
                if adding {
                    let new = range.clone().filter(|n| set.insert(*n)).count();
                    prop_assert_eq!(ranges.insert(range), new as u64);
                } else {
                    range.clone().for_each(|n| { set.remove(&n); });
                    ranges.remove(range);
                }
                prop_assert_eq!(ranges.iter().flatten().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.len(), set.len() as u64);
                let all: Vec<_> = ranges.iter().collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
