//! Events of a member.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};

use super::frame::Frame;
use super::result::FragmentResult;
use crate::control::message::{GenerationStart, Hash};

/// Input to [`super::Member::handle`].
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A generation starts (`ToWorker::Begin`).
    Begin(Arc<GenerationStart>),
    /// The present generation ends (`ToWorker::Settle`).
    Settle {
        /// The generation that will start.
        generation: Generation,
    },
    /// The device is about to start the steps of this round, which [`super::Member::next_round`] named. Sent
    /// before it does, as a settlement depends on it.
    Computing {
        /// Round.
        round: Round,
    },
    /// This fragment of the local update is ready while the device computes others. [`Event::Contribute`] of
    /// the same, non-zero weight follows. The same rules apply to the fragment: its data is addressable from
    /// now on, and [`super::Command::Retract`] and [`super::Command::CarryOver`] may come before the rest is
    /// ready.
    FragmentReady {
        /// Round that the device computes.
        round: Round,
        /// Fragment, which is due.
        fragment: FragmentId,
        /// Samples trained on in the round.
        weight: u32,
    },
    /// The local update of this round is ready: its changes, plus all that was carried over. The caller keeps
    /// its f32 data addressable by (round, fragment) until [`super::Command::Release`].
    Contribute {
        /// Round.
        round: Round,
        /// Samples trained on in it. Zero: no contribution, and no data will be requested.
        weight: u32,
    },
    /// A frame arrived. The caller has verified that its body matches its hash, and that a local update of
    /// positive weight has the fragment's length.
    Frame(Frame),
    /// Reply to [`super::Command::Compress`].
    Compressed {
        /// Echoed, as each generation may compress a round once.
        generation: Generation,
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// The encoded update.
        body: Bytes,
    },
    /// Reply to [`super::Command::Reduce`].
    Reduced {
        /// Echoed.
        generation: Generation,
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// Result to publish.
        result: FragmentResult,
    },
    /// Reply to [`super::Command::Pull`]: the peer's bytes, from [`super::Member::lookup`].
    Pulled {
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// Bytes received.
        body: Bytes,
        /// BLAKE3 of `body`, computed locally.
        hash: Hash,
    },
    /// Reply to [`super::Command::Pull`]: the peer does not have it, is unreachable, or did not reply in
    /// time.
    PullFailed {
        /// Echoed.
        round: Round,
        /// Echoed.
        fragment: FragmentId,
        /// Peer.
        from: WorkerId,
    },
    /// The time of [`super::Member::poll_timeout`] has come.
    Timeout,
}
