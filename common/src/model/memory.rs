//! What a worker keeps in memory for its part of a model.

use super::BlockCost;

/// Of each parameter: its value, its gradient and two moments in f32,
const TRAINED_BYTES: f64 = 16.0;
/// and for the exchange: the synchronised value, the residual, and the update on its way.
const SYNCHRONISED_BYTES: f64 = 12.0;

/// What a row of blocks keeps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageBytes {
    /// Between steps.
    pub fixed: f64,
    /// Of each micro-batch between its forward and its backward pass,
    pub each: f64,
    /// and of one of them while its activations are computed again.
    pub once: f64,
}

impl StageBytes {
    /// With micro-batches of so many tokens.
    #[must_use]
    pub fn of(blocks: &[BlockCost], recompute: bool, tokens: f64) -> Self {
        let sum = |of: fn(&BlockCost) -> u64| blocks.iter().map(of).sum::<u64>() as f64;
        let activations = |block: &BlockCost| block.activation_bytes_per_token;
        let fixed = sum(|block| block.parameters) * (TRAINED_BYTES + SYNCHRONISED_BYTES);
        if recompute {
            let largest = blocks.iter().map(activations).max().unwrap_or(0) as f64;
            let each = sum(|block| block.boundary_bytes_per_token) * tokens;
            return Self { fixed, each, once: largest * tokens };
        }
        Self { fixed, each: sum(activations) * tokens, once: 0.0 }
    }

    /// All of it, with so many micro-batches at a time.
    #[must_use]
    pub fn with(&self, kept: u32) -> f64 {
        self.fixed + f64::from(kept) * self.each + self.once
    }

    /// What several rows of blocks on one worker keep, with so many micro-batches and rows at a time: as if all that are kept were of the largest.
    #[must_use]
    pub fn together(stages: &[Self], kept: u32) -> f64 {
        let fixed: f64 = stages.iter().map(|stage| stage.fixed).sum();
        let activations = stages.iter().map(|stage| stage.with(kept) - stage.fixed).fold(0.0, f64::max);
        fixed + activations
    }
}
