//! The training engine: one model on one device, driven step by step, without network or clock.
#![deny(unsafe_code)]

mod allocator;
mod batch;
mod chunk;
mod claims;
mod clipping;
mod column_gradient;
mod device;
mod error;
mod evaluation;
mod fused;
mod generator;
mod gradient;
mod hooks;
mod host;
mod host_tensor;
mod interpreter;
mod likelihood;
mod look_ahead;
mod low_rank;
pub mod models;
mod multiplications;
mod norms;
mod optimiser;
mod pinned;
mod pipeline;
mod rules;
mod sampling;
mod scoring;
mod shim;
mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::num::NonZeroU32;

pub use allocator::keep_freed_memory;
pub use batch::{Batch, read_ahead};
use chunk::{Chunk, Computing};
pub use device::{choose_device, claim_device, device_name};
pub use error::EngineError;
pub use generator::{Continuation, Continuations, Generator};
use hooks::GradientHooks;
use host::HostLink;
pub use interpreter::{Stages, interpret};
pub use likelihood::{LogLikelihood, Scored, TokenLikelihood};
use longhaul_common::config::{Precision, SparseBackwardConfig, TrainConfig};
pub use longhaul_common::learning_rate::LearningRate;
use longhaul_common::model::{ModelSpec, draw_parameters};
use longhaul_common::pipeline::PipelineSchedule;
use look_ahead::Parked;
pub use low_rank::LowRank;
pub use multiplications::count_multiplications;
use optimiser::Optimiser;
pub use pipeline::{Gift, Pipe, PipelineRank};
pub use sampling::Sampling;
use tch::{Device, TchError, Tensor};
use tensor::TensorSharding;

use crate::models::{DropoutRates, FrozenWeights, Model, Objective, Parameters, views_of};

/// Model, optimiser and buffers on one device. Its owner is usually a dedicated thread. Inputs and outputs are plain host memory, in the order of
/// [`ModelSpec::parameters`].
///
/// On a CPU, the same calls give the same bits with the same number of threads.
#[derive(Debug)]
pub struct Engine {
    spec: ModelSpec,
    device: Device,
    link: HostLink,
    settings: Settings,
    learning_rate: LearningRate,
    parameters: Parameters,
    /// One for each chunk of blocks here.
    chunks: Vec<Chunk>,
    optimiser: Optimiser,
    /// Set while the parameters are those ahead.
    parked: Option<Parked>,
    /// Set once gradients are taken tensor by tensor.
    hooks: Option<GradientHooks>,
    /// Connection to the ranks with the other parts of the model, if it is divided.
    rank: Option<PipelineRank>,
    /// Connection to the members with the other shares of these layers, if they are shared.
    group: Option<TensorSharding>,
}

#[derive(Debug)]
struct Settings {
    micro_batch: usize,
    precision: Precision,
    recompute: bool,
    sparse: Option<SparseBackwardConfig>,
    /// Whether gradients are of columns: see [`Engine::collect_columns`].
    collects: bool,
    /// Largest L2 norm of a gradient.
    gradient_clip: f64,
    /// Decoupled weight decay of matrices.
    weight_decay: f64,
    /// Loss of training.
    objective: Objective,
    dropout: DropoutRates,
}

impl Settings {
    fn new(train: &TrainConfig) -> Self {
        Self {
            micro_batch: train.micro_batch as usize,
            precision: train.precision,
            recompute: train.recompute,
            sparse: train.sparse_backward.clone(),
            collects: false,
            gradient_clip: train.gradient_clip,
            weight_decay: train.weight_decay,
            objective: Objective::new(train),
            dropout: DropoutRates::new(train),
        }
    }
}

/// Outcome of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Mean training loss before the update, in nats per token or image: cross entropy, with label smoothing and z-loss if configured; zero without samples.
    pub loss: f32,
    /// Tokens trained on, or images.
    pub tokens: u64,
    /// Mean cross entropy of each sample, for a batch that was [selected](Batch::selected), at the last layer; otherwise empty.
    pub losses: Vec<f32>,
    /// L2 norm of the gradient of the mean loss, before clipping, over the part here. In a divided replica, the squares of all parts add up to that of the
    /// whole: replicated values are divided between the members of a tensor group. `None` without samples.
    pub gradient_norm: Option<f32>,
}

/// The optimiser's memory. Each parameter tensor has its place in both vectors; what the optimiser does not keep is zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// Running mean of the gradient, or momentum, `[P]`.
    pub first: Vec<f32>,
    /// Running mean of its square, `[P]`; Adafactor's means of rows and columns of a matrix are one after the other at the begin of its place.
    pub second: Vec<f32>,
    /// Updates made.
    pub updates: u64,
}

impl Engine {
    /// Creates an engine with the parameters drawn from the run's seed.
    ///
    /// `steps` is the run's length, which the learning rate follows. `threads` sets libtorch's threads for the whole process; `None` leaves them unchanged.
    ///
    /// # Errors
    /// libtorch fails: out of memory, mostly.
    pub fn new(
        spec: &ModelSpec,
        train: &TrainConfig,
        steps: u64,
        seed: u64,
        device: Device,
        threads: Option<NonZeroU32>,
    ) -> Result<Self, EngineError> {
        let nothing = FrozenWeights::of(spec, device);
        Self::with_parameters(spec, train, steps, &draw_parameters(spec, seed), nothing, threads)
    }

    /// Creates an engine with these parameters, in the order of [`ModelSpec::parameters`], beside frozen tensors and on their device. The rest as in
    /// [`Self::new`].
    ///
    /// # Errors
    /// Their number is wrong, or a frozen tensor is missing; or libtorch fails.
    pub fn with_parameters(
        spec: &ModelSpec,
        train: &TrainConfig,
        steps: u64,
        parameters: &[f32],
        frozen: FrozenWeights,
        threads: Option<NonZeroU32>,
    ) -> Result<Self, EngineError> {
        set_threads(threads);
        let device = frozen.device();
        let parameters = Parameters::beside(spec, parameters, frozen)?;
        let optimiser = Optimiser::new(train, spec, device)?;
        let mut engine = Self {
            spec: spec.clone(),
            device,
            link: HostLink::new(device)?,
            settings: Settings::new(train),
            learning_rate: LearningRate::new(train, steps),
            parameters,
            chunks: Vec::new(),
            optimiser,
            parked: None,
            hooks: None,
            rank: None,
            group: None,
        };
        engine.build_chunks()?;
        Ok(engine)
    }

    /// Joins the other ranks of this pipeline, with the other parts of the model: all make the same calls in the same order, with the same batches. A member
    /// of a tensor group joins that first, and `rank` is connected to the members of the same index alone.
    ///
    /// # Errors
    /// This engine's part does not fit the rank, or is a share without its group; or libtorch fails.
    pub fn join(&mut self, rank: PipelineRank) -> Result<(), EngineError> {
        rank.check(&self.spec)?;
        if !self.spec.shard.is_whole() && self.group.is_none() {
            return Err(EngineError::NoGroup);
        }
        self.rank = Some(rank);
        self.build_chunks()
    }

    /// Builds the blocks here for the joined ranks and group. A share computes nothing before its join.
    fn build_chunks(&mut self) -> Result<(), EngineError> {
        let group = self.group.as_ref().map(TensorSharding::group);
        self.chunks = Vec::new();
        if self.spec.shard.is_whole() || group.is_some() {
            let (precision, recompute) = (self.settings.precision, self.settings.recompute);
            let schedule = self.rank.as_ref().map(PipelineRank::schedule);
            let in_two_parts = schedule == Some(PipelineSchedule::ZeroBubble);
            let sparse = self.settings.sparse.as_ref();
            let collects = self.settings.collects;
            let computing = Computing { precision, recompute, sparse, in_two_parts, collects, group };
            let chunk = |blocks| Chunk::new(&self.spec, blocks, &self.parameters, computing);
            self.chunks = self.spec.chunks.iter().map(chunk).collect::<Result<_, TchError>>()?;
        }
        Ok(())
    }

    /// Returns the model's specification.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the threads that compute on a CPU.
    #[must_use]
    pub fn threads(&self) -> usize {
        usize::try_from(tch::get_num_threads()).unwrap_or(1)
    }

    /// Returns the cores kept busy: those of its threads, or one that feeds a GPU.
    #[must_use]
    pub fn cores(&self) -> usize {
        if self.device == Device::Cpu { self.threads() } else { 1 }
    }

    /// Returns the length of the flat vectors.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.spec.parameter_count() as usize
    }

    /// Returns the sizes of the parameter tensors, which the flat vectors concatenate.
    pub fn tensor_sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.parameters.views().iter().map(Tensor::numel)
    }

    /// Makes one local step: gradient of the mean loss, clipping, the optimiser with the learning rate of the run's `step`. Without samples nothing changes.
    ///
    /// # Errors
    /// libtorch fails; then the step did not happen, or the engine must be dropped.
    pub fn train_step(&mut self, step: u64, batch: &Batch) -> Result<StepOutcome, EngineError> {
        let clip = self.settings.gradient_clip;
        self.step(batch, clip, |engine, gradients, divisor| engine.update(step, gradients, divisor))
    }

    /// Makes one local step under a frozen second moment: gradient of the mean loss, clipped to the norm `clip` (0: not clipped), and AdamW's update with
    /// constant v. Without samples nothing changes.
    ///
    /// # Errors
    /// No update has made a second moment yet; or libtorch fails: then the step did not happen, or the engine must be dropped.
    pub fn frozen_step(&mut self, step: u64, batch: &Batch, clip: f64) -> Result<StepOutcome, EngineError> {
        if self.optimiser.adamw()?.updates() == 0 {
            return Err(EngineError::NothingFrozen);
        }
        let rate = self.learning_rate.at(step);
        self.step(batch, clip, |engine, gradients, divisor| {
            let adamw = engine.optimiser.adamw_mut()?;
            Ok(adamw.update_frozen(engine.parameters.views(), gradients, rate, divisor)?)
        })
    }

    /// Makes a step by this update with the gradients and their divisor.
    fn step(
        &mut self,
        batch: &Batch,
        clip: f64,
        update: impl FnOnce(&mut Self, &[Tensor], Option<&Tensor>) -> Result<(), EngineError>,
    ) -> Result<StepOutcome, EngineError> {
        let (unread, gradients) = self.accumulate_unread(batch)?;
        let mut norms = None;
        if batch.tokens() > 0 {
            let (found, divisor) = self.norms_and_divisor(&gradients, clip)?;
            update(self, &gradients, divisor.as_ref())?;
            norms = found;
        }
        // The host waits for a GPU only now, when it has all its work.
        let mut outcome = unread.read(batch)?;
        self.tell_norm(norms.as_ref(), &mut outcome)?;
        Ok(outcome)
    }

    /// Applies clipping and the optimiser with this gradient, and the learning rate of the run's `step`.
    ///
    /// # Errors
    /// The length of `gradient` is wrong; or libtorch fails.
    pub fn apply_gradient(&mut self, step: u64, gradient: &[f32]) -> Result<(), EngineError> {
        let gradients = views_of(&self.spec, &self.to_device(gradient)?)?;
        let divisor = self.clip_divisor(&gradients, self.settings.gradient_clip)?;
        self.update(step, &gradients, divisor.as_ref())
    }

    /// Copies all parameters into `into`, which is resized to `[P]`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn parameters_to_host(&self, into: &mut Vec<f32>) -> Result<(), EngineError> {
        Ok(self.link.read_all(self.parameters.flat(), into)?)
    }

    /// Copies the parameters from `start` on into `into`.
    ///
    /// # Errors
    /// They reach beyond the last parameter; or libtorch fails.
    pub fn read_parameters(&self, start: usize, into: &mut [f32]) -> Result<(), EngineError> {
        let part = self.parameters.flat().f_narrow(0, start as i64, into.len() as i64)?;
        Ok(self.link.read(&part, into)?)
    }

    /// Replaces all parameters.
    ///
    /// # Errors
    /// The length of `values` is wrong; or libtorch fails.
    pub fn load_parameters(&mut self, values: &[f32]) -> Result<(), EngineError> {
        let values = self.to_device(values)?;
        Ok(self.parameters.flat().shallow_clone().f_copy_(&values)?)
    }

    /// θ ← `kept`·θ + `values` for the parameters from `start` on.
    ///
    /// # Errors
    /// `values` reach beyond the last parameter; or libtorch fails.
    pub fn mix_into_parameters(
        &mut self,
        start: usize,
        kept: f32,
        values: &[f32],
    ) -> Result<(), EngineError> {
        let (given, expected) = (start.saturating_add(values.len()), self.parameter_count());
        if given > expected {
            return Err(EngineError::Length { given, expected });
        }
        let values = self.link.write(values, self.device)?;
        let mut part = self.parameters.flat().f_narrow(0, start as i64, values.numel() as i64)?;
        if kept != 1.0 {
            let _ = part.f_mul_scalar_(f64::from(kept))?;
        }
        let _ = part.f_add_(&values)?;
        Ok(())
    }

    /// Returns the optimiser's memory.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn moments_to_host(&self) -> Result<Moments, EngineError> {
        self.optimiser.to_host(&self.link, &self.tensor_sizes().collect::<Vec<_>>())
    }

    /// Replaces the optimiser's memory.
    ///
    /// # Errors
    /// The length of a moment is wrong; or libtorch fails.
    pub fn load_moments(&mut self, moments: &Moments) -> Result<(), EngineError> {
        let expected = self.parameter_count();
        if let Some(given) =
            [&moments.first, &moments.second].map(Vec::len).into_iter().find(|len| *len != expected)
        {
            return Err(EngineError::Length { given, expected });
        }
        let sizes: Vec<usize> = self.tensor_sizes().collect();
        self.optimiser.load(&self.link, moments, &sizes, self.device)
    }

    /// Resets the optimiser's memory, as before the first update.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn reset_moments(&mut self) -> Result<(), EngineError> {
        self.optimiser.reset()
    }

    /// Returns the only chunk of a whole model.
    fn whole_chunk(&self) -> Result<&Chunk, EngineError> {
        match &*self.chunks {
            [chunk] if self.rank.is_none() && self.has_all_blocks() => Ok(chunk),
            _ => Err(EngineError::Part),
        }
    }

    fn has_all_blocks(&self) -> bool {
        self.spec.chunks == self.spec.whole().chunks
    }

    /// Returns the model, if all of it is here, or a share of all its layers.
    fn whole(&self) -> Result<&Model, EngineError> {
        self.whole_chunk().map(Chunk::model)
    }

    /// Applies the optimiser with the gradients over `divisor`, and the learning rate of the run's `step`.
    fn update(
        &mut self,
        step: u64,
        gradients: &[Tensor],
        divisor: Option<&Tensor>,
    ) -> Result<(), EngineError> {
        let rate = self.learning_rate.at(step);
        self.optimiser.update(self.parameters.views(), gradients, rate, divisor)
    }

    /// Copies a vector of the model's length to the device.
    fn to_device(&self, values: &[f32]) -> Result<Tensor, EngineError> {
        if values.len() != self.parameter_count() {
            return Err(EngineError::Length { given: values.len(), expected: self.parameter_count() });
        }
        Ok(self.link.write(values, self.device)?)
    }
}

fn set_threads(threads: Option<NonZeroU32>) {
    if let Some(threads) = threads {
        tch::set_num_threads(i32::try_from(threads.get()).unwrap_or(i32::MAX));
    }
}

fn to_host(tensor: &Tensor, into: &mut Vec<f32>) -> Result<(), EngineError> {
    let len = tensor.numel();
    into.resize(len, 0.0);
    Ok(tensor.f_copy_data(into, len)?)
}

#[cfg(test)]
mod tests;
