//! Assignment of samples to members and steps: pure arithmetic, so that membership can change at any step.
//!
//! The run's samples form one endless *stream*: position `p` is sample `permutation(seed, epoch)(index)` with
//! `epoch = p / samples`, `index = p % samples`. Every step takes the next `batch` positions of a
//! [`SampleFeed`], and members share them in order. Positions of a departed member whose work did not count
//! return at the front of the next generation's feed.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A half-open range of stream positions.
pub type Positions = Range<u64>;

/// Returns the sample at a stream position, of a data set of `samples`, in `0..samples`.
///
/// Each epoch is a different permutation of the data set, keyed by (seed, epoch).
///
/// # Panics
/// If `samples` is zero: empty data sets are refused before sampling.
#[must_use]
pub fn sample_at(seed: u64, samples: u64, position: u64) -> u64 {
    assert!(samples > 0, "an empty data set has no samples");
    Permutation::new(seed, position / samples, samples).apply(position % samples)
}

/// Returns the seed of one source's permutations. The first source has the run's, so a run of one source is
/// unchanged by the support of several.
#[must_use]
pub fn source_seed(seed: u64, source: usize) -> u64 {
    if source == 0 { seed } else { mix(seed ^ mix(source as u64)) }
}

/// Returns a number from [0, 1) of a stream position, equal for all callers: it decides random choices about
/// a sample.
#[must_use]
pub fn chance_at(seed: u64, position: u64) -> f64 {
    /// Separates these numbers from the keys of permutations, which use the same seed.
    const DOMAIN: u64 = 0x5e1e_c7ed_5a3b_1e55;
    /// Bits of an f64's mantissa.
    const BITS: u32 = 53;
    let word = mix(mix(seed ^ DOMAIN) ^ mix(position));
    (word >> (64 - BITS)) as f64 / (1u64 << BITS) as f64
}

/// Returns the seed of the random choices made for a sample at a stream position, such as dropout: equal for all callers.
#[must_use]
pub fn seed_at(seed: u64, position: u64) -> u64 {
    /// As in [`chance_at`].
    const DOMAIN: u64 = 0xd20b_0c75_eed0_0a41;
    mix(mix(seed ^ DOMAIN) ^ mix(position))
}

/// A keyed permutation of `0..size` without an index list: a balanced Feistel network over the next even
/// number of bits, iterated until the result is in range (Black & Rogaway 2002, "Ciphers with arbitrary
/// finite domains"). The domain is less than four times `size`, so this takes under four iterations on
/// average.
#[derive(Clone, Debug)]
pub struct Permutation {
    size: u64,
    half_bits: u32,
    keys: [u64; Self::ROUNDS],
}

impl Permutation {
    /// Luby and Rackoff need four rounds for a strong pseudo-random permutation; six leave a margin for the
    /// simple round function.
    const ROUNDS: usize = 6;

    /// Creates the permutation of `0..size` for this epoch.
    #[must_use]
    pub fn new(seed: u64, epoch: u64, size: u64) -> Self {
        let bits = (64 - size.saturating_sub(1).leading_zeros()).max(2);
        let half_bits = bits.div_ceil(2);
        let base = mix(mix(seed) ^ mix(epoch.wrapping_add(0x9e37_79b9_7f4a_7c15)));
        let keys = std::array::from_fn(|round| mix(base.wrapping_add(round as u64 + 1)));
        Self { size, half_bits, keys }
    }

    /// Returns the image of `index`. Both are in `0..size`.
    #[must_use]
    pub fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.size);
        let mut at = self.encipher(index);
        while at >= self.size {
            at = self.encipher(at);
        }
        at
    }

    fn encipher(&self, block: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (block >> self.half_bits, block & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

/// The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection of 64-bit words with full avalanche.
fn mix(mut word: u64) -> u64 {
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Positions of a generation: first the undone ones of departed members, then the stream onwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleFeed {
    /// First step of this feed.
    pub first_step: u64,
    /// Positions to repeat, in order.
    pub backlog: Vec<Positions>,
    /// First position not assigned before this feed.
    pub cursor: u64,
}

impl SampleFeed {
    /// Returns the positions of a member in one step, in order, possibly in several ranges.
    ///
    /// `step` is the run's step, `batch` the samples of one step over all members, `share` this member's
    /// part: see [`shares`].
    #[must_use]
    pub fn positions(&self, step: u64, batch: u64, share: &Range<u64>) -> Vec<Positions> {
        debug_assert!(step >= self.first_step && share.end <= batch);
        let base = (step - self.first_step) * batch;
        self.slice(base + share.start..base + share.end)
    }

    /// Returns the feed from `step` on, after all previous positions, with `redo` at the front.
    #[must_use]
    pub fn advance(&self, step: u64, batch: u64, redo: Vec<Positions>) -> Self {
        let given = (step - self.first_step) * batch;
        let rest = self.backlog_len().saturating_sub(given);
        let mut backlog = redo;
        backlog.extend(self.slice(self.backlog_len() - rest..self.backlog_len()));
        backlog.retain(|range| !range.is_empty());
        Self { first_step: step, backlog, cursor: self.cursor + given.saturating_sub(self.backlog_len()) }
    }

    fn backlog_len(&self) -> u64 {
        self.backlog.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the places `wanted` of the concatenation of backlog and stream.
    fn slice(&self, wanted: Range<u64>) -> Vec<Positions> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for range in &self.backlog {
            let len = range.end - range.start;
            let (from, to) = (wanted.start.max(at), wanted.end.min(at + len));
            if from < to {
                pieces.push(range.start + from - at..range.start + to - at);
            }
            at += len;
        }
        if wanted.end > at {
            pieces.push(self.cursor + wanted.start.max(at) - at..self.cursor + wanted.end - at);
        }
        pieces.retain(|range| !range.is_empty());
        pieces
    }
}

/// Divides the samples of one step among `members`, in order and evenly: the parts differ by at most one.
#[must_use]
pub fn shares(batch: u64, members: usize) -> Vec<Range<u64>> {
    (0..members).map(|member| share(batch, members, member)).collect()
}

/// Returns one member's part.
#[must_use]
pub fn share(batch: u64, members: usize, member: usize) -> Range<u64> {
    let (members, member) = (members.max(1) as u64, member as u64);
    batch * member / members..batch * (member + 1) / members
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pearson's test over 64 bins, and the correlation of neighbours, within four deviations.
    #[test]
    fn chances_are_uniform_and_those_of_neighbours_have_nothing_in_common() {
        const COUNT: u64 = 1 << 16;
        let chances: Vec<f64> = (0..=COUNT).map(|position| chance_at(9, position)).collect();
        let mut bins = [0.0_f64; 64];
        chances[..COUNT as usize].iter().for_each(|chance| bins[(chance * 64.0) as usize] += 1.0);
        let expected = COUNT as f64 / 64.0;
        let squares: f64 = bins.iter().map(|count| (count - expected).powi(2) / expected).sum();
        assert!((squares - 63.0).abs() < 4.0 * (2.0_f64 * 63.0).sqrt(), "{squares}");
        let together: f64 = chances.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5)).sum();
        assert!((together / COUNT as f64 * 12.0).abs() < 4.0 / (COUNT as f64).sqrt(), "{together}");
        assert!((0..100).all(|position| chance_at(9, position) != chance_at(10, position)));
    }

    /// Checks that each of `0..size` is hit, as none is hit twice or lies outside.
    fn assert_permuted(size: u64) {
        let permutation = Permutation::new(7, size, size);
        let mut seen = vec![0_u64; size.div_ceil(64) as usize];
        for index in 0..size {
            let to = permutation.apply(index);
            assert!(to < size, "size {size}: {index} goes to {to}");
            let (word, bit) = (&mut seen[(to / 64) as usize], 1 << (to % 64));
            assert!(*word & bit == 0, "size {size}: {to} was hit twice");
            *word |= bit;
        }
    }

    #[test]
    fn every_small_size_is_permuted() {
        (1..600).for_each(assert_permuted);
    }

    /// A round number, and sizes around powers of four: the domain of the network equals them, or is four
    /// times as large.
    #[test]
    fn large_sizes_are_permuted() {
        [1_000_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 22) + 1]
            .into_iter()
            .for_each(assert_permuted);
    }

    /// Takes 125 MB and some minutes:
    /// `cargo test --release -p longhaul-common --lib -- --ignored a_billion_samples_are_permuted`.
    #[test]
    #[ignore = "takes minutes"]
    fn a_billion_samples_are_permuted() {
        assert_permuted(1_000_000_000);
    }

    #[test]
    fn a_large_permutation_stays_in_range_and_is_injective_where_looked_at() {
        let size = 1_000_000_007;
        let permutation = Permutation::new(1, 2, size);
        let mut images: Vec<u64> = (0..100_000).map(|i| permutation.apply(i * 9973)).collect();
        assert!(images.iter().all(|&image| image < size));
        images.sort_unstable();
        images.dedup();
        assert_eq!(images.len(), 100_000);
    }

    #[test]
    fn epochs_differ_and_neighbours_are_scattered() {
        let first: Vec<u64> = (0..1000).map(|p| sample_at(3, 1000, p)).collect();
        let second: Vec<u64> = (1000..2000).map(|p| sample_at(3, 1000, p)).collect();
        let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same} of 1000 samples kept their place, about one is expected");
        let ascents = first.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(ascents < 10, "{ascents} neighbours stayed neighbours, about one is expected");
    }

    #[test]
    fn sources_of_one_size_are_shuffled_each_in_its_own_way() {
        assert_eq!(source_seed(7, 0), 7);
        let order = |source| (0..100).map(|p| sample_at(source_seed(7, source), 100, p)).collect::<Vec<_>>();
        let orders: std::collections::HashSet<Vec<u64>> = (0..50).map(order).collect();
        assert_eq!(orders.len(), 50);
    }

    proptest! {
        #[test]
        fn a_permutation_of_any_size_stays_in_range_and_hits_nothing_twice(
            size in 1u64..1_000_000_000, seed: u64, epoch in 0u64..1000, from: u64,
        ) {
            let permutation = Permutation::new(seed, epoch, size);
            let looked_at = size.min(2000);
            let first = from % (size - looked_at + 1);
            let images: std::collections::HashSet<u64> =
                (first..first + looked_at).map(|index| permutation.apply(index)).collect();
            prop_assert_eq!(images.len() as u64, looked_at);
            prop_assert!(images.iter().all(|image| *image < size));
        }

        #[test]
        fn members_of_any_number_share_each_step_without_gap_or_overlap(
            batch in 1u64..500, members in 1usize..40,
        ) {
            let parts = shares(batch, members);
            prop_assert_eq!(parts.len(), members);
            prop_assert_eq!(parts[0].start, 0);
            prop_assert_eq!(parts[members - 1].end, batch);
            for pair in parts.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
            let lens: Vec<u64> = parts.iter().map(|p| p.end - p.start).collect();
            prop_assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1);
        }

        /// A feed compared with a reference: a list of positions consumed from the front.
        #[test]
        fn a_feed_hands_out_what_a_queue_would(
            batch in 1u64..20, moves in prop::collection::vec((1u64..6, 0usize..4), 1..12),
        ) {
            let mut feed = SampleFeed::default();
            let (mut queue, mut fresh) = (std::collections::VecDeque::new(), 0u64);
            let mut step = 0;
            for (steps, lost_member) in moves {
                let mut lost = Vec::new();
                for _ in 0..steps {
                    for (member, share) in shares(batch, 4).iter().enumerate() {
                        let given: Vec<u64> =
                            feed.positions(step, batch, share).into_iter().flatten().collect();
                        let expected: Vec<u64> = share.clone().map(|_| queue.pop_front().unwrap_or_else(|| {
                            fresh += 1;
                            fresh - 1
                        })).collect();
                        prop_assert_eq!(&given, &expected);
                        if member == lost_member && lost.is_empty() {
                            lost = feed.positions(step, batch, share);
                        }
                    }
                    step += 1;
                }
                for position in lost.iter().cloned().flatten().collect::<Vec<_>>().into_iter().rev() {
                    queue.push_front(position);
                }
                feed = feed.advance(step, batch, lost);
                prop_assert_eq!(feed.first_step, step);
            }
        }
    }
}
