//! Runs a rank's list of tasks: receives from and sends to other ranks, and leaves computation to its caller.

use longhaul_common::pipeline::{Pipeline, RankTask, Task, Work};
use tch::Tensor;

use super::{EngineError, Pipe};

/// A rank's computations in a step, task by task, in the order of its list.
pub trait Stages {
    /// Returns the shape of the residual stream that a task receives from another stage, or of its gradient: [B, T, D].
    fn shape(&self, task: Task) -> [i64; 3];

    /// Returns the residual stream behind a stage, given the one before it; no input at the start of the pipeline, and no output at its end.
    ///
    /// # Errors
    /// The computation fails.
    fn forward(&mut self, task: Task, input: Option<Tensor>) -> Result<Option<Tensor>, EngineError>;

    /// Returns the gradient of the input, for that of the output. With [`Work::BackwardInput`], the rest may be deferred to [`Self::weights`].
    ///
    /// # Errors
    /// The computation fails.
    fn backward(&mut self, task: Task, gradient: Option<Tensor>) -> Result<Option<Tensor>, EngineError>;

    /// Computes the deferred rest of a backward pass.
    ///
    /// # Errors
    /// The computation fails.
    fn weights(&mut self, task: Task) -> Result<(), EngineError>;
}

/// Runs a rank's tasks of a step.
///
/// # Errors
/// Those of the stages or the pipe.
pub fn interpret(
    pipeline: &Pipeline,
    rank: u32,
    tasks: &[Task],
    stages: &mut dyn Stages,
    pipe: &mut dyn Pipe,
) -> Result<(), EngineError> {
    for &task in tasks {
        let place = RankTask { rank, task };
        let input = match pipeline.input_of(place) {
            Some(_) => Some(pipe.receive(task, &stages.shape(task))?),
            None => None,
        };
        let output = match task.work {
            Work::Forward => stages.forward(task, input)?,
            Work::Backward | Work::BackwardInput => stages.backward(task, input)?,
            Work::BackwardWeight => {
                stages.weights(task)?;
                None
            }
        };
        if let Some(output) = output
            && pipeline.receiver_of(place).is_some()
        {
            pipe.send(task, &output)?;
        }
    }
    Ok(())
}
