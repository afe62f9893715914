//! Unequal shares of a step.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Weights of the workers that share steps, with their sums: each share costs two divisions, whatever their
/// number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct Weights {
    each: Vec<u32>,
    /// Cumulative sums.
    upto: Vec<u64>,
}

impl Weights {
    /// Returns the weights.
    #[must_use]
    pub fn each(&self) -> &[u32] {
        &self.each
    }

    /// Whether there is one weight per member, and at least one is positive.
    #[must_use]
    pub fn are_for(&self, members: usize) -> bool {
        self.each.len() == members && self.all() > 0
    }

    /// Returns a member's samples of a step of `batch`, in proportion to within one sample. Empty if all
    /// weights are zero.
    #[must_use]
    pub fn share(&self, batch: u64, member: usize) -> Range<u64> {
        let all = u128::from(self.all().max(1));
        let at = |count: usize| {
            let upto = self.upto.get(count).copied().unwrap_or_else(|| self.all());
            // At most the batch, so it fits.
            (u128::from(batch) * u128::from(upto) / all) as u64
        };
        at(member)..at(member.saturating_add(1))
    }

    fn all(&self) -> u64 {
        self.upto.last().copied().unwrap_or_default()
    }
}

impl Default for Weights {
    /// No weights: even shares.
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl From<Vec<u32>> for Weights {
    fn from(each: Vec<u32>) -> Self {
        let mut upto = vec![0_u64];
        // Sums of as many weights as fit in memory cannot overflow.
        upto.extend(each.iter().scan(0_u64, |sum, &weight| {
            *sum = sum.saturating_add(weight.into());
            Some(*sum)
        }));
        Self { each, upto }
    }
}

impl From<Weights> for Vec<u32> {
    fn from(weights: Weights) -> Self {
        weights.each
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampler::share;

    /// Returns a share computed from all weights at once.
    fn plain(batch: u64, weights: &[u32], member: usize) -> Range<u64> {
        let upto = |count: usize| weights.iter().take(count).map(|&weight| u128::from(weight)).sum::<u128>();
        let at = |count: usize| (u128::from(batch) * upto(count) / upto(weights.len()).max(1)) as u64;
        at(member)..at(member + 1)
    }

    #[test]
    fn a_list_of_none_is_for_nobody_and_is_written_as_a_list() {
        let none = Weights::default();
        assert!(!none.are_for(0) && !Weights::from(vec![0, 0]).are_for(2));
        assert_eq!((none.share(7, 0), none.share(7, usize::MAX)), (0..0, 0..0));
        let some = Weights::from(vec![64, 300]);
        assert!(some.are_for(2) && !some.are_for(3));
        let written = toml::Value::try_from(&some).unwrap();
        assert_eq!(written, toml::Value::try_from(vec![64_u32, 300]).unwrap());
        assert_eq!(written.try_into::<Weights>().unwrap(), some);
    }

    proptest! {
        #[test]
        fn parts_are_what_they_are_when_all_weights_are_added_up_for_each(
            batch in prop_oneof![0_u64..5000, any::<u64>()], weights in proptest::collection::vec(any::<u32>(), 0..50)
        ) {
            let summed = Weights::from(weights.clone());
            for member in 0..weights.len() + 2 {
                prop_assert_eq!(summed.share(batch, member), plain(batch, &weights, member));
            }
        }

        #[test]
        fn members_of_any_weights_share_each_step_in_proportion_and_without_gap(
            batch in 0_u64..5000, each in proptest::collection::vec(0_u32..100, 1..50)
        ) {
            let weights = Weights::from(each.clone());
            let parts: Vec<_> = (0..each.len()).map(|member| weights.share(batch, member)).collect();
            let all: u32 = each.iter().sum();
            prop_assert_eq!(parts[0].start, 0);
            prop_assert_eq!(parts[parts.len() - 1].end, if all > 0 { batch } else { 0 });
            for (pair, weight) in parts.windows(2).zip(&each) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                let exact = batch as f64 * f64::from(*weight) / f64::from(all.max(1));
                prop_assert!(((pair[0].end - pair[0].start) as f64 - exact).abs() < 1.0);
            }
            let even = Weights::from(vec![7; each.len()]);
            for member in 0..each.len() {
                prop_assert_eq!(even.share(batch, member), share(batch, each.len(), member));
            }
        }
    }
}
