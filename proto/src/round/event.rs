//! What a member is told.

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};

use super::frame::Frame;
use super::result::FragmentResult;
use crate::control::message::{GenerationStart, Hash};

/// Input to [`super::Member::handle`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A generation starts (`ToWorker::Begin`).
    Begin(Box<GenerationStart>),
    /// The present generation ends (`ToWorker::Settle`); `generation` is the one that will start.
    Settle {
        /// The generation that will start.
        generation: Generation,
    },
    /// The device is about to begin the steps of this round: the one that [`super::Member::next_round`] named.
    /// Said before it does, as a settlement goes by it.
    Computing {
        /// Which round.
        round: Round,
    },
    /// This fragment of the local update is ready, while the device still computes others: [`Event::Contribute`] of the same weight, not zero,
    /// follows. What is said here of [`Event::Contribute`] goes for the fragment: its data is addressable from now on, and [`super::Command::Retract`] and
    /// [`super::Command::CarryOver`] may come before the rest is ready.
    FragmentReady {
        /// The round that the device computes.
        round: Round,
        /// Which fragment, one that is due.
        fragment: FragmentId,
        /// Samples trained on in the round.
        weight: u32,
    },
    /// The local update of this round is ready: what was learnt in it, plus all that was carried over before.
    /// The caller keeps its f32 data addressable by (round, fragment) until [`super::Command::Release`].
    Contribute {
        /// Which round.
        round: Round,
        /// Samples trained on in it. Zero: there is nothing to contribute, and no data will be asked for.
        weight: u32,
    },
    /// A frame arrived. The caller has verified that its body matches its hash, and that a local update of
    /// positive weight is as long as its fragment.
    Frame(Frame),
    /// Answers [`super::Command::Compress`].
    Compressed {
        /// Echoed, as a round may be compressed once in each generation.
        generation: Generation,
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// The encoded update.
        body: Bytes,
    },
    /// Answers [`super::Command::Reduce`].
    Reduced {
        /// Echoed.
        generation: Generation,
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// What is to be published.
        result: FragmentResult,
    },
    /// Answers [`super::Command::Pull`]: the bytes as [`super::Member::lookup`] gave them at the other side.
    Pulled {
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// What the peer sent.
        body: Bytes,
        /// BLAKE3 of `body`, computed here.
        hash: Hash,
    },
    /// Answers [`super::Command::Pull`]: the peer does not hold it, could not be reached, or did not answer in
    /// time.
    PullFailed {
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// Who was asked.
        from: WorkerId,
    },
    /// The time that [`super::Member::poll_timeout`] named has come.
    Timeout,
}
