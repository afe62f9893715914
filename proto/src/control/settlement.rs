//! Outcome of an ending generation.

use longhaul_common::id::{FragmentId, Round, WorkerId};
use serde::{Deserialize, Serialize};

use super::message::Hash;

/// Outcome of the open round when a generation ends. Rounds before it are complete at `complete_at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The open round of the most advanced member.
    pub open_round: Round,
    /// Members that have the results of all rounds before it.
    pub complete_at: Vec<WorkerId>,
    /// Valid results with their holders, by fragment. Other fragments are void: their contributions are
    /// retracted and sent again, for the same round under the new generation.
    pub results: Vec<Adopted>,
}

/// A result of the old generation that remains valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Fragment.
    pub fragment: FragmentId,
    /// Hash of the bytes.
    pub hash: Hash,
    /// Holders.
    pub holders: Vec<WorkerId>,
}
