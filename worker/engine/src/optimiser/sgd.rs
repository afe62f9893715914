//! Gradient descent with momentum (Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning"), as PyTorch's without dampening.

use longhaul_common::config::{SgdConfig, TrainConfig};
use longhaul_common::model::ParameterSpec;
use tch::{Device, TchError, Tensor};

use super::{Memory, Rule, decays, descend, divided, one_each, zeros};

/// m ← μ·m + g; θ ← (1 − γλ)·θ − γ·m, or γ·(g + μ·m) with Nesterov momentum.
#[derive(Debug)]
pub(super) struct Sgd {
    momentum: f64,
    nesterov: bool,
    decays: Vec<f64>,
    /// m of each tensor.
    momenta: Vec<Tensor>,
    updates: u64,
}

impl Sgd {
    pub fn new(train: &TrainConfig, tensors: &[ParameterSpec], device: Device) -> Result<Self, TchError> {
        let SgdConfig { momentum, nesterov } = train.sgd.clone().unwrap_or_default();
        let momenta = zeros(tensors, device)?;
        Ok(Self { momentum, nesterov, decays: decays(train, tensors), momenta, updates: 0 })
    }
}

impl Rule for Sgd {
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
            let _ = momentum.f_mul_scalar_(self.momentum)?.f_add_(&gradient)?;
            let direction = match self.nesterov {
                true => momentum.f_mul_scalar(self.momentum)?.f_add_(&gradient)?,
                false => momentum.shallow_clone(),
            };
            descend(&parameters[at], &direction, learning_rate, self.decays[at])?;
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
