//! `run.toml`: one file that describes a run, parsed once into types that need no further checks.

mod check;
mod error;
mod sections;
mod values;

pub use error::ConfigError;
pub use sections::{
    CheckpointConfig, DataConfig, FaultConfig, ModelConfig, ModelKind, RunConfig, RunSection, SyncConfig,
    SyncPreset, TrainConfig,
};
pub use values::{Precision, Rounding, ValueFormat};
