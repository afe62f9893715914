//! Holders of a run's training data.

use longhaul_common::plan::Member;
use serde::{Deserialize, Serialize};

use super::message::Hash;

/// Maximum workers in [`DataHolders::holders`]: enough to survive the loss of several, few enough for one
/// message.
pub const DATA_HOLDERS_MAX: usize = 16;

/// Maximum workers in [`DataHolders::neighbours`]: usually all workers of a site without the data.
pub const DATA_NEIGHBOURS_MAX: usize = 64;

/// Identity of a run's prepared data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DataName {
    /// [`Ready::data_hash`](super::message::Ready::data_hash).
    pub data: Hash,
    /// BLAKE3 of the catalogue: all parts of the data, including held-out sources and tokenizer.
    pub catalogue: Hash,
}

/// Maximum workers in [`ModelHolders::holders`].
pub const MODEL_HOLDERS_MAX: usize = 16;

/// State of the pretrained model that the run starts from at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelAt {
    /// Not here: it fetches the model from others.
    Nowhere,
    /// All of its files. BLAKE3 of the list of files identifies the model.
    Here(Hash),
}

/// Holders of that model, for one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelHolders {
    /// The run's model; `None`: no worker has one.
    pub model: Option<Hash>,
    /// Holders that the receiver may ask, those of its own site first, at most [`MODEL_HOLDERS_MAX`]. Without one, it waits: another worker
    /// of its site is fetching.
    pub holders: Vec<Member>,
}

/// State of the run's data at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataAt {
    /// No data: it fetches from others once one has it.
    Nowhere,
    /// All data, from own files.
    Here(DataName),
    /// The data fetched so far.
    Fetched(DataName),
}

impl DataAt {
    /// Returns the data's identity; `None`: no data.
    #[must_use]
    pub fn name(&self) -> Option<DataName> {
        match self {
            Self::Nowhere => None,
            Self::Here(name) | Self::Fetched(name) => Some(*name),
        }
    }
}

/// Holders of the run's data, for a worker of one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHolders {
    /// Identity of the data; `None`: no holder exists.
    pub name: Option<DataName>,
    /// Holders, the receiver's own site first, then other sites in turn, at most [`DATA_HOLDERS_MAX`].
    /// Complete holders precede partial ones.
    pub holders: Vec<Member>,
    /// Workers of the receiver's site that fetch the data, by number, including the receiver: at most
    /// [`DATA_NEIGHBOURS_MAX`].
    pub neighbours: Vec<Member>,
}
