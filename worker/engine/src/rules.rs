//! Steps common to all members, from an exchanged mean: the strategies' alternatives to AdamW.

use tch::{TchError, Tensor};

use super::{Engine, EngineError};
use crate::Batch;
use crate::StepOutcome;

impl Engine {
    /// Computes the gradient of the mean loss over `batch`, its norm clipped to `clip` (0: not clipped), into `into`, which is resized to `[P]`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn clipped_gradient(
        &mut self,
        batch: &Batch,
        clip: f64,
        into: &mut Vec<f32>,
    ) -> Result<StepOutcome, EngineError> {
        let (mut outcome, mut gradients) = self.accumulate(batch)?;
        if let Some(divisor) = self.own_divisor(&gradients, clip, &mut outcome)? {
            gradients.iter_mut().try_for_each(|gradient| gradient.f_div_(&divisor).map(drop))?;
        }
        self.to_host_in_order(&gradients, into)?;
        Ok(outcome)
    }

    /// Computes β₁·m + (1 − β₁)·g with the gradient g of the mean loss over `batch`, clipped as in a local step: a member's contribution in 1-bit Adam. m
    /// stays unchanged.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn momentum(&mut self, batch: &Batch, into: &mut Vec<f32>) -> Result<StepOutcome, EngineError> {
        let outcome = self.clipped_gradient(batch, self.settings.gradient_clip, into)?;
        let adamw = self.optimiser.adamw()?;
        let beta1 = adamw.beta1();
        let gradient = self.to_device(into)?; // [P]
        let momentum = adamw.first().f_mul_scalar(beta1)?.f_add(&gradient.f_mul_scalar(1.0 - beta1)?)?;
        self.link.read_all(&momentum, into)?;
        Ok(outcome)
    }

    /// Returns β₁·m: the part of a [momentum](Self::momentum) that is not the gradient's, and always recurs in the next one.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn decayed_momentum(&self) -> Result<Vec<f32>, EngineError> {
        let (mut decayed, adamw) = (Vec::new(), self.optimiser.adamw()?);
        self.link.read_all(&adamw.first().f_mul_scalar(adamw.beta1())?, &mut decayed)?;
        Ok(decayed)
    }

    /// θ ← (1 − γλ)·θ − γ·mean, with the learning rate γ of the run's `step` and weight decay λ on matrices: SGD, whose momentum is in the mean already (DGC:
    /// Lin et al. 2018).
    ///
    /// # Errors
    /// The length of `mean` is wrong; or libtorch fails.
    pub fn apply_sgd(&mut self, step: u64, mean: &[f32]) -> Result<(), EngineError> {
        let mean = self.to_device(mean)?;
        Ok(self.descend(step, &mean)?)
    }

    /// θ ← (1 − γλ)·θ − γ·sign(mean) (DeMo: Peng et al. 2024).
    ///
    /// # Errors
    /// The length of `mean` is wrong; or libtorch fails.
    pub fn apply_sign(&mut self, step: u64, mean: &[f32]) -> Result<(), EngineError> {
        let mean = self.to_device(mean)?;
        Ok(self.descend(step, &mean.f_sign()?)?)
    }

    /// m ← `momentum`, θ ← (1 − γλ)·θ − γ·m / (√v + ε), with v unchanged: 1-bit Adam after its warm-up (Tang et al. 2021). v is at least φ² times its mean
    /// over the tensor, as in local steps under a frozen v: a value without gradients in the warm-up has v = 0, but a sign like the others.
    ///
    /// # Errors
    /// The length of `momentum` is wrong; or libtorch fails.
    pub fn apply_frozen_adamw(&mut self, step: u64, momentum: &[f32]) -> Result<(), EngineError> {
        let momentum = self.to_device(momentum)?;
        let adamw = self.optimiser.adamw_mut()?;
        adamw.replace_first(&momentum)?;
        let direction = adamw.frozen_direction()?;
        Ok(self.descend(step, &direction)?)
    }

    /// θ ← (1 − γλ)·θ − γ·direction.
    pub(super) fn descend(&mut self, step: u64, direction: &Tensor) -> Result<(), TchError> {
        let rate = self.learning_rate.at(step);
        let mut parameters = self.parameters.flat().shallow_clone();
        let decayed = self.spec.decayed_count() as i64;
        let decay = 1.0 - rate * self.settings.weight_decay;
        let _ = parameters.f_narrow(0, 0, decayed)?.f_mul_scalar_(decay)?;
        let _ = parameters.f_sub_(&direction.f_mul_scalar(rate)?)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::TrainConfig;

    use super::*;
    use crate::testing::test_device;
    use crate::{LearningRate, Moments};
    use longhaul_common::model::tiny::tiny_gpt2;

    fn train() -> TrainConfig {
        TrainConfig { warmup_steps: 0, weight_decay: 0.2, gradient_clip: 0.0, ..TrainConfig::default() }
    }

    fn engine(train: &TrainConfig) -> Engine {
        Engine::new(&tiny_gpt2(), train, 100, 3, test_device(), None).unwrap()
    }

    fn parameters(engine: &Engine) -> Vec<f64> {
        let mut parameters = Vec::new();
        engine.parameters_to_host(&mut parameters).unwrap();
        parameters.into_iter().map(f64::from).collect()
    }

    fn wave(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37) % 997) as f32 / 500.0 - 1.0).collect()
    }

    fn assert_near(got: &[f64], expected: impl Iterator<Item = f64>) {
        for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
            assert!((got - expected).abs() < 2e-6, "parameter {at}: {got} is not {expected}");
        }
    }

    /// Each rule against its formula in f64, with and without weight decay.
    #[test]
    fn the_rules_follow_their_formulas() {
        let train = train();
        let rate = LearningRate::new(&train, 100).at(0);
        let decayed = tiny_gpt2().decayed_count() as usize;
        let decay = |i: usize| if i < decayed { 1.0 - rate * 0.2 } else { 1.0 };
        let mut engine = engine(&train);
        let len = engine.parameter_count();
        let mean = wave(len);
        let before = parameters(&engine);
        let terms = || before.iter().zip(&mean).enumerate();

        engine.apply_sgd(0, &mean).unwrap();
        assert_near(&parameters(&engine), terms().map(|(i, (p, m))| decay(i) * p - rate * f64::from(*m)));

        let start: Vec<f32> = before.iter().map(|&p| p as f32).collect();
        engine.load_parameters(&start).unwrap();
        engine.apply_sign(0, &mean).unwrap();
        let sign = |m: f32| if m == 0.0 { 0.0 } else { f64::from(m.signum()) };
        assert_near(&parameters(&engine), terms().map(|(i, (p, m))| decay(i) * p - rate * sign(*m)));

        engine.load_parameters(&start).unwrap();
        let second: Vec<f32> = mean.iter().map(|m| m * m + 0.01).collect();
        engine.load_moments(&Moments { first: vec![9.0; len], second: second.clone(), updates: 7 }).unwrap();
        engine.apply_frozen_adamw(0, &mean).unwrap();
        let step = |i: usize, m: f32| rate * f64::from(m) / (f64::from(second[i]).sqrt() + train.epsilon);
        assert_near(&parameters(&engine), terms().map(|(i, (p, m))| decay(i) * p - step(i, *m)));
        let moments = engine.moments_to_host().unwrap();
        assert_eq!((moments.first, moments.second), (mean, second));
    }

    /// Every third value had no gradient while v was learnt.
    #[test]
    fn a_sign_moves_a_value_without_a_second_moment_by_the_measure_of_its_tensor() {
        let train = train();
        let rate = LearningRate::new(&train, 100).at(0);
        let mut engine = engine(&train);
        let len = engine.parameter_count();
        let second: Vec<f32> = (0..len).map(|i| if i % 3 == 0 { 0.0 } else { 1e-6 }).collect();
        let (first, before) = (vec![0.0; len], parameters(&engine));
        engine.load_moments(&Moments { first, second: second.clone(), updates: 7 }).unwrap();
        let signs: Vec<f32> = (0..len).map(|i| if i % 2 == 0 { 1e-3 } else { -1e-3 }).collect();
        engine.apply_frozen_adamw(0, &signs).unwrap();

        let (mut expected, mut start) = (Vec::new(), 0);
        for tensor in tiny_gpt2().parameters() {
            let range = start..start + tensor.count() as usize;
            let v: Vec<f64> = second[range.clone()].iter().map(|&v| f64::from(v)).collect();
            let floor = 0.01 * v.iter().sum::<f64>() / v.len() as f64;
            let decay = if tensor.is_matrix() { 1.0 - rate * 0.2 } else { 1.0 };
            expected.extend(range.clone().zip(&v).map(|(i, v)| {
                decay * before[i] - rate * f64::from(signs[i]) / (v.max(floor).sqrt() + train.epsilon)
            }));
            start = range.end;
        }
        assert_near(&parameters(&engine), expected.into_iter());
    }

    #[test]
    fn a_clipped_gradient_has_the_norm_that_was_asked_for_and_momentum_mixes_it_in() {
        let train = TrainConfig { beta1: 0.75, ..train() };
        let mut engine = engine(&train);
        let mut batch = Batch::new(16);
        (0..4u32).for_each(|row| batch.push((0..17).map(|i| (i * i + row * 7) % 64)));
        let (mut whole, mut clipped) = (Vec::new(), Vec::new());
        let outcome = engine.gradient(&batch, &mut whole).unwrap();
        assert_eq!(engine.clipped_gradient(&batch, 0.01, &mut clipped).unwrap(), outcome);
        let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        assert!((norm(&clipped) - 0.01).abs() < 1e-5 && norm(&whole) > 0.1);

        let len = engine.parameter_count();
        let first = wave(len);
        let moments = Moments { first: first.clone(), second: vec![1.0; len], updates: 1 };
        engine.load_moments(&moments).unwrap();
        let mut momentum = Vec::new();
        engine.momentum(&batch, &mut momentum).unwrap();
        for ((got, m), g) in momentum.iter().zip(&first).zip(&whole) {
            assert!((f64::from(*got) - 0.75 * f64::from(*m) - 0.25 * f64::from(*g)).abs() < 1e-6);
        }
        assert_eq!(engine.moments_to_host().unwrap(), moments);
    }
}
