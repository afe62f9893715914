//! What a worker keeps in memory for its part of a model.

use super::BlockCost;
use crate::config::{Source, SyncConfig};
use crate::pipeline::Held;

/// Of each parameter: its value, its gradient and two moments in f32,
const TRAINED_BYTES: f64 = 16.0;
/// and for the exchange, where it is at its most, while a checkpoint is written beside a round: the synchronised value and the one that was drawn, the update on its way from the
/// device and to it, the mean, frames, and the copies that are written. Measured (docs/benchmarks/plan.md).
const EXCHANGED_BYTES: f64 = 38.0;
/// A residual, and what it was before the round that is not decided yet; the same of momentum that waits with it; moments that all members share.
const PAIR_BYTES: f64 = 8.0;
/// Gradients of all parameters in f32, in the frames of a round: what comes and goes in each step.
const FRAMES_BYTES: f64 = 20.0;

/// Bytes of a parameter in the memory of a worker, with what its strategy keeps of it. On a GPU some of them are in the machine's memory, which is not told apart.
#[must_use]
pub fn parameter_bytes(sync: &SyncConfig) -> f64 {
    let keeps_residual = sync.has_residual() && sync.leaves_something() || sync.rank > 0;
    let owns_residual = sync.results_leave_something();
    let is_gradient = sync.source.is_gradient();
    let shares_moments = sync.opens_with_gradients() || is_gradient;
    let has_velocity = sync.source == Source::CorrectedGradient;
    let pairs =
        [keeps_residual, owns_residual, shares_moments, has_velocity].map(u8::from).iter().sum::<u8>();
    let frames = if is_gradient && !keeps_residual { FRAMES_BYTES } else { 0.0 };
    TRAINED_BYTES + EXCHANGED_BYTES + PAIR_BYTES * f64::from(pairs) + frames
}

/// What a row of blocks keeps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageBytes {
    /// Between steps.
    pub fixed: f64,
    /// Of each micro-batch between its forward and its backward pass,
    pub each: f64,
    /// of each between its backward pass and the gradients of its weights, where those are put off,
    pub left: f64,
    /// and of one of them while its activations are computed again.
    pub once: f64,
}

impl StageBytes {
    /// With micro-batches of so many tokens, and so many bytes of each parameter.
    #[must_use]
    pub fn of(blocks: &[BlockCost], recompute: bool, tokens: f64, parameter_bytes: f64) -> Self {
        let sum = |of: fn(&BlockCost) -> u64| blocks.iter().map(of).sum::<u64>() as f64;
        let activations = |block: &BlockCost| block.activation_bytes_per_token;
        let fixed = sum(|block| block.parameters) * parameter_bytes;
        let left = sum(|block| block.left_bytes_per_token) * tokens;
        if recompute {
            let largest = blocks.iter().map(activations).max().unwrap_or(0) as f64;
            let each = sum(|block| block.boundary_bytes_per_token) * tokens;
            return Self { fixed, each, left, once: largest * tokens };
        }
        Self { fixed, each: sum(activations) * tokens, left, once: 0.0 }
    }

    /// All of it, with so many micro-batches at a time.
    #[must_use]
    pub fn with(&self, kept: u32) -> f64 {
        self.fixed + f64::from(kept) * self.each + self.once
    }

    /// What several rows of blocks on one worker keep, with the most of what is held at one time or another: as if all of it were of the largest row.
    #[must_use]
    pub fn holding(stages: &[Self], most: &[Held]) -> f64 {
        let fixed: f64 = stages.iter().map(|stage| stage.fixed).sum();
        let of = |stage: &Self, held: &Held| {
            f64::from(held.open) * stage.each + f64::from(held.left) * stage.left + stage.once
        };
        let all = stages.iter().flat_map(|stage| most.iter().map(move |held| of(stage, held)));
        fixed + all.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SyncPreset;

    /// As processes took, or more; at most 5 % less (docs/benchmarks/plan.md).
    #[test]
    fn a_strategy_takes_what_it_keeps() {
        for (preset, measured) in [
            (SyncPreset::Auto, 78.2),
            (SyncPreset::SparseLocal, 61.7),
            (SyncPreset::Dense, 81.1),
            (SyncPreset::Diloco, 48.4),
            (SyncPreset::Powersgd, 71.8),
            (SyncPreset::Demo, 69.8),
            (SyncPreset::OnebitAdam, 67.6),
            (SyncPreset::Dgc, 77.8),
        ] {
            let ratio = parameter_bytes(&SyncConfig::of(preset)) / measured;
            assert!((0.95..1.2).contains(&ratio), "{preset:?}: {ratio}");
        }
    }

    /// While one is put off, what is left of it is in the place of its activations.
    #[test]
    fn what_is_put_off_counts_as_what_is_left_of_it() {
        let stage = StageBytes { fixed: 1000.0, each: 10.0, left: 7.0, once: 1.0 };
        let small = StageBytes { fixed: 100.0, each: 1.0, left: 20.0, once: 0.0 };
        let most = [Held { open: 3, left: 0 }, Held { open: 1, left: 3 }];
        assert_eq!(StageBytes::holding(&[stage], &most), 1000.0 + 10.0 + 21.0 + 1.0);
        assert_eq!(StageBytes::holding(&[stage, small], &most), 1100.0 + 61.0);
        assert_eq!(StageBytes::holding(&[stage, small], &[Held { open: 3, left: 0 }]), 1100.0 + 31.0);
        assert_eq!(StageBytes::holding(&[], &[Held { open: 3, left: 0 }]), 0.0);
    }
}
