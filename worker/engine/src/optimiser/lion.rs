//! Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", arXiv 2302.06675).

use longhaul_common::config::{LionConfig, TrainConfig};
use longhaul_common::model::ParameterSpec;
use tch::{Device, TchError, Tensor};

use super::{Memory, Rule, decays, descend, divided, one_each, zeros};

/// θ ← (1 − γλ)·θ − γ·sign(β₁·m + (1 − β₁)·g); then m ← β₂·m + (1 − β₂)·g.
#[derive(Debug)]
pub(super) struct Lion {
    beta1: f64,
    beta2: f64,
    decays: Vec<f64>,
    /// m of each tensor.
    momenta: Vec<Tensor>,
    updates: u64,
}

impl Lion {
    pub fn new(train: &TrainConfig, tensors: &[ParameterSpec], device: Device) -> Result<Self, TchError> {
        let LionConfig { beta1, beta2 } = train.lion.clone().unwrap_or_default();
        let momenta = zeros(tensors, device)?;
        Ok(Self { beta1, beta2, decays: decays(train, tensors), momenta, updates: 0 })
    }
}

impl Rule for Lion {
    fn update(
        &mut self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), TchError> {
        self.updates += 1;
        for (at, momentum) in self.momenta.iter_mut().enumerate() {
            let gradient = divided(&gradients[at], divisor)?;
            let mixed =
                momentum.f_mul_scalar(self.beta1)?.f_add_(&gradient.f_mul_scalar(1.0 - self.beta1)?)?;
            let direction = mixed.shallow_clone().f_sign_()?;
            descend(&parameters[at], &direction, learning_rate, self.decays[at])?;
            let _ = momentum.f_mul_scalar_(self.beta2)?.f_add_(&gradient.f_mul_scalar(1.0 - self.beta2)?)?;
        }
        Ok(())
    }

    fn memory(&self) -> Memory {
        Memory { first: one_each(&self.momenta), second: Vec::new() }
    }

    fn updates(&self) -> u64 {
        self.updates
    }

    fn loaded(&mut self, updates: u64) {
        self.updates = updates;
    }
}
