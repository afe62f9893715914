//! `[parallel]`: how many workers share one copy of the model, and how they compute with it.

use serde::{Deserialize, Serialize};

use super::{RunConfig, ValueFormat};

/// Characters in a site's name: it appears in tables and metrics.
pub const SITE_CHARS_MAX: usize = 64;

/// Whether a site may be called so.
#[must_use]
pub fn is_site_name(name: &str) -> bool {
    let count = name.trim().chars().count();
    (1..=SITE_CHARS_MAX).contains(&count) && !name.chars().any(char::is_control)
}

/// Who decides how copies of the model are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanChoice {
    /// The coordinator, when `run.workers` have joined and have told what they can do.
    #[default]
    Auto,
    /// What else is written.
    Fixed,
}

/// In which order the tasks of a step are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PipelineSchedule {
    /// All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965): keeps the activations of the whole batch.
    Gpipe,
    /// After a warm-up, one forward and one backward in turn (Narayanan et al. 2019, PipeDream; flushed after each step): keeps the activations of as
    /// many micro-batches as are on their way.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The same with several chunks a rank (Narayanan et al. 2021, arXiv 2104.04473): shorter bubbles, more traffic between ranks.
    Interleaved,
    /// Backward in two parts, of which the one for the weights waits until there is nothing else to do (Qi et al. 2023, arXiv 2401.10241): ZB-H1, which needs no
    /// more memory than `1f1b`.
    ZeroBubble,
}

/// Values of a gradient of which `parallel.boundary_keep` are sent.
pub const BOUNDARY_CHUNK: u32 = 4096;

/// `[parallel.differences]`: a rank and the next both remember what the activations of a sequence were, and where all sequences of a micro-batch come again to the same copy, as in a second
/// epoch of a run with one copy, the difference is sent (AQ-SGD: Wang et al. 2022, arXiv 2206.01299). With several copies, or less memory than all sequences take, few micro-batches are so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differences {
    /// The number format of a difference.
    #[serde(default = "difference_values")]
    pub values: ValueFormat,
    /// Memory for it on each of the two workers, MiB; a worker between two others has it twice. A sequence takes 4 bytes × sequence length × `model.width` for each part of the model; the oldest are forgotten first.
    pub memory_mib: u64,
}

const fn difference_values() -> ValueFormat {
    ValueFormat::Int4
}

/// `[parallel]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelConfig {
    /// Who decides about all that follows but `boundary`. With `stages` or `tensor` above 1 it is as it is written.
    pub plan: PlanChoice,
    /// Parts of one copy of the model, each on a worker, or on `tensor` of them. With 1, every worker has some of all blocks.
    pub stages: u32,
    /// Workers of one site that share each layer of the model, or of a part of it, each with some of its heads and inner channels: a tensor group. With 1, every worker has its layers whole.
    pub tensor: u32,
    /// The order in which they compute.
    pub schedule: PipelineSchedule,
    /// Parts of the model that each of them has; more than one with `interleaved` only.
    pub chunks: u32,
    /// By worker of a copy: micro-batches that have gone forwards and not yet backwards there, at most. More than one for each worker after it hide a long round trip, for memory:
    /// with two stages `[5, 1]`. With `1f1b` only. Empty: `[stages, …, 2, 1]`, as short links need.
    pub in_flight: Vec<u32>,
    /// The number format in which activations and their gradients go from one to the next.
    pub boundary: ValueFormat,
    /// Of each 4096 values of a gradient that goes back, so many are sent: large ones as they are, and of small ones those that are drawn, for the others as well. 4096: all are sent.
    pub boundary_keep: u32,
    /// Where a sequence comes again: that what its activations have changed is sent, not what they are. Left out: never.
    pub differences: Option<Differences>,
    /// How many blocks each stage has, in order: the embedding, `model.layers`, and the head. Empty: so many that all have about as much arithmetic.
    pub blocks: Vec<u32>,
    /// By worker of a copy: the site that it is at. Empty: a copy is within one site wherever it can be.
    pub sites: Vec<String>,
    /// Where the coordinator has made the plan: for how long workers must have come or gone, or a link have carried half or twice as much, before it looks for another plan, in
    /// seconds. 0: the plan stays.
    pub replan_after_s: u32,
}

/// A minute: machines that are started again are back by then.
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
    /// Whether a copy of the model is cut into parts of neighbouring blocks.
    #[must_use]
    pub fn is_pipelined(&self) -> bool {
        self.stages > 1
    }

    /// Whether workers of a site share layers of the model.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.tensor > 1
    }

    /// Of a rank of a copy: its stage, and its index among the workers that share that stage's layers. Ranks are stage by stage.
    #[must_use]
    pub fn place_of(&self, rank: u32) -> (u32, u32) {
        let members = self.tensor.max(1);
        (rank / members, rank % members)
    }

    /// Whether a copy of the model is on several workers, in whatever way.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.seats() > 1
    }

    /// Workers of a copy of the model: its parts, each as often as a tensor group has members.
    #[must_use]
    pub fn seats(&self) -> u32 {
        self.stages.saturating_mul(self.tensor)
    }

    /// One worker has all of the model, whatever the machines and links are.
    #[must_use]
    pub fn undivided() -> Self {
        Self { plan: PlanChoice::Fixed, ..Self::default() }
    }

    /// Of all that is configured, how parts talk and when they are made anew.
    #[must_use]
    pub fn joined(&self) -> Self {
        let Self { boundary, boundary_keep, differences, replan_after_s, .. } = *self;
        Self { boundary, boundary_keep, differences, replan_after_s, ..Self::undivided() }
    }

    /// What a worker of a stage remembers of activations: on each side of each boundary that it has, as much as is asked for.
    #[must_use]
    pub fn remembered_bytes(&self, stage: u32) -> u64 {
        let Some(Differences { memory_mib, .. }) = self.differences.filter(|_| self.is_pipelined()) else {
            return 0;
        };
        let is_end = self.chunks == 1 && (stage == 0 || stage + 1 == self.stages);
        memory_mib.saturating_mul(1 << 20).saturating_mul(if is_end { 1 } else { 2 })
    }

    /// Whether the coordinator is still to decide, in a run of several workers that may be divided.
    pub(crate) fn is_open_in(&self, config: &RunConfig) -> bool {
        let is_permitted = config.privacy.is_none() && config.secure_aggregation.is_none();
        let may_be_divided = is_permitted && !config.model.kind.is_of_images();
        self.plan == PlanChoice::Auto && !self.is_divided() && config.run.workers > 1 && may_be_divided
    }
}
