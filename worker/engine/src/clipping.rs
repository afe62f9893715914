//! Norms of gradients, and clipping to one (Pascanu et al. 2013, "On the difficulty of training recurrent neural networks").

use tch::{Device, TchError, Tensor};

use super::norms::norms;
use super::{Engine, EngineError, StepOutcome};

impl Engine {
    /// Returns the divisor of the gradients that limits their common norm to `clip` (0: not clipped), if needed.
    pub(super) fn clip_divisor(
        &self,
        gradients: &[Tensor],
        clip: f64,
    ) -> Result<Option<Tensor>, EngineError> {
        if clip <= 0.0 || gradients.is_empty() {
            return Ok(None);
        }
        self.divisor(gradients, &norms(gradients)?, clip)
    }

    /// The same for a step's own gradients, whose norm goes into its outcome.
    pub(super) fn own_divisor(
        &self,
        gradients: &[Tensor],
        clip: f64,
        outcome: &mut StepOutcome,
    ) -> Result<Option<Tensor>, EngineError> {
        let (norms, divisor) = self.norms_and_divisor(gradients, clip)?;
        self.tell_norm(norms.as_ref(), outcome)?;
        Ok(divisor)
    }

    /// Returns the norms [tensors] of a step's own gradients, if any, and their divisor, if needed. On a GPU that computes alone nothing is read.
    pub(super) fn norms_and_divisor(
        &self,
        gradients: &[Tensor],
        clip: f64,
    ) -> Result<(Option<Tensor>, Option<Tensor>), EngineError> {
        if gradients.is_empty() {
            return Ok((None, None));
        }
        let norms = norms(gradients)?;
        let divisor = if clip > 0.0 { self.divisor(gradients, &norms, clip)? } else { None };
        Ok((Some(norms), divisor))
    }

    /// Puts the norm of a step's gradients with these norms [tensors], if any, into its outcome.
    pub(super) fn tell_norm(
        &self,
        norms: Option<&Tensor>,
        outcome: &mut StepOutcome,
    ) -> Result<(), EngineError> {
        let told = norms.map(|norms| self.share_of_norm(norms)).transpose()?;
        outcome.gradient_norm = told.map(|norm| norm as f32);
        Ok(())
    }

    /// Returns [`StepOutcome::gradient_norm`] of a gradient with these norms [tensors], without communication.
    pub(super) fn share_of_norm(&self, norms: &Tensor) -> Result<f64, EngineError> {
        match &self.group {
            Some(group) => group.share_of_norm(norms, self.spec.shard.ways()),
            None => Ok(norms.f_norm()?.f_double_value(&[])?),
        }
    }

    fn divisor(
        &self,
        gradients: &[Tensor],
        norms: &Tensor,
        clip: f64,
    ) -> Result<Option<Tensor>, EngineError> {
        /// PyTorch's constant in `clip_grad_norm_`.
        const NORM_FLOOR: f64 = 1e-6;
        let norm = match self.squared_norm_of_all(gradients, norms)? {
            Some(squared) => self.scalar(squared.sqrt())?,
            None => norms.f_norm()?,
        }; // []
        let divisor = norm.f_add_scalar(NORM_FLOOR)?.f_div_scalar(clip)?.f_clamp_min(1.0)?;
        // A division by one costs a pass over the gradients; on a GPU, the host would have to wait to know it.
        let idle = self.device == Device::Cpu && divisor.f_double_value(&[])? == 1.0;
        Ok((!idle).then_some(divisor))
    }

    /// Returns the squared norm of these gradients, with their norms [tensors], and of all other parts: the tensor group's sum, added over pipeline stages in
    /// order, for equal bits. `None`: the engine computes alone.
    fn squared_norm_of_all(&self, gradients: &[Tensor], norms: &Tensor) -> Result<Option<f64>, EngineError> {
        let of_stage = match (&self.group, &self.rank) {
            (Some(group), _) => group.squared_norm(gradients, norms)?,
            (None, Some(_)) => norms.f_norm()?.f_double_value(&[])?.powi(2),
            (None, None) => return Ok(None),
        };
        self.rank.as_ref().map_or(Ok(of_stage), |rank| rank.total(of_stage)).map(Some)
    }

    /// Returns a number on the device: [].
    fn scalar(&self, value: f64) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(&[value as f32])?.f_view([0i64; 0])?.f_to_device(self.device)
    }
}

/// Stacks numbers [] to one vector.
pub(super) fn stacked(numbers: impl Iterator<Item = Result<Tensor, TchError>>) -> Result<Tensor, TchError> {
    Tensor::f_stack(&numbers.collect::<Result<Vec<_>, _>>()?, 0)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use longhaul_common::config::TrainConfig;
    use longhaul_common::model::ModelSpec;

    use super::*;
    use crate::Batch;
    use crate::testing::test_device;
    use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};

    fn engine(spec: &ModelSpec, gradient_clip: f64) -> Engine {
        let train = TrainConfig { micro_batch: 3, gradient_clip, ..TrainConfig::default() };
        Engine::new(spec, &train, 100, 1, test_device(), NonZeroU32::new(1)).unwrap()
    }

    fn assert_near(told: Option<f32>, expected: f64, what: &str) {
        let apart = (f64::from(told.unwrap()) / expected - 1.0).abs();
        assert!(apart < 1e-5, "{what}: {told:?} is not {expected}");
    }

    /// Against the sum of squares in f64, for a gradient that was never clipped.
    #[test]
    fn whatever_makes_a_gradient_tells_its_norm_before_clipping() {
        let mut batch = Batch::new(16);
        (0..7u32).for_each(|row| batch.push((0..17).map(|i| (i * i + row * 7) % 64)));
        for spec in [tiny_gpt2(), tiny_llama()] {
            let mut gradient = Vec::new();
            engine(&spec, 0.0).gradient(&batch, &mut gradient).unwrap();
            let expected = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            assert!(expected > 0.1, "the clipping is not exercised");
            for clip in [0.0, 0.01, 1e6] {
                let mut engine = engine(&spec, clip);
                let mut into = Vec::new();
                let near = |outcome: StepOutcome, what| {
                    assert_near(outcome.gradient_norm, expected, &format!("{:?}, {clip}, {what}", spec.kind));
                };
                near(engine.gradient(&batch, &mut into).unwrap(), "gradient");
                near(engine.gradient_by_tensor(&batch, &mut into, &mut |_, _| ()).unwrap(), "by tensor");
                near(engine.clipped_gradient(&batch, clip, &mut into).unwrap(), "clipped");
                near(engine.momentum(&batch, &mut into).unwrap(), "momentum");
                near(engine.train_step(0, &batch).unwrap(), "a step");
            }
            let mut engine = engine(&spec, 0.0);
            engine.apply_gradient(0, &gradient).unwrap();
            let mut again = Vec::new();
            engine.gradient(&batch, &mut again).unwrap();
            let expected = again.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            assert_near(engine.frozen_step(1, &batch, 0.01).unwrap().gradient_norm, expected, "frozen");
        }
    }
}
