//! The planner: places the parts of a model on workers, and predicts seconds, bytes and memory from numbers alone. `docs/planner.md` is the design.
#![forbid(unsafe_code)]

mod coding;
mod division;
mod groups;
mod memory;
mod phases;
mod predict;
mod redundancy;
mod replan;
mod search;
mod tensor;
mod topology;
mod unfit;
mod whole_run;
mod words;
mod workload;
mod written;

pub use coding::ChainCost;
pub use division::{Division, Divisions};
pub use groups::choose_with_groups;
pub use phases::{Phase, PhaseKind, phases};
pub use predict::{LinkLoad, Prediction, paces, predict};
pub use redundancy::Warmups;
pub use replan::{Answer, Present, Prospect, Question};
pub use search::{Candidate, Choice, Rival, choose, choose_among};
pub use tensor::{GroupSums, in_place_of_groups};
pub use topology::{Device, DeviceId, Link, Site, Topology, TopologyError};
pub use unfit::{NoPlan, Unfit};
pub use whole_run::{PhaseTime, WholeRun, whole_run};
pub use words::{outline, shape, why};
pub use workload::{BITS_OF_A_TURN, Exchange, STEPS_OF_BUSY_CORES, Workload};
pub use written::parallel_of;

use std::ops::Range;

use longhaul_common::pipeline::Pipeline;
use serde::{Deserialize, Serialize};

/// The assignment of the model to devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// By replica: its devices, by rank.
    pub replicas: Vec<Vec<DeviceId>>,
    /// The blocks of each stage.
    pub stages: Vec<Range<u32>>,
    /// The order of a step's tasks in each replica.
    pub pipeline: Pipeline,
    /// Whether the activations within a block are computed again for its backward pass.
    pub recompute: bool,
}
