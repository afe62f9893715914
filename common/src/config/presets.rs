//! The presets: one value for each key of `[sync]`.

use super::sync::{
    Application, InnerRule, LateRule, Redundancy, ResultForm, RobustRule, SelectionRule, Source, SyncConfig,
    SyncPreset, Transform, WithinSite,
};
use super::{Rounding, ValueFormat};

impl SyncConfig {
    /// Returns the values of a preset, as recommended by its paper or our measurements.
    #[must_use]
    pub fn of(preset: SyncPreset) -> Self {
        match preset {
            SyncPreset::Auto => auto(),
            SyncPreset::Dense => dense(),
            SyncPreset::Dgc => dgc(),
            SyncPreset::Powersgd => powersgd(),
            SyncPreset::OnebitAdam => onebit_adam(),
            SyncPreset::Demo => demo(),
            SyncPreset::Diloco => diloco(),
            SyncPreset::StreamingDiloco => streaming_diloco(),
            SyncPreset::Cocktail => cocktail(),
            SyncPreset::SparseLocal => sparse_local(),
            SyncPreset::Muloco => muloco(),
        }
    }
}

impl SyncConfig {
    /// Sets the pace of `auto` where it is not given, from `every` and `every_max`: a fragment is exchanged as often as
    /// in the preset.
    pub(super) fn follow_every(&mut self, is_free: impl Fn(&str) -> bool) {
        if self.preset != SyncPreset::Auto || self.source != Source::Delta {
            return;
        }
        let preset = auto();
        if self.adapt && is_free("sync.every") {
            self.every = self.every.min(self.every_max).max(1);
        }
        if self.adapt && is_free("sync.groups") {
            let turns = preset.every * u64::from(preset.groups) / self.every.max(1);
            self.groups = self.groups.max(u32::try_from(turns).unwrap_or(1));
        }
        if is_free("sync.overlap") {
            self.overlap = self.overlap.min(self.every);
        }
    }
}

/// Half of the model is exchanged every four steps and applied two steps later: a round costs a busy processor
/// about as much for half of the model as for a fifth. Where two steps are too short for some bits of a value, rounds are two steps
/// apart or more, and results come with the next contribution (decision 0012).
fn auto() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Auto,
        every: 4,
        groups: 2,
        overlap: 2,
        warmup_rounds: 100,
        warmup_share: 0.05,
        warmup_share_max: 0.25,
        warmup_every: 1,
        warmup_keep: 4096,
        warmup_redundant: Redundancy::Auto,
        warmup_values: ValueFormat::Int8,
        inner: InnerRule::FrozenAdamw,
        error_decay: 1.0,
        result: ResultForm::Mean,
        result_keep: 64,
        result_values: ValueFormat::TwoBit,
        adapt: true,
        bits_min: 0.02,
        // Finer values gain nothing (decision 0012), and cost training time on a busy processor.
        bits_max: 2.1,
        backlog_max: 4.0,
        // The bits of a contribution vary, and a backlog is sent at once; a value never seen in the warm-up
        // takes a long first step.
        norm_limit: 200.0,
        fragment_values: 32_768,
        ..sparse_local()
    }
}

fn dense() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Dense,
        every: 1,
        overlap: 0,
        warmup_share: 0.0,
        warmup_every: 1,
        source: Source::Gradient,
        selection: SelectionRule::All,
        values: ValueFormat::F32,
        error_decay: 1.0,
        result: ResultForm::Mean,
        result_keep: 4096,
        result_values: ValueFormat::F32,
        // Early gradients jump: 76 times the median occurred in a run that trained well.
        norm_limit: 200.0,
        apply: Application::Inner,
        ..sparse_local()
    }
}

/// The paper sends one value in a thousand, after a warm-up with more.
fn dgc() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Dgc,
        warmup_share: 0.1,
        warmup_values: ValueFormat::F32,
        source: Source::CorrectedGradient,
        selection: SelectionRule::Threshold,
        keep: 4,
        result: ResultForm::Bundle,
        apply: Application::Sgd,
        ..dense()
    }
}

/// The paper keeps 4 to 32 components of a tile, in full precision, with β = 0.999.
fn demo() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Demo,
        warmup_share: 0.1,
        warmup_values: ValueFormat::F32,
        transform: Transform::Dct,
        selection: SelectionRule::TopK,
        keep: 32,
        values: ValueFormat::Bf16,
        error_decay: 0.999,
        result: ResultForm::Bundle,
        apply: Application::Sign,
        ..dense()
    }
}

/// A tenth of the values at random, a fifth of those by magnitude, four bits: 117 times fewer bytes. Unsent changes stay in the local
/// parameters: most wait for fifty steps.
fn cocktail() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Cocktail,
        every: 1,
        overlap: 1,
        late: LateRule::KeepUnsent,
        warmup_every: 1,
        random_keep: 410,
        keep: 819,
        values: ValueFormat::Int4,
        warmup_values: ValueFormat::Int8,
        warmup_keep: 4096,
        warmup_share: 0.1,
        error_decay: 1.0,
        result: ResultForm::Mean,
        result_keep: 164,
        result_values: ValueFormat::Int4,
        ..sparse_local()
    }
}

/// Rank 4 is the paper's for language models. A dense warm-up, as in PyTorch's own.
fn powersgd() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Powersgd,
        warmup_share: 0.1,
        warmup_values: ValueFormat::F32,
        rank: 4,
        error_decay: 0.0,
        ..dense()
    }
}

/// The paper warms up over 15 to 25 % of the steps.
fn onebit_adam() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::OnebitAdam,
        warmup_share: 0.2,
        warmup_values: ValueFormat::F32,
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
        // Outer momentum spans many rounds, which does not fit rounds a step or two apart.
        warmup_share: 0.0,
        warmup_keep: 4096,
        warmup_values: ValueFormat::F32,
        selection: SelectionRule::All,
        values: ValueFormat::F32,
        error_decay: 0.0,
        result: ResultForm::Mean,
        result_keep: 4096,
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
        warmup_values: ValueFormat::E3M0,
        result: ResultForm::Bundle,
        result_values: ValueFormat::E3M0,
        ..diloco()
    }
}

/// Unsent values wait, which harms early training: for a tenth of the run a quarter of all values is sent
/// every other step. Results are unions, as contributions side by side grow with the number of sites: decision 0008.
fn sparse_local() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::SparseLocal,
        every: 15,
        every_max: 100,
        groups: 1,
        overlap: 2,
        look_ahead: false,
        late: LateRule::Keep,
        mix: 0.5,
        warmup_rounds: 0,
        warmup_share: 0.1,
        warmup_share_max: 1.0,
        warmup_every: 2,
        warmup_redundant: Redundancy::Never,
        warmup_keep: 1024,
        warmup_values: ValueFormat::TwoBit,
        source: Source::Delta,
        inner: InnerRule::Adamw,
        rank: 0,
        random_keep: 4096,
        transform: Transform::None,
        rounding: Rounding::Nearest,
        momentum: 0.9,
        selection: SelectionRule::TopK,
        chunk: 4096,
        keep: 64,
        values: ValueFormat::TwoBit,
        error_decay: 0.95,
        result: ResultForm::Union,
        result_keep: 128,
        result_values: ValueFormat::TwoBit,
        norm_limit: 20.0,
        robust: RobustRule::None,
        trim: 1,
        apply: Application::Outer,
        outer_learning_rate: 1.0,
        outer_momentum: 0.0,
        adapt: false,
        early_share: 0.2,
        target_utilisation: 0.97,
        bits_min: 0.15,
        bits_max: 8.2,
        backlog_max: 0.0,
        within_site: WithinSite::Ring,
        fragment_values: 262_144,
        deadline_ceiling_ms: 30_000,
        deadline_floor_ms: 2_000,
        deadline_mads: 8.0,
    }
}

/// Muon's steps all have one size, so members need no common start, and two bits lose nothing that is seen: decision 0106.
fn muloco() -> SyncConfig {
    SyncConfig {
        preset: SyncPreset::Muloco,
        every: 5,
        overlap: 1,
        inner: InnerRule::Muon,
        warmup_share: 0.0,
        selection: SelectionRule::All,
        error_decay: 1.0,
        result: ResultForm::Mean,
        result_keep: 4096,
        result_values: ValueFormat::TwoBit,
        ..sparse_local()
    }
}
