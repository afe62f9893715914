//! `run.toml`: one file that describes a run, parsed once into types that need no further checks.

mod archive;
mod bottleneck;
mod check;
mod check_model;
mod check_sync;
mod check_unread;
mod checkpoint;
mod classification;
mod conversations;
mod data;
mod data_column;
mod data_dialect;
mod data_format;
mod data_labels;
mod data_url;
mod decoder;
mod encoder;
mod error;
mod evaluate;
mod experts;
mod faults;
mod fragments;
mod image;
mod learning_rate;
mod lora;
mod masking;
mod optimiser;
mod other_names;
mod parallel;
mod presets;
mod privacy;
mod renamed;
mod rope;
mod sections;
mod secure_aggregation;
mod selective_backward;
mod separators;
mod sparse_backward;
mod sync;
mod task_kind;
mod tasks;
mod values;

pub use archive::{ArchiveLocation, Bucket, ParseArchiveLocationError, Retention};
pub use bottleneck::BottleneckConfig;
pub use checkpoint::CheckpointConfig;
pub use classification::ClassificationConfig;
pub use conversations::{ConversationKind, ConversationsConfig, TooLong, TrainOn};
pub use data::{DataConfig, DataPlace, DataSource, SOURCES_MAX};
pub use data_column::Column;
pub use data_dialect::Dialect;
pub use data_format::DataFormat;
pub use data_labels::DataLabels;
pub use data_url::{DataUrl, ParseDataUrlError};
pub use decoder::DecoderConfig;
pub use encoder::{EncoderActivation, EncoderConfig, EncoderHead};
pub use error::{ConfigError, read_toml};
pub use evaluate::{BestCheckpoints, EvaluateConfig};
pub use faults::{FaultConfig, SPOKEN_FOR_SILENCE_MIN_MS};
pub(crate) use fragments::FRAGMENT_VALUES_MAX;
pub use fragments::FRAGMENTS_MAX;
pub use image::ImageConfig;
pub use learning_rate::{DecayShape, LearningRateSchedule};
pub use lora::{FrozenFormat, LoraConfig};
pub use masking::{MaskToken, MaskingConfig};
pub(crate) use optimiser::given_keys;
pub use optimiser::{AdafactorConfig, LionConfig, MuonConfig, MuonScale, Optimiser, SgdConfig};
pub use parallel::{
    BOUNDARY_CHUNK, Differences, ParallelConfig, PipelineSchedule, PlanChoice, SITE_CHARS_MAX, is_site_name,
};
pub use privacy::PrivacyConfig;
pub use renamed::renamed_keys;
pub(crate) use renamed::with_new_names;
pub use rope::{RopeScaling, RopeScalingConfig, RopeType};
pub use sections::{ModelConfig, ModelKind, RunConfig, RunSection, ShareRule, TrainConfig};
pub use secure_aggregation::SecureAggregationConfig;
pub use selective_backward::{SelectionMode, SelectiveBackwardConfig};
pub use sparse_backward::{SparseBackwardConfig, SparseMode};
pub use sync::{
    Application, InnerRule, LateRule, Redundancy, ResultForm, RobustRule, SelectionRule, Source, SyncConfig,
    SyncPreset, Transform, WithinSite,
};
pub use task_kind::TaskKind;
pub use tasks::{TASK_QUESTIONS_MAX, TasksConfig};
pub use values::{Loss, Precision, Rounding, ValueFormat};
