//! The outer optimiser: the effect of a mean delta on the synchronised parameters.

use longhaul_common::config::SyncConfig;
use multiversion::multiversion;

/// SGD with Nesterov momentum as in DiLoCo (Douillard et al., arXiv 2311.08105). The gradient is a round's mean delta Δ = mean(θ_g − θ_i): b ← μ·b + Δ, θ_g ←
/// θ_g − η·(Δ + μ·b). With μ = 0 it is plain SGD without memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterStep {
    /// η.
    pub learning_rate: f32,
    /// μ.
    pub momentum: f32,
}

impl OuterStep {
    /// Reports whether b must be kept.
    #[must_use]
    pub fn has_memory(self) -> bool {
        self.momentum > 0.0
    }

    /// Makes one step of some parameters, in slices of equal length, with the same bits on every member. `memory` is b, or empty without momentum.
    pub fn apply(self, parameters: &mut [f32], memory: &mut [f32], mean: &[f32]) {
        match self.has_memory() {
            true => step_with_memory(self, parameters, memory, mean),
            false => step_without_memory(self.learning_rate, parameters, mean),
        }
    }
}

#[multiversion(targets = "simd")]
fn step_without_memory(learning_rate: f32, parameters: &mut [f32], mean: &[f32]) {
    parameters.iter_mut().zip(mean).for_each(|(parameter, mean)| *parameter -= learning_rate * mean);
}

#[multiversion(targets = "simd")]
fn step_with_memory(step: OuterStep, parameters: &mut [f32], memory: &mut [f32], mean: &[f32]) {
    let OuterStep { learning_rate, momentum } = step;
    for ((parameter, memory), mean) in parameters.iter_mut().zip(memory).zip(mean) {
        *memory = momentum * *memory + mean;
        *parameter -= learning_rate * (mean + momentum * *memory);
    }
}

/// Returns the outer step of a run.
#[must_use]
pub fn outer_step(config: &SyncConfig) -> OuterStep {
    OuterStep { learning_rate: config.outer_learning_rate, momentum: config.outer_momentum }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten steps against the two formulas in f64.
    #[test]
    fn it_follows_the_formulas() {
        let step = OuterStep { learning_rate: 0.7, momentum: 0.9 };
        let (mut parameters, mut memory) = (vec![1.0f32, -2.0, 0.5], vec![0.0f32; 3]);
        let (mut exact, mut b) = (vec![1.0f64, -2.0, 0.5], [0.0f64; 3]);
        for round in 0..10 {
            let mean: Vec<f32> = (0..3).map(|i| ((round * 7 + i * 3) % 11) as f32 / 11.0 - 0.4).collect();
            step.apply(&mut parameters, &mut memory, &mean);
            for i in 0..3 {
                b[i] = 0.9 * b[i] + f64::from(mean[i]);
                exact[i] -= 0.7 * (f64::from(mean[i]) + 0.9 * b[i]);
            }
        }
        for (got, exact) in parameters.iter().zip(&exact) {
            assert!((f64::from(*got) - exact).abs() < 1e-5, "{got} is not {exact}");
        }
    }

    #[test]
    fn without_momentum_it_subtracts_the_mean() {
        let mut parameters = vec![1.0, 2.0];
        OuterStep { learning_rate: 0.5, momentum: 0.0 }.apply(&mut parameters, &mut [], &[1.0, -1.0]);
        assert_eq!(parameters, [0.5, 2.5]);
    }
}
