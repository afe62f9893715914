//! Generation of task lists.

use std::collections::VecDeque;

use super::{Pipeline, PipelineSchedule, Task, Work};

/// Errors of pipeline schedules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No tasks, or no ranks.
    #[error("a pipeline has at least one rank, one chunk and one micro-batch")]
    Empty,
    /// Only interleaved schedules support chunks.
    #[error("{chunks} chunks on a rank need the schedule `interleaved`")]
    Chunks {
        /// Requested chunks.
        chunks: u32,
    },
    /// Limits that would block a rank for ever, or that do not apply to this schedule.
    #[error(
        "`in_flight` has one number of at least 1 for each rank, none larger than that of the rank before, and goes with `1f1b` alone"
    )]
    InFlight,
}

impl Pipeline {
    /// Returns the tasks of each rank in a step, in order. Each micro-batch passes each stage once forwards
    /// and once backwards, and gradients are summed in the order of micro-batches, whatever the schedule.
    ///
    /// # Errors
    /// The schedule does not support these numbers.
    pub fn tasks(&self) -> Result<Vec<Vec<Task>>, ScheduleError> {
        self.check()?;
        let ranks = 0..self.ranks;
        Ok(match self.schedule {
            PipelineSchedule::Gpipe => ranks.map(|_| self.alternating(self.micro_batches)).collect(),
            PipelineSchedule::OneForwardOneBackward => {
                ranks.map(|rank| self.alternating(self.in_flight_on(rank))).collect()
            }
            PipelineSchedule::Interleaved => ranks.map(|rank| self.interleaved(rank)).collect(),
            PipelineSchedule::ZeroBubble => ranks.map(|rank| self.zero_bubble(rank)).collect(),
        })
    }

    fn check(&self) -> Result<(), ScheduleError> {
        let Self { schedule, ranks, chunks, micro_batches, ref in_flight } = *self;
        if ranks == 0 || chunks == 0 || micro_batches == 0 {
            return Err(ScheduleError::Empty);
        }
        if chunks > 1 && schedule != PipelineSchedule::Interleaved {
            return Err(ScheduleError::Chunks { chunks });
        }
        let fits = schedule == PipelineSchedule::OneForwardOneBackward
            && in_flight.len() == ranks as usize
            && in_flight.is_sorted_by(|before, after| before >= after)
            && in_flight.last().is_some_and(|&last| last > 0);
        if in_flight.is_empty() || fits { Ok(()) } else { Err(ScheduleError::InFlight) }
    }

    /// Returns the maximum micro-batches between forward and backward on a rank.
    fn in_flight_on(&self, rank: u32) -> u32 {
        self.in_flight.get(rank as usize).copied().unwrap_or(self.ranks - rank)
    }

    /// Returns forwards until `in_flight` is reached, then alternating backwards and forwards, then the rest.
    fn alternating(&self, in_flight: u32) -> Vec<Task> {
        let warm_up = in_flight.min(self.micro_batches);
        let mut tasks: Vec<Task> = (0..warm_up).map(|i| task(Work::Forward, 0, i)).collect();
        for i in 0..self.micro_batches {
            tasks.push(task(Work::Backward, 0, i));
            let next = warm_up + i;
            tasks.extend((next < self.micro_batches).then(|| task(Work::Forward, 0, next)));
        }
        tasks
    }

    /// Returns Megatron's order: groups of p micro-batches pass through the chunks, and a rank starts with
    /// enough forwards to keep all later ranks busy. A smaller last group, as when fewer replicas share a
    /// batch, omits the missing tasks: no task depends on another micro-batch.
    fn interleaved(&self, rank: u32) -> Vec<Task> {
        let (p, v, m) = (self.ranks, self.chunks, self.micro_batches);
        let group = p * v;
        let total = m.next_multiple_of(p) * v;
        let place = |k: u32| ((k % group) / p, (k / group) * p + k % p);
        let forward = |k: u32| {
            let (chunk, micro_batch) = place(k);
            task(Work::Forward, chunk, micro_batch)
        };
        let backward = |k: u32| {
            let (chunk, micro_batch) = place(k);
            task(Work::Backward, v - 1 - chunk, micro_batch)
        };
        // One more than Megatron's count, as the next task is a forward: with one chunk, that of 1F1B.
        let ahead = if v == 1 { p - rank } else { 2 * (p - rank - 1) + (v - 1) * p + 1 };
        let warm_up = ahead.min(total);
        let mut tasks: Vec<Task> = (0..warm_up).map(forward).collect();
        for k in 0..total {
            tasks.push(backward(k));
            tasks.extend((warm_up + k < total).then(|| forward(warm_up + k)));
        }
        tasks.retain(|task| task.micro_batch < m);
        tasks
    }

    /// Returns ZB-H1: as 1F1B, but rank r computes the gradient of weights r micro-batches late. All ranks
    /// thus keep the activations of p, and the last gradients fill the time in which 1F1B drains.
    fn zero_bubble(&self, rank: u32) -> Vec<Task> {
        let warm_up = (self.ranks - rank).min(self.micro_batches);
        let mut tasks: Vec<Task> = (0..warm_up).map(|i| task(Work::Forward, 0, i)).collect();
        let mut waiting = VecDeque::new();
        for i in 0..self.micro_batches {
            tasks.push(task(Work::BackwardInput, 0, i));
            waiting.push_back(task(Work::BackwardWeight, 0, i));
            if waiting.len() > rank as usize {
                tasks.extend(waiting.pop_front());
            }
            let next = warm_up + i;
            tasks.extend((next < self.micro_batches).then(|| task(Work::Forward, 0, next)));
        }
        tasks.extend(waiting);
        tasks
    }
}

fn task(work: Work, chunk: u32, micro_batch: u32) -> Task {
    Task { work, chunk, micro_batch }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(schedule: PipelineSchedule, chunks: u32, micro_batches: u32, in_flight: &[u32]) -> Pipeline {
        Pipeline { schedule, ranks: 3, chunks, micro_batches, in_flight: in_flight.to_vec() }
    }

    #[test]
    fn what_no_schedule_fits_is_refused() {
        use PipelineSchedule::{Gpipe, OneForwardOneBackward, ZeroBubble};
        let refused = [
            (pipeline(Gpipe, 1, 0, &[]), ScheduleError::Empty),
            (pipeline(ZeroBubble, 2, 4, &[]), ScheduleError::Chunks { chunks: 2 }),
            (pipeline(ZeroBubble, 1, 4, &[3, 2, 1]), ScheduleError::InFlight),
            (pipeline(OneForwardOneBackward, 1, 4, &[3, 2]), ScheduleError::InFlight),
            (pipeline(OneForwardOneBackward, 1, 4, &[3, 4, 1]), ScheduleError::InFlight),
            (pipeline(OneForwardOneBackward, 1, 4, &[3, 2, 0]), ScheduleError::InFlight),
        ];
        for (pipeline, error) in refused {
            assert_eq!(pipeline.tasks(), Err(error), "{pipeline:?}");
        }
    }

    #[test]
    fn one_forward_and_one_backward_take_turns_after_a_warm_up() {
        let tasks = pipeline(PipelineSchedule::OneForwardOneBackward, 1, 4, &[]).tasks().unwrap();
        let written = |list: &[Task]| -> String {
            let letter = |work| if work == Work::Forward { 'F' } else { 'B' };
            list.iter().map(|task| format!("{}{}", letter(task.work), task.micro_batch)).collect()
        };
        let lists: Vec<_> = tasks.iter().map(|list| written(list)).collect();
        assert_eq!(lists, ["F0F1F2B0F3B1B2B3", "F0F1B0F2B1F3B2B3", "F0B0F1B1F2B2F3B3"]);
    }
}
