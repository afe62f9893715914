//! Commands of a member.

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};

use super::frame::FrameHeader;
use super::result::FragmentResult;
use crate::control::message::{Hash, Settled};

/// Output of [`super::Member::poll_command`].
///
/// Commands are carried out in the order given; those of different fragments may overlap in time. None is
/// revoked: an outdated command is harmless, and its reply is ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Send the f32 slice contributed to (round, fragment) as a frame with this header.
    SendLocal {
        /// The fragment's uploader at this site.
        to: WorkerId,
        /// Kind `Local`, with this member's weight.
        header: FrameHeader,
    },
    /// Send a frame.
    Send {
        /// Receiver.
        to: WorkerId,
        /// Header.
        header: FrameHeader,
        /// Body.
        body: Bytes,
        /// BLAKE3 of the body, if known.
        hash: Option<Hash>,
    },
    /// Keep the fragment's residual for [`Command::Retract`]; compute the weighted mean of `locals` in this
    /// order in f32, add the decayed residual, encode, and keep the error as residual. Reply with
    /// `Event::Compressed`.
    Compress {
        /// To echo.
        generation: Generation,
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
        /// Never empty, in member order, each weight positive.
        locals: Vec<Local>,
    },
    /// The compression of (round, fragment) is void: restore the residual before that [`Command::Compress`],
    /// bit for bit. At most one compression of a fragment is to be undone.
    Retract {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
    },
    /// This member's contribution to (round, fragment) is in no result and never will be: add that slice to
    /// the carry-over. All of it is part of the next contribution of positive weight (and has that weight,
    /// like a residual).
    CarryOver {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
    },
    /// This member no longer uploads the fragment: move its residual, if any, into the carry-over, scaled by
    /// the site's weight over its own, as a residual counts for the site and a local update for one member.
    MoveResidual {
        /// Fragment.
        fragment: FragmentId,
    },
    /// This member no longer owns the fragment: move its residual of published means, if any, into the
    /// carry-over, scaled by all members' weight over its own.
    MoveOwnerResidual {
        /// Fragment.
        fragment: FragmentId,
        /// Reductions of this round and later ones are void, with their residuals.
        void_from: Round,
    },
    /// Make the result of these contributions, as a bundle or as their weighted mean in this order. Reply
    /// with `Event::Reduced`. The result does not name refused contributions. A round may be repeated with
    /// other contributions if the first reduction is void; all later rounds of the fragment are then void
    /// too.
    Reduce {
        /// To echo.
        generation: Generation,
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
        /// At least one, in site order.
        contributions: Vec<Contribution>,
    },
    /// Request the result of (round, fragment) from a peer. Reply with `Event::Pulled` or
    /// `Event::PullFailed`.
    Pull {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
        /// Hash of the bytes, if known. (Other bytes are also refused here.)
        hash: Option<Hash>,
        /// Peer.
        from: WorkerId,
    },
    /// A result of the open round has arrived. [`Command::RoundComplete`] will contain it, unless a
    /// generation begins before.
    ResultHere {
        /// Round.
        round: Round,
        /// Fragment, which is due.
        fragment: FragmentId,
        /// Result.
        result: FragmentResult,
    },
    /// All results of a round have arrived. Rounds come in order, each once. Apply them at the round's step.
    RoundComplete {
        /// Round.
        round: Round,
        /// One per fragment, in order.
        results: Vec<FragmentResult>,
    },
    /// The f32 data contributed to this round is no longer needed.
    Release {
        /// Round.
        round: Round,
    },
    /// Send this to the coordinator (`ToCoordinator::Settled`).
    ReportSettled(Settled),
    /// This result, and perhaps others, is not available from any holder: this member can no longer follow
    /// and must heal. At most once per generation.
    Lost {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
    },
    /// A member violated the protocol. For the log; at most [`super::ACCUSATIONS_MAX`] per generation.
    Accuse {
        /// Member.
        worker: WorkerId,
        /// Violation.
        violation: Violation,
    },
}

/// One member's update at its uploader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Member.
    pub worker: WorkerId,
    /// Samples trained on.
    pub weight: u32,
    /// The f32 slice, little-endian. `None`: this member's own, which the caller has.
    pub body: Option<Bytes>,
}

/// One site's compressed update at the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// Site.
    pub site: SiteId,
    /// Samples trained on by the site's members.
    pub weight: u32,
    /// As sent by the uploader.
    pub body: Bytes,
}

/// Protocol violations of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The sender may not send this frame, or this member may not receive it.
    #[error("sent a frame outside its duties")]
    NotItsDuty,
    /// The bytes of a result are malformed, or name sites without members.
    #[error("sent a malformed result")]
    MalformedResult,
    /// Two results with different bytes for the same round and fragment.
    #[error("sent a second, different result")]
    ConflictingResult,
    /// A pulled result differs from the requested one.
    #[error("sent other bytes than the pull requested")]
    WrongBytes,
}
