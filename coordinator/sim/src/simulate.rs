//! A run in virtual time, for its figures: the coordinator and the members as they ship, on machines as fast as the planner predicts.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_plan::Topology;
use serde::Serialize;

pub use crate::churn::{Churn, Faults, FaultsError, Outage};

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The run.
    pub config: RunConfig,
    /// Its model.
    pub spec: ModelSpec,
    /// All workers of all sites join. The coordinator is at the first site.
    pub topology: Topology,
    /// What goes wrong.
    pub faults: Faults,
    /// Of everything that is drawn.
    pub seed: u64,
    /// It ends then, in virtual time, wherever the run is.
    pub until: Duration,
}

/// What happened. All but `cost` is the same for the same setup. Its parts are one object in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Whether the run came to its end.
    pub finished: bool,
    /// How long it went on, in seconds of virtual time, from the first worker's start.
    pub virtual_s: f64,
    /// Until the first generation began.
    pub first_generation_s: Option<f64>,
    /// Workers that there were.
    pub workers: usize,
    /// What was trained, and how fast.
    #[serde(flatten)]
    pub training: TrainingFigures,
    /// How machines came and went.
    #[serde(flatten)]
    pub churn: ChurnFigures,
    /// Messages that the coordinator was told, and has told.
    pub messages: [u64; 2],
    /// How the coordinator's plan reads, where it made one.
    pub plan: Option<String>,
    /// What went wrong, in the coordinator's words: the last ones.
    pub warnings: Vec<String>,
    /// What the decisions and the simulation took.
    #[serde(flatten)]
    pub cost: CostFigures,
}

/// What was trained, and how fast.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrainingFigures {
    /// Steps that count.
    pub steps: u64,
    /// The steps of the warm-up, and the seconds from the first generation until they counted; none: there is no warm-up, or it was not over.
    pub warmup: Option<(u64, f64)>,
    /// The time in which the slowest copy would compute those steps that count, over the time from the first generation on; none where there were several generations.
    pub share_of_local_speed: Option<f64>,
    /// Of each step of the last nine tenths of the run, in seconds.
    pub step_s: Option<f64>,
    /// Tokens that were trained on in a second, from the first generation on.
    pub tokens_per_s: f64,
    /// Of the time of all processes from the first generation on, what they computed in.
    pub utilisation: f64,
    /// What they waited for results in, over computing and waiting.
    pub stalled: f64,
}

/// How machines came and went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChurnFigures {
    /// Generations that began.
    pub generations: u64,
    /// Workers that were killed, and came back.
    pub killed: u64,
    /// Of those that came back and took part again: how long that took from their start, in seconds on average, and at most.
    pub back_s: Option<[f64; 2]>,
    /// From the death of a worker to the generation without it, in seconds on average, and at most.
    pub settled_s: Option<[f64; 2]>,
}

/// What the decisions and the simulation took.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CostFigures {
    /// Seconds of a core that the coordinator's decisions took, over virtual time.
    pub coordinator_share: f64,
    /// Seconds that the simulation took.
    pub wall_s: f64,
}

/// Why nothing can be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// Nobody joins.
    #[error("the topology has {there} workers, and the run wants {wanted} (run.workers)")]
    Workers {
        /// How many there are.
        there: usize,
        /// How many there should be.
        wanted: u32,
    },
    /// No copy of the model can be put together.
    #[error(
        "parallel.tensor = {members}: the topology has {there} groups of so many workers of one site, and a copy of the model takes {wanted}"
    )]
    Groups {
        /// Workers that share each layer.
        members: u32,
        /// How many such groups there are.
        there: usize,
        /// How many there should be: one for each part of a copy.
        wanted: u32,
    },
    /// A plan cannot be computed, or a member cannot go on.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// Simulates the run to its end.
///
/// # Errors
/// [`SimulateError`]
pub fn simulate(setup: Setup) -> Result<Report, SimulateError> {
    simulate_under(setup, &Control::default())
}

/// What another thread sees of a simulation, and how it stops it.
#[derive(Debug, Default)]
pub struct Control {
    /// Once it is set, the simulation fails, and its temporary folder is removed.
    pub stop: AtomicBool,
    /// Steps that count so far.
    pub steps: AtomicU64,
    /// Virtual time so far, in milliseconds.
    pub virtual_ms: AtomicU64,
}

/// Simulates the run to its end, unless it is stopped.
///
/// # Errors
/// [`SimulateError`]
pub fn simulate_under(mut setup: Setup, control: &Control) -> Result<Report, SimulateError> {
    let (there, wanted) = (setup.topology.devices().count(), setup.config.run.workers);
    if there < wanted as usize {
        return Err(SimulateError::Workers { there, wanted });
    }
    let (members, wanted) = (setup.config.parallel.tensor, setup.config.parallel.stages);
    let groups = setup.topology.sites.iter().map(|site| site.devices.len() / members.max(1) as usize);
    let there = groups.sum::<usize>();
    if setup.config.parallel.is_shared() && there < wanted as usize {
        return Err(SimulateError::Groups { members, there, wanted });
    }
    // There is no storage in it.
    (setup.config.checkpoint.to, setup.config.checkpoint.endpoint) = (None, None);
    crate::world::report_of(setup, control)
}
