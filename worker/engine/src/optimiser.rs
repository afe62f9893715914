//! The run's optimiser, and its memory on the host: see `docs/optimisers.md`.

mod adafactor;
mod adamw;
mod momentum;
mod muon;
#[cfg(test)]
mod tests;

use std::fmt;

use longhaul_common::config::{Optimiser as Kind, TrainConfig};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use tch::{Device, TchError, Tensor};

use self::adafactor::Adafactor;
pub(super) use self::adamw::AdamW;
use self::momentum::{Direction, Momentum};
use self::muon::Muon;
use super::host::HostLink;
use super::{EngineError, Moments};

/// The optimiser of all trained tensors here.
#[derive(Debug)]
pub(super) enum Optimiser {
    Adamw(AdamW),
    Other(Box<dyn Rule>),
}

/// An optimiser's rule and memory for parameter tensors in the order of [`ModelSpec::parameters`].
pub(super) trait Rule: fmt::Debug + Send {
    /// Updates the parameter tensors in place, with their `gradients` over `divisor`, which has one value. The gradients are divided in place.
    fn update(
        &mut self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), TchError>;

    /// Returns the memory, which shares the rule's tensors.
    fn memory(&self) -> Memory;

    fn updates(&self) -> u64;

    /// Counts the memory, which was written through [`Self::memory`], as that behind so many updates.
    fn loaded(&mut self, updates: u64);
}

/// For each parameter tensor, the tensors kept in its place of a moment's vector, one after the other; the rest of a place is zero.
#[derive(Debug, Default)]
pub(super) struct Memory {
    first: Vec<Vec<Tensor>>,
    second: Vec<Vec<Tensor>>,
}

impl Optimiser {
    /// # Errors
    /// It needs whole matrices, and has shares of them; or libtorch fails.
    pub fn new(train: &TrainConfig, spec: &ModelSpec, device: Device) -> Result<Self, EngineError> {
        if train.optimiser.needs_whole_matrices() && !spec.shard.is_whole() {
            return Err(EngineError::SharedMatrices);
        }
        let tensors = spec.parameters();
        let by_momentum = |direction| Momentum::new(direction, train, &tensors, device);
        Ok(match train.optimiser {
            Kind::Adamw => Self::Adamw(AdamW::new(train, &tensors, device)?),
            Kind::Muon => Self::Other(Box::new(Muon::new(train, spec, device)?)),
            Kind::Sgd => {
                Self::Other(Box::new(by_momentum(Direction::Sgd(train.sgd.clone().unwrap_or_default()))?))
            }
            Kind::Lion => {
                Self::Other(Box::new(by_momentum(Direction::Lion(train.lion.clone().unwrap_or_default()))?))
            }
            Kind::Adafactor => Self::Other(Box::new(Adafactor::new(train, &tensors, device)?)),
        })
    }

    /// Updates the parameter tensors in place, with their `gradients` over `divisor`, which has one value. The gradients are divided in place.
    pub fn update(
        &mut self,
        parameters: &[Tensor],
        gradients: &[Tensor],
        learning_rate: f64,
        divisor: Option<&Tensor>,
    ) -> Result<(), EngineError> {
        Ok(match self {
            Self::Adamw(adamw) => adamw.update(parameters, gradients, learning_rate, divisor),
            Self::Other(rule) => {
                require_alike(parameters, gradients)?;
                tch::no_grad(|| rule.update(parameters, gradients, learning_rate, divisor))
            }
        }?)
    }

    /// Returns AdamW, for rules that are made for its moments.
    ///
    /// # Errors
    /// The run has another optimiser.
    pub fn adamw(&self) -> Result<&AdamW, EngineError> {
        match self {
            Self::Adamw(adamw) => Ok(adamw),
            Self::Other(_) => Err(EngineError::OtherOptimiser),
        }
    }

    /// [`Self::adamw`], to change it.
    pub fn adamw_mut(&mut self) -> Result<&mut AdamW, EngineError> {
        match self {
            Self::Adamw(adamw) => Ok(adamw),
            Self::Other(_) => Err(EngineError::OtherOptimiser),
        }
    }

    /// Copies the memory to the host, for parameter tensors of these sizes.
    pub fn to_host(&self, link: &HostLink, sizes: &[usize]) -> Result<Moments, EngineError> {
        let mut moments = Moments::default();
        match self {
            Self::Adamw(adamw) => {
                moments.updates = adamw.updates();
                link.read_all(adamw.first(), &mut moments.first)?;
                link.read_all(adamw.second(), &mut moments.second)?;
            }
            Self::Other(rule) => {
                let Memory { first, second } = rule.memory();
                moments.updates = rule.updates();
                moments.first = read(link, &first, sizes)?;
                moments.second = read(link, &second, sizes)?;
            }
        }
        Ok(moments)
    }

    /// Replaces the memory. Both vectors have the values of all parameters.
    pub fn load(
        &mut self,
        link: &HostLink,
        moments: &Moments,
        sizes: &[usize],
        device: Device,
    ) -> Result<(), EngineError> {
        match self {
            Self::Adamw(adamw) => {
                let [first, second] =
                    [&moments.first, &moments.second].map(|values| link.write(values, device));
                adamw.load(&first?, &second?, moments.updates)?;
            }
            Self::Other(rule) => {
                let Memory { first, second } = rule.memory();
                write(link, &first, &moments.first, sizes, device)?;
                write(link, &second, &moments.second, sizes, device)?;
                rule.loaded(moments.updates);
            }
        }
        Ok(())
    }

    /// Resets the memory, as before the first update.
    pub fn reset(&mut self) -> Result<(), EngineError> {
        match self {
            Self::Adamw(adamw) => adamw.reset()?,
            Self::Other(rule) => {
                let Memory { first, second } = rule.memory();
                for mut tensor in first.into_iter().chain(second).flatten() {
                    let _ = tensor.f_zero_()?;
                }
                rule.loaded(0);
            }
        }
        Ok(())
    }
}

/// Copies a moment's tensors to their places in a vector, for parameter tensors of these sizes.
fn read(link: &HostLink, kept: &[Vec<Tensor>], sizes: &[usize]) -> Result<Vec<f32>, TchError> {
    let mut values = vec![0.0; sizes.iter().sum()];
    let mut rest = values.as_mut_slice();
    for (tensors, size) in kept.iter().zip(sizes) {
        let (mut place, after) = rest.split_at_mut(*size);
        for tensor in tensors {
            let (own, behind) = place.split_at_mut(tensor.numel());
            link.read(tensor, own)?;
            place = behind;
        }
        rest = after;
    }
    Ok(values)
}

/// Copies a moment's tensors from their places in a vector.
fn write(
    link: &HostLink,
    kept: &[Vec<Tensor>],
    values: &[f32],
    sizes: &[usize],
    device: Device,
) -> Result<(), TchError> {
    let mut start = 0;
    for (tensors, size) in kept.iter().zip(sizes) {
        let mut at = start;
        for tensor in tensors {
            let end = at + tensor.numel();
            let there = link.write(&values[at..end], device)?;
            tensor.shallow_clone().f_copy_(&there.f_view(tensor.size().as_slice())?)?;
            at = end;
        }
        start += size;
    }
    Ok(())
}

fn require_alike(parameters: &[Tensor], gradients: &[Tensor]) -> Result<(), TchError> {
    if parameters.len() == gradients.len() {
        return Ok(());
    }
    let (parameters, gradients) = (parameters.len(), gradients.len());
    Err(TchError::Shape(format!("{parameters} parameter tensors have {gradients} gradients")))
}

/// Returns each tensor's decoupled weight decay: that of the run for matrices.
fn decays(train: &TrainConfig, tensors: &[ParameterSpec]) -> Vec<f64> {
    tensors.iter().map(|tensor| if tensor.is_matrix() { train.weight_decay } else { 0.0 }).collect()
}

/// Returns a gradient after its division in place.
fn divided(gradient: &Tensor, divisor: Option<&Tensor>) -> Result<Tensor, TchError> {
    let mut gradient = gradient.shallow_clone();
    divisor.map_or(Ok(()), |divisor| gradient.f_div_(divisor).map(drop))?;
    Ok(gradient)
}

/// θ ← (1 − γλ)·θ − γ·direction.
fn descend(parameter: &Tensor, direction: &Tensor, rate: f64, weight_decay: f64) -> Result<(), TchError> {
    let mut parameter = parameter.shallow_clone();
    if weight_decay > 0.0 {
        let _ = parameter.f_mul_scalar_(1.0 - rate * weight_decay)?;
    }
    let _ = parameter.f_add_(&direction.f_mul_scalar(-rate)?)?;
    Ok(())
}

/// Returns a tensor of zeros like each one.
fn zeros(tensors: &[ParameterSpec], device: Device) -> Result<Vec<Tensor>, TchError> {
    let zeros = |tensor: &ParameterSpec| {
        let shape: Vec<i64> = tensor.shape.iter().map(|&size| size as i64).collect();
        Tensor::f_zeros(shape.as_slice(), (tch::Kind::Float, device))
    };
    tensors.iter().map(zeros).collect()
}

/// Returns tensors as a memory with one for each parameter.
fn one_each(tensors: &[Tensor]) -> Vec<Vec<Tensor>> {
    tensors.iter().map(|tensor| vec![tensor.shallow_clone()]).collect()
}
