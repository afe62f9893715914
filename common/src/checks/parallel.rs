//! Constraints of `[parallel]`, alone and together with the model.

use crate::config::{
    BOUNDARY_CHUNK, ConfigError, Differences, ParallelConfig, RunConfig, SITE_CHARS_MAX, ValueFormat,
    is_site_name,
};
use crate::model::ModelSpec;
use crate::pipeline::ScheduleError;

/// Maximum workers of a pipeline: each has at least a block, and adds its bubble.
const STAGES_MAX: u32 = 1 << 10;

/// Maximum workers that share each layer: more than the devices with fast enough links in any machine or
/// rack.
const TENSOR_MAX: u32 = 1 << 8;

/// Sixteen TiB, in MiB: more than any worker has.
const DIFFERENCES_MIB_MAX: u64 = 1 << 24;

impl ParallelConfig {
    pub(super) fn check_for(&self, config: &RunConfig) -> Result<(), ConfigError> {
        let refused = |key, value: &dyn ToString, reason: String| {
            Err(ConfigError::value(key, value.to_string(), reason))
        };
        let (stages, workers) = (self.stages, config.run.workers);
        if config.is_of_classes() {
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
        if let (true, Some(bottleneck)) = (self.blocks.is_empty(), &config.model.bottleneck)
            && bottleneck.behind.len() as u64 + 1 < cut
        {
            let reason = format!(
                "model.bottleneck.behind names {} of the {} places where {cut} stages are cut: name more, or give parallel.blocks",
                bottleneck.behind.len(),
                cut - 1
            );
            return refused("parallel.stages", &stages, reason);
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

    /// Checks models that are not divided.
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
        let reason = "each worker has all of a classifier, which is small: leave it out, and more workers share the samples of a step";
        Err(ConfigError::value(key, value, reason))
    }

    /// Checks tensor groups.
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
        // The possible shares do not depend on the vocabulary.
        ModelSpec::of(config, 0)?.shards(tensor).map(drop)
    }

    /// Checks stages of tensor groups.
    fn check_both(&self, config: &RunConfig) -> Result<(), ConfigError> {
        let (ranks_per_replica, workers, layers) =
            (self.ranks_per_replica(), config.run.workers, config.model.layers);
        let refused = |key, value: &dyn ToString, reason: String| {
            Err(ConfigError::value(key, value.to_string(), reason))
        };
        if !workers.is_multiple_of(ranks_per_replica) {
            let reason = format!(
                "each copy of the model is on parallel.stages × parallel.tensor = {ranks_per_replica} workers, so that must divide run.workers = {workers}"
            );
            return refused("parallel.stages", &self.stages, reason);
        }
        // Without a layer, later members would have nothing.
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

    /// The result for one micro-batch holds for any number.
    fn check_schedule(&self) -> Result<(), ConfigError> {
        let Err(error) = self.pipeline(1).tasks() else { return Ok(()) };
        let (key, value) = match error {
            ScheduleError::Chunks { chunks } => ("parallel.chunks", chunks.to_string()),
            ScheduleError::InFlight => ("parallel.in_flight", format!("{:?}", self.in_flight)),
            ScheduleError::Empty => ("parallel.stages", self.stages.to_string()),
        };
        Err(ConfigError::value(key, value, error.to_string()))
    }

    /// Rejects features that do not support divided replicas.
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
