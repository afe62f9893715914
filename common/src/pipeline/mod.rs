//! Pipelines: the tasks of each stage's worker, and their order. Pure functions to lists of tasks, and a
//! check of such lists without tensors.
//!
//! A *rank* is a worker's place in its replica's pipeline, 0 to p − 1. Its part of the model is one or more
//! *chunks*, contiguous ranges of blocks: chunk c of rank r is *stage* c·p + r, so that with several chunks
//! the model passes the ranks several times. A batch is divided into micro-batches, which pass all stages
//! forwards, and their gradients backwards.

mod generate;
mod parts;
mod split;
mod trace;

use serde::{Deserialize, Serialize};

pub use crate::config::PipelineSchedule;
pub use generate::ScheduleError;
pub use split::split;
pub use trace::{Costs, Held, Stuck, Trace, held_most, trace};

/// The pipeline of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    /// Order of tasks.
    pub schedule: PipelineSchedule,
    /// Ranks, p.
    pub ranks: u32,
    /// Stages per rank, v; 1 except with [`PipelineSchedule::Interleaved`].
    pub chunks: u32,
    /// Micro-batches per step, m.
    pub micro_batches: u32,
    /// By rank: maximum micro-batches between forward and backward. Empty: p − rank, which suffices for short
    /// links. Only for [`PipelineSchedule::OneForwardOneBackward`].
    pub in_flight: Vec<u32>,
}

/// Kind of computation on a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Activations.
    Forward,
    /// Gradients of the stage's input and of its weights.
    Backward,
    /// Gradient of the stage's input only, for which the previous stage waits.
    BackwardInput,
    /// Gradient of the weights, for which no other rank waits.
    BackwardWeight,
}

/// One task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    /// Kind.
    pub work: Work,
    /// Chunk of the rank.
    pub chunk: u32,
    /// Micro-batch.
    pub micro_batch: u32,
}

/// One task on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankTask {
    /// Rank.
    pub rank: u32,
    /// Task.
    pub task: Task,
}

impl Pipeline {
    /// Returns the stages of the whole model.
    #[must_use]
    pub fn stages(&self) -> u32 {
        self.ranks * self.chunks
    }

    /// Returns the stage of a rank's chunk.
    #[must_use]
    pub fn stage(&self, rank: u32, chunk: u32) -> u32 {
        chunk * self.ranks + rank
    }

    /// Returns the task of another stage whose result a task needs; `None`: it starts the pipeline, or is the
    /// turning point.
    #[must_use]
    pub fn input_of(&self, place: RankTask) -> Option<RankTask> {
        let RankTask { rank, task } = place;
        let stage = self.stage(rank, task.chunk);
        let (of, work) = match task.work {
            Work::Forward => (stage.checked_sub(1)?, Work::Forward),
            Work::Backward | Work::BackwardInput => {
                (Some(stage + 1).filter(|&next| next < self.stages())?, task.work)
            }
            Work::BackwardWeight => return None,
        };
        let task = Task { work, chunk: of / self.ranks, micro_batch: task.micro_batch };
        Some(RankTask { rank: of % self.ranks, task })
    }

    /// Returns the rank that waits for a task's result, if any.
    #[must_use]
    pub fn receiver_of(&self, place: RankTask) -> Option<u32> {
        let stage = self.stage(place.rank, place.task.chunk);
        let to = match place.task.work {
            Work::Forward => Some(stage + 1).filter(|&next| next < self.stages()),
            Work::Backward | Work::BackwardInput => stage.checked_sub(1),
            Work::BackwardWeight => None,
        };
        to.map(|stage| stage % self.ranks)
    }

    /// Returns the task that the same rank must have computed before.
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
