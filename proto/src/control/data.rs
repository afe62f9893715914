//! Who has a run's training data, and who takes it from others.

use longhaul_common::plan::Member;
use serde::{Deserialize, Serialize};

use super::message::Hash;

/// Workers in [`DataHolders::holders`]: enough to outlive a few of them, few enough for one message.
pub const DATA_HOLDERS_MAX: usize = 16;

/// Workers in [`DataHolders::neighbours`]: what a site has of workers without the data, mostly.
pub const DATA_NEIGHBOURS_MAX: usize = 64;

/// The data of a run, as it was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DataName {
    /// [`Ready::data_hash`](super::message::Ready::data_hash).
    pub data: Hash,
    /// BLAKE3 of the catalogue: of what the data consists of, held-out sources and tokenizer included.
    pub catalogue: Hash,
}

/// What a worker has of the run's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataAt {
    /// Nothing: it takes it from others, and waits for somebody who has it.
    Nowhere,
    /// All of it, from files of its own.
    Here(DataName),
    /// What it has fetched so far.
    Fetched(DataName),
}

impl DataAt {
    /// What it is; none: it has nothing.
    #[must_use]
    pub fn name(&self) -> Option<DataName> {
        match self {
            Self::Nowhere => None,
            Self::Here(name) | Self::Fetched(name) => Some(*name),
        }
    }
}

/// Who has the run's data, for a worker of one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHolders {
    /// Which data that is; none: nobody has any.
    pub name: Option<DataName>,
    /// Who has it, the receiver's own site first, then other sites in turn, at most [`DATA_HOLDERS_MAX`]: behind those that have all of it, who has fetched some.
    pub holders: Vec<Member>,
    /// Workers of the receiver's site that fetch it, by number, the receiver among them: at most [`DATA_NEIGHBOURS_MAX`].
    pub neighbours: Vec<Member>,
}
