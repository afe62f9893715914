//! `[parallel]`: how many workers share one copy of the model, and how they compute with it.

use serde::{Deserialize, Serialize};

use super::{ConfigError, RunConfig, ValueFormat};
use crate::model::ModelSpec;
use crate::pipeline::{Pipeline, PipelineSchedule, ScheduleError};

/// Workers in a row, at most: each holds a block at least, and adds its bubble.
const STAGES_MAX: u32 = 1 << 10;

/// Workers that share each layer, at most: more than any machine or rack has devices with links fast enough for it.
const TENSOR_MAX: u32 = 1 << 8;

/// Sixteen TiB, in MiB: more than a worker has.
const DIFFERENCES_MIB_MAX: u64 = 1 << 24;

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

    /// The pipeline of one copy, for steps of so many micro-batches.
    #[must_use]
    pub fn pipeline(&self, micro_batches: u32) -> Pipeline {
        Pipeline {
            schedule: self.schedule,
            ranks: self.stages,
            chunks: self.chunks,
            micro_batches,
            in_flight: self.in_flight.clone(),
        }
    }

    pub(super) fn check_for(&self, config: &RunConfig) -> Result<(), ConfigError> {
        let refused = |key, value: &dyn ToString, reason: String| {
            Err(ConfigError::value(key, value.to_string(), reason))
        };
        let (stages, workers) = (self.stages, config.run.workers);
        if config.model.kind.is_of_images() {
            self.check_whole()?;
        }
        self.check_tensor(config)?;
        if stages == 0 || stages > STAGES_MAX || !workers.is_multiple_of(stages) {
            let reason = format!(
                "each copy of the model is on so many workers, so it must divide run.workers = {workers}, and be {STAGES_MAX} at most"
            );
            return refused("parallel.stages", &stages, reason);
        }
        if self.chunks == 0 {
            return refused("parallel.chunks", &0, "must be at least 1".to_owned());
        }
        let blocks = u64::from(ModelSpec::of(config, 0)?.head()) + 1;
        if u64::from(stages) * u64::from(self.chunks) > blocks {
            let reason = format!(
                "{stages} workers with {} parts each want more than the {blocks} blocks that the model has: \
                 model.layers, the embedding and the head",
                self.chunks
            );
            return refused("parallel.stages", &stages, reason);
        }
        let all = self.blocks.iter().map(|&count| u64::from(count)).sum::<u64>();
        let cut = u64::from(stages) * u64::from(self.chunks);
        let is_cut = self.blocks.len() as u64 == cut && all == blocks && !self.blocks.contains(&0);
        if !self.blocks.is_empty() && !is_cut {
            let reason = format!(
                "must give each of parallel.stages × parallel.chunks = {cut} stages at least one block, {blocks} in all: the embedding, \
                 model.layers, and the head; or be left out"
            );
            return refused("parallel.blocks", &format!("{:?}", self.blocks), reason);
        }
        if let Some(name) = self.sites.iter().find(|name| !is_site_name(name)) {
            let reason = format!("is no site's name: those have 1 to {SITE_CHARS_MAX} printable characters");
            return refused("parallel.sites", name, reason);
        }
        if !self.sites.is_empty() && self.sites.len() != stages as usize {
            let reason = format!("must name one site for each of parallel.stages = {stages}, or be left out");
            return refused("parallel.sites", &format!("{:?}", self.sites), reason);
        }
        self.check_boundary()?;
        let is_idle = !self.is_pipelined() && !self.is_open_in(config);
        if is_idle && self.boundary_keep != BOUNDARY_CHUNK {
            let reason =
                "no copy of the model is in parts: leave it out, or take stages = 2 or plan = \"auto\"";
            return refused("parallel.boundary_keep", &self.boundary_keep, reason.to_owned());
        }
        if let Some(Differences { memory_mib, .. }) = self.differences.filter(|_| is_idle) {
            let reason = "no copy of the model is in parts: leave [parallel.differences] out, or take stages = 2 or plan = \"auto\"";
            return refused("parallel.differences.memory_mib", &memory_mib, reason.to_owned());
        }
        self.check_schedule()?;
        self.check_company(config)
    }

    /// What a model asks for that is not divided.
    fn check_whole(&self) -> Result<(), ConfigError> {
        let given = [
            ("parallel.stages", self.stages, 1),
            ("parallel.tensor", self.tensor, 1),
            ("parallel.chunks", self.chunks, 1),
            ("parallel.blocks", self.blocks.len() as u32, 0),
        ];
        let Some((key, value, _)) = given.into_iter().find(|(_, value, whole)| value != whole) else {
            return Ok(());
        };
        let reason = "each worker has all of a classifier, which is small: leave it out, and more workers share the images of a step";
        Err(ConfigError::value(key, value, reason))
    }

    /// What a tensor group asks for.
    fn check_tensor(&self, config: &RunConfig) -> Result<(), ConfigError> {
        let (tensor, workers) = (self.tensor, config.run.workers);
        let refused = |reason: String| Err(ConfigError::value("parallel.tensor", tensor, reason));
        if tensor == 0 || tensor > TENSOR_MAX || !workers.is_multiple_of(tensor) {
            return refused(format!(
                "each layer is shared by so many workers, so it must divide run.workers = {workers}, and be {TENSOR_MAX} at most"
            ));
        }
        if self.is_shared() && self.is_pipelined() {
            self.check_both(config)?;
        }
        // Which shares there are does not depend on the vocabulary.
        ModelSpec::of(config, 0)?.shards(tensor).map(drop)
    }

    /// What stages of tensor groups ask for.
    fn check_both(&self, config: &RunConfig) -> Result<(), ConfigError> {
        let (seats, workers, layers) = (self.seats(), config.run.workers, config.model.layers);
        let refused = |key, value: &dyn ToString, reason: String| {
            Err(ConfigError::value(key, value.to_string(), reason))
        };
        if !workers.is_multiple_of(seats) {
            let reason = format!(
                "each copy of the model is on parallel.stages × parallel.tensor = {seats} workers, so that must divide run.workers = {workers}"
            );
            return refused("parallel.stages", &self.stages, reason);
        }
        // Where there is no layer, later members would have nothing.
        let cut = u64::from(self.stages) * u64::from(self.chunks);
        if cut > u64::from(layers) {
            let reason = format!(
                "with parallel.tensor above 1 each of parallel.stages × parallel.chunks = {cut} stages has a layer at least, and model.layers is {layers}: take fewer stages, or \
                 leave parallel.tensor out"
            );
            return refused("parallel.stages", &self.stages, reason);
        }
        let ends = self.blocks.iter().scan(0_u64, |end, &count| {
            let start = *end;
            *end += u64::from(count);
            Some((start, *end))
        });
        let has_layer = |(start, end): (u64, u64)| end > 1 && start <= u64::from(layers);
        if !ends.into_iter().all(has_layer) {
            let reason = "with parallel.tensor above 1 each stage has a layer at least, besides the embedding and the head, which all members have whole";
            return refused("parallel.blocks", &format!("{:?}", self.blocks), reason.to_owned());
        }
        Ok(())
    }

    /// Whether the coordinator is still to decide, in a run of several workers that may be divided.
    pub(super) fn is_open_in(&self, config: &RunConfig) -> bool {
        let is_permitted = config.privacy.is_none() && config.secure_aggregation.is_none();
        let may_be_divided = is_permitted && !config.model.kind.is_of_images();
        self.plan == PlanChoice::Auto && !self.is_divided() && config.run.workers > 1 && may_be_divided
    }

    fn check_boundary(&self) -> Result<(), ConfigError> {
        let formats = [
            ("parallel.boundary", Some(self.boundary)),
            ("parallel.differences.values", self.differences.map(|differences| differences.values)),
        ];
        for (key, format) in formats {
            if let Some(format) = format.filter(|format| format.sends_means()) {
                let fitting = ValueFormat::names_of(|format| !format.sends_means());
                let reason = format!(
                    "is for updates, whose error waits for the next one; for activations there are {fitting}"
                );
                return Err(ConfigError::value(key, format.name(), reason));
            }
        }
        if !(1..=BOUNDARY_CHUNK).contains(&self.boundary_keep) {
            let reason = format!(
                "is how many of {BOUNDARY_CHUNK} values are sent: from 1 to {BOUNDARY_CHUNK}, all of them"
            );
            return Err(ConfigError::value("parallel.boundary_keep", self.boundary_keep, reason));
        }
        if let Some(Differences { memory_mib, .. }) = self.differences
            && !(1..=DIFFERENCES_MIB_MAX).contains(&memory_mib)
        {
            let reason =
                format!("must be from 1 to {DIFFERENCES_MIB_MAX} MiB, or [parallel.differences] be left out");
            return Err(ConfigError::value("parallel.differences.memory_mib", memory_mib, reason));
        }
        Ok(())
    }

    /// What goes for one micro-batch goes for any number.
    fn check_schedule(&self) -> Result<(), ConfigError> {
        let Err(error) = self.pipeline(1).tasks() else { return Ok(()) };
        let (key, value) = match error {
            ScheduleError::Chunks { chunks } => ("parallel.chunks", chunks.to_string()),
            ScheduleError::InFlight => ("parallel.in_flight", format!("{:?}", self.in_flight)),
            ScheduleError::Empty => ("parallel.stages", self.stages.to_string()),
        };
        Err(ConfigError::value(key, value, error.to_string()))
    }

    /// What has not been made to work where copies are in parts.
    fn check_company(&self, config: &RunConfig) -> Result<(), ConfigError> {
        if !self.is_divided() {
            return Ok(());
        }
        let (key, count) = match self.is_pipelined() {
            true => ("parallel.stages", self.stages),
            false => ("parallel.tensor", self.tensor),
        };
        let alone = [
            ("[privacy]", config.privacy.is_some(), "clips the norm of the whole model's update"),
            ("[secure_aggregation]", config.secure_aggregation.is_some(), "masks updates of the whole model"),
        ];
        for (section, is_there, why) in alone {
            if is_there {
                let reason = format!("does not go with {section}, which {why}, and no worker has the whole");
                return Err(ConfigError::value(key, count, reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
