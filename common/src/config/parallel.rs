//! `[parallel]`: division of a replica among workers, and its computation.

use serde::{Deserialize, Serialize};

use super::{RunConfig, ValueFormat};

/// Characters in a site's name: it appears in tables and metrics.
pub const SITE_CHARS_MAX: usize = 64;

/// Whether a text is a valid site name.
#[must_use]
pub fn is_site_name(name: &str) -> bool {
    let count = name.trim().chars().count();
    (1..=SITE_CHARS_MAX).contains(&count) && !name.chars().any(char::is_control)
}

/// Source of the division of model copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanChoice {
    /// The coordinator, once `run.workers` have joined and reported their resources. `boundary`, `boundary_keep`, `differences` and `replan_after_s` apply as
    /// written.
    #[default]
    Auto,
    /// The file.
    Fixed,
}

/// Order of computation of the tasks of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PipelineSchedule {
    /// All forwards, then all backwards (arXiv 1811.06965). Keeps the activations of the whole batch.
    Gpipe,
    /// After a warm-up, forwards and backwards alternate (PipeDream, flushed after each step). Keeps the activations of micro-batches in flight.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// `1f1b` with several chunks per worker (arXiv 2104.04473): shorter bubbles, more traffic.
    Interleaved,
    /// ZB-H1 (arXiv 2401.10241): weight gradients wait for idle time. Needs no more memory than `1f1b`.
    ZeroBubble,
}

/// Values of a gradient from which `parallel.boundary_keep` are sent.
pub const BOUNDARY_CHUNK: u32 = 4096;

/// `[parallel.differences]`: adjacent ranks remember the activations of each sequence. When all sequences of
/// a micro-batch return to the same copy, as in a second epoch of a run with one copy, only the difference is
/// sent (AQ-SGD: Wang et al. 2022, arXiv 2206.01299). This is rare with several copies, or with memory for
/// only some sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differences {
    /// Number format of a difference.
    #[serde(default = "difference_values")]
    pub values: ValueFormat,
    /// Memory per worker and boundary, MiB. A sequence takes 4 bytes × sequence length × `model.width` per model part. The oldest are dropped first.
    pub memory_mib: u64,
}

const fn difference_values() -> ValueFormat {
    ValueFormat::Int4
}

/// `[parallel]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelConfig {
    /// Source of the other keys. `stages` or `tensor` above 1 implies `fixed`.
    pub plan: PlanChoice,
    /// Parts of one model copy, each on one worker or one tensor group. 1: no pipeline.
    pub stages: u32,
    /// Tensor group: workers of one site that share each layer, each with some heads and inner channels. 1: none.
    pub tensor: u32,
    /// Order of computation.
    pub schedule: PipelineSchedule,
    /// Model parts per worker; above 1 only with `interleaved`.
    pub chunks: u32,
    /// `1f1b`: maximum micro-batches between forward and backward, by stage. Larger values hide long round trips and cost memory: `[5, 1]` for two stages.
    /// Empty: `[stages, …, 2, 1]`.
    pub in_flight: Vec<u32>,
    /// Number format of activations and their gradients between stages.
    pub boundary: ValueFormat,
    /// Values sent of each 4096 in a backward gradient: large ones unchanged, and a random sample that represents the small ones. 4096: all.
    pub boundary_keep: u32,
    /// For recurring sequences, send only the change of activations. Absent: never.
    pub differences: Option<Differences>,
    /// Blocks per stage, in order: embedding, `model.layers`, head. Empty: balanced by arithmetic.
    pub blocks: Vec<u32>,
    /// Site of each stage of a copy. Empty: one site per copy where possible.
    pub sites: Vec<String>,
    /// Coordinator's plan: seconds that a change must last before it replans; 0: never. Changes are workers joined or left, and a link's throughput halved or
    /// doubled.
    pub replan_after_s: u32,
}

/// A minute: restarted machines are back by then.
const REPLAN_AFTER_S: u32 = 60;

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            plan: PlanChoice::default(),
            stages: 1,
            tensor: 1,
            schedule: PipelineSchedule::default(),
            chunks: 1,
            in_flight: Vec::new(),
            boundary: ValueFormat::Int8,
            boundary_keep: BOUNDARY_CHUNK,
            differences: None,
            blocks: Vec::new(),
            sites: Vec::new(),
            replan_after_s: REPLAN_AFTER_S,
        }
    }
}

impl ParallelConfig {
    /// Whether a replica is divided into stages of adjacent blocks.
    #[must_use]
    pub fn is_pipelined(&self) -> bool {
        self.stages > 1
    }

    /// Whether workers of a site share layers of the model.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.tensor > 1
    }

    /// Returns the stage of a rank of a replica, and its index among the workers that share that stage's
    /// layers. Ranks are ordered by stage.
    #[must_use]
    pub fn place_of(&self, rank: u32) -> (u32, u32) {
        let members = self.tensor.max(1);
        (rank / members, rank % members)
    }

    /// Whether a replica spans several workers in any way.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.ranks_per_replica() > 1
    }

    /// Returns the workers of a replica: its stages times the size of a tensor group.
    #[must_use]
    pub fn ranks_per_replica(&self) -> u32 {
        self.stages.saturating_mul(self.tensor)
    }

    /// Returns the plan with the whole model on each worker, whatever the machines and links.
    #[must_use]
    pub fn undivided() -> Self {
        Self { plan: PlanChoice::Fixed, ..Self::default() }
    }

    /// Returns only the settings that apply to the coordinator's plan: communication of stages, and
    /// replanning.
    #[must_use]
    pub fn joined(&self) -> Self {
        let Self { boundary, boundary_keep, differences, replan_after_s, .. } = *self;
        Self { boundary, boundary_keep, differences, replan_after_s, ..Self::undivided() }
    }

    /// Returns the bytes of activations that a worker of a stage caches: the configured amount on each side
    /// of each of its boundaries.
    #[must_use]
    pub fn remembered_bytes(&self, stage: u32) -> u64 {
        let Some(Differences { memory_mib, .. }) = self.differences.filter(|_| self.is_pipelined()) else {
            return 0;
        };
        let is_end = self.chunks == 1 && (stage == 0 || stage + 1 == self.stages);
        memory_mib.saturating_mul(1 << 20).saturating_mul(if is_end { 1 } else { 2 })
    }

    /// Whether the coordinator has yet to decide, in a run of several workers that may be divided.
    pub(crate) fn is_open_in(&self, config: &RunConfig) -> bool {
        let is_permitted = config.privacy.is_none() && config.secure_aggregation.is_none();
        let is_whole = config.is_of_classes() || !config.evaluate.tasks.are_none();
        let may_be_divided = is_permitted && !is_whole;
        self.plan == PlanChoice::Auto && !self.is_divided() && config.run.workers > 1 && may_be_divided
    }
}
