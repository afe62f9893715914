//! What each preset stands for: one value for each key of `[sync]`.

use super::ValueFormat;
use super::sync::{
    Application, LateRule, ResultForm, RobustRule, SelectionRule, Source, SyncConfig, SyncPreset,
};

impl SyncConfig {
    /// The parts of a strategy, with the values that its paper or our measurements recommend.
    #[must_use]
    pub fn of(preset: SyncPreset) -> Self {
        match preset {
            SyncPreset::Dense => dense(),
            SyncPreset::OnebitAdam => onebit_adam(),
            SyncPreset::Diloco => diloco(),
            SyncPreset::StreamingDiloco => streaming_diloco(),
            SyncPreset::SparseLocal => sparse_local(),
        }
    }
}

fn dense() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Dense,
        every: 1,
        overlap: 0,
        opening_every: 1,
        source: Source::Gradient,
        selection: SelectionRule::All,
        values: ValueFormat::F32,
        error_decay: 1.0,
        result: ResultForm::Mean,
        result_values: ValueFormat::F32,
        apply: Application::Inner,
        ..sparse_local()
    }
}

/// The paper warms up over 15 to 25 % of the steps.
fn onebit_adam() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::OnebitAdam,
        opening_share: 0.2,
        opening_values: ValueFormat::F32,
        source: Source::Momentum,
        values: ValueFormat::Sign,
        result_values: ValueFormat::Sign,
        apply: Application::FrozenAdamw,
        ..dense()
    }
}

/// The paper's H of 500 is for runs of many thousand steps.
fn diloco() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Diloco,
        every: 50,
        overlap: 0,
        selection: SelectionRule::All,
        values: ValueFormat::F32,
        error_decay: 0.0,
        result: ResultForm::Mean,
        result_values: ValueFormat::F32,
        outer_learning_rate: 0.7,
        outer_momentum: 0.9,
        ..sparse_local()
    }
}

fn streaming_diloco() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::StreamingDiloco,
        every: 10,
        groups: 5,
        overlap: 2,
        late: LateRule::Mix,
        values: ValueFormat::E3M0,
        result: ResultForm::Bundle,
        result_values: ValueFormat::E3M0,
        ..diloco()
    }
}

fn sparse_local() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::SparseLocal,
        every: 15,
        groups: 1,
        overlap: 2,
        late: LateRule::Keep,
        mix: 0.5,
        opening_rounds: 0,
        opening_share: 0.0,
        opening_every: 2,
        opening_keep: 1024,
        opening_values: ValueFormat::TwoBit,
        source: Source::Delta,
        selection: SelectionRule::TopK,
        chunk: 4096,
        keep: 64,
        values: ValueFormat::TwoBit,
        error_decay: 0.95,
        result: ResultForm::Bundle,
        result_keep: 4096,
        result_values: ValueFormat::Bf16,
        norm_limit: 20.0,
        robust: RobustRule::None,
        trim: 1,
        apply: Application::Outer,
        outer_learning_rate: 1.0,
        outer_momentum: 0.0,
        fragment_values: 262_144,
        deadline_ceiling_ms: 30_000,
        deadline_floor_ms: 2_000,
        deadline_mads: 8.0,
    }
}
