//! AdamW (Loshchilov & Hutter 2019, "Decoupled weight decay regularization").

use longhaul_common::config::TrainConfig;
use longhaul_common::model::ParameterSpec;
use tch::{Device, Kind, TchError, Tensor};

use crate::fused::{UpdateFactors, UpdateTensors, fused_adamw};
use crate::models::views;

/// φ: least divisor of a gradient under a frozen second moment, as a share of the root mean square of its tensor's gradients.
const FROZEN_FLOOR: f64 = 0.1;

/// β₂ of a frozen second moment: the largest number below 1, which f32 rounds to 1. The kernel then adds 1.1·10⁻¹⁶ of a gradient's square, below rounding
/// above the floor, unless that gradient is 1600 times its tensor's usual ones.
const FROZEN_BETA2: f64 = 1.0 - f64::EPSILON / 2.0;

/// Number of updates with β₁ᵗ and [`FROZEN_BETA2`]ᵗ equal to zero: moments need no correction.
const CORRECTED_LONG_AGO: f64 = 1e30;

/// The optimiser's memory, laid out like the parameters.
#[derive(Debug)]
pub(crate) struct AdamW {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    first: Tensor,  // [P]
    second: Tensor, // [P]
    first_views: Vec<Tensor>,
    second_views: Vec<Tensor>,
    /// Number of tensors, from the first, subject to weight decay.
    decayed: usize,
    updates: u64,
    step: Tensor, // [], the updates as a float
    /// max(v̂, φ²·mean(v̂)) of each tensor, while the second moment is frozen.
    frozen: Option<Vec<Tensor>>,
}

impl AdamW {
    /// Of these tensors, matrices first.
    pub fn new(train: &TrainConfig, tensors: &[ParameterSpec], device: Device) -> Result<Self, TchError> {
        let count: u64 = tensors.iter().map(ParameterSpec::count).sum();
        let zeros = || Tensor::f_zeros([count as i64], (Kind::Float, device));
        let (first, second) = (zeros()?, zeros()?);
        let (first_views, second_views) = (views(tensors, &first)?, views(tensors, &second)?);
        let decayed = tensors.iter().take_while(|tensor| tensor.is_matrix()).count();
        let step = Tensor::f_zeros([0i64; 0], (Kind::Float, device))?;
        let TrainConfig { beta1, beta2, epsilon, weight_decay, .. } = *train;
        Ok(Self {
            beta1,
            beta2,
            epsilon,
            weight_decay,
            first,
            second,
            first_views,
            second_views,
            decayed,
            updates: 0,
            step,
            frozen: None,
        })
    }

    /// Updates the parameter tensors in place, with their `gradients` over `divisor`, which has one value. The gradients are divided in place.
    pub fn update(
        &mut self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), TchError> {
        self.require_alike(parameters, gradients)?;
        self.frozen = None;
        self.updates += 1;
        let _ = self.step.f_fill_(self.updates as f64)?;
        let tensors =
            UpdateTensors { parameters, gradients, first: &self.first_views, second: &self.second_views };
        self.fused(tensors, self.beta2, learning_rate, divisor)
    }

    fn require_alike(&self, parameters: &[Tensor], gradients: &[Tensor]) -> Result<(), TchError> {
        let (parameters, gradients, moments) = (parameters.len(), gradients.len(), self.first_views.len());
        if parameters == moments && gradients == moments {
            return Ok(());
        }
        Err(TchError::Shape(format!(
            "AdamW has moments of {moments} tensors, not of {parameters} with {gradients} gradients"
        )))
    }

    /// Applies the kernel to all tensors, some with weight decay, with the present `step`.
    fn fused(
        &self,
        tensors: UpdateTensors<'_>,
        beta2: f64,
        learning_rate: f64,
        gradient_divisor: Option<&Tensor>,
    ) -> Result<(), TchError> {
        let (decayed, others) = tensors.split_at(self.decayed);
        for (tensors, weight_decay) in [(decayed, self.weight_decay), (others, 0.0)] {
            let factors = UpdateFactors {
                step: &self.step,
                gradient_divisor,
                learning_rate,
                beta1: self.beta1,
                beta2,
                weight_decay,
                epsilon: self.epsilon,
            };
            fused_adamw(tensors, factors)?;
        }
        Ok(())
    }

    /// m ← β₁·m + (1 − β₁)·g, θ ← (1 − γλ)·θ − γ·m / (√v̂ + ε), with v unchanged: linear in the gradients, so that the mean of many such steps is a step of
    /// the mean (0/1 Adam: Lu et al. 2022, arXiv 2202.06009). After t updates v̂ is v / (1 − β₂ᵗ), or φ² times its mean over the tensor if larger: a
    /// parameter without gradients so far, as of a rare token, must not move without bound. Does not count as an update. The gradients are divided in place.
    pub fn update_frozen(
        &mut self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), TchError> {
        self.require_alike(parameters, gradients)?;
        self.freeze()?;
        if self.step.device().is_cuda() {
            return self.plain_frozen(parameters, gradients, learning_rate, divisor);
        }
        let second = self.frozen.as_deref().unwrap_or_default();
        let _ = self.step.f_fill_(CORRECTED_LONG_AGO)?;
        let tensors = UpdateTensors { parameters, gradients, first: &self.first_views, second };
        self.fused(tensors, FROZEN_BETA2, learning_rate, divisor)
    }

    fn freeze(&mut self) -> Result<(), TchError> {
        if self.frozen.is_none() {
            let updates = i32::try_from(self.updates).unwrap_or(i32::MAX);
            self.frozen = Some(self.floored(1.0 - self.beta2.powi(updates))?);
        }
        Ok(())
    }

    /// [`Self::update_frozen`] by plain operators: on a GPU the kernel converts its numbers to f32, so β₂ becomes 1 and the corrections 0/0.
    fn plain_frozen(
        &self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), TchError> {
        let second = self.frozen.as_deref().unwrap_or_default();
        for (at, parameters) in parameters.iter().enumerate() {
            let gradient = match divisor {
                Some(divisor) => gradients[at].shallow_clone().f_div_(divisor)?,
                None => gradients[at].shallow_clone(),
            };
            let mut first = self.first_views[at].shallow_clone();
            let _ = first.f_mul_scalar_(self.beta1)?.f_add_(&gradient.f_mul_scalar(1.0 - self.beta1)?)?;
            let decay = if at < self.decayed { learning_rate * self.weight_decay } else { 0.0 };
            let divided = first.f_div(&second[at].f_sqrt()?.f_add_scalar_(self.epsilon)?)?;
            let change = divided.f_mul_scalar(-learning_rate)?;
            tch::no_grad(|| {
                let mut parameters = parameters.shallow_clone();
                let _ = parameters.f_mul_scalar_(1.0 - decay)?.f_add_(&change)?;
                Ok::<_, TchError>(())
            })?;
        }
        Ok(())
    }

    /// Returns m / (√max(v, φ²·mean(v)) + ε) `[P]`, with the given m, and v and its mean as in [`Self::update_frozen`], but not corrected.
    pub fn frozen_direction(&self) -> Result<Tensor, TchError> {
        let direction = |(first, second): (&Tensor, Tensor)| {
            first.f_div(&second.f_sqrt()?.f_add_scalar_(self.epsilon)?)?.f_flatten(0, -1)
        };
        let directions = self.first_views.iter().zip(self.floored(1.0)?).map(direction);
        Tensor::f_cat(&directions.collect::<Result<Vec<_>, _>>()?, 0)
    }

    /// Returns max(v̂, φ²·mean(v̂)), tensor by tensor, with v̂ = v / `correction`.
    fn floored(&self, correction: f64) -> Result<Vec<Tensor>, TchError> {
        let floored = |second: &Tensor| {
            let second = second.f_div_scalar(correction)?;
            let least = second.f_mean(Kind::Float)?.f_mul_scalar(FROZEN_FLOOR * FROZEN_FLOOR)?;
            second.f_maximum(&least)
        };
        self.second_views.iter().map(floored).collect()
    }

    /// Returns m̂ / (√v̂ + ε), with the moments after a hypothetical update with this gradient `[P]`, without weight decay.
    pub fn direction_with(&self, gradient: &Tensor) -> Result<Tensor, TchError> {
        let updates = i32::try_from(self.updates + 1).unwrap_or(i32::MAX);
        let corrections = [self.beta1, self.beta2].map(|beta| 1.0 - beta.powi(updates));
        let mut scale = self.second.f_mul_scalar(self.beta2 / corrections[1])?;
        let _ = scale.f_add_(&gradient.f_square()?.f_mul_scalar_((1.0 - self.beta2) / corrections[1])?)?;
        let scale = scale.f_sqrt_()?.f_add_scalar_(self.epsilon)?;
        let mut mean = self.first.f_mul_scalar(self.beta1 / corrections[0])?;
        let _ = mean.f_add_(&gradient.f_mul_scalar((1.0 - self.beta1) / corrections[0])?)?;
        mean.f_div_(&scale)
    }

    pub fn beta1(&self) -> f64 {
        self.beta1
    }

    pub fn replace_first(&mut self, first: &Tensor) -> Result<(), TchError> {
        self.first.f_copy_(first)
    }

    pub fn first(&self) -> &Tensor {
        &self.first
    }

    pub fn second(&self) -> &Tensor {
        &self.second
    }

    /// Returns the views of each tensor's moments.
    pub fn moments(&self) -> [&[Tensor]; 2] {
        [&self.first_views, &self.second_views]
    }

    pub fn updates(&self) -> u64 {
        self.updates
    }

    pub fn load(&mut self, first: &Tensor, second: &Tensor, updates: u64) -> Result<(), TchError> {
        self.first.f_copy_(first)?;
        self.second.f_copy_(second)?;
        self.loaded(updates);
        Ok(())
    }

    /// Counts the moments, which were written through [`Self::moments`], as those behind so many updates.
    pub fn loaded(&mut self, updates: u64) {
        self.frozen = None;
        self.updates = updates;
    }

    pub fn reset(&mut self) -> Result<(), TchError> {
        let _ = self.first.f_zero_()?;
        let _ = self.second.f_zero_()?;
        self.frozen = None;
        self.updates = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Parameters, views_of};
    use crate::testing::test_device;
    use longhaul_common::model::tiny::tiny_gpt2;

    fn there(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).to_device(test_device())
    }

    /// The formulas of the paper in f64, over many updates, with and without a divisor.
    #[test]
    fn updates_follow_the_formulas_in_f64() {
        let spec = tiny_gpt2();
        let train = TrainConfig { weight_decay: 0.3, epsilon: 1e-6, ..TrainConfig::default() };
        let (len, decayed) = (spec.parameter_count() as usize, spec.decayed_count() as usize);
        assert!(0 < decayed && decayed < len);
        let wave = |i: usize, t: usize| ((i * 37 + t * 101) % 997) as f64 / 500.0 - 1.0;
        let start: Vec<f32> = (0..len).map(|i| wave(i, 0) as f32).collect();
        let parameters = Parameters::new(&spec, &start, test_device()).unwrap();
        let mut adamw = AdamW::new(&train, &spec.parameters(), test_device()).unwrap();

        let mut theta: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
        let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
        for t in 1..=20 {
            let (rate, divisor) = (0.01 / t as f64, if t % 2 == 0 { 1.0 } else { 2.0 });
            let g: Vec<f32> = (0..len).map(|i| wave(i, t) as f32).collect();
            let gradients = views_of(&spec, &there(&g)).unwrap();
            let tensor = Tensor::from(divisor as f32).to_device(test_device());
            let given = (divisor != 1.0).then_some(&tensor);
            adamw.update(parameters.views(), &gradients, rate, given).unwrap();
            for i in 0..len {
                let g = f64::from(g[i]) / divisor;
                let decay = if i < decayed { 0.3 } else { 0.0 };
                theta[i] *= 1.0 - rate * decay;
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                let (m_hat, v_hat) =
                    (m[i] / (1.0 - 0.9f64.powi(t as i32)), v[i] / (1.0 - 0.95f64.powi(t as i32)));
                theta[i] -= rate * m_hat / (v_hat.sqrt() + 1e-6);
            }
        }
        let result: Vec<f32> = Vec::try_from(parameters.flat()).unwrap();
        for (i, (value, expected)) in result.iter().zip(&theta).enumerate() {
            // Twenty roundings of f32, each within 6e-8 of values below 2.
            assert!((f64::from(*value) - expected).abs() < 2e-6, "{value} for {expected} at {i}");
        }
    }

    #[test]
    fn frozen_updates_follow_their_formula_in_f64_and_leave_the_second_moment() {
        assert_frozen(|adamw, parameters, gradients, rate, divisor| {
            adamw.update_frozen(parameters, gradients, rate, divisor)
        });
    }

    #[test]
    fn frozen_updates_by_plain_operators_follow_the_same_formula() {
        assert_frozen(|adamw, parameters, gradients, rate, divisor| {
            adamw.freeze()?;
            adamw.plain_frozen(parameters, gradients, rate, divisor)
        });
    }

    fn assert_frozen(
        update: impl Fn(&mut AdamW, &[Tensor], &[Tensor], f64, Option<&Tensor>) -> Result<(), TchError>,
    ) {
        let spec = tiny_gpt2();
        let train = TrainConfig { weight_decay: 0.3, epsilon: 1e-6, ..TrainConfig::default() };
        let (len, decayed) = (spec.parameter_count() as usize, spec.decayed_count() as usize);
        let wave = |i: usize, t: usize| ((i * 37 + t * 101) % 997) as f64 / 500.0 - 1.0;
        let start: Vec<f32> = (0..len).map(|i| wave(i, 0) as f32).collect();
        let parameters = Parameters::new(&spec, &start, test_device()).unwrap();
        let mut adamw = AdamW::new(&train, &spec.parameters(), test_device()).unwrap();
        let first: Vec<f32> = (0..len).map(|i| wave(i, 50) as f32).collect();
        // Some are far below the floor.
        let second: Vec<f32> = (0..len).map(|i| wave(i, 60).powi(8) as f32).collect();
        let mut floors = Vec::with_capacity(len);
        for view in views_of(&spec, &there(&second)).unwrap() {
            let values = Vec::<f32>::try_from(view.flatten(0, -1)).unwrap();
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
            floors.extend(values.iter().map(|_| 0.01 * mean));
        }
        assert!(second.iter().zip(&floors).filter(|(v, floor)| f64::from(**v) < **floor).count() > len / 4);
        adamw.load(&Tensor::from_slice(&first), &Tensor::from_slice(&second), 7).unwrap();

        let mut theta: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
        let mut m: Vec<f64> = first.iter().map(|&x| f64::from(x)).collect();
        for t in 1..=20 {
            let (rate, divisor) = (0.01 / t as f64, if t % 2 == 0 { 1.0 } else { 2.0 });
            let g: Vec<f32> = (0..len).map(|i| wave(i, t) as f32).collect();
            let gradients = views_of(&spec, &there(&g)).unwrap();
            let tensor = Tensor::from(divisor as f32).to_device(test_device());
            let given = (divisor != 1.0).then_some(&tensor);
            update(&mut adamw, parameters.views(), &gradients, rate, given).unwrap();
            for i in 0..len {
                m[i] = 0.9 * m[i] + 0.1 * f64::from(g[i]) / divisor;
                let v_hat = f64::from(second[i]).max(floors[i]) / (1.0 - 0.95f64.powi(7));
                theta[i] *= 1.0 - if i < decayed { rate * 0.3 } else { 0.0 };
                theta[i] -= rate * m[i] / (v_hat.sqrt() + 1e-6);
            }
        }
        let result: Vec<f32> = Vec::try_from(parameters.flat()).unwrap();
        for (i, (value, expected)) in result.iter().zip(&theta).enumerate() {
            assert!((f64::from(*value) - expected).abs() < 4e-6, "{value} for {expected} at {i}");
        }
        assert_eq!(Vec::<f32>::try_from(adamw.second()).unwrap(), second);
        assert_eq!(adamw.updates(), 7);
    }

    #[test]
    fn a_rate_of_zero_changes_only_the_moments() {
        let spec = tiny_gpt2();
        let start = vec![0.5; spec.parameter_count() as usize];
        let parameters = Parameters::new(&spec, &start, test_device()).unwrap();
        let mut adamw = AdamW::new(&TrainConfig::default(), &spec.parameters(), test_device()).unwrap();
        let gradients = views_of(&spec, &there(&start)).unwrap();
        adamw.update(parameters.views(), &gradients, 0.0, None).unwrap();
        assert_eq!(Vec::<f32>::try_from(parameters.flat()).unwrap(), start);
        let first = Vec::<f32>::try_from(adamw.first()).unwrap();
        assert!(first.iter().all(|m| (m - 0.05).abs() < 1e-7));
    }
}
