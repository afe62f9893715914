//! What a member wants done.

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};

use super::frame::FrameHeader;
use super::result::FragmentResult;
use crate::control::message::{Hash, Settled};

/// Output of [`super::Member::poll_command`].
///
/// Commands are carried out in the order given; those that concern different fragments may overlap in time.
/// Nothing is taken back: a command that membership has overtaken is harmless, and what answers it is ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Send the f32 slice that was contributed to (round, fragment) as a frame of this header.
    SendLocal {
        /// The uploader of the fragment at this site.
        to: WorkerId,
        /// Kind `Local`; the weight is this member's.
        header: FrameHeader,
    },
    /// Send a frame.
    Send {
        /// To whom.
        to: WorkerId,
        /// Its header.
        header: FrameHeader,
        /// Its body.
        body: Bytes,
        /// BLAKE3 of the body, where it is known already.
        hash: Option<Hash>,
    },
    /// Keep the fragment's residual as it is for [`Command::Retract`]; take the weighted mean of `locals` in
    /// this order in f32, add the decayed residual, encode, keep the rest as residual; answer with
    /// `Event::Compressed`.
    Compress {
        /// To be echoed.
        generation: Generation,
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
        /// Never empty, in member order, each weight positive.
        locals: Vec<Local>,
    },
    /// The compression of (round, fragment) did not count: put the residual back to what it was before that
    /// [`Command::Compress`], bit for bit. There is at most one compression of a fragment to go back over.
    Retract {
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
    },
    /// What this member contributed to (round, fragment) is in no result, and never will be: add that slice to what
    /// it carries over, all of which is part of its next contribution of positive weight (and counts with that
    /// weight, as a residual does).
    CarryOver {
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
    },
    /// This member no longer uploads the fragment: a residual that it keeps for it (there need not be any) is
    /// emptied into what it carries over, times the site's weight over its own, as a residual counts for the
    /// site and a local update for one member.
    MoveResidual {
        /// Which fragment.
        fragment: FragmentId,
    },
    /// This member no longer owns the fragment: a residual that it keeps of the means that it published (there need not be any)
    /// is emptied into what it carries over, times all members' weight over its own.
    MoveOwnerResidual {
        /// Which fragment.
        fragment: FragmentId,
        /// Reductions of this round and later ones are void, and so is what they left in the residual.
        void_from: Round,
    },
    /// Make the result of these contributions, side by side or as their weighted mean in this order, and answer with
    /// `Event::Reduced`. Contributions that are refused are not named in the result. The same round may be asked for again, with
    /// other contributions, when the first time is void, and with it all later rounds of the fragment.
    Reduce {
        /// To be echoed.
        generation: Generation,
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
        /// At least one, in site order.
        contributions: Vec<Contribution>,
    },
    /// Ask a peer for the result of (round, fragment); answered by `Event::Pulled` or `Event::PullFailed`.
    Pull {
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
        /// The name of the bytes, where it is known. (What does not match is refused here too.)
        hash: Option<Hash>,
        /// Whom to ask.
        from: WorkerId,
    },
    /// A result of the open round is here: one of those that [`Command::RoundComplete`] will bring, unless a generation begins before.
    ResultHere {
        /// Which round.
        round: Round,
        /// Which fragment, one that is due.
        fragment: FragmentId,
        /// What it is.
        result: FragmentResult,
    },
    /// All results of a round are here. Rounds come in order, each once. To be applied at the round's step.
    RoundComplete {
        /// Which round.
        round: Round,
        /// One for each fragment, in order.
        results: Vec<FragmentResult>,
    },
    /// The f32 data contributed to this round is not needed any more.
    Release {
        /// Which round.
        round: Round,
    },
    /// Send this to the coordinator (`ToCoordinator::Settled`).
    ReportSettled(Settled),
    /// This result, and perhaps others, is not to be had from any who should hold it: this member cannot follow any
    /// more, and must heal. At most once in a generation.
    Lost {
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
    },
    /// A member broke the protocol. For the log; at most [`super::ACCUSATIONS_MAX`] in a generation.
    Accuse {
        /// Who.
        worker: WorkerId,
        /// How.
        violation: Violation,
    },
}

/// One member's update as its uploader has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Whose it is.
    pub worker: WorkerId,
    /// Samples trained on.
    pub weight: u32,
    /// The f32 slice, little-endian. None: this member's own, which the caller holds.
    pub body: Option<Bytes>,
}

/// One site's compressed update as the owner has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// Whose it is.
    pub site: SiteId,
    /// Samples trained on by the site's members.
    pub weight: u32,
    /// As it came from the uploader.
    pub body: Bytes,
}

/// What honest members never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The frame is not its sender's to send, or not this member's to receive.
    #[error("sent a frame that the membership gives it no part in")]
    NotItsDuty,
    /// The bytes of a result cannot be read, or name sites that have no members.
    #[error("sent a result that cannot be read")]
    MalformedResult,
    /// Two results with different bytes for the same round and fragment.
    #[error("sent a second, different result")]
    ConflictingResult,
    /// A pulled result is not the one that was asked for.
    #[error("answered a pull with other bytes")]
    WrongBytes,
}
