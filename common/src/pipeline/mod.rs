//! Pipelines: which stage's worker computes what, in which order. Pure functions to lists of tasks, and a check of such lists without a tensor.
//!
//! A *rank* is a worker's place in its replica's pipeline, 0 to p − 1. Its part of the model is one or more *chunks*, contiguous ranges of blocks: chunk c
//! of rank r is *stage* c·p + r, so that with several chunks the model goes round the ranks several times. A batch is cut into micro-batches,
//! which go through all stages forwards, and their gradients backwards.

mod generate;
mod parts;
mod split;
mod trace;

use serde::{Deserialize, Serialize};

pub use crate::config::PipelineSchedule;
pub use generate::ScheduleError;
pub use split::split;
pub use trace::{Costs, Held, Stuck, Trace, held_most, trace};

/// What is to be scheduled: the pipeline of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    /// The order of tasks.
    pub schedule: PipelineSchedule,
    /// Workers in a row, p.
    pub ranks: u32,
    /// Stages of each worker, v; 1 but for [`PipelineSchedule::Interleaved`].
    pub chunks: u32,
    /// Micro-batches of a step, m.
    pub micro_batches: u32,
    /// By rank: micro-batches that have gone forwards and not yet backwards, at most. Where it is empty, as many as short links need: p − rank. Only for
    /// [`PipelineSchedule::OneForwardOneBackward`].
    pub in_flight: Vec<u32>,
}

/// What is computed of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Activations.
    Forward,
    /// Gradients of the stage's input and of its weights.
    Backward,
    /// The gradient of the stage's input alone, which is what the stage before waits for.
    BackwardInput,
    /// The gradient of the weights, which nobody else waits for.
    BackwardWeight,
}

/// One thing to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    /// What.
    pub work: Work,
    /// Of which of the rank's stages.
    pub chunk: u32,
    /// For which micro-batch.
    pub micro_batch: u32,
}

/// One task on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Who computes it.
    pub rank: u32,
    /// What it is.
    pub task: Task,
}

impl Pipeline {
    /// Stages of the whole model.
    #[must_use]
    pub fn stages(&self) -> u32 {
        self.ranks * self.chunks
    }

    /// The stage that a rank's chunk is.
    #[must_use]
    pub fn stage(&self, rank: u32, chunk: u32) -> u32 {
        chunk * self.ranks + rank
    }

    /// What is to be received from another stage before a task can be computed: that stage's task. None: it begins the pipeline, or is the turning point.
    #[must_use]
    pub fn input_of(&self, place: Place) -> Option<Place> {
        let Place { rank, task } = place;
        let stage = self.stage(rank, task.chunk);
        let (of, work) = match task.work {
            Work::Forward => (stage.checked_sub(1)?, Work::Forward),
            Work::Backward | Work::BackwardInput => {
                (Some(stage + 1).filter(|&next| next < self.stages())?, task.work)
            }
            Work::BackwardWeight => return None,
        };
        let task = Task { work, chunk: of / self.ranks, micro_batch: task.micro_batch };
        Some(Place { rank: of % self.ranks, task })
    }

    /// Which rank waits for what a task gives, if any.
    #[must_use]
    pub fn receiver_of(&self, place: Place) -> Option<u32> {
        let stage = self.stage(place.rank, place.task.chunk);
        let to = match place.task.work {
            Work::Forward => Some(stage + 1).filter(|&next| next < self.stages()),
            Work::Backward | Work::BackwardInput => stage.checked_sub(1),
            Work::BackwardWeight => None,
        };
        to.map(|stage| stage % self.ranks)
    }

    /// What the same rank has to have computed before.
    #[must_use]
    pub fn own_input_of(&self, task: Task) -> Option<Task> {
        let work = match task.work {
            Work::Forward => return None,
            Work::Backward | Work::BackwardInput => Work::Forward,
            Work::BackwardWeight => Work::BackwardInput,
        };
        Some(Task { work, ..task })
    }
}
