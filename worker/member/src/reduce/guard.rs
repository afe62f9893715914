//! Rejection of contributions that are too large compared with the group's earlier ones.

use std::collections::{BTreeMap, VecDeque};

use longhaul_common::id::FragmentId;

/// Sizes remembered per fragment: enough for a median that resists a few outliers, few enough to follow training.
const SIZES_KEPT: usize = 32;
/// Sizes needed before any refusal: with fewer, a young model's own unrest would be refused.
const SIZES_NEEDED: usize = 8;
/// Consecutive rounds that may end empty. After that the whole group must have changed, and the fragment's history is dropped; otherwise the run would stall.
const EMPTY_ROUNDS_MAX: u32 = 3;

/// Judges the sizes of contributions. A size is a norm divided by √values, so that fragments of different lengths compare.
///
/// A contribution is refused if its size exceeds `limit` times the largest of:
/// - the median of the last accepted sizes of the fragment;
/// - the median of the medians of all fragments owned here: a quiet fragment (embedding rows of rare tokens) has rounds that are loud for it and harmless for
///   the model;
/// - the lower median of the round, with more than one contribution: if most are as large, the whole group moves.
///
/// Sizes of zero are not remembered. Histories begin anew between warm-up and steady rounds, which exchange other quantities.
#[derive(Debug)]
pub struct Guard {
    limit: f64,
    histories: BTreeMap<FragmentId, History>,
    typical: Typical,
}

/// The size of a typical fragment. It is recomputed after as many judgements as fragments exist, about once per round, because that visits all fragments.
#[derive(Clone, Copy, Debug, Default)]
struct Typical {
    is_warmup: bool,
    /// `None`: unknown.
    size: Option<f64>,
    /// Judgements since the computation.
    age: usize,
}

/// Distance of a refused contribution from the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// Its size over the median of the last accepted ones.
    pub times: f64,
    /// Number of those.
    pub of: u32,
}

#[derive(Debug, Default)]
struct History {
    is_warmup: bool,
    /// Newest last.
    sizes: VecDeque<f64>,
    /// Consecutive empty rounds.
    empty: u32,
}

impl Guard {
    /// Creates a guard that refuses above `limit` times the reference; 0: never.
    #[must_use]
    pub fn new(limit: f64) -> Self {
        Self { limit, histories: BTreeMap::new(), typical: Typical::default() }
    }

    /// Judges the contributions to a fragment in one round, and remembers the accepted ones. Returns for each `None`, or its excess if refused.
    pub fn judge(&mut self, fragment: FragmentId, is_warmup: bool, sizes: &[f64]) -> Vec<Option<Excess>> {
        if self.limit == 0.0 || sizes.is_empty() {
            return vec![None; sizes.len()];
        }
        let history = self.histories.entry(fragment).or_default();
        if history.is_warmup != is_warmup {
            *history = History { is_warmup, ..History::default() };
        }
        let own = history.median();
        let bound = own.map(|own| {
            let round = lower_median(sizes).filter(|_| sizes.len() > 1).unwrap_or(0.0);
            self.limit * own.max(round).max(self.typical(is_warmup))
        });
        let verdict = |size: &f64| match (own, bound) {
            (Some(own), Some(bound)) if *size > bound => Some(size / own),
            _ => None,
        };
        let times: Vec<Option<f64>> = sizes.iter().map(verdict).collect();
        let history = self.histories.entry(fragment).or_default();
        let of = history.sizes.len() as u32;
        history
            .remember(sizes.iter().zip(&times).filter(|(_, times)| times.is_none()).map(|(size, _)| *size));
        times.into_iter().map(|times| times.map(|times| Excess { times, of })).collect()
    }

    /// Forgets a fragment that passes to another owner.
    pub fn forget(&mut self, fragment: FragmentId) {
        self.histories.remove(&fragment);
    }

    /// Returns the size of a typical fragment; zero if unknown.
    fn typical(&mut self, is_warmup: bool) -> f64 {
        let known = self.typical;
        let is_fresh = known.is_warmup == is_warmup && known.age < self.histories.len();
        match known.size.filter(|_| is_fresh) {
            Some(_) => self.typical.age += 1,
            None => self.typical = Typical { is_warmup, size: self.median_of_medians(is_warmup), age: 1 },
        }
        self.typical.size.unwrap_or(0.0)
    }

    fn median_of_medians(&self, is_warmup: bool) -> Option<f64> {
        let alike = self.histories.values().filter(|history| history.is_warmup == is_warmup);
        let medians: Vec<f64> = alike.filter_map(History::median).collect();
        lower_median(&medians)
    }
}

impl History {
    /// Returns the median of the sizes, once enough are known.
    fn median(&self) -> Option<f64> {
        (self.sizes.len() >= SIZES_NEEDED).then(|| lower_median(self.sizes.iter())).flatten()
    }

    fn remember(&mut self, accepted: impl Iterator<Item = f64>) {
        let mut any = false;
        for size in accepted {
            any = true;
            if size > 0.0 {
                self.sizes.push_back(size);
            }
        }
        self.sizes.drain(..self.sizes.len().saturating_sub(SIZES_KEPT));
        self.empty = if any { 0 } else { self.empty + 1 };
        if self.empty >= EMPTY_ROUNDS_MAX {
            self.sizes.clear();
            self.empty = 0;
        }
    }
}

/// Returns the lower of the two middle values, or the middle one; `None` for no values.
///
/// Of two values it is the smaller, so that one bad contribution beside a good one does not set the measure.
pub fn lower_median<'a>(values: impl IntoIterator<Item = &'a f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().copied().collect();
    let middle = values.len().checked_sub(1)? / 2;
    let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

#[cfg(test)]
mod tests {
    use super::*;

    const F0: FragmentId = FragmentId(0);
    const F1: FragmentId = FragmentId(1);

    /// Four rounds of three sites with sizes about `size`.
    fn guard_that_knows(fragments: &[(FragmentId, f64)]) -> Guard {
        let mut guard = Guard::new(20.0);
        for round in 0..4 {
            for (fragment, size) in fragments {
                let sizes = [0.8, 1.0, 1.2].map(|share| size * (share + 0.01 * f64::from(round)));
                assert_eq!(guard.judge(*fragment, false, &sizes), [None; 3]);
            }
        }
        guard
    }

    fn refused(guard: &mut Guard, sizes: &[f64]) -> Vec<bool> {
        guard.judge(F0, false, sizes).iter().map(Option::is_some).collect()
    }

    #[test]
    fn who_is_far_beyond_the_median_is_refused_and_told_by_how_much() {
        let mut guard = guard_that_knows(&[(F0, 2.0)]);
        let verdicts = guard.judge(F0, false, &[2.0, 166.0, 38.0, 2.0]);
        let [None, Some(Excess { times, of: 12 }), None, None] = verdicts[..] else { panic!("{verdicts:?}") };
        // The sixth of twelve sizes is the median: 2·(1.0 + 0.01) = 2.02.
        assert!((times - 166.0 / 2.02).abs() < 1e-9, "{times}");
        assert_eq!(
            refused(&mut guard, &[2.0, 166.0, 2.0]),
            [false, true, false],
            "the outlier is not remembered"
        );
    }

    #[test]
    fn nothing_is_refused_before_enough_is_known_or_where_it_is_turned_off() {
        let mut guard = Guard::new(20.0);
        assert_eq!(refused(&mut guard, &[1.0, 1e9, 1.0]), [false; 3]);
        let mut guard = Guard::new(0.0);
        for _ in 0..10 {
            assert_eq!(refused(&mut guard, &[1.0, 1e9, 1.0]), [false; 3]);
        }
    }

    #[test]
    fn the_history_begins_anew_after_the_warmup_and_with_another_owner() {
        let mut guard = Guard::new(20.0);
        (0..4).for_each(|_| drop(guard.judge(F0, true, &[1.0, 1.0, 1.0])));
        assert_eq!(guard.judge(F0, true, &[1.0, 1.0, 100.0]).iter().flatten().count(), 1);
        assert_eq!(refused(&mut guard, &[1.0, 1.0, 100.0]), [false; 3]);
        let mut guard = guard_that_knows(&[(F0, 1.0)]);
        guard.forget(F0);
        assert_eq!(refused(&mut guard, &[1.0, 1.0, 100.0]), [false; 3]);
    }

    #[test]
    fn when_most_of_a_round_are_as_large_it_is_the_group_that_moves() {
        let mut guard = guard_that_knows(&[(F0, 1.0)]);
        assert_eq!(refused(&mut guard, &[100.0, 90.0, 1.0]), [false; 3]);
        assert_eq!(refused(&mut guard, &[100.0, 90.0]), [false; 2]);
        assert_eq!(refused(&mut guard, &[100.0, 1.0]), [true, false], "either of two may be refused");
    }

    #[test]
    fn a_run_whose_updates_have_grown_for_good_does_not_stand_still() {
        let mut guard = guard_that_knows(&[(F0, 1.0)]);
        for _ in 0..EMPTY_ROUNDS_MAX {
            assert_eq!(refused(&mut guard, &[100.0]), [true]);
        }
        for _ in 0..100 {
            assert_eq!(refused(&mut guard, &[100.0]), [false]);
        }
    }

    #[test]
    fn a_quiet_fragment_is_measured_by_a_typical_one() {
        let mut guard = guard_that_knows(&[(F0, 0.001), (F1, 1.0), (FragmentId(2), 1.0)]);
        assert_eq!(refused(&mut guard, &[0.001, 0.5, 0.0]), [false; 3]);
        assert_eq!(refused(&mut guard, &[0.001, 50.0, 0.0]), [false, true, false]);
        let mut alone = guard_that_knows(&[(F0, 0.001)]);
        assert_eq!(refused(&mut alone, &[0.001, 0.5, 0.0]), [false, true, false]);
    }

    #[test]
    fn rounds_with_nothing_in_them_do_not_make_the_next_something_too_large() {
        let mut guard = guard_that_knows(&[(F0, 1.0)]);
        (0..100).for_each(|_| assert_eq!(refused(&mut guard, &[0.0, 0.0]), [false; 2]));
        assert_eq!(refused(&mut guard, &[0.0, 1.0]), [false; 2]);
        assert_eq!(guard.histories[&F0].sizes.len(), 13, "and memory is bounded");
        (0..100).for_each(|_| drop(guard.judge(F0, false, &[1.0; 50])));
        assert_eq!(guard.histories[&F0].sizes.len(), SIZES_KEPT);
    }

    #[test]
    fn of_an_even_number_the_median_is_the_lower_one() {
        assert_eq!(lower_median(&[3.0, 1.0]), Some(1.0));
        assert_eq!(lower_median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(lower_median(&[]), None);
    }
}
