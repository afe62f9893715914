//! The maximum of the last few slots.

use std::collections::VecDeque;

/// The maximum over the current and the `SLOTS - 1` previous slots; the owner defines a slot by advancing.
#[derive(Debug, Clone)]
pub(super) struct WindowedMax<const SLOTS: usize> {
    slots: VecDeque<f64>,
}

impl<const SLOTS: usize> WindowedMax<SLOTS> {
    pub(super) fn new() -> Self {
        Self { slots: VecDeque::from([0.0]) }
    }

    /// Records `value` in the current slot.
    pub(super) fn observe(&mut self, value: f64) {
        if let Some(current) = self.slots.back_mut() {
            *current = current.max(value);
        }
    }

    /// Opens a new slot and drops the oldest.
    pub(super) fn advance(&mut self) {
        self.slots.push_back(0.0);
        while self.slots.len() > SLOTS {
            self.slots.pop_front();
        }
    }

    /// Returns the smallest of the closed slots' maxima, which each of them reached.
    pub(super) fn min_closed(&self) -> f64 {
        let closed = self.slots.len().saturating_sub(1);
        let min = self.slots.iter().take(closed).copied().fold(f64::INFINITY, f64::min);
        if min.is_finite() { min } else { 0.0 }
    }

    pub(super) fn max(&self) -> f64 {
        self.slots.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_forgotten_when_its_slot_leaves_the_window() {
        let mut filter = WindowedMax::<2>::new();
        filter.observe(5.0);
        filter.observe(3.0);
        filter.advance();
        filter.observe(4.0);
        assert_eq!(filter.max(), 5.0);
        filter.advance();
        assert_eq!(filter.max(), 4.0);
        filter.advance();
        assert_eq!(filter.max(), 0.0);
    }
}
