//! What a worker keeps in memory for its part of a model.

use std::ops::Index;

use serde::{Deserialize, Serialize};

use crate::config::{Application, InnerRule, Source, SyncConfig, WithinSite};
use crate::model::BlockCost;
use crate::pipeline::Held;

/// Of each parameter: its value and two moments in f32,
const STATE_BYTES: f64 = 12.0;
/// and its gradient.
const GRADIENT_BYTES: f64 = 4.0;
/// And for the exchange, where it is at its most, while a checkpoint is written beside a round: the synchronised value and the one that was drawn, the update on its way from the
/// device and to it, the mean, frames, and the copies that are written. Measured (docs/benchmarks/plan.md).
const EXCHANGED_BYTES: f64 = 38.0;
/// A residual, and what it was before the round that is not decided yet; the same of momentum that waits with it; moments that all members share.
const PAIR_BYTES: f64 = 8.0;
/// Gradients of all parameters in f32, in the frames of a round: what comes and goes in each step.
const FRAMES_BYTES: f64 = 20.0;
/// What goes to a GPU or comes from it passes through memory of libtorch's on the host, once more than where there is no GPU.
const PASSING_BYTES: f64 = 4.0;
/// A vector of all parameters in f32, as the engine computes with some besides those that stay.
const VECTOR_BYTES: f64 = 4.0;

/// A memory in which a worker has its part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Memory {
    /// A machine's, where the worker computes on its CPU: all of it.
    Machine,
    /// A GPU's: what is computed with,
    Gpu,
    /// and that of the machine around it: what is exchanged and written.
    Host,
}

/// A figure for each memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerMemory {
    /// [`Memory::Machine`].
    pub machine: f64,
    /// [`Memory::Gpu`].
    pub gpu: f64,
    /// [`Memory::Host`].
    pub host: f64,
}

impl Memory {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Machine, Self::Gpu, Self::Host];
}

impl PerMemory {
    /// What `figure` says of each.
    #[must_use]
    pub fn of(figure: impl Fn(Memory) -> f64) -> Self {
        Self { machine: figure(Memory::Machine), gpu: figure(Memory::Gpu), host: figure(Memory::Host) }
    }
}

impl Index<Memory> for PerMemory {
    type Output = f64;

    fn index(&self, memory: Memory) -> &f64 {
        match memory {
            Memory::Machine => &self.machine,
            Memory::Gpu => &self.gpu,
            Memory::Host => &self.host,
        }
    }
}

/// Bytes of a parameter in the memories of a worker, with what its strategy keeps of it.
#[must_use]
pub fn parameter_bytes(sync: &SyncConfig) -> PerMemory {
    let exchanged = exchanged_bytes(sync);
    PerMemory {
        machine: STATE_BYTES + GRADIENT_BYTES + exchanged,
        gpu: STATE_BYTES + computed_bytes(sync),
        host: exchanged + PASSING_BYTES,
    }
}

/// What is there for the exchange and for checkpoints.
fn exchanged_bytes(sync: &SyncConfig) -> f64 {
    let keeps_residual = sync.has_residual() && sync.leaves_something() || sync.rank > 0;
    let owns_residual = sync.results_leave_something();
    let is_gradient = sync.source.is_gradient();
    let shares_moments = sync.opens_with_gradients() || is_gradient;
    let has_velocity = sync.source == Source::CorrectedGradient;
    let pairs =
        [keeps_residual, owns_residual, shares_moments, has_velocity].map(u8::from).iter().sum::<u8>();
    let frames = if is_gradient && !keeps_residual { FRAMES_BYTES } else { 0.0 };
    EXCHANGED_BYTES + PAIR_BYTES * f64::from(pairs) + frames
}

/// What a GPU has besides value and moments when it has most: in a step, or where it makes of a mean what all members apply (`worker::engine`). A checkpoint or a contribution that is drawn
/// is copied to the host at once, and takes nothing there.
fn computed_bytes(sync: &SyncConfig) -> f64 {
    // A micro-batch's gradient beside the sum of those before it; the second moments with their floor; the parameters that were left for those ahead.
    let step = 2 + u8::from(sync.inner == InnerRule::FrozenAdamw) + u8::from(sync.look_ahead);
    // A gradient as it was and clipped, and a direction with both moments that it is made of.
    let ahead = if sync.look_ahead { 5 } else { 0 };
    // The gradient, its share of the momentum, that of the momentum before, and their sum.
    let momentum = if sync.source == Source::Momentum { 4 } else { 0 };
    let applied = match sync.apply {
        Application::Inner | Application::Outer => 1,
        // The mean, and what is subtracted.
        Application::Sgd => 2,
        // Between them the signs; or the direction, tensor by tensor and whole.
        Application::Sign | Application::FrozenAdamw => 3,
    };
    let vectors = [step, ahead, momentum, applied].into_iter().max().unwrap_or(step);
    // The reduction within a site goes over the GPUs, beside the next step.
    let reduced = u8::from(sync.within_site == WithinSite::Nccl);
    VECTOR_BYTES * f64::from(vectors + reduced)
}

/// What a row of blocks keeps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageBytes {
    /// Between steps.
    pub fixed: f64,
    /// Of each micro-batch between its forward and its backward pass,
    pub each: f64,
    /// of each between its backward pass and the gradients of its weights, where those are put off,
    pub left: f64,
    /// and of one of them while its activations are computed again.
    pub once: f64,
}

impl StageBytes {
    /// In a memory, with micro-batches of so many tokens, and so many bytes of each parameter.
    #[must_use]
    pub fn of(
        memory: Memory,
        blocks: &[BlockCost],
        recompute: bool,
        tokens: f64,
        parameter_bytes: PerMemory,
    ) -> Self {
        // One pass: a planner asks this of thousands of rows of blocks.
        let (mut parameters, mut activations, mut cast, mut left, mut boundaries) = (0, 0, 0, 0, 0);
        for block in blocks {
            parameters += block.parameters;
            activations += block.activation_bytes_per_token;
            cast += block.cast_bytes;
            left += block.left_bytes_per_token;
            boundaries += block.boundary_bytes_per_token;
        }
        let fixed = parameters as f64 * parameter_bytes[memory];
        // Activations are where they are computed with.
        if memory == Memory::Host {
            return Self { fixed, each: 0.0, left: 0.0, once: 0.0 };
        }
        let left = left as f64 * tokens;
        let kept = |activations: u64, cast: u64| activations as f64 * tokens + cast as f64;
        if !recompute {
            return Self { fixed, each: kept(activations, cast), left, once: 0.0 };
        }
        let all = blocks.iter().map(|block| kept(block.activation_bytes_per_token, block.cast_bytes));
        Self { fixed, each: boundaries as f64 * tokens, left, once: all.fold(0.0, f64::max) }
    }

    /// All of it, with so many micro-batches at a time.
    #[must_use]
    pub fn with(&self, kept: u32) -> f64 {
        self.fixed + f64::from(kept) * self.each + self.once
    }

    /// What several rows of blocks on one worker keep, with the most of what is held at one time or another: as if all of it were of the largest row.
    #[must_use]
    pub fn holding(stages: &[Self], most: &[Held]) -> f64 {
        let fixed: f64 = stages.iter().map(|stage| stage.fixed).sum();
        let of = |stage: &Self, held: &Held| {
            f64::from(held.open) * stage.each + f64::from(held.left) * stage.left + stage.once
        };
        let all = stages.iter().flat_map(|stage| most.iter().map(move |held| of(stage, held)));
        fixed + all.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ModelKind, Precision, SyncPreset};
    use crate::model::ModelSpec;
    use crate::model::spec::tests::config;

    /// As processes took, or more; at most 5 % less (docs/benchmarks/plan.md).
    #[test]
    fn a_strategy_takes_what_it_keeps() {
        for (preset, measured) in [
            (SyncPreset::Auto, 78.2),
            (SyncPreset::SparseLocal, 61.7),
            (SyncPreset::Dense, 81.1),
            (SyncPreset::Diloco, 48.4),
            (SyncPreset::Powersgd, 71.8),
            (SyncPreset::Demo, 69.8),
            (SyncPreset::OnebitAdam, 67.6),
            (SyncPreset::Dgc, 77.8),
        ] {
            let ratio = parameter_bytes(&SyncConfig::of(preset)).machine / measured;
            assert!((0.95..1.2).contains(&ratio), "{preset:?}: {ratio}");
        }
    }

    /// What the engine has at one time, counted by hand where it has most; the rest is on the host, and nothing is lost between both.
    #[test]
    fn a_gpu_has_what_is_computed_with_and_its_machine_the_rest() {
        for (preset, gpu) in [
            // Value, two moments, two gradients.
            (SyncPreset::SparseLocal, 20.0),
            (SyncPreset::Dense, 20.0),
            // And second moments with their floor; or of a mean its signs and what is subtracted.
            (SyncPreset::Auto, 24.0),
            (SyncPreset::Demo, 24.0),
            // Value, two moments, the momentum of this step and what it is made of.
            (SyncPreset::OnebitAdam, 28.0),
        ] {
            let sync = SyncConfig::of(preset);
            let bytes = parameter_bytes(&sync);
            assert_eq!(bytes[Memory::Gpu], gpu, "{preset:?}");
            assert_eq!(bytes[Memory::Host], bytes[Memory::Machine] - 16.0 + 4.0, "{preset:?}");
            let nccl = SyncConfig { within_site: WithinSite::Nccl, ..sync };
            assert_eq!(parameter_bytes(&nccl).gpu, gpu + 4.0);
        }
        let ahead = SyncConfig { look_ahead: true, overlap: 1, ..SyncConfig::of(SyncPreset::Dense) };
        assert_eq!(parameter_bytes(&ahead).gpu, 32.0);
    }

    #[test]
    fn activations_are_where_they_are_computed_with_and_copies_of_weights_with_them() {
        let spec = ModelSpec::resolve(&config(ModelKind::Gpt2, 2, 64, 4, 32), 256).unwrap();
        let bytes = parameter_bytes(&SyncConfig::of(SyncPreset::Auto));
        let of = |memory, precision, recompute| {
            StageBytes::of(memory, &spec.blocks(32, precision), recompute, 128.0, bytes)
        };
        for precision in [Precision::F32, Precision::Bf16] {
            let [machine, gpu] = [Memory::Machine, Memory::Gpu].map(|memory| of(memory, precision, false));
            assert_eq!((gpu.each, gpu.left), (machine.each, machine.left));
            assert!(gpu.each > 0.0 && gpu.fixed < machine.fixed);
            assert_eq!(of(Memory::Host, precision, false).with(9), of(Memory::Host, precision, true).fixed);
        }
        // Without tokens, what is left of a pass are the copies: two bytes of each value of a matrix in a product, 12·D² of a layer and D·V of the head.
        let copies = |recompute| {
            let blocks = spec.blocks(32, Precision::Bf16);
            let stage = StageBytes::of(Memory::Gpu, &blocks, recompute, 0.0, bytes);
            stage.with(1) - stage.fixed
        };
        assert_eq!(copies(false), 2.0 * (2.0 * 12.0 * 64.0 * 64.0 + 64.0 * 256.0));
        assert_eq!(copies(true), 2.0 * 12.0 * 64.0 * 64.0);
    }

    /// While one is put off, what is left of it is in the place of its activations.
    #[test]
    fn what_is_put_off_counts_as_what_is_left_of_it() {
        let stage = StageBytes { fixed: 1000.0, each: 10.0, left: 7.0, once: 1.0 };
        let small = StageBytes { fixed: 100.0, each: 1.0, left: 20.0, once: 0.0 };
        let most = [Held { open: 3, left: 0 }, Held { open: 1, left: 3 }];
        assert_eq!(StageBytes::holding(&[stage], &most), 1000.0 + 10.0 + 21.0 + 1.0);
        assert_eq!(StageBytes::holding(&[stage, small], &most), 1100.0 + 61.0);
        assert_eq!(StageBytes::holding(&[stage, small], &[Held { open: 3, left: 0 }]), 1100.0 + 31.0);
        assert_eq!(StageBytes::holding(&[], &[Held { open: 3, left: 0 }]), 0.0);
    }
}
