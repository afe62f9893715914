//! What is kept of a generation that ends.

use longhaul_common::id::{FragmentId, Round, WorkerId};
use serde::{Deserialize, Serialize};

use super::message::Hash;

/// What becomes of the open round when a generation ends. Rounds before it are complete at `complete_at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The open round of the most advanced member.
    pub open_round: Round,
    /// Members that hold the results of all rounds before it.
    pub complete_at: Vec<WorkerId>,
    /// By fragment: the result that counts, and who holds it. Fragments that are not here are void: what was sent for
    /// them is retracted and contributed again, to the same round under the new generation.
    pub results: Vec<Adopted>,
}

/// A result of the old generation that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Which fragment.
    pub fragment: FragmentId,
    /// The name of the bytes.
    pub hash: Hash,
    /// Who holds it.
    pub holders: Vec<WorkerId>,
}
