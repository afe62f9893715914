//! A lower bound of the bits that keeps the age of residuals in bounds, as a pure function of measurements.

use crate::adapt::ladder::two_bits;

/// Gain of the floor: twice the bound adds 2 % per exchange of a fragment. A backlog reacts only after each value has been sent, some fifty exchanges at a
/// bound of eight; a larger gain overshoots.
const GAIN: f64 = 0.03;
/// A larger deviation counts as this one: one value after a long step may make up most of it for a while.
const OFF_MAX: f64 = 2.0;
/// A least number of bits decides a round whose bits exceed it by at most a percent.
const AT_LEAST: f64 = 1.01;

/// Sampling interval: the norms of some fifty thousand values give a ratio to a percent.
const SAMPLED: usize = 16;

/// Residual and a round's addition to it, over some fragments: sums of squares of a sample of the values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    left: f64,
    added: f64,
}

impl Waiting {
    /// Adds one more fragment.
    #[must_use]
    pub fn with(self, left: &[f32], added: &[f32]) -> Self {
        self.plus(Self { left: squares(left), added: squares(added) })
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { left: self.left + other.left, added: self.added + other.added }
    }

    /// ‖residual‖ / ‖addition of the round‖: about the number of exchanges whose changes wait. `None`: nothing was added.
    #[must_use]
    pub fn exchanges(&self) -> Option<f64> {
        (self.added > 0.0).then(|| (self.left / self.added).sqrt())
    }
}

fn squares(values: &[f32]) -> f64 {
    values.iter().step_by(SAMPLED).map(|value| f64::from(*value) * f64::from(*value)).sum()
}

/// Returns the exchanges whose changes wait, at contributors and then at the owner, which compresses the mean again. The delays add up. Results without a
/// residual have no second part.
#[must_use]
pub fn in_all(contributed: Waiting, owned: Waiting) -> Option<f64> {
    match (contributed.exchanges(), owned.exchanges()) {
        (None, None) => None,
        (contributed, owned) => Some(contributed.unwrap_or_default() + owned.unwrap_or_default()),
    }
}

/// Bits and backlog of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Left {
    /// Bits per value.
    pub bits: f64,
    /// Approximate number of exchanges whose changes wait ([`in_all`]).
    pub backlog: f64,
    /// Rounds from one exchange of a fragment to the next.
    pub turns: f64,
}

/// Bits at which the backlog stays near its bound: a held-back change is applied late.
///
/// The value begins at the inverse of the bound, about right for a small transformer (decision 0009), and slowly follows the measurements. It falls only
/// where it decided the rounds: more bits do not show how few would suffice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BacklogFloor {
    bound: f64,
    bits: f64,
}

impl BacklogFloor {
    /// Creates a floor for a bound in exchanges; `None` for no bound (0).
    #[must_use]
    pub fn new(bound: f64) -> Option<Self> {
        (bound > 0.0).then(|| Self { bound, bits: (1.0 / bound).min(two_bits()) })
    }

    /// Returns the least number of bits per value.
    #[must_use]
    pub fn bits(&self) -> f64 {
        self.bits
    }

    /// Takes in a round.
    pub fn observe(&mut self, left: Left) {
        let share = left.backlog / self.bound;
        let decided = left.bits <= AT_LEAST * self.bits;
        if share.is_finite() && share > 0.0 && (decided || share > 1.0) {
            let share = share.clamp(1.0 / OFF_MAX, OFF_MAX);
            self.bits = (self.bits * share.powf(GAIN / left.turns)).min(two_bits());
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_proto::codec::{Selection, TopK};
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::adapt::ladder::chain_for;

    const CHUNK: usize = 4096;

    /// Error feedback over one chunk: each round adds a change, half of it constant and half new, and takes away the largest values.
    struct Chunk {
        rng: rand_chacha::ChaCha8Rng,
        drift: Vec<f64>,
        residual: Vec<f64>,
    }

    impl Chunk {
        fn new() -> Self {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(9);
            let drift = (0..CHUNK).map(|_| rng.random::<f64>() - 0.5).collect();
            Self { rng, drift, residual: vec![0.0; CHUNK] }
        }

        /// Returns the backlog after a round with this many bits per value.
        fn round(&mut self, bits: f64) -> f64 {
            let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
            let added: Vec<f64> =
                self.drift.iter().map(|drift| drift + self.rng.random::<f64>() - 0.5).collect();
            for (left, added) in self.residual.iter_mut().zip(&added) {
                *left += added;
            }
            let Selection::TopK(TopK { keep, .. }) = chain_for(bits, CHUNK as u32).selection else {
                self.residual.fill(0.0);
                return 0.0;
            };
            let mut sizes: Vec<f64> = self.residual.iter().map(|left| left.abs()).collect();
            sizes.sort_by(|a, b| b.total_cmp(a));
            let least = sizes[keep as usize - 1];
            self.residual.iter_mut().filter(|left| left.abs() >= least).for_each(|left| *left = 0.0);
            norm(&self.residual) / norm(&added)
        }
    }

    /// The link carries 0.02 bits, with which the backlog would reach 60 rounds.
    #[test]
    fn what_waits_settles_at_its_bound_and_bits_stay_as_they_are() {
        for (bound, at_first) in [(4.0, 0.02), (4.0, 2.0), (10.0, 0.02), (10.0, 2.0)] {
            let (mut chunk, mut floor, mut seen) =
                (Chunk::new(), BacklogFloor::new(bound).unwrap(), Vec::new());
            for round in 0..1500 {
                let link = if round < 100 { at_first } else { 0.02 };
                let bits = floor.bits().max(link);
                let backlog = chunk.round(bits);
                floor.observe(Left { bits, backlog, turns: 1.0 });
                seen.push((backlog, bits));
            }
            let settled = &seen[1000..];
            let range = |of: fn(&(f64, f64)) -> f64| {
                let values = settled.iter().map(of);
                values.fold((f64::INFINITY, 0.0), |(low, high), v| (f64::min(low, v), f64::max(high, v)))
            };
            let (backlogs, bits) = (range(|seen| seen.0), range(|seen| seen.1));
            assert!(backlogs.0 > 0.7 * bound && backlogs.1 < 1.2 * bound, "{backlogs:?} rounds for {bound}");
            assert!(bits.1 < 1.5 * bits.0, "bits between {bits:?} for a bound of {bound}");
        }
    }

    #[test]
    fn more_bits_than_the_least_say_nothing_of_it() {
        let mut floor = BacklogFloor::new(4.0).unwrap();
        for _ in 0..1000 {
            floor.observe(Left { bits: 2.0, backlog: 0.4, turns: 5.0 });
        }
        assert_eq!(floor.bits(), 0.25);
        floor.observe(Left { bits: 0.25, backlog: f64::NAN, turns: 5.0 });
        assert_eq!(floor.bits(), 0.25);
    }

    /// Compares with norms of all values in f64; those of a sample of 4096 are within a few percent.
    #[test]
    fn what_waits_with_contributors_and_owners_adds_up() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(10);
        let mut draw =
            |size: f32| (0..1 << 16).map(|_| size * (rng.random::<f32>() - 0.5)).collect::<Vec<_>>();
        let [left, added, owned, mean] = [6.0, 2.0, 3.0, 1.5].map(&mut draw);
        let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let (up, down) = (norm(&left) / norm(&added), norm(&owned) / norm(&mean));
        let contributed = Waiting::default().with(&left, &added);
        let owner = Waiting::default().with(&owned[..999], &mean[..999]).with(&owned[999..], &mean[999..]);
        let nothing = Waiting::default();
        let close = |seen: Option<f64>, expected: f64| (seen.unwrap() / expected - 1.0).abs() < 0.05;
        assert!(close(in_all(contributed, nothing), up));
        assert!(close(in_all(nothing, owner), down));
        assert!(close(in_all(contributed, owner), up + down));
        assert_eq!(in_all(nothing, nothing), None);
    }

    #[test]
    fn without_a_bound_there_is_no_least() {
        assert_eq!(BacklogFloor::new(0.0), None);
    }
}
