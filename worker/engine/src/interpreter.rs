//! Runs a rank's list of tasks: takes what comes from other ranks, hands on what goes to them, and leaves what is computed to others.

use longhaul_common::pipeline::{Pipeline, Place, Task, Work};
use tch::Tensor;

use super::{EngineError, Pipe};

/// What a rank computes in a step, task by task, in the order of its list.
pub trait Stages {
    /// Of the residual stream that a task takes from another stage, or whose gradient it takes: [B, T, D].
    fn shape(&self, task: Task) -> [i64; 3];

    /// The residual stream behind a stage, for the one before it; none goes in where the pipeline begins, and none comes out where it ends.
    ///
    /// # Errors
    /// Where it cannot be computed.
    fn forward(&mut self, task: Task, input: Option<Tensor>) -> Result<Option<Tensor>, EngineError>;

    /// The gradient of what came in, for that of what went out. With [`Work::BackwardInput`], what else there is to compute may wait for
    /// [`Self::weights`].
    ///
    /// # Errors
    /// Where it cannot be computed.
    fn backward(&mut self, task: Task, gradient: Option<Tensor>) -> Result<Option<Tensor>, EngineError>;

    /// What was left of a backward pass.
    ///
    /// # Errors
    /// Where it cannot be computed.
    fn weights(&mut self, task: Task) -> Result<(), EngineError>;
}

/// Computes what a rank has to do in a step.
///
/// # Errors
/// What the stages or the pipe answer.
pub fn interpret(
    pipeline: &Pipeline,
    rank: u32,
    tasks: &[Task],
    stages: &mut dyn Stages,
    pipe: &mut dyn Pipe,
) -> Result<(), EngineError> {
    for &task in tasks {
        let place = Place { rank, task };
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
