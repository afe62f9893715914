//! Messages between the ranks of a replica, as frames.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use longhaul_common::config::{BOUNDARY_CHUNK, Differences, ParallelConfig, ValueFormat};
use longhaul_common::id::{Generation, WorkerId};
use longhaul_common::pipeline::{Pipeline, RankTask, Task, Work};
use longhaul_engine::{EngineError, Gift, Pipe};
use longhaul_flight::Awaited;
use longhaul_member::activity::Activity;
use longhaul_peer::Network;
use longhaul_peer::stage_inbox::{About, Interrupted, StageKind};
use longhaul_proto::codec::{Decoder, Update};
use tch::{Device, Kind, Tensor};

use super::activation_cache::ActivationCache;
use super::outbox::{PART_VALUES, PipeError, StageMessage, StageSender};

/// Formats of tensors between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundaryFormats {
    /// Activations, rounded to nearest. The rounding error is lost, as no two micro-batches are alike.
    pub activations: ValueFormat,
    /// Gradients of activations. Rounded stochastically where possible, so that the mean over many micro-batches is unbiased.
    pub gradients: ValueFormat,
    /// Values sent of each [`BOUNDARY_CHUNK`] of a gradient, drawn so that their mean is unbiased.
    pub gradient_keep: u32,
    /// Differences for activations of known sequences.
    pub differences: Option<Differences>,
}

impl BoundaryFormats {
    /// Formats without rounding.
    pub const EXACT: Self = Self::of(ValueFormat::F32);

    /// One format for activations and gradients.
    #[must_use]
    pub const fn of(format: ValueFormat) -> Self {
        Self { activations: format, gradients: format, gradient_keep: BOUNDARY_CHUNK, differences: None }
    }

    /// The formats of `[parallel]`.
    #[must_use]
    pub fn configured(config: &ParallelConfig) -> Self {
        let (gradient_keep, differences) = (config.boundary_keep, config.differences);
        Self { gradient_keep, differences, ..Self::of(config.boundary) }
    }
}

/// The frames of a replica's session from the view of one rank; with tensor groups, those between members of the same index. The seed of stochastic rounding
/// depends only on the copy and the message, so all indices send the same bytes.
pub struct NetworkPipe {
    network: Arc<Network>,
    pipeline: Pipeline,
    rank: u32,
    session: Generation,
    /// The worker of each rank.
    workers: Vec<WorkerId>,
    exchange: u64,
    outbox: StageSender,
    decoder: Decoder,
    /// Activations received from the previous rank, if differences are sent.
    recall: Option<ActivationCache>,
    /// The sequences of each micro-batch in this exchange, if it is a step.
    sequences: Vec<Vec<u64>>,
}

impl NetworkPipe {
    /// Creates the pipe of `rank` in a pipeline of these workers, since `session`, in the copy of the model with `copy` as its first worker.
    ///
    /// # Errors
    /// The codec lacks a format, or the system cannot create a thread.
    pub fn new(
        network: Arc<Network>,
        pipeline: Pipeline,
        rank: u32,
        session: Generation,
        workers: Vec<WorkerId>,
        copy: WorkerId,
        formats: BoundaryFormats,
    ) -> Result<Self, PipeError> {
        let chunks = pipeline.chunks;
        let outbox = StageSender::start(Arc::clone(&network), session, copy, formats, chunks)?;
        Ok(Self {
            network,
            pipeline,
            rank,
            session,
            workers,
            exchange: 0,
            outbox,
            decoder: Decoder::default(),
            recall: formats.differences.map(|differences| ActivationCache::new(differences, chunks)),
            sequences: Vec::new(),
        })
    }

    fn worker(&self, rank: u32) -> Result<WorkerId, EngineError> {
        let interrupted = || EngineError::Interrupted(format!("nobody has rank {rank}"));
        self.workers.get(rank as usize).copied().ok_or_else(interrupted)
    }

    fn about(&self, kind: StageKind, task: Option<Task>) -> About {
        let (chunk, micro_batch) = task.map_or((0, 0), |task| (task.chunk, task.micro_batch));
        About { exchange: self.exchange, kind, chunk, micro_batch }
    }

    fn post_number(&self, to: u32, about: About, body: Bytes) -> Result<(), EngineError> {
        let meta = about.to_meta(self.session, self.network.worker(), 0);
        let to = self.worker(to)?;
        self.waiting(Awaited::Others, || self.network.send_stage(to, meta, body))
    }

    /// Runs a blocking operation and counts its time.
    #[allow(clippy::disallowed_methods, reason = "measures what the device waits for other ranks")]
    fn waiting<T>(
        &self,
        awaited: Awaited,
        exchange: impl FnOnce() -> Result<T, Interrupted>,
    ) -> Result<T, EngineError> {
        let _waiting = self.network.progress().begin(Activity::WaitForOthers);
        self.network.progress().begins_to_wait(awaited, Instant::now());
        let answer = exchange();
        self.network.progress().waited(Instant::now());
        answer.map_err(interrupted)
    }

    fn post_tensor(&self, to: u32, about: About, values: &Tensor) -> Result<(), EngineError> {
        let values = values.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?.f_contiguous()?;
        let mut host = self.outbox.paper();
        host.resize(values.numel(), 0.0);
        values.f_copy_data(&mut host, values.numel())?;
        if !host.iter().all(|value| value.is_finite()) {
            return Err(EngineError::NotFinite);
        }
        let message =
            StageMessage { to: self.worker(to)?, about, sequences: self.sequences_of(about), values: host };
        self.waiting(Awaited::Others, || self.outbox.post(message))
    }

    /// Returns the sequences of cached activations.
    fn sequences_of(&self, about: About) -> Vec<u64> {
        let is_remembered = about.kind == StageKind::Forward && self.recall.is_some();
        let sequences = self.sequences.get(about.micro_batch as usize).filter(|_| is_remembered);
        sequences.cloned().unwrap_or_default()
    }

    /// Sends a number to all other ranks.
    fn tell_all(&self, own: f64) -> Result<(), EngineError> {
        let about = self.about(StageKind::Number, None);
        let body = Bytes::copy_from_slice(&own.to_le_bytes());
        let mut others = (0..self.pipeline.ranks).filter(|&to| to != self.rank);
        others.try_for_each(|to| self.post_number(to, about, body.clone()))
    }

    /// Returns the number of a rank, which may be this one.
    fn number_of(&self, from: u32, own: f64) -> Result<f64, EngineError> {
        if from == self.rank {
            return Ok(own);
        }
        let about = self.about(StageKind::Number, None);
        let parts = self.fetch(from, about, 1)?;
        let number = parts.first().and_then(|body| body.first_chunk());
        let number = number.ok_or_else(|| unreadable(about, "it is no number"))?;
        Ok(f64::from_le_bytes(*number))
    }

    fn fetch(&self, from: u32, about: About, parts: usize) -> Result<Vec<Bytes>, EngineError> {
        let from = self.worker(from)?;
        let mail = self.network.stage_inbox();
        self.waiting(Awaited::Neighbour, || mail.wait(self.session, from, about, parts))
    }

    fn fetch_tensor(&mut self, from: u32, about: About, shape: &[i64]) -> Result<Tensor, EngineError> {
        let count = shape.iter().product::<i64>() as usize;
        let mut values = Vec::with_capacity(count);
        for part in self.fetch(from, about, count.div_ceil(PART_VALUES))? {
            let expected = PART_VALUES.min(count - values.len());
            match self.decoder.decode(&part, expected) {
                Ok(Update::Dense(part)) => values.extend_from_slice(part),
                Ok(sparse) if about.kind == StageKind::Backward => {
                    let start = values.len();
                    values.resize(start + expected, 0.0);
                    sparse.add_scaled_to(1.0, &mut values[start..]);
                }
                Ok(_) => return Err(unreadable(about, "only some of its values came")),
                Err(error) => return Err(unreadable(about, &error.to_string())),
            }
        }
        self.recall(about, &mut values);
        Ok(Tensor::f_from_slice(&values)?.f_view(shape)?)
    }
}

impl NetworkPipe {
    /// Reconstructs activations from a difference and stores them.
    fn recall(&mut self, about: About, values: &mut [f32]) {
        let sequences = self.sequences_of(about);
        if let Some(recall) = self.recall.as_mut().filter(|_| !sequences.is_empty()) {
            if recall.knows(about.chunk, &sequences) {
                recall.add(about.chunk, &sequences, values);
            }
            recall.remember(about.chunk, &sequences, values);
        }
    }
}

impl Pipe for NetworkPipe {
    fn begin(&mut self) {
        self.exchange += 1;
        self.sequences.clear();
    }

    fn remembers(&self) -> bool {
        self.recall.is_some()
    }

    fn name(&mut self, sequences: Vec<Vec<u64>>) {
        self.sequences = sequences;
    }

    fn send(&mut self, task: Task, values: &Tensor) -> Result<(), EngineError> {
        let Some(to) = self.pipeline.receiver_of(RankTask { rank: self.rank, task }) else { return Ok(()) };
        self.post_tensor(to, self.about(kind_of(task), Some(task)), values)
    }

    fn receive(&mut self, task: Task, shape: &[i64]) -> Result<Tensor, EngineError> {
        let none = || EngineError::Interrupted(format!("{task:?} takes nothing from another rank"));
        let from = self.pipeline.input_of(RankTask { rank: self.rank, task }).ok_or_else(none)?;
        self.fetch_tensor(from.rank, self.about(kind_of(from.task), Some(from.task)), shape)
    }

    fn total(&mut self, own: f64) -> Result<f64, EngineError> {
        self.begin();
        self.tell_all(own)?;
        (0..self.pipeline.ranks).map(|from| self.number_of(from, own)).sum()
    }

    fn announce(&mut self, from: u32, own: f64) -> Result<f64, EngineError> {
        if from == self.rank {
            self.tell_all(own)?;
        }
        self.number_of(from, own)
    }

    fn give(&mut self, to: u32, what: Gift, values: &Tensor) -> Result<(), EngineError> {
        self.post_tensor(to, self.about(kind_of_gift(what), None), values)
    }

    fn take(&mut self, from: u32, what: Gift, shape: &[i64]) -> Result<Tensor, EngineError> {
        self.fetch_tensor(from, self.about(kind_of_gift(what), None), shape)
    }
}

fn interrupted(error: Interrupted) -> EngineError {
    EngineError::Interrupted(error.to_string())
}

fn kind_of(task: Task) -> StageKind {
    match task.work {
        Work::Forward => StageKind::Forward,
        Work::Backward | Work::BackwardInput | Work::BackwardWeight => StageKind::Backward,
    }
}

fn kind_of_gift(what: Gift) -> StageKind {
    match what {
        Gift::Values => StageKind::Given,
        Gift::Gradient => StageKind::Returned,
    }
}

fn unreadable(about: About, why: &str) -> EngineError {
    EngineError::Interrupted(format!("{about:?} cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::tests::replica;
    use longhaul_common::pipeline::PipelineSchedule;
    use longhaul_engine::testing::pipeline;

    /// A lent parameter must be identical on both ranks; its gradient is one of many.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_lent_parameter_comes_as_it_is_and_its_gradient_in_eight_bits() {
        let pipeline = pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
        let formats = BoundaryFormats::of(ValueFormat::Int8);
        let (ranks, mut pipes) = replica(&pipeline, formats);
        let [given, returned] = tokio::task::spawn_blocking(move || {
            let values = Tensor::arange(64 * 256, (Kind::Float, Device::Cpu)).sin().view([64, 256]);
            let [first, last] = pipes.as_mut_slice() else { panic!("two ranks") };
            [&mut *first, last].into_iter().for_each(|pipe| pipe.begin());
            first.give(1, Gift::Values, &values).unwrap();
            last.give(0, Gift::Gradient, &values).unwrap();
            let given = last.take(0, Gift::Values, &[64, 256]).unwrap();
            let returned = first.take(1, Gift::Gradient, &[64, 256]).unwrap();
            [given, returned].map(|got| f64::try_from((got - &values).abs().max()).unwrap())
        })
        .await
        .unwrap();
        assert_eq!(given, 0.0);
        assert!(returned > 0.0 && returned <= 1.0 / 127.0, "{returned}");
        let [lent, gave_back] =
            [0, 1].map(|rank: usize| ranks[rank].network.progress().heartbeat().traffic.wan_sent_bytes);
        assert!(gave_back * 3 < lent, "{gave_back} bytes came back of {lent}");
    }

    /// Waits outside of steps, such as in an evaluation, do not count as bubble.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_rank_waits_for_its_neighbours_within_a_step_is_bubble() {
        let pipeline = pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
        let (ranks, mut pipes) = replica(&pipeline, BoundaryFormats::EXACT);
        let progress = Arc::clone(ranks[1].network.progress());
        tokio::task::spawn_blocking(move || {
            let task = Task { work: Work::Forward, chunk: 0, micro_batch: 0 };
            let [first, last] = pipes.as_mut_slice() else { panic!("two ranks") };
            let mut pass = || {
                [&mut *first, last].into_iter().for_each(|pipe| pipe.begin());
                first.send(task, &Tensor::ones([8, 8], (Kind::Float, Device::Cpu))).unwrap();
                assert_eq!(last.receive(task, &[8, 8]).unwrap().size(), [8, 8]);
                progress.heartbeat()
            };
            let outside = pass();
            assert!(outside.time.wait_s > 0.0 && outside.time.bubble_s == 0.0, "{outside:?}");
            let step = progress.begin_step();
            let within = pass();
            drop(step);
            assert!(within.time.bubble_s > 0.0, "{within:?}");
            assert!(
                (within.time.wait_s - outside.time.wait_s - within.time.bubble_s).abs() < 1e-9,
                "{within:?}"
            );
            assert_eq!(pass().time.bubble_s, within.time.bubble_s, "the step is over");
        })
        .await
        .unwrap();
    }
}
