//! Rules whose memory is one momentum for each tensor.

use longhaul_common::config::{LionConfig, SgdConfig, TrainConfig};
use longhaul_common::model::ParameterSpec;
use tch::{Device, TchError, Tensor};

use super::{Memory, Rule, decays, descend, divided, one_each, zeros};

/// θ ← (1 − γλ)·θ − γ·direction, with a momentum m of each tensor.
#[derive(Debug)]
pub(super) struct Momentum {
    direction: Direction,
    decays: Vec<f64>,
    /// m of each tensor.
    momenta: Vec<Tensor>,
    updates: u64,
}

/// The direction of a step, and its momentum.
#[derive(Debug)]
pub(super) enum Direction {
    /// See [`descended`].
    Sgd(SgdConfig),
    /// sign(β₁·m + (1 − β₁)·g); then m ← β₂·m + (1 − β₂)·g (Lion: Chen et al. 2023, "Symbolic discovery of optimization algorithms", arXiv 2302.06675).
    Lion(LionConfig),
}

impl Momentum {
    pub fn new(
        direction: Direction,
        train: &TrainConfig,
        tensors: &[ParameterSpec],
        device: Device,
    ) -> Result<Self, TchError> {
        Ok(Self { direction, decays: decays(train, tensors), momenta: zeros(tensors, device)?, updates: 0 })
    }
}

impl Direction {
    fn of(&self, momentum: &mut Tensor, gradient: &Tensor) -> Result<Tensor, TchError> {
        match *self {
            Self::Sgd(SgdConfig { momentum: beta, nesterov }) => {
                descended(momentum, gradient, beta, nesterov)
            }
            Self::Lion(LionConfig { beta1, beta2 }) => {
                let mixed = momentum.f_mul_scalar(beta1)?.f_add_(&gradient.f_mul_scalar(1.0 - beta1)?)?;
                let direction = mixed.shallow_clone().f_sign_()?;
                let _ = momentum.f_mul_scalar_(beta2)?.f_add_(&gradient.f_mul_scalar(1.0 - beta2)?)?;
                Ok(direction)
            }
        }
    }
}

/// m ← μ·m + g; returns m, or g + μ·m with Nesterov momentum (Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", as in
/// PyTorch without dampening).
pub(super) fn descended(
    momentum: &mut Tensor,
    gradient: &Tensor,
    beta: f64,
    nesterov: bool,
) -> Result<Tensor, TchError> {
    let _ = momentum.f_mul_scalar_(beta)?.f_add_(gradient)?;
    match nesterov {
        true => momentum.f_mul_scalar(beta)?.f_add_(gradient),
        false => Ok(momentum.shallow_clone()),
    }
}

impl Rule for Momentum {
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
            let direction = self.direction.of(momentum, &gradient)?;
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
