//! Checkpoints on disk: complete and verified, or not there.

mod archive;
mod copies;
mod error;
mod listing;
mod model_config;
mod opening;
mod pieces;
mod recut;
mod sealed;
mod store;
mod tensors;

pub use archive::{RunArchive, Unusable};
pub use copies::{CheckpointFile, FileToCopy, Incoming};
pub use error::{CheckpointError, Instead};
pub use listing::{Listed, LoadedModel, LoadedPrivate};
pub use opening::{OpenedModel, open_model};
pub use recut::{Recut, recut};
pub use store::CheckpointStore;

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::{MANIFEST, MODEL, private_record_name, private_record_of};

/// What a worker writes at a round boundary.
#[derive(Clone, Debug)]
pub struct CheckpointData {
    /// The round that follows the ones it contains.
    pub next_round: Round,
    /// The step of the run that follows.
    pub next_step: u64,
    /// The generation in which the run is.
    pub generation: Generation,
    /// Hash of the synchronised state.
    pub state_hash: [u8; 32],
    /// The model, where this worker writes it.
    pub model: Option<ModelState>,
    /// What belongs to this worker alone.
    pub private: PrivateState,
}

/// The synchronised parameters with what is needed to use them elsewhere.
#[derive(Clone, Debug)]
pub struct ModelState {
    /// What they are.
    pub spec: ModelSpec,
    /// In the order of [`ModelSpec::synchronised`].
    pub parameters: Arc<[f32]>,
    /// The content of `tokenizer.json`, if there is one.
    pub tokenizer: Option<Arc<[u8]>>,
    /// What else is the same on all workers, by name: the outer optimiser's memory.
    pub shared: BTreeMap<String, Arc<[f32]>>,
}

/// A worker's own state: local parameters, moments, residuals, and whatever is counted.
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
const TOKENIZER: &str = "tokenizer.json";
const SHARED: &str = "shared.safetensors";

#[cfg(test)]
mod tests;
