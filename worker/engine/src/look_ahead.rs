//! Predicted parameters after a mean in flight, as far as this member's own gradient shows.
//!
//! The next gradient is taken there, not a step behind (weight prediction against staleness: SpecTrain, Chen et al., arXiv 1809.02839). With AdamW, nine
//! tenths of an update are momentum, which all members know.

use tch::Tensor;

use super::{Engine, EngineError};
use crate::models::views_of;

/// The parameters replaced by those ahead.
#[derive(Debug)]
pub(super) struct Parked(Tensor);

impl Engine {
    /// Moves the parameters as AdamW with `gradient` and the learning rate of the run's `step` would, including clipping. The moments stay. Only gradients
    /// may be computed before [`Self::step_back`]; if it is ahead already, it steps back first.
    ///
    /// # Errors
    /// The length of `gradient` is wrong; or libtorch fails.
    pub fn look_ahead(&mut self, step: u64, gradient: &[f32]) -> Result<(), EngineError> {
        self.step_back()?;
        let gradient = self.to_device(gradient)?; // [P]
        let tensors = views_of(&self.spec, &gradient)?;
        let gradient = match self.clip_divisor(&tensors, self.settings.gradient_clip)? {
            Some(divisor) => gradient.f_div(&divisor)?,
            None => gradient,
        };
        let direction = self.optimiser.adamw()?.direction_with(&gradient)?;
        let mut parked = self.parameters.flat().f_empty_like()?;
        parked.f_copy_(self.parameters.flat())?;
        self.parked = Some(Parked(parked));
        Ok(self.descend(step, &direction)?)
    }

    /// Restores the parameters before [`Self::look_ahead`], bit for bit, if any.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn step_back(&mut self) -> Result<(), EngineError> {
        if let Some(Parked(parameters)) = self.parked.take() {
            self.parameters.flat().shallow_clone().f_copy_(&parameters)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::TrainConfig;

    use super::*;
    use crate::testing::test_device;
    use longhaul_common::model::tiny::tiny_gpt2;

    fn parameters(engine: &Engine) -> Vec<f32> {
        let mut parameters = Vec::new();
        engine.parameters_to_host(&mut parameters).unwrap();
        parameters
    }

    /// If the mean were the member's own gradient, it would look exactly as far as the step goes.
    #[test]
    fn it_looks_as_far_as_the_step_will_go_and_steps_back_bit_for_bit() {
        let train =
            TrainConfig { warmup_steps: 0, weight_decay: 0.3, gradient_clip: 0.5, ..TrainConfig::default() };
        let mut engine = Engine::new(&tiny_gpt2(), &train, 100, 3, test_device(), None).unwrap();
        let len = engine.parameter_count();
        for step in 0..4 {
            let gradient: Vec<f32> =
                (0..len).map(|i| ((i * 37 + step as usize * 101) % 997) as f32 / 500.0 - 1.0).collect();
            let (before, moments) = (parameters(&engine), engine.moments_to_host().unwrap());
            engine.look_ahead(step, &gradient).unwrap();
            let ahead = parameters(&engine);
            engine.step_back().unwrap();
            assert_eq!((parameters(&engine), engine.moments_to_host().unwrap()), (before.clone(), moments));
            engine.step_back().unwrap();
            engine.apply_gradient(step, &gradient).unwrap();
            for (ahead, after) in ahead.iter().zip(parameters(&engine)) {
                assert!((ahead - after).abs() < 1e-6, "{ahead} is not {after}");
            }
            assert_ne!(ahead, before);
        }
    }
}
