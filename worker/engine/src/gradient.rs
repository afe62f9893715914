//! Gradients of a batch: summed over its micro-batches, whole or tensor by tensor.

use std::ops::Range;

use tch::{Device, TchError, Tensor};

use super::chunk::{PassData, Targets};
use super::hooks::GradientHooks;

use super::{Engine, EngineError, StepOutcome, clipping};
use crate::batch::{Batch, MicroBatch};

impl Engine {
    /// Computes the gradient of the mean loss over `batch`, unclipped, into `into`, which is resized to `[P]`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn gradient(&mut self, batch: &Batch, into: &mut Vec<f32>) -> Result<StepOutcome, EngineError> {
        let (mut outcome, gradients) = self.accumulate(batch)?;
        let (norms, _) = self.norms_and_divisor(&gradients, 0.0)?;
        self.tell_norm(norms.as_ref(), &mut outcome)?;
        self.to_host_in_order(&gradients, into)?;
        Ok(outcome)
    }

    /// Computes the same, bit for bit. `arrived` receives each parameter tensor's index in [`longhaul_common::model::ModelSpec::parameters`] and the vector,
    /// once that part is final, in the order of back-propagation. It is not called on a GPU, where the host would wait for each tensor, in a pipeline or
    /// tensor group, with recomputation, or if the loss is not finite.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn gradient_by_tensor(
        &mut self,
        batch: &Batch,
        into: &mut Vec<f32>,
        arrived: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<StepOutcome, EngineError> {
        let micros: Vec<_> = batch.micro_batches(self.settings.micro_batch).collect();
        let is_in_one_pass = self.rank.is_none() && self.group.is_none() && !self.settings.recompute;
        let (Some((last, before)), Device::Cpu, true) = (micros.split_last(), self.device, is_in_one_pass)
        else {
            return self.gradient(batch, into);
        };
        let places = places(self.parameters.views());
        let (mut losses, sums) = self.sum(batch.losses(), before)?;
        self.to_host_in_order(&sums, into)?;
        let loss = self.share_of_loss(batch.losses(), last, &mut losses)?;
        let mut outcome = outcome(batch, &losses.shares, &losses.samples)?;
        if !outcome.loss.is_finite() {
            return Ok(outcome);
        }
        let mut take = |tensor: usize, values: &[f32]| {
            let part = &mut into[places[tensor].clone()];
            match before {
                [] => part.copy_from_slice(values),
                _ => part.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            }
            arrived(tensor, into);
        };
        let mut hooks = match self.hooks.take() {
            Some(hooks) => hooks,
            None => GradientHooks::new(self.parameters.views())?,
        };
        let back_propagate = || Tensor::f_run_backward(&[&loss], self.parameters.views(), false, false);
        hooks.listen(&mut take, back_propagate)?;
        self.hooks = Some(hooks);
        let tensors = places.iter().map(|place| Tensor::f_from_slice(&into[place.clone()])?.f_norm());
        outcome.gradient_norm = Some(self.share_of_norm(&clipping::stacked(tensors)?)? as f32);
        Ok(outcome)
    }

    /// Returns the gradients of the parameter tensors, summed over the micro-batches, each weighted by its share of the samples; empty without samples.
    pub(super) fn accumulate(&self, batch: &Batch) -> Result<(StepOutcome, Vec<Tensor>), EngineError> {
        let (unread, sums) = self.accumulate_unread(batch)?;
        Ok((unread.read(batch)?, sums))
    }

    /// The same without waiting for the device.
    pub(super) fn accumulate_unread(&self, batch: &Batch) -> Result<(Unread, Vec<Tensor>), EngineError> {
        if self.rank.is_some() {
            let (outcome, sums) = self.explained(self.accumulate_in_pipeline(batch))?;
            return Ok((Unread::Read(outcome), sums));
        }
        let micros: Vec<_> = batch.micro_batches(self.settings.micro_batch).collect();
        let (losses, sums) = self.explained(self.sum(batch.losses(), &micros))?;
        Ok((Unread::OnDevice(losses), sums))
    }

    /// Returns losses and summed gradients of some micro-batches of a batch with a mean over `count` losses ([`HostBatch::losses`]).
    ///
    /// [`HostBatch::losses`]: longhaul_data::HostBatch::losses
    fn sum(&self, count: usize, micros: &[MicroBatch<'_>]) -> Result<(Losses, Vec<Tensor>), EngineError> {
        let mut losses = Losses::default();
        let mut sums: Vec<_> = self.parameters.views().iter().map(|_| Sum::default()).collect();
        let chunk = self.whole_chunk()?;
        for micro in micros {
            let targets = self.targets(count, micro)?;
            let input = targets.tokens.f_narrow(1, 0, micro.length() as i64)?;
            let (loss, kept) = chunk.forward(&input, Some(targets), self.pass_data(count, micro)?)?;
            losses.samples.extend(kept.losses());
            let gradients = chunk.backward(kept, None)?.tensors;
            for (sum, gradient) in sums.iter_mut().zip(&gradients) {
                gradient.iter().try_for_each(|gradient| sum.add(gradient))?;
            }
            losses.shares.push(loss);
        }
        Ok((losses, all_of(sums)?))
    }

    /// Returns a micro-batch's part of the mean over `count` losses.
    fn share_of_loss(
        &self,
        count: usize,
        micro: &MicroBatch<'_>,
        losses: &mut Losses,
    ) -> Result<Tensor, EngineError> {
        let targets = self.targets(count, micro)?;
        let (model, data) = (self.whole()?, self.pass_data(count, micro)?);
        let input = targets.tokens.f_narrow(1, 0, micro.length() as i64)?;
        let x = model.forward_in(&input, data.pass())?; // [B, T, D]
        let loss = targets.loss(model, &x, data.pass())?;
        losses.shares.push(loss.f_detach()?);
        losses.samples.extend(targets.losses());
        Ok(loss)
    }

    /// Returns the data of the training passes of a micro-batch of a batch with a mean over `count` losses.
    pub(super) fn pass_data(&self, count: usize, micro: &MicroBatch<'_>) -> Result<PassData, EngineError> {
        let dropout = self.settings.dropout.of(micro.seeds());
        let data = PassData::of(micro, self.parameters.subspace(), self.device)?;
        Ok(PassData { dropout, share: micro.share(count), ..data })
    }

    /// Returns the targets of a micro-batch of a batch with a mean over `count` losses.
    pub(super) fn targets(&self, count: usize, micro: &MicroBatch<'_>) -> Result<Targets, EngineError> {
        let labels = micro.labels(self.device)?;
        // Labels have summed losses: a micro-batch may have none.
        let own = if labels.is_some() { 1 } else { micro.sequences() };
        let share = own as f64 / count.max(1) as f64;
        let weights = micro.weights(self.device)?;
        let targets = Targets::new(micro.to_tensor(self.device)?, share, weights, self.settings.objective);
        Ok(targets.labelled(labels))
    }

    /// Copies the gradients of all parameter tensors, one after the other; zeros without any.
    pub(super) fn to_host_in_order(
        &self,
        gradients: &[Tensor],
        into: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        into.resize(self.parameter_count(), 0.0);
        if gradients.is_empty() {
            into.fill(0.0);
        }
        for (gradient, place) in gradients.iter().zip(places(gradients)) {
            let values = &mut into[place];
            self.link.read(gradient, values)?;
        }
        Ok(())
    }
}

/// Outcome of a step's samples, wherever it is.
#[derive(Debug)]
pub(super) enum Unread {
    /// A pipeline reads it on the way.
    Read(StepOutcome),
    OnDevice(Losses),
}

impl Unread {
    /// Waits for the device.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn read(self, batch: &Batch) -> Result<StepOutcome, EngineError> {
        match self {
            Self::Read(outcome) => Ok(outcome),
            Self::OnDevice(losses) => outcome(batch, &losses.shares, &losses.samples),
        }
    }
}

/// Losses of the micro-batches of a step.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Each one's part of the batch's loss.
    shares: Vec<Tensor>,
    /// Losses [B] of the sequences of each, if requested.
    samples: Vec<Tensor>,
}

/// A sum of gradients of one tensor.
#[derive(Debug, Default)]
pub(super) enum Sum {
    #[default]
    Nothing,
    /// A single one from autograd, which may share memory with others.
    One(Tensor),
    /// Several, in its own memory.
    Several(Tensor),
}

impl Sum {
    pub fn add(&mut self, gradient: &Tensor) -> Result<(), TchError> {
        match self {
            Self::Nothing => *self = Self::One(gradient.f_contiguous()?),
            Self::One(sum) => *self = Self::Several(sum.f_add(gradient)?),
            Self::Several(sum) => drop(sum.f_add_(gradient)?),
        }
        Ok(())
    }

    pub fn into_tensor(self) -> Option<Tensor> {
        match self {
            Self::Nothing => None,
            Self::One(sum) | Self::Several(sum) => Some(sum),
        }
    }
}

/// Returns the sums, one for each tensor; empty without samples.
///
/// # Errors
/// Only some tensors have a gradient: the following ones would be misplaced.
pub(super) fn all_of(sums: Vec<Sum>) -> Result<Vec<Tensor>, EngineError> {
    let count = sums.len();
    let gradients: Vec<Tensor> = sums.into_iter().filter_map(Sum::into_tensor).collect();
    if gradients.is_empty() || gradients.len() == count { Ok(gradients) } else { Err(EngineError::Part) }
}

/// Returns the ranges of the tensors in their concatenation.
pub(super) fn places(tensors: &[Tensor]) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut place = |tensor: &Tensor| {
        let start = end;
        end += tensor.numel();
        start..end
    };
    tensors.iter().map(&mut place).collect()
}

pub(super) fn outcome(
    batch: &Batch,
    shares: &[Tensor],
    samples: &[Tensor],
) -> Result<StepOutcome, EngineError> {
    // Read only now, so that the host does not wait for the device between micro-batches.
    let loss: f64 = shares.iter().map(|loss| loss.f_double_value(&[])).sum::<Result<f64, TchError>>()?;
    let mut losses = Vec::new();
    for part in samples {
        let start = losses.len();
        losses.resize(start + part.numel(), 0.0);
        part.f_copy_data(&mut losses[start..], part.numel())?;
    }
    Ok(StepOutcome { loss: loss as f32, tokens: batch.tokens(), losses, gradient_norm: None })
}
