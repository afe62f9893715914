//! A part of the model in a pipeline: the tasks of a schedule, in order, with transfers from and to other ranks.
//!
//! Each rank computes the gradient of its own parameters as in an undivided model: a residual stream is sent unchanged, and its gradient returned.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longhaul_common::model::ModelSpec;
use longhaul_common::pipeline::{Pipeline, PipelineSchedule, Task, Work};
use tch::Tensor;

use super::chunk::{Chunk, Gradients, PassData, SavedActivations};
use super::evaluation::inputs;
use super::gradient::{Sum, all_of, outcome};
use super::interpreter::{Stages, interpret};
use super::{Engine, EngineError, StepOutcome};
use crate::batch::{Batch, MicroBatch};
use crate::models::{Left, Model};

/// A rank's connection to the others of its replica; with tensor groups, a member's to those of the same index. All ranks begin the same exchanges in the
/// same order; messages belong to the sender's latest one, so that one may run ahead.
pub trait Pipe: Send {
    /// Begins an exchange: a step, an evaluation.
    fn begin(&mut self);

    /// Reports whether it uses names.
    fn remembers(&self) -> bool {
        false
    }

    /// Names the sequences of a step's micro-batches, with names that stay constant over repetitions: for pipes that remember earlier transfers.
    fn name(&mut self, _sequences: Vec<Vec<u64>>) {}

    /// Sends a task's output: the residual stream, or its gradient, [B, T, D] in f32.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`].
    fn send(&mut self, task: Task, values: &Tensor) -> Result<(), EngineError>;

    /// Waits for a task's input from another rank, of this shape.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`].
    fn receive(&mut self, task: Task, shape: &[i64]) -> Result<Tensor, EngineError>;

    /// Returns the sum of a number over all ranks, in the order of ranks: the same bits everywhere. It is an exchange of its own.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`].
    fn total(&mut self, own: f64) -> Result<f64, EngineError>;

    /// Broadcasts a number of one rank: at most once in an exchange.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`].
    fn announce(&mut self, from: u32, own: f64) -> Result<f64, EngineError>;

    /// Sends a parameter to the borrowing rank, or its gradient back; each at most once in an exchange.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`].
    fn give(&mut self, to: u32, what: Gift, values: &Tensor) -> Result<(), EngineError>;

    /// Waits for a gift from another rank, of this shape.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`].
    fn take(&mut self, from: u32, what: Gift, shape: &[i64]) -> Result<Tensor, EngineError>;
}

/// Transfers between ranks besides residual streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gift {
    /// A parameter, unchanged.
    Values,
    /// The gradient of one, in the format of gradients of residual streams.
    Gradient,
}

/// A place in a pipeline.
pub struct PipelineRank {
    pipeline: Pipeline,
    rank: u32,
    pipe: Mutex<Box<dyn Pipe>>,
}

impl fmt::Debug for PipelineRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineRank")
            .field("pipeline", &self.pipeline)
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl PipelineRank {
    /// Creates the place of `rank` in a pipeline, whose number of micro-batches is that of each batch.
    #[must_use]
    pub fn new(pipeline: Pipeline, rank: u32, pipe: Box<dyn Pipe>) -> Self {
        Self { pipeline, rank, pipe: Mutex::new(pipe) }
    }

    pub(super) fn schedule(&self) -> PipelineSchedule {
        self.pipeline.schedule
    }

    pub(super) fn check(&self, spec: &ModelSpec) -> Result<(), EngineError> {
        let Pipeline { ranks, chunks, .. } = self.pipeline;
        let begins = spec.chunks.first().is_some_and(|chunk| chunk.contains(&0));
        let ends = spec.chunks.last().is_some_and(|chunk| chunk.contains(&spec.head()));
        // Borrowing requires several ranks.
        let fits = ranks > 1 && spec.chunks.len() == chunks as usize && self.rank < ranks;
        if fits && begins == (self.rank == 0) && ends == (self.rank + 1 == ranks) {
            return Ok(());
        }
        Err(EngineError::Place { chunks: spec.chunks.len(), rank: self.rank, ranks, expected: chunks })
    }

    pub(super) fn is(&self, rank: u32) -> bool {
        self.rank == rank
    }

    /// Returns the sum of a number over all ranks.
    pub(super) fn total(&self, own: f64) -> Result<f64, EngineError> {
        self.pipe().total(own)
    }

    /// Returns the ranks with a tied embedding: the first one, which holds it, and the last one, which borrows it.
    pub(super) fn ends(&self) -> (u32, u32) {
        (0, self.pipeline.ranks - 1)
    }

    fn is_last_stage(&self, task: Task) -> bool {
        self.pipeline.stage(self.rank, task.chunk) + 1 == self.pipeline.stages()
    }

    fn is_first_stage(&self, task: Task) -> bool {
        self.pipeline.stage(self.rank, task.chunk) == 0
    }

    /// One engine computes at a time, and an interruption leaves nothing half done.
    pub(super) fn pipe(&self) -> MutexGuard<'_, Box<dyn Pipe>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step in progress.
struct Step<'a> {
    engine: &'a Engine,
    rank: &'a PipelineRank,
    /// Losses in the mean.
    count: usize,
    micros: Vec<MicroBatch<'a>>,
    kept: HashMap<(u32, u32), SavedActivations>,
    /// Deferred work of backward passes for the tasks that compute the gradients of weights.
    waiting: HashMap<(u32, u32), Left>,
    losses: Vec<Tensor>,
    /// Losses of single sequences, by micro-batch, if requested.
    sample_losses: BTreeMap<u32, Tensor>,
    sums: Vec<Sum>,
    borrowed: Sum,
}

impl Stages for Step<'_> {
    fn shape(&self, task: Task) -> [i64; 3] {
        self.engine.stream_shape(task, &self.micros[task.micro_batch as usize])
    }

    fn forward(&mut self, task: Task, input: Option<Tensor>) -> Result<Option<Tensor>, EngineError> {
        let micro = self.micros[task.micro_batch as usize];
        let input = self.engine.input(&micro, input)?;
        let is_last = self.rank.is_last_stage(task);
        let data = self.engine.pass_data(self.count, &micro)?;
        let targets = if is_last { Some(self.engine.targets(self.count, &micro)?) } else { None };
        let (output, kept) = self.engine.chunk(task)?.forward(&input, targets, data)?;
        self.sample_losses.extend(kept.losses().map(|losses| (task.micro_batch, losses)));
        self.kept.insert((task.chunk, task.micro_batch), kept);
        if is_last {
            self.losses.push(output);
            return Ok(None);
        }
        Ok(Some(output))
    }

    fn backward(&mut self, task: Task, gradient: Option<Tensor>) -> Result<Option<Tensor>, EngineError> {
        let key = (task.chunk, task.micro_batch);
        let kept = self.kept.remove(&key).ok_or_else(|| out_of_order(task))?;
        let behind = gradient.map(|gradient| gradient.f_to_device(self.engine.device)).transpose()?; // [B, T, D]
        let mut gradients = self.engine.chunk(task)?.backward(kept, behind.as_ref())?;
        self.add(task, &gradients)?;
        match gradients.left.take() {
            Some(left) if task.work == Work::BackwardInput => drop(self.waiting.insert(key, left)),
            Some(left) => self.add(task, &self.engine.chunk(task)?.weights(&left)?)?,
            None => {}
        }
        Ok(gradients.input)
    }

    fn weights(&mut self, task: Task) -> Result<(), EngineError> {
        let left = self.waiting.remove(&(task.chunk, task.micro_batch));
        let left = left.ok_or_else(|| out_of_order(task))?;
        self.add(task, &self.engine.chunk(task)?.weights(&left)?)
    }
}

impl Step<'_> {
    fn add(&mut self, task: Task, gradients: &Gradients) -> Result<(), EngineError> {
        for (&at, gradient) in self.engine.chunk(task)?.tensors().iter().zip(&gradients.tensors) {
            gradient.iter().try_for_each(|gradient| self.sums[at].add(gradient))?;
        }
        if let Some(borrowed) = &gradients.borrowed {
            self.borrowed.add(borrowed)?;
        }
        Ok(())
    }
}

impl Engine {
    /// As [`Self::accumulate`]; every rank gets the loss.
    pub(super) fn accumulate_in_pipeline(
        &self,
        batch: &Batch,
    ) -> Result<(StepOutcome, Vec<Tensor>), EngineError> {
        let Some(rank) = &self.rank else { return Err(EngineError::Part) };
        let micros: Vec<_> = batch.micro_batches(self.settings.micro_batch).collect();
        if micros.is_empty() {
            return Ok((StepOutcome::default(), Vec::new()));
        }
        rank.pipe().begin();
        if rank.pipe().remembers() {
            rank.pipe().name(micros.iter().map(|micro| micro.names()).collect());
        }
        self.pass_borrowed(rank)?;
        let pipeline = Pipeline { micro_batches: micros.len() as u32, ..rank.pipeline.clone() };
        let tasks = pipeline.tasks().map_err(|error| EngineError::Interrupted(error.to_string()))?;
        let mut step = Step {
            engine: self,
            rank,
            count: batch.losses(),
            micros,
            kept: HashMap::new(),
            waiting: HashMap::new(),
            losses: Vec::new(),
            sample_losses: BTreeMap::new(),
            sums: self.parameters.views().iter().map(|_| Sum::default()).collect(),
            borrowed: Sum::default(),
        };
        let own = tasks.get(rank.rank as usize).map_or(&[] as &[Task], Vec::as_slice);
        interpret(&pipeline, rank.rank, own, &mut step, &mut **rank.pipe())?;
        self.return_borrowed(&mut step)?;
        let Step { losses, sample_losses, sums, .. } = step;
        let (_, last) = rank.ends();
        let sample_losses: Vec<Tensor> = sample_losses.into_values().collect();
        let own = outcome(batch, &losses, &sample_losses)?;
        let loss = rank.pipe().announce(last, f64::from(own.loss))? as f32;
        Ok((StepOutcome { loss, ..own }, all_of(sums)?))
    }

    /// As [`Self::evaluate`]; every rank gets the loss.
    pub(super) fn evaluate_in_pipeline(
        &self,
        batches: impl IntoIterator<Item: Borrow<Batch>>,
    ) -> Result<Option<f32>, EngineError> {
        let Some(rank) = &self.rank else { return Err(EngineError::Part) };
        let batches: Vec<_> = batches.into_iter().collect();
        let micros: Vec<_> = batches
            .iter()
            .flat_map(|batch| batch.borrow().micro_batches(self.settings.micro_batch))
            .collect();
        let count: usize = micros.iter().map(|micro| micro.losses()).sum();
        let mut sum = 0.0;
        self.through_pipeline(micros, &mut |model, x, micro| {
            sum += match micro.labels(self.device)? {
                Some(labels) => model.loss_of_labels(x, &labels)?.f_double_value(&[])?,
                None => {
                    let loss = model.loss_behind(x, &micro.to_tensor(self.device)?)?.f_double_value(&[])?;
                    loss * micro.sequences() as f64
                }
            };
            Ok(())
        })?;
        let total = rank.total(sum)?;
        Ok((count > 0).then(|| (total / count as f64) as f32))
    }

    /// Runs an exchange of forward passes only; `at_end` receives on the last rank the residual stream [B, T, D] behind the last layer of each micro-batch,
    /// in order.
    pub(super) fn through_pipeline(
        &self,
        micros: Vec<MicroBatch<'_>>,
        at_end: &mut dyn FnMut(&Model, &Tensor, &MicroBatch<'_>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let Some(rank) = &self.rank else { return Err(EngineError::Part) };
        rank.pipe().begin();
        self.pass_borrowed(rank)?;
        for (micro_batch, micro) in (0..).zip(&micros) {
            if micro_batch > 0 && micro_batch % FORWARDS_AT_ONCE == 0 {
                rank.total(0.0)?;
            }
            for chunk in 0..rank.pipeline.chunks {
                let task = Task { work: Work::Forward, chunk, micro_batch };
                tch::no_grad(|| {
                    let streamed = match rank.is_first_stage(task) {
                        true => None,
                        false => Some(rank.pipe().receive(task, &self.stream_shape(task, micro))?),
                    };
                    let input = self.input(micro, streamed)?;
                    let model = self.chunk(task)?.model();
                    let data = PassData::of(micro, self.parameters.subspace(), self.device)?;
                    let x = model.forward_in(&input, data.pass())?; // [B, T, D]
                    match rank.is_last_stage(task) {
                        true => at_end(model, &x, micro),
                        false => rank.pipe().send(task, &x),
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Returns the shape of a task's input from another stage: a micro-batch's residual stream before its chunk, or the gradient of that behind it, [B, T, D]
    /// for D values of a token.
    fn stream_shape(&self, task: Task, micro: &MicroBatch<'_>) -> [i64; 3] {
        let chunk = self.spec.chunks.get(task.chunk as usize);
        let end = |chunk: &Range<u32>| if task.work == Work::Forward { chunk.start } else { chunk.end };
        let width = self.spec.stream_width(chunk.map_or(0, end).saturating_sub(1));
        [micro.sequences(), micro.length(), width as usize].map(|size| size as i64)
    }

    /// Returns the residual stream [B, T, D] of the stage before, if any, or tokens [B, T].
    fn input(&self, micro: &MicroBatch<'_>, streamed: Option<Tensor>) -> Result<Tensor, EngineError> {
        if let Some(streamed) = streamed {
            return Ok(streamed.f_to_device(self.device)?);
        }
        Ok(inputs(micro, &micro.to_tensor(self.device)?)?)
    }

    fn chunk(&self, task: Task) -> Result<&Chunk, EngineError> {
        self.chunks.get(task.chunk as usize).ok_or(EngineError::Part)
    }

    /// Copies the first rank's token embedding to the last one's output projection, before a step.
    fn pass_borrowed(&self, rank: &PipelineRank) -> Result<(), EngineError> {
        let (holder, borrower) = rank.ends();
        if holder == borrower || !self.spec.ties_trained_embedding() {
            return Ok(());
        }
        if rank.rank == holder {
            rank.pipe().give(borrower, Gift::Values, &self.token_embedding()?.f_detach()?)?;
        } else if let Some(borrowed) = self.parameters.borrowed() {
            let embedding = rank.pipe().take(holder, Gift::Values, &borrowed.size())?;
            tch::no_grad(|| borrowed.shallow_clone().f_copy_(&embedding))?;
        }
        Ok(())
    }

    /// Adds the gradient of the output projection to that of the embedding, if they are the same tensor.
    fn return_borrowed(&self, step: &mut Step<'_>) -> Result<(), EngineError> {
        let rank = step.rank;
        let (holder, borrower) = rank.ends();
        if holder == borrower || !self.spec.ties_trained_embedding() {
            return Ok(());
        }
        if rank.rank == borrower
            && let Some(gradient) = std::mem::take(&mut step.borrowed).into_tensor()
        {
            rank.pipe().give(holder, Gift::Gradient, &gradient)?;
        } else if rank.rank == holder {
            let gradient = rank.pipe().take(borrower, Gift::Gradient, &self.token_embedding()?.size())?;
            step.sums[EMBEDDING].add(&gradient.f_to_device(self.device)?)?;
        }
        Ok(())
    }

    fn token_embedding(&self) -> Result<&Tensor, EngineError> {
        self.parameters.views().get(EMBEDDING).ok_or(EngineError::Part)
    }
}

fn out_of_order(task: Task) -> EngineError {
    EngineError::Interrupted(format!("{task:?} precedes its input"))
}

/// Forward-only micro-batches after which ranks synchronise, so that the first one does not fill the others' memory.
const FORWARDS_AT_ONCE: u32 = 16;

/// Index of the token embedding among the parameters of its holder: matrices come first, in model order.
const EMBEDDING: usize = 0;

#[cfg(test)]
pub(crate) mod tests;
