//! AdamW in f64 (Loshchilov & Hutter 2019), also with a frozen second moment.

use longhaul_common::config::TrainConfig;

use super::tensors::TensorAt;

/// Floor of a frozen v̂, relative to its tensor's mean.
const FROZEN_FLOOR: f64 = 0.01;

/// A member's parameters and moments.
#[derive(Clone)]
pub struct State {
    pub parameters: Vec<f64>,
    pub first: Vec<f64>,
    pub second: Vec<f64>,
    pub updates: i32,
}

/// The `[train]` keys of a step, and its learning rate.
pub struct Step<'a> {
    pub train: &'a TrainConfig,
    pub tensors: &'a [TensorAt],
    pub rate: f64,
    /// Whether a frozen v̂ has a floor.
    pub floor: bool,
}

/// The gradient, scaled down to the norm `limit` if longer.
pub fn clipped(gradient: &[f64], limit: f64) -> Vec<f64> {
    let norm = gradient.iter().map(|value| value * value).sum::<f64>().sqrt();
    gradient.iter().map(|value| value * (limit / norm).min(1.0)).collect()
}

impl State {
    pub fn new(parameters: Vec<f64>) -> Self {
        let zeros = vec![0.0; parameters.len()];
        Self { parameters, first: zeros.clone(), second: zeros, updates: 0 }
    }

    /// β₁·m + (1 − β₁)·g
    pub fn momentum(&self, train: &TrainConfig, gradient: &[f64]) -> Vec<f64> {
        let mix = |(m, g): (&f64, &f64)| train.beta1 * m + (1.0 - train.beta1) * g;
        self.first.iter().zip(gradient).map(mix).collect()
    }

    /// θ ← (1 − γλ)·θ − γ·m̂ / (√v̂ + ε), with the gradient clipped.
    pub fn adamw(&mut self, step: &Step<'_>, gradient: &[f64]) {
        let train = step.train;
        let gradient = clipped(gradient, train.gradient_clip);
        self.updates += 1;
        self.first = self.momentum(train, &gradient);
        for (v, g) in self.second.iter_mut().zip(&gradient) {
            *v = train.beta2 * *v + (1.0 - train.beta2) * g * g;
        }
        let [first, second] = [train.beta1, train.beta2].map(|beta| 1.0 - beta.powi(self.updates));
        let direction = |(m, v): (&f64, &f64)| m / first / ((v / second).sqrt() + train.epsilon);
        let direction: Vec<f64> = self.first.iter().zip(&self.second).map(direction).collect();
        self.descend(step, &direction);
    }

    /// m ← μ·m + g, θ ← (1 − γλ)·θ − γ·m, with the gradient clipped: SGD.
    pub fn sgd(&mut self, step: &Step<'_>, gradient: &[f64]) {
        let momentum = step.train.sgd.clone().unwrap_or_default().momentum;
        let gradient = clipped(gradient, step.train.gradient_clip);
        self.first.iter_mut().zip(&gradient).for_each(|(m, g)| *m = momentum * *m + g);
        let direction = self.first.clone();
        self.descend(step, &direction);
    }

    /// The same with v̂ and m unchanged: a local step of a member.
    pub fn frozen(&mut self, step: &Step<'_>, gradient: &[f64]) {
        self.first = self.momentum(step.train, gradient);
        let correction = 1.0 - step.train.beta2.powi(self.updates);
        self.descend_frozen(step, correction);
    }

    /// The same with v unchanged and a mean in place of m: 1-bit Adam.
    pub fn onebit(&mut self, step: &Step<'_>, mean: &[f64]) {
        self.first = mean.to_vec();
        self.descend_frozen(step, 1.0);
    }

    fn descend_frozen(&mut self, step: &Step<'_>, correction: f64) {
        let mut direction = self.first.clone();
        for tensor in step.tensors {
            let v: Vec<f64> = self.second[tensor.range.clone()].iter().map(|v| v / correction).collect();
            let mean = v.iter().sum::<f64>() / v.len() as f64;
            let floor = if step.floor { FROZEN_FLOOR * mean } else { 0.0 };
            for (direction, v) in direction[tensor.range.clone()].iter_mut().zip(&v) {
                *direction /= v.max(floor).sqrt() + step.train.epsilon;
            }
        }
        self.descend(step, &direction);
    }

    /// θ ← (1 − γλ)·θ − γ·direction, with λ for matrices only.
    pub fn descend(&mut self, step: &Step<'_>, direction: &[f64]) {
        for tensor in step.tensors {
            let decay = if tensor.shape.is_some() { step.rate * step.train.weight_decay } else { 0.0 };
            let values =
                self.parameters[tensor.range.clone()].iter_mut().zip(&direction[tensor.range.clone()]);
            values.for_each(|(value, direction)| *value = (1.0 - decay) * *value - step.rate * direction);
        }
    }
}
