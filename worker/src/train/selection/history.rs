//! The recent losses for comparison.

use std::collections::VecDeque;

/// A bounded ring of losses; the oldest are dropped.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct History {
    losses: VecDeque<f32>,
    len_max: usize,
}

impl History {
    pub fn new(len_max: usize) -> Self {
        Self { losses: VecDeque::with_capacity(len_max), len_max }
    }

    /// Adds a loss. NaN is ignored.
    pub fn push(&mut self, loss: f32) {
        if loss.is_nan() {
            return;
        }
        if self.losses.len() == self.len_max {
            self.losses.pop_front();
        }
        self.losses.push_back(loss);
    }

    /// Returns the losses, oldest first.
    pub fn to_vec(&self) -> Vec<f32> {
        self.losses.iter().copied().collect()
    }

    /// Returns the present losses for comparison.
    pub fn sorted(&self) -> Sorted {
        let mut losses = self.to_vec();
        losses.sort_unstable_by(f32::total_cmp);
        Sorted(losses)
    }
}

/// The losses at one moment, ascending.
#[derive(Debug)]
pub(super) struct Sorted(Vec<f32>);

impl Sorted {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the share of smaller losses, from 0 to 1; equal ones count half. NaN yields 1, so that the sample is selected.
    pub fn percentile(&self, loss: f32) -> f64 {
        if loss.is_nan() || self.0.is_empty() {
            return 1.0;
        }
        let smaller = self.0.partition_point(|other| *other < loss);
        let up_to = self.0.partition_point(|other| *other <= loss);
        (smaller + up_to) as f64 / (2 * self.0.len()) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let mut history = History::new(3);
        [4.0, f32::NAN, 1.0, 3.0, 2.0].into_iter().for_each(|loss| history.push(loss));
        assert_eq!(history.to_vec(), [1.0, 3.0, 2.0]);
    }

    #[test]
    fn a_percentile_is_the_share_of_smaller_losses() {
        let mut history = History::new(8);
        [1.0, 2.0, 2.0, 4.0].into_iter().for_each(|loss| history.push(loss));
        let found =
            [0.5, 1.0, 2.0, 3.0, 9.0, f32::INFINITY, f32::NAN].map(|loss| history.sorted().percentile(loss));
        assert_eq!(found, [0.0, 0.125, 0.5, 0.75, 1.0, 1.0, 1.0]);
        assert_eq!(History::new(8).sorted().percentile(3.0), 1.0, "nothing is known to be larger");
    }
}
