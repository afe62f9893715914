//! The training engine: one model on one device, driven step by step. It knows no network and no clock.
#![deny(unsafe_code)]

mod adamw;
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
mod look_ahead;
mod low_rank;
pub mod models;
mod multiplications;
mod norms;
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

use adamw::AdamW;
pub use allocator::keep_freed_memory;
pub use batch::{Batch, read_ahead};
use chunk::{Chunk, Computing};
pub use device::{choose_device, claim_device, device_name};
pub use error::EngineError;
pub use generator::{Continuation, Generator};
use hooks::GradientHooks;
use host::HostLink;
pub use interpreter::{Stages, interpret};
use longhaul_common::config::{Precision, SparseBackwardConfig, TrainConfig};
pub use longhaul_common::learning_rate::LearningRate;
use longhaul_common::model::{ModelSpec, draw_parameters};
use longhaul_common::pipeline::PipelineSchedule;
use look_ahead::Parked;
pub use low_rank::LowRank;
pub use multiplications::count_multiplications;
pub use pipeline::{Gift, Pipe, PipelineRank};
pub use sampling::Sampling;
use tch::{Device, TchError, Tensor};
use tensor::Membership;

use crate::models::{Model, Parameters, views_of};

/// Model, optimiser and buffers on one device. Its tensors have one owner: whoever holds the engine, usually a thread of
/// its own; what goes in and comes out is plain host memory, in the order of [`ModelSpec::parameters`].
///
/// On a CPU, the same calls give the same bits, as long as the number of threads is the same.
#[derive(Debug)]
pub struct Engine {
    spec: ModelSpec,
    device: Device,
    link: HostLink,
    settings: Settings,
    learning_rate: LearningRate,
    parameters: Parameters,
    /// One for each chunk of blocks that is here.
    chunks: Vec<Chunk>,
    optimiser: AdamW,
    /// While the parameters are those ahead.
    parked: Option<Parked>,
    /// Once gradients are taken tensor by tensor.
    hooks: Option<GradientHooks>,
    /// Where only a part of the model is here: how to work with those that have the others.
    rank: Option<PipelineRank>,
    /// Where only a share of these layers is here: how to work with those that have the others.
    group: Option<Membership>,
}

/// How steps are computed.
#[derive(Debug)]
struct Settings {
    /// Samples of a micro-batch.
    micro_batch: usize,
    precision: Precision,
    recompute: bool,
    sparse: Option<SparseBackwardConfig>,
    /// Whether gradients are of columns: see [`Engine::collect_columns`].
    collects: bool,
    /// The largest L2 norm of a gradient.
    gradient_clip: f64,
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
        }
    }
}

/// What became of the samples of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Mean cross entropy before the update, in nats a token, or an image; zero where there were no samples.
    pub loss: f32,
    /// Tokens trained on, or images.
    pub tokens: u64,
    /// Mean cross entropy of each sample, of a batch that was [selected](Batch::selected) and where the last layer is here; empty with others.
    pub losses: Vec<f32>,
    /// L2 norm of the gradient of the mean loss, before clipping: of what is here. Where a copy of the model is in parts, the squares of all of them add up to that of the whole:
    /// values that all members of a tensor group have are shared out between them. None where there were no samples.
    pub gradient_norm: Option<f32>,
}

/// AdamW's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// Running mean of the gradient, `[P]`.
    pub first: Vec<f32>,
    /// Running mean of its square, `[P]`.
    pub second: Vec<f32>,
    /// Updates made.
    pub updates: u64,
}

impl Engine {
    /// An engine with the parameters that the run's seed draws.
    ///
    /// `steps` is the run's length, which the learning rate follows. `threads` sets libtorch's threads for the whole
    /// process; none leaves them as they are.
    ///
    /// # Errors
    /// Where libtorch fails: out of memory, mostly.
    pub fn new(
        spec: &ModelSpec,
        train: &TrainConfig,
        steps: u64,
        seed: u64,
        device: Device,
        threads: Option<NonZeroU32>,
    ) -> Result<Self, EngineError> {
        set_threads(threads);
        let parameters = Parameters::new(spec, &draw_parameters(spec, seed), device)?;
        let optimiser = AdamW::new(train, spec, device)?;
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

    /// From now on, computes with the other ranks of this pipeline, which have the other parts of the model: each of them makes the same calls in the
    /// same order, with the same batches. Where a tensor group shares this part, its member joins that first, and `rank` talks to the members of the same
    /// index alone.
    ///
    /// # Errors
    /// When this engine's part is not that of the rank, or a share whose group it has not joined; where libtorch fails.
    pub fn join(&mut self, rank: PipelineRank) -> Result<(), EngineError> {
        rank.check(&self.spec)?;
        if !self.spec.shard.is_whole() && self.group.is_none() {
            return Err(EngineError::NoGroup);
        }
        self.rank = Some(rank);
        self.build_chunks()
    }

    /// The blocks that are here, as whom this engine has joined computes them. A share computes nothing until it has joined the others.
    fn build_chunks(&mut self) -> Result<(), EngineError> {
        let group = self.group.as_ref().map(Membership::group);
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

    /// What is trained.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Where it is trained.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Threads that compute on a CPU.
    #[must_use]
    pub fn threads(&self) -> usize {
        usize::try_from(tch::get_num_threads()).unwrap_or(1)
    }

    /// Cores that it keeps busy: those of its threads, or one that feeds a GPU.
    #[must_use]
    pub fn cores(&self) -> usize {
        if self.device == Device::Cpu { self.threads() } else { 1 }
    }

    /// Length of the flat vectors.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.spec.parameter_count() as usize
    }

    /// Values of the parameter tensors, which the flat vectors have one after the other.
    pub fn tensor_sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.parameters.views().iter().map(Tensor::numel)
    }

    /// One local step: gradient of the mean loss, clipping, AdamW with the learning rate of the run's `step`. Without
    /// samples nothing changes.
    ///
    /// # Errors
    /// Where libtorch fails; then the step did not happen, or the engine must be dropped.
    pub fn train_step(&mut self, step: u64, batch: &Batch) -> Result<StepOutcome, EngineError> {
        let clip = self.settings.gradient_clip;
        self.step(batch, clip, |engine, gradients, divisor| engine.update(step, gradients, divisor))
    }

    /// One local step under a second moment that is not changed any more: gradient of the mean loss, clipped to the norm `clip` (0: not
    /// clipped), and AdamW's update with v as it is. Without samples nothing changes.
    ///
    /// # Errors
    /// When no update has made a second moment yet; where libtorch fails: then the step did not happen, or the engine must be dropped.
    pub fn frozen_step(&mut self, step: u64, batch: &Batch, clip: f64) -> Result<StepOutcome, EngineError> {
        if self.optimiser.updates() == 0 {
            return Err(EngineError::NothingFrozen);
        }
        let rate = self.learning_rate.at(step);
        self.step(batch, clip, |engine, gradients, divisor| {
            Ok(engine.optimiser.update_frozen(engine.parameters.views(), gradients, rate, divisor)?)
        })
    }

    /// A step by this update with the gradients and what they are divided by.
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
        // Only now, when a GPU has all its work, does the host wait for it.
        let mut outcome = unread.read(batch)?;
        self.tell_norm(norms.as_ref(), &mut outcome)?;
        Ok(outcome)
    }

    /// Clipping and AdamW with this gradient, and the learning rate of the run's `step`.
    ///
    /// # Errors
    /// When `gradient` is not as long as the model has parameters; where libtorch fails.
    pub fn apply_gradient(&mut self, step: u64, gradient: &[f32]) -> Result<(), EngineError> {
        let gradients = views_of(&self.spec, &self.to_device(gradient)?)?;
        let divisor = self.clip_divisor(&gradients, self.settings.gradient_clip)?;
        self.update(step, &gradients, divisor.as_ref())
    }

    /// All parameters, into `into`, which is resized to `[P]`.
    ///
    /// # Errors
    /// Where libtorch fails.
    pub fn parameters_to_host(&self, into: &mut Vec<f32>) -> Result<(), EngineError> {
        Ok(self.link.read_all(self.parameters.flat(), into)?)
    }

    /// The parameters from `start` on, as many as there is room for.
    ///
    /// # Errors
    /// When they reach beyond the last parameter; where libtorch fails.
    pub fn read_parameters(&self, start: usize, into: &mut [f32]) -> Result<(), EngineError> {
        let part = self.parameters.flat().f_narrow(0, start as i64, into.len() as i64)?;
        Ok(self.link.read(&part, into)?)
    }

    /// Replaces all parameters.
    ///
    /// # Errors
    /// When `values` is not as long as the model has parameters; where libtorch fails.
    pub fn load_parameters(&mut self, values: &[f32]) -> Result<(), EngineError> {
        let values = self.to_device(values)?;
        Ok(self.parameters.flat().shallow_clone().f_copy_(&values)?)
    }

    /// θ ← `kept`·θ + `values` for the parameters from `start` on.
    ///
    /// # Errors
    /// When `values` reach beyond the last parameter; where libtorch fails.
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

    /// AdamW's memory.
    ///
    /// # Errors
    /// Where libtorch fails.
    pub fn moments_to_host(&self) -> Result<Moments, EngineError> {
        let mut moments = Moments { updates: self.optimiser.updates(), ..Moments::default() };
        self.link.read_all(self.optimiser.first(), &mut moments.first)?;
        self.link.read_all(self.optimiser.second(), &mut moments.second)?;
        Ok(moments)
    }

    /// Replaces AdamW's memory.
    ///
    /// # Errors
    /// When a moment is not as long as the model has parameters; where libtorch fails.
    pub fn load_moments(&mut self, moments: &Moments) -> Result<(), EngineError> {
        let (first, second) = (self.to_device(&moments.first)?, self.to_device(&moments.second)?);
        Ok(self.optimiser.load(&first, &second, moments.updates)?)
    }

    /// Forgets AdamW's memory, as before the first update.
    ///
    /// # Errors
    /// Where libtorch fails.
    pub fn reset_moments(&mut self) -> Result<(), EngineError> {
        Ok(self.optimiser.reset()?)
    }

    /// The chunk that the whole model is.
    fn whole_chunk(&self) -> Result<&Chunk, EngineError> {
        match &*self.chunks {
            [chunk] if self.rank.is_none() && self.has_all_blocks() => Ok(chunk),
            _ => Err(EngineError::Part),
        }
    }

    fn has_all_blocks(&self) -> bool {
        self.spec.chunks == self.spec.whole().chunks
    }

    /// The model, all of which is here, or a share of all its layers.
    fn whole(&self) -> Result<&Model, EngineError> {
        self.whole_chunk().map(Chunk::model)
    }

    /// AdamW with the gradients over `divisor`, and the learning rate of the run's `step`.
    fn update(
        &mut self,
        step: u64,
        gradients: &[Tensor],
        divisor: Option<&Tensor>,
    ) -> Result<(), EngineError> {
        let rate = self.learning_rate.at(step);
        Ok(self.optimiser.update(self.parameters.views(), gradients, rate, divisor)?)
    }

    /// A vector of the model's length, on the device.
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
