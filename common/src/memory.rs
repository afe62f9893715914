//! Memory of a worker for its part of a model.

use std::ops::Index;

use serde::{Deserialize, Serialize};

use crate::config::{
    Application, InnerRule, LateRule, Optimiser, Source, SyncConfig, TrainConfig, WithinSite,
};
use crate::model::{Block, BlockCost};
use crate::pipeline::Held;

/// Per parameter: its value, or one of its moments, in f32.
const VALUE_BYTES: f64 = 4.0;
/// Gradient per parameter.
const GRADIENT_BYTES: f64 = 4.0;
/// Exchange per parameter, at its maximum, while a checkpoint is written besides a round: the synchronised
/// and the initial value, the update in transit from and to the device, the mean, frames, and the copies
/// being written. Measured (docs/benchmarks/plan.md).
const EXCHANGED_BYTES: f64 = 38.0;
/// A residual, and its backup before the undecided round; likewise pending momentum, and common moments.
const PAIR_BYTES: f64 = 8.0;
/// Gradients of all parameters in f32, in the frames of a round, in each step.
const FRAMES_BYTES: f64 = 20.0;
/// Transfers to and from a GPU pass through host memory of libtorch, one copy more than without a GPU.
const PASSING_BYTES: f64 = 4.0;
/// A vector of all parameters in f32, as a temporary of the engine.
const VECTOR_BYTES: f64 = 4.0;

/// A memory that contains a worker's part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Memory {
    /// All memory of a machine that computes on its CPU.
    Machine,
    /// Memory of a GPU: data for computation.
    Gpu,
    /// Memory of the machine around it: exchanged and written data.
    Host,
}

/// A number for each memory.
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
    /// All memories.
    pub const ALL: [Self; 3] = [Self::Machine, Self::Gpu, Self::Host];
}

impl PerMemory {
    /// Evaluates `figure` for each memory.
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

/// Returns the bytes of a parameter in the memories of a worker, as its strategy and optimiser require.
#[must_use]
pub fn parameter_bytes(sync: &SyncConfig, train: &TrainConfig) -> PerMemory {
    // The moving average, and its copy being written.
    let averaged = if train.ema_decay.is_some() { PAIR_BYTES } else { 0.0 };
    let (exchanged, state) = (exchanged_bytes(sync) + averaged, state_bytes(train));
    PerMemory {
        machine: state + GRADIENT_BYTES + exchanged,
        gpu: state + computed_bytes(sync),
        host: exchanged + PASSING_BYTES,
    }
}

/// Returns the bytes of a value and of the optimiser's memory on the device. Muon has second moments of embeddings and vectors alone, which counts as if of
/// all; sums of rows and columns are too few to count.
fn state_bytes(train: &TrainConfig) -> f64 {
    let moments = match train.optimiser {
        Optimiser::Adamw | Optimiser::Muon => 2,
        Optimiser::Sgd | Optimiser::Lion => 1,
        Optimiser::Adafactor => u8::from(train.adafactor.as_ref().is_some_and(|own| own.beta1 > 0.0)),
    };
    VALUE_BYTES * f64::from(1 + moments)
}

/// Returns the bytes for the exchange and for checkpoints, in which every optimiser has two moments.
fn exchanged_bytes(sync: &SyncConfig) -> f64 {
    let keeps_residual = sync.has_residual() && sync.leaves_something() || sync.rank > 0;
    let owns_residual = sync.results_leave_something();
    let is_gradient = sync.source.is_gradient();
    let shares_moments = sync.opens_with_gradients() || is_gradient;
    let has_velocity = sync.source == Source::CorrectedGradient;
    let pairs =
        [keeps_residual, owns_residual, shares_moments, has_velocity].map(u8::from).iter().sum::<u8>();
    let frames = if is_gradient && !keeps_residual { FRAMES_BYTES } else { 0.0 };
    let unsent = if sync.late == LateRule::KeepUnsent { VALUE_BYTES } else { 0.0 };
    EXCHANGED_BYTES + PAIR_BYTES * f64::from(pairs) + frames + unsent
}

/// Returns the peak bytes of a GPU besides value and moments: in a step, or while it applies a mean
/// (`worker::engine`). Checkpoints and drawn contributions are copied to the host at once and take nothing
/// here.
fn computed_bytes(sync: &SyncConfig) -> f64 {
    // A micro-batch's gradient besides the sum so far; the second moments with their floor; the parameters
    // set aside by look-ahead.
    let step = 2 + u8::from(sync.inner == InnerRule::FrozenAdamw) + u8::from(sync.look_ahead);
    // A gradient before and after clipping, and a direction with both moments behind it.
    let ahead = if sync.look_ahead { 5 } else { 0 };
    // The gradient, its share of the momentum, that of the previous momentum, and their sum.
    let momentum = if sync.source == Source::Momentum { 4 } else { 0 };
    let applied = match sync.apply {
        Application::Inner | Application::Outer => 1,
        // The mean, and the subtracted step.
        Application::Sgd => 2,
        // With the signs between them; or the direction, tensor by tensor and whole.
        Application::Sign | Application::FrozenAdamw => 3,
    };
    let vectors = [step, ahead, momentum, applied].into_iter().max().unwrap_or(step);
    // The reduction within a site runs on the GPUs, parallel to the next step.
    let reduced = u8::from(sync.within_site == WithinSite::Nccl);
    VECTOR_BYTES * f64::from(vectors + reduced)
}

/// Memory of a range of blocks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageBytes {
    /// Between steps.
    pub fixed: f64,
    /// Per micro-batch between its forward and its backward pass.
    pub each: f64,
    /// Per micro-batch between its backward pass and deferred gradients of its weights.
    pub left: f64,
    /// Once: activations that are recomputed, and a frozen matrix that is decoded.
    pub once: f64,
}

impl StageBytes {
    /// Returns the bytes in a memory, with micro-batches of this many tokens, and this many bytes per
    /// parameter.
    #[must_use]
    pub fn of(
        memory: Memory,
        blocks: &[BlockCost],
        recompute: bool,
        tokens: f64,
        parameter_bytes: PerMemory,
    ) -> Self {
        // One pass: a planner evaluates thousands of ranges.
        let (mut parameters, mut activations, mut cast, mut left, mut boundaries) = (0, 0, 0, 0, 0);
        let (mut frozen, mut decoded, mut tables) = (0, 0, 0);
        let has_embedding = blocks.iter().any(|block| block.block == Block::Embedding);
        for block in blocks {
            parameters += block.parameters;
            frozen += block.frozen_bytes + if has_embedding { 0 } else { block.tied_frozen_bytes };
            decoded = decoded.max(block.decoded_bytes);
            tables = tables.max(block.fixed_bytes);
            activations += block.activation_bytes_per_token;
            cast += block.cast_bytes;
            left += block.left_bytes_per_token;
            boundaries += block.boundary_bytes_per_token;
        }
        let fixed = parameters as f64 * parameter_bytes[memory];
        // Activations are in the memory of the computation.
        if memory == Memory::Host {
            return Self { fixed, each: 0.0, left: 0.0, once: 0.0 };
        }
        let fixed = fixed + (frozen + tables) as f64;
        let left = left as f64 * tokens;
        let kept = |activations: u64, cast: u64| activations as f64 * tokens + cast as f64;
        if !recompute {
            return Self { fixed, each: kept(activations, cast), left, once: decoded as f64 };
        }
        let all = blocks.iter().map(|block| kept(block.activation_bytes_per_token, block.cast_bytes));
        Self { fixed, each: boundaries as f64 * tokens, left, once: all.fold(0.0, f64::max) + decoded as f64 }
    }

    /// Returns the total with this many micro-batches at a time.
    #[must_use]
    pub fn with(&self, kept: u32) -> f64 {
        self.fixed + f64::from(kept) * self.each + self.once
    }

    /// Returns the memory of several ranges on one worker at its peak, as if all micro-batches were of the
    /// largest range.
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
    use crate::config::{AdafactorConfig, ModelKind, Precision, ResultForm, SyncPreset};
    use crate::model::ModelSpec;
    use crate::model::spec::tests::config;

    /// At or above the measured use of processes; at most 5 % below (docs/benchmarks/plan.md).
    #[test]
    fn a_strategy_takes_what_it_keeps() {
        let side_by_side =
            SyncConfig { result: ResultForm::Bundle, ..SyncConfig::of(SyncPreset::SparseLocal) };
        let ratio = parameter_bytes(&side_by_side, &TrainConfig::default()).machine / 61.7;
        assert!((0.95..1.2).contains(&ratio), "sparse-local, side by side: {ratio}");
        for (preset, measured) in [
            (SyncPreset::Auto, 78.2),
            (SyncPreset::Dense, 81.1),
            (SyncPreset::Diloco, 48.4),
            (SyncPreset::Powersgd, 71.8),
            (SyncPreset::Demo, 69.8),
            (SyncPreset::OnebitAdam, 67.6),
            (SyncPreset::Dgc, 77.8),
        ] {
            let ratio = parameter_bytes(&SyncConfig::of(preset), &TrainConfig::default()).machine / measured;
            assert!((0.95..1.2).contains(&ratio), "{preset:?}: {ratio}");
        }
    }

    #[test]
    fn unsent_changes_in_the_local_parameters_take_a_value_each() {
        let bytes = |late| {
            let sync = SyncConfig { late, ..SyncConfig::of(SyncPreset::Cocktail) };
            parameter_bytes(&sync, &TrainConfig::default())
        };
        let (kept, lost) = (bytes(LateRule::KeepUnsent), bytes(LateRule::Keep));
        assert_eq!(
            (kept.machine - lost.machine, kept.host - lost.host, kept.gpu - lost.gpu),
            (4.0, 4.0, 0.0)
        );
    }

    /// The engine's peak, counted by hand; the rest is on the host, and the sum matches.
    #[test]
    fn a_gpu_has_what_is_computed_with_and_its_machine_the_rest() {
        for (preset, gpu) in [
            // Value, two moments, two gradients.
            (SyncPreset::SparseLocal, 20.0),
            (SyncPreset::Dense, 20.0),
            // Plus second moments with their floor; or a mean's signs and the subtracted step.
            (SyncPreset::Auto, 24.0),
            (SyncPreset::Demo, 24.0),
            // Value, two moments, the momentum of this step and its parts.
            (SyncPreset::OnebitAdam, 28.0),
        ] {
            let sync = SyncConfig::of(preset);
            let bytes = parameter_bytes(&sync, &TrainConfig::default());
            assert_eq!(bytes[Memory::Gpu], gpu, "{preset:?}");
            assert_eq!(bytes[Memory::Host], bytes[Memory::Machine] - 16.0 + 4.0, "{preset:?}");
            let nccl = SyncConfig { within_site: WithinSite::Nccl, ..sync };
            assert_eq!(parameter_bytes(&nccl, &TrainConfig::default()).gpu, gpu + 4.0);
        }
        let ahead = SyncConfig { look_ahead: true, overlap: 1, ..SyncConfig::of(SyncPreset::Dense) };
        assert_eq!(parameter_bytes(&ahead, &TrainConfig::default()).gpu, 32.0);
    }

    #[test]
    fn a_moving_average_is_on_the_host() {
        let sync = SyncConfig::of(SyncPreset::Diloco);
        let averaged = TrainConfig { ema_decay: Some(0.999), ..TrainConfig::default() };
        let [with, without] = [averaged, TrainConfig::default()].map(|train| parameter_bytes(&sync, &train));
        assert_eq!(
            (with.machine, with.gpu, with.host),
            (without.machine + 8.0, without.gpu, without.host + 8.0)
        );
    }

    #[test]
    fn a_device_holds_the_moments_that_the_optimiser_has() {
        let sync = SyncConfig::of(SyncPreset::Diloco);
        let gpu = |optimiser, adafactor| {
            let train = TrainConfig { optimiser, adafactor, ..TrainConfig::default() };
            parameter_bytes(&sync, &train)[Memory::Gpu]
        };
        let with_first = AdafactorConfig { beta1: 0.9, ..AdafactorConfig::default() };
        for (optimiser, adafactor, expected) in [
            (Optimiser::Adamw, None, 20.0),
            (Optimiser::Muon, None, 20.0),
            (Optimiser::Sgd, None, 16.0),
            (Optimiser::Lion, None, 16.0),
            (Optimiser::Adafactor, None, 12.0),
            (Optimiser::Adafactor, Some(with_first), 16.0),
        ] {
            assert_eq!(gpu(optimiser, adafactor), expected, "{optimiser:?}");
        }
    }

    #[test]
    fn activations_are_where_they_are_computed_with_and_copies_of_weights_with_them() {
        let spec = ModelSpec::resolve(&config(ModelKind::Gpt2, 2, 64, 4, 32), 256).unwrap();
        let bytes = parameter_bytes(&SyncConfig::of(SyncPreset::Auto), &TrainConfig::default());
        let of = |memory, precision, recompute| {
            StageBytes::of(memory, &spec.blocks(32, precision), recompute, 128.0, bytes)
        };
        for precision in [Precision::F32, Precision::Bf16] {
            let [machine, gpu] = [Memory::Machine, Memory::Gpu].map(|memory| of(memory, precision, false));
            assert_eq!((gpu.each, gpu.left), (machine.each, machine.left));
            assert!(gpu.each > 0.0 && gpu.fixed < machine.fixed);
            assert_eq!(of(Memory::Host, precision, false).with(9), of(Memory::Host, precision, true).fixed);
        }
        // Without tokens, only the copies remain of a pass: two bytes of each value of a matrix in a product,
        // 12·D² of a layer and D·V of the head.
        let copies = |recompute| {
            let blocks = spec.blocks(32, Precision::Bf16);
            let stage = StageBytes::of(Memory::Gpu, &blocks, recompute, 0.0, bytes);
            stage.with(1) - stage.fixed
        };
        assert_eq!(copies(false), 2.0 * (2.0 * 12.0 * 64.0 * 64.0 + 64.0 * 256.0));
        assert_eq!(copies(true), 2.0 * 12.0 * 64.0 * 64.0);
    }

    /// A deferred micro-batch keeps its remains in place of its activations.
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
