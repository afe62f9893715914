//! Assignment of stream positions to sources in closed form, so that no list is kept or sent.
//!
//! Sources are the leaves of a balanced binary tree. At each node the left half of the sources, of weight L
//! out of T, gets round(p·L/T) of the first p positions, and the right half the rest (a Beatty sequence and
//! its complement). With each position one of the counts grows by one. Every position thus belongs to exactly
//! one source, and the positions of a source are consecutive: they are that source's own stream.
//!
//! A node's count is off by at most ½, and a node above adds its own error times the share of the node below,
//! which is less than one. A source's count of the first p positions therefore deviates from its weight's
//! share by at most half of the tree's depth: by one, for up to four sources. After T positions, and every
//! multiple of T, counts are exact.

/// Shares of the sources in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixture {
    /// Sums of the weights before each source, and of all.
    upto: Vec<u64>,
}

/// The sample at a position of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamPosition {
    /// Source.
    pub source: usize,
    /// Position in the source's own stream.
    pub index: u64,
}

impl Mixture {
    /// Weights from numbers are multiples of the largest one divided by this, finer than usual inputs.
    const STEPS: f64 = (1_u64 << 32) as f64;

    /// Weighs each source by its samples: an epoch, as many positions as samples, then contains each sample
    /// once. `None`: no sample, or a sum that overflows.
    #[must_use]
    pub fn by_samples(samples: &[u64]) -> Option<Self> {
        let mut upto = vec![0_u64];
        for (before, count) in samples.iter().enumerate() {
            upto.push(upto[before].checked_add(*count)?);
        }
        upto.last().is_some_and(|all| *all > 0).then_some(Self { upto })
    }

    /// Weighs each source by a number. `None` unless all are finite and positive, and at least one exists.
    #[must_use]
    pub fn by_weights(weights: &[f64]) -> Option<Self> {
        let largest = weights.iter().copied().fold(0.0, f64::max);
        if weights.iter().any(|weight| !weight.is_finite() || *weight <= 0.0) {
            return None;
        }
        let steps = |weight: &f64| ((weight / largest * Self::STEPS).round() as u64).max(1);
        Self::by_samples(&weights.iter().map(steps).collect::<Vec<_>>())
    }

    /// Returns the number of sources.
    #[must_use]
    pub fn sources(&self) -> usize {
        self.upto.len() - 1
    }

    /// Returns the integer weights, one per source.
    pub fn weights(&self) -> impl Iterator<Item = u64> + '_ {
        self.upto.windows(2).map(|sums| sums[1] - sums[0])
    }

    /// Returns the place of a position.
    #[must_use]
    pub fn place(&self, position: u64) -> StreamPosition {
        let (mut from, mut to, mut index) = (0, self.sources(), position);
        while to - from > 1 {
            let middle = from.midpoint(to);
            let left = self.left_of(from, middle, to, index);
            if self.left_of(from, middle, to, index.saturating_add(1)) > left {
                (to, index) = (middle, left);
            } else {
                (from, index) = (middle, index - left);
            }
        }
        StreamPosition { source: from, index }
    }

    /// Returns the number of a source's positions among the first `position`.
    #[must_use]
    pub fn count(&self, source: usize, position: u64) -> u64 {
        let (mut from, mut to, mut count) = (0, self.sources(), position);
        while to - from > 1 {
            let middle = from.midpoint(to);
            let left = self.left_of(from, middle, to, count);
            if source < middle {
                (to, count) = (middle, left);
            } else {
                (from, count) = (middle, count - left);
            }
        }
        count
    }

    /// Of a node's first `count` positions, returns those of its sources before `middle`, rounded to nearest.
    fn left_of(&self, from: usize, middle: usize, to: usize, count: u64) -> u64 {
        let left = u128::from(self.upto[middle] - self.upto[from]);
        let all = u128::from(self.upto[to] - self.upto[from]);
        if all == 0 {
            // No position comes here.
            return 0;
        }
        // At most `count`. The doubled product could need a 129th bit, so the whole part is split off first.
        let product = u128::from(count) * left;
        let (whole, rest) = (product / all, product % all);
        (whole + u128::from(2 * rest >= all)) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Levels of the tree.
    fn depth(sources: usize) -> u32 {
        sources.next_power_of_two().trailing_zeros()
    }

    #[test]
    fn a_single_source_has_the_whole_stream() {
        let mixture = Mixture::by_samples(&[5]).unwrap();
        for position in [0, 4, 5, u64::MAX] {
            assert_eq!(mixture.place(position), StreamPosition { source: 0, index: position });
        }
    }

    #[test]
    fn two_sources_alternate_as_their_weights_say() {
        let mixture = Mixture::by_weights(&[0.75, 0.25]).unwrap();
        let sources: Vec<usize> = (0..8).map(|position| mixture.place(position).source).collect();
        assert_eq!(sources, [0, 0, 1, 0, 0, 0, 1, 0]);
    }

    #[test]
    fn weights_that_are_none_are_refused() {
        for weights in [&[][..], &[0.0], &[1.0, -1.0], &[f64::NAN], &[1.0, f64::INFINITY]] {
            assert_eq!(Mixture::by_weights(weights), None, "{weights:?}");
        }
        for samples in [&[][..], &[0, 0], &[u64::MAX, 1]] {
            assert_eq!(Mixture::by_samples(samples), None, "{samples:?}");
        }
    }

    #[test]
    fn the_largest_weights_and_positions_are_counted_exactly() {
        let mixture = Mixture::by_samples(&[u64::MAX - 1, 1]).unwrap();
        assert_eq!(mixture.count(0, u64::MAX), u64::MAX - 1);
        assert_eq!(mixture.count(1, u64::MAX), 1);
        let middle = u64::MAX / 2;
        assert_eq!(mixture.place(middle), StreamPosition { source: 1, index: 0 });
    }

    proptest! {
        #[test]
        fn every_position_has_one_place_and_a_source_s_own_stream_has_no_gap(
            weights in prop::collection::vec(1e-3..1e3, 1..20), first in 0u64..1 << 40,
        ) {
            let mixture = Mixture::by_weights(&weights).unwrap();
            let mut counts: Vec<u64> = (0..weights.len()).map(|source| mixture.count(source, first)).collect();
            prop_assert_eq!(counts.iter().sum::<u64>(), first);
            for position in first..first + 500 {
                let StreamPosition { source, index } = mixture.place(position);
                prop_assert_eq!(index, counts[source]);
                counts[source] += 1;
                for (source, count) in counts.iter().enumerate() {
                    prop_assert_eq!(*count, mixture.count(source, position + 1));
                }
            }
        }

        #[test]
        fn counts_follow_weights_to_half_of_the_depth(
            weights in prop::collection::vec(1u64..1 << 20, 1..33), position in 0u64..1 << 40,
        ) {
            let mixture = Mixture::by_samples(&weights).unwrap();
            let all: u64 = weights.iter().sum();
            for (source, weight) in weights.iter().enumerate() {
                // count − position·weight/all| ≤ depth/2, in integers.
                let wanted = u128::from(position) * u128::from(*weight);
                let found = u128::from(mixture.count(source, position)) * u128::from(all);
                let most = u128::from(all) * u128::from(depth(weights.len()));
                prop_assert!(2 * wanted.abs_diff(found) <= most, "{source}: {wanted} {found} of {all}");
            }
        }

        #[test]
        fn an_epoch_of_the_whole_has_each_sample_of_each_source_once(
            samples in prop::collection::vec(0u64..60, 1..9), epoch in 0u64..1000,
        ) {
            let all: u64 = samples.iter().sum();
            prop_assume!(all > 0);
            let mixture = Mixture::by_samples(&samples).unwrap();
            let mut seen = std::collections::HashSet::new();
            for position in epoch * all..(epoch + 1) * all {
                let StreamPosition { source, index } = mixture.place(position);
                prop_assert_eq!(index / samples[source], epoch);
                prop_assert!(seen.insert((source, index)));
            }
        }
    }
}
