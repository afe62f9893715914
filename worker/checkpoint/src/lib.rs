//! Checkpoints on disk: complete and verified, or absent.

mod adapters;
mod archive;
mod base_model;
mod classes;
mod companions;
mod copies;
mod decoder_config;
mod encoder_config;
mod error;
mod experts;
mod export;
mod fork;
mod hf_folder;
mod known_best;
mod listing;
mod merge;
mod model_config;
mod opening;
mod pieces;
mod reading;
mod recut;
mod sealed;
mod store;
mod stored_description;
mod stored_file;
mod tensors;

pub use adapters::beside_base;
pub use archive::{RunArchive, Unusable};
pub use base_model::{BaseModel, ModelFile, ModelFiles, describe_model, read_run};
pub use companions::{CHAT_TEMPLATE, COMPANIONS_MAX, Companion, Companions, end_tokens};
pub use copies::{CheckpointFile, FileToCopy, Incoming};
pub use decoder_config::UnsupportedKey;
pub use error::{CheckpointError, Instead};
pub use export::{ExportType, Exported, WantedCheckpoint, WholeModel, export, open_whole, partial_of};
pub use fork::{ForkPoint, fork};
pub use hf_folder::StoredWeights;
pub use known_best::KnownBest;
pub use listing::{Listed, LoadedModel, LoadedPrivate};
pub use opening::{InspectedModel, OpenedModel, Weights, base_of, inspect_model, open_model, open_weights};
pub use recut::{Recut, recut};
pub use store::CheckpointStore;
pub use stored_description::{DescribedModel, describe_stored};

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::{MANIFEST, private_record_name, private_record_of};

/// A worker's checkpoint at a round boundary.
#[derive(Clone, Debug)]
pub struct CheckpointData {
    /// First round not contained.
    pub next_round: Round,
    /// First step not contained.
    pub next_step: u64,
    /// Generation of the run.
    pub generation: Generation,
    /// Hash of the synchronised state.
    pub state_hash: [u8; 32],
    /// The model, if this worker writes it.
    pub model: Option<ModelState>,
    /// This worker's private state.
    pub private: PrivateState,
}

/// The synchronised parameters, with everything needed to use them elsewhere.
#[derive(Clone, Debug)]
pub struct ModelState {
    /// Description.
    pub spec: ModelSpec,
    /// In the order of [`ModelSpec::synchronised`].
    pub parameters: Arc<[f32]>,
    /// Files beside the weights.
    pub companions: Companions,
    /// Further vectors shared by all workers, by name: the outer optimiser's memory.
    pub shared: BTreeMap<String, Arc<[f32]>>,
}

/// A worker's own state: local parameters, moments, residuals and counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrivateState {
    /// Flat vectors by name.
    pub vectors: BTreeMap<String, Arc<[f32]>>,
    /// Numbers by name.
    pub counters: BTreeMap<String, u64>,
}

fn private_vectors_name(worker: WorkerId) -> String {
    format!("private-{worker}.safetensors")
}

const MODEL_CONFIG: &str = "config.json";
use companions::TOKENIZER;
const SHARED: &str = "shared.safetensors";
/// Name of the moving average of the weights among the vectors shared by all workers.
pub const AVERAGE: &str = "ema";

/// Names in a private state: the worker's own parameters,
pub const PARAMETERS: &str = "parameters";
/// the optimiser's first moments,
pub const FIRST_MOMENTS: &str = "first_moments";
/// its second moments,
pub const SECOND_MOMENTS: &str = "second_moments";
/// the number of its steps,
pub const UPDATES: &str = "updates";
/// and the number of steps trained on since the last round.
pub const STEPS: &str = "steps";

#[cfg(test)]
mod tests;
