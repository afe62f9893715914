//! A member's report of an applied round.

use longhaul_common::config::TaskKind;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId};
use serde::{Deserialize, Serialize};

use super::message::Hash;

/// A round as seen by one member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundReport {
    /// Generation that applied it.
    pub generation: Generation,
    /// Round.
    pub round: Round,
    /// Mean training loss over this member's steps of the round, in nats per token; `None`: it sat the round
    /// out.
    pub loss: Option<f32>,
    /// L2 norm of this member's own gradient before clipping, as the root mean square over its steps of the
    /// round; `None`: it sat the round out. For a model in parts it covers the member's part. Squares of all
    /// parts add up to that of the whole, as members of a tensor group divide shared values among them.
    pub gradient_norm: Option<f32>,
    /// Samples that it trained on in the round.
    pub samples: u32,
    /// Sites that contributed to every fragment's result.
    pub sites: Vec<SiteId>,
    /// Approximate backlog of this member's error feedback, in exchanges: norms of its residuals over those
    /// of the round's additions, summed over its contributions and its owned fragments; `None`: no residual.
    pub residual_ratio: Option<f32>,
    /// Hash of the synchronised state after the round: equal on every member, or parity is broken.
    pub state_hash: Hash,
    /// Rounds in which this member did not train, because the others were already past them: their samples
    /// must be reassigned.
    pub skipped: Vec<Round>,
    /// Validation loss, in nats per token or image, if this round was evaluated here.
    pub validation_loss: Option<f32>,
    /// Accuracy on held-out images, if this round was evaluated here; `None` for text.
    pub validation_accuracy: Option<f32>,
    /// Contributions that this member, as owner of a fragment, has refused since its last report: at most
    /// [`REFUSALS_REPORTED_MAX`].
    pub refused: Vec<Refusal>,
    /// Refusals beyond those.
    pub refused_beyond: u32,
    /// Measurements of its link and itself, if the number of bits adapts to the link.
    pub measured: Option<Measured>,
    /// Audit since its last report of whether sent values and residual add up to the input.
    pub audit: Audit,
}

/// Scores of one kind of questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskScore {
    /// Kind.
    pub kind: TaskKind,
    /// Right answers by each of [`TaskKind::measures`]; 0 where there is one measure.
    pub right: [u32; 2],
    /// Questions.
    pub questions: u32,
}

/// Fragments whose own frame a member has decoded again and compared, with the residual, to the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// Number.
    pub fragments: u32,
    /// Largest difference of one value, relative to the largest value of its fragment: about 1e-7 for f32.
    /// More than [`AUDIT_MAX`] is an error.
    pub worst: f32,
}

/// Differences above this exceed rounding.
pub const AUDIT_MAX: f32 = 1e-4;

/// Measured durations of a member, in seconds, and its spare capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// One step.
    pub step_s: f32,
    /// Longest round trip to a member of another site.
    pub round_trip_s: f32,
    /// Time to exchange one bit of each value of the model, both ways, without round trips.
    pub bit_s: f32,
    /// Average idle cores of its machine during steps.
    pub spare_cores: f32,
}

/// Maximum refusals listed in a report. A faulty site is refused once for each fragment that it contributes
/// to, and a model has hundreds; these suffice for diagnosis.
pub const REFUSALS_REPORTED_MAX: usize = 16;

/// A contribution that the owner of a fragment excluded from the result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Contributing site.
    pub site: SiteId,
    /// Round.
    pub round: Round,
    /// Fragment.
    pub fragment: FragmentId,
    /// Reason.
    pub reason: RefusalReason,
}

/// Faults of a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// Its bytes are not an update.
    Undecodable,
    /// The update has another length than the fragment.
    WrongLength,
    /// It contains a number that is not finite, or so large that sums of squares overflow.
    NotFinite,
    /// Its norm far exceeds the group's usual contributions to the fragment.
    Norm {
        /// Its norm over the median of the last accepted ones.
        times: f32,
        /// Number of those.
        of: u32,
    },
}
