//! What ranks of a replica tell each other, as frames.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_common::pipeline::{Pipeline, Place, Task, Work};
use longhaul_proto::frame::{FrameKind, FrameMeta};
use tch::{Device, Kind, Tensor};

use super::Network;
use super::stage_mail::{About, Interrupted, LetterKind};
use crate::engine::{EngineError, Pipe};

/// Bytes in a frame: the rest of a tensor is on its way while the first of it is checked, and a lost connection costs little.
const PART_BYTES: usize = 1 << 20;

/// The frames of a replica's session, seen from one of its ranks.
pub struct NetworkPipe {
    network: Arc<Network>,
    pipeline: Pipeline,
    rank: u32,
    session: Generation,
    /// Who has which rank.
    workers: Vec<WorkerId>,
    exchange: u64,
}

impl NetworkPipe {
    /// For `rank` of a pipeline whose ranks these workers are, since `session` began.
    #[must_use]
    pub fn new(
        network: Arc<Network>,
        pipeline: Pipeline,
        rank: u32,
        session: Generation,
        workers: Vec<WorkerId>,
    ) -> Self {
        Self { network, pipeline, rank, session, workers, exchange: 0 }
    }

    fn worker(&self, rank: u32) -> Result<WorkerId, EngineError> {
        let interrupted = || EngineError::Interrupted(format!("nobody has rank {rank}"));
        self.workers.get(rank as usize).copied().ok_or_else(interrupted)
    }

    fn about(&self, kind: LetterKind, task: Option<Task>) -> About {
        let (chunk, micro_batch) = task.map_or((0, 0), |task| (task.chunk, task.micro_batch));
        About { exchange: self.exchange, kind, chunk, micro_batch }
    }

    fn post(&self, to: u32, about: About, body: &Bytes) -> Result<(), EngineError> {
        let to = self.worker(to)?;
        for (part, start) in (0..).zip((0..body.len()).step_by(PART_BYTES)) {
            let body = body.slice(start..body.len().min(start + PART_BYTES));
            let meta = meta_of(self.session, self.network.worker, about, part);
            self.network.send_stage(to, meta, body).map_err(interrupted)?;
        }
        Ok(())
    }

    fn fetch(&self, from: u32, about: About, bytes: usize) -> Result<BytesMut, EngineError> {
        let parts = bytes.div_ceil(PART_BYTES);
        let from = self.worker(from)?;
        let parts = self.network.stage_mail.wait(self.session, from, about, parts).map_err(interrupted)?;
        let mut body = BytesMut::with_capacity(bytes);
        parts.iter().for_each(|part| body.extend_from_slice(part));
        if body.len() == bytes {
            return Ok(body);
        }
        Err(EngineError::Interrupted(format!("{from} sent {} bytes in place of {bytes}", body.len())))
    }

    fn fetch_tensor(&self, from: u32, about: About, shape: &[i64]) -> Result<Tensor, EngineError> {
        let values: i64 = shape.iter().product();
        let body = self.fetch(from, about, values as usize * size_of::<f32>())?;
        Ok(Tensor::f_from_data_size(&body, shape, Kind::Float)?)
    }
}

impl Pipe for NetworkPipe {
    fn begin(&mut self) {
        self.exchange += 1;
    }

    fn send(&mut self, task: Task, values: &Tensor) -> Result<(), EngineError> {
        let Some(to) = self.pipeline.receiver_of(Place { rank: self.rank, task }) else { return Ok(()) };
        self.post(to, self.about(kind_of(task), Some(task)), &bytes_of(values)?)
    }

    fn receive(&mut self, task: Task, shape: &[i64]) -> Result<Tensor, EngineError> {
        let none = || EngineError::Interrupted(format!("{task:?} takes nothing from another rank"));
        let from = self.pipeline.input_of(Place { rank: self.rank, task }).ok_or_else(none)?;
        self.fetch_tensor(from.rank, self.about(kind_of(from.task), Some(from.task)), shape)
    }

    fn total(&mut self, own: f64) -> Result<f64, EngineError> {
        self.begin();
        let about = self.about(LetterKind::Number, None);
        let ranks = 0..self.pipeline.ranks;
        for to in ranks.clone().filter(|&to| to != self.rank) {
            self.post(to, about, &Bytes::copy_from_slice(&own.to_le_bytes()))?;
        }
        let number = |from| match from == self.rank {
            true => Ok(own),
            false => {
                let body = self.fetch(from, about, size_of::<f64>())?;
                Ok(body.first_chunk().map_or(f64::NAN, |bytes| f64::from_le_bytes(*bytes)))
            }
        };
        ranks.map(number).sum()
    }

    fn give(&mut self, to: u32, values: &Tensor) -> Result<(), EngineError> {
        self.post(to, self.about(LetterKind::Given, None), &bytes_of(values)?)
    }

    fn take(&mut self, from: u32, shape: &[i64]) -> Result<Tensor, EngineError> {
        self.fetch_tensor(from, self.about(LetterKind::Given, None), shape)
    }
}

fn interrupted(error: Interrupted) -> EngineError {
    EngineError::Interrupted(error.to_string())
}

fn kind_of(task: Task) -> LetterKind {
    match task.work {
        Work::Forward => LetterKind::Forward,
        Work::Backward | Work::BackwardInput | Work::BackwardWeight => LetterKind::Backward,
    }
}

/// The values in f32, little-endian, row by row.
fn bytes_of(values: &Tensor) -> Result<Bytes, EngineError> {
    let values = values.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?.f_contiguous()?;
    let mut bytes = vec![0; values.numel() * size_of::<f32>()];
    values.f_copy_data_u8(&mut bytes, values.numel())?;
    Ok(bytes.into())
}

/// A header of a frame with a part of a letter.
fn meta_of(session: Generation, sender: WorkerId, about: About, part: u32) -> FrameMeta {
    let kind = match about.kind {
        LetterKind::Forward => 0,
        LetterKind::Backward => 1,
        LetterKind::Number => 2,
        LetterKind::Given => 3,
    };
    FrameMeta {
        kind: FrameKind::Stage,
        generation: session,
        round: Round(about.exchange),
        fragment: FragmentId(about.micro_batch),
        sender,
        weight: about.chunk * KINDS + kind,
        part,
    }
}

/// What [`meta_of`] was made of; none: it is of no kind that there is.
pub(super) fn about_of(meta: &FrameMeta) -> Option<About> {
    let kind = match meta.weight % KINDS {
        0 => LetterKind::Forward,
        1 => LetterKind::Backward,
        2 => LetterKind::Number,
        3 => LetterKind::Given,
        _ => return None,
    };
    let (exchange, micro_batch) = (meta.round.0, meta.fragment.0);
    Some(About { exchange, kind, chunk: meta.weight / KINDS, micro_batch })
}

/// Kinds of letters in a header's field.
const KINDS: u32 = 4;
