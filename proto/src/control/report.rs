//! What a member tells of a round that it has applied.

use longhaul_common::id::{FragmentId, Generation, Round, SiteId};
use serde::{Deserialize, Serialize};

use super::message::Hash;

/// A round as one member saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundReport {
    /// The generation in which it was applied.
    pub generation: Generation,
    /// Which round.
    pub round: Round,
    /// Mean training loss over this member's steps of the round, nats a token; none when it sat the round out.
    pub loss: Option<f32>,
    /// L2 norm of this member's own gradient before clipping, as the root mean square over its steps of the round; none when it sat the round out. Of a model in parts, of what the member has:
    /// the squares of all parts add up to that of the whole, as members of a tensor group share out what all of them have.
    pub gradient_norm: Option<f32>,
    /// Samples that it trained on in the round.
    pub samples: u32,
    /// Sites whose contribution is in every fragment's result.
    pub sites: Vec<SiteId>,
    /// About how many exchanges' changes wait in this member's error feedback: norms of its residuals over those of what the round added, of what it contributes and
    /// of what it owns, one added to the other; none where nothing is left behind.
    pub residual_ratio: Option<f32>,
    /// Hash over the synchronised state after the round: equal on every member, or parity is broken.
    pub state_hash: Hash,
    /// Rounds that this member did not train in, because the others were already past them: their samples must be
    /// given out again.
    pub skipped: Vec<Round>,
    /// Validation loss, nats a token, or an image, when this round was evaluated here.
    pub validation_loss: Option<f32>,
    /// The share of held-out images whose class is told, when this round was evaluated here; none of text.
    pub validation_accuracy: Option<f32>,
    /// Contributions that this member, as the owner of a fragment, has refused since its last report: at most
    /// [`REFUSALS_REPORTED_MAX`].
    pub refused: Vec<Refusal>,
    /// How many it refused beyond those.
    pub refused_beyond: u32,
    /// What it has measured of its link and itself, where the bits follow the link.
    pub measured: Option<Measured>,
    /// Whether what it has sent and what it keeps add up to what there was: those that were looked at since its last report.
    pub audit: Audit,
}

/// Fragments of which a member has decoded its own frame again, and compared it and the residual with what went in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// How many.
    pub fragments: u32,
    /// The largest difference of one value, over the largest value of its fragment: of f32, some 1e-7. More than [`AUDIT_MAX`] is an error.
    pub worst: f32,
}

/// What rounding cannot explain.
pub const AUDIT_MAX: f32 = 1e-4;

/// How fast a member computes, and how fast it exchanges, in seconds; and what it has to spare.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// A step.
    pub step_s: f32,
    /// The longest round trip to a member of another site.
    pub round_trip_s: f32,
    /// What it takes to exchange one bit of each value of the model, both ways, round trips aside.
    pub bit_s: f32,
    /// Cores of its machine that had nothing to do while it computed steps, on average.
    pub spare_cores: f32,
}

/// Refusals told one by one in a report. A bad site is refused once for each fragment that it contributes to, and a model has
/// hundreds; these are enough for people to see who and why.
pub const REFUSALS_REPORTED_MAX: usize = 16;

/// A contribution that the owner of a fragment left out of the result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Whose it was.
    pub site: SiteId,
    /// To which round.
    pub round: Round,
    /// To which fragment.
    pub fragment: FragmentId,
    /// Why.
    pub reason: RefusalReason,
}

/// What is wrong with a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// Its bytes are no update.
    Undecodable,
    /// It is an update of a fragment of another length.
    WrongLength,
    /// It holds a number that is not finite, or so large that sums of squares are none.
    NotFinite,
    /// Its norm is far beyond what the group contributes to the fragment.
    Norm {
        /// Its norm over the median of the last accepted ones.
        times: f32,
        /// How many those were.
        of: u32,
    },
}
