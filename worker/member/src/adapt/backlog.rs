//! Bits that keep what waits in error feedback from growing old, as a pure function of what was measured.

use crate::adapt::ladder::two_bits;

/// How fast the least follows a backlog that is off its bound: twice the bound makes it 2 % more each time that a fragment is exchanged. A backlog answers after as many
/// exchanges as pass until each of a fragment's values was sent, some fifty at a bound of eight; bits that follow faster overshoot.
const GAIN: f64 = 0.03;
/// A backlog further off than this counts as so far off: one value that took a long step may be most of it for a while.
const OFF_MAX: f64 = 2.0;
/// A least that rounds had no more than, to a percent, is what decided them.
const AT_LEAST: f64 = 1.01;

/// Of so many values one is looked at: the norms of some fifty thousand values tell a ratio to a percent.
const SAMPLED: usize = 16;

/// What waits somewhere and what a round added there, over some fragments: sums of squares of a sample of the values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    left: f64,
    added: f64,
}

impl Waiting {
    /// With one fragment more.
    #[must_use]
    pub fn with(self, left: &[f32], added: &[f32]) -> Self {
        self.plus(Self { left: squares(left), added: squares(added) })
    }

    /// Both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { left: self.left + other.left, added: self.added + other.added }
    }

    /// ‖residual‖ over ‖what the round added‖: about how many exchanges' changes wait. None: nothing was added.
    #[must_use]
    pub fn exchanges(&self) -> Option<f64> {
        (self.added > 0.0).then(|| (self.left / self.added).sqrt())
    }
}

fn squares(values: &[f32]) -> f64 {
    values.iter().step_by(SAMPLED).map(|value| f64::from(*value) * f64::from(*value)).sum()
}

/// How many exchanges' changes wait before they are in a result: with who contributes, and then with the owner who compresses the mean again. A value waits in the one and then in the other, so
/// the two add up, as times do. Where results leave nothing behind there is no second one.
#[must_use]
pub fn in_all(contributed: Waiting, owned: Waiting) -> Option<f64> {
    match (contributed.exchanges(), owned.exchanges()) {
        (None, None) => None,
        (contributed, owned) => Some(contributed.unwrap_or_default() + owned.unwrap_or_default()),
    }
}

/// What a round sent, and what it left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Left {
    /// Bits of a value.
    pub bits: f64,
    /// About how many exchanges' changes wait ([`in_all`]).
    pub backlog: f64,
    /// How many rounds pass from one exchange of a fragment to the next.
    pub turns: f64,
}

/// The bits with which the changes of about as many exchanges of a fragment wait in error feedback as may: what waits is late when it is applied.
///
/// Begins with the inverse of the bound, about what the changes of a small transformer took (decision 0009), and follows what is measured, slowly. It falls only where it is what rounds had:
/// with more bits less waits, which says nothing of how few would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BacklogFloor {
    bound: f64,
    bits: f64,
}

impl BacklogFloor {
    /// For the changes of so many exchanges; none where there is no bound (0).
    #[must_use]
    pub fn new(bound: f64) -> Option<Self> {
        (bound > 0.0).then(|| Self { bound, bits: (1.0 / bound).min(two_bits()) })
    }

    /// Bits of a value, at least.
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

    /// Error feedback over one chunk: each round adds a change that half stays the same and half is new, and takes away the largest values.
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

        /// The backlog after a round with so many bits a value.
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

    /// A link for 0.02 bits, on which what waits would come to 60 rounds.
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

    /// Against norms of all values in f64; those of a sample of 4096 are within a few percent.
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
