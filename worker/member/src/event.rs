//! Events of the synchroniser's queue.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_checkpoint::CheckpointData;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::control::message::{CheckpointOffer, CheckpointReport, Hash, HeldPart, Start, ToWorker};
use longhaul_proto::masking::MASK_SECRET_BYTES;
use longhaul_proto::round::Frame;

use super::outside::Ongoing;
use super::site::SiteEvent;
use crate::message::FromDevice;

/// Capacity of the synchroniser's queue. If it is full, senders wait: the device, and the streams of peers, whose flow control then applies back-pressure.
pub const SYNC_QUEUE_EVENTS: usize = 256;

/// Input to [`super::Synchroniser`].
#[derive(Debug)]
pub enum SyncEvent {
    /// Message from the coordinator.
    Coordinator(ToWorker),
    /// Message from the device.
    Device(FromDevice),
    /// Frame from a member, with verified hash.
    Frame {
        /// Frame.
        frame: Frame,
        /// Reservation of receive memory, which bounds queued frames in bytes. Released once the round protocol, whose own slots are bounded, has taken or
        /// rejected the frame.
        memory: Ongoing,
    },
    /// Answer of a peer to a request for a result.
    Pulled {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
        /// Peer.
        from: WorkerId,
        /// Result and its hash, if the peer has it.
        answer: Option<(Bytes, Hash)>,
    },
    /// End of a fetch of the state from donors.
    Healed {
        /// Attempt, as counted by the synchroniser.
        attempt: u64,
        /// State, or the failure of all donors.
        answer: Result<HealedState, String>,
    },
    /// End of a fetch of a checkpoint's parts from their holders.
    CopiesHere {
        /// Attempt, as counted by the synchroniser.
        attempt: u64,
        /// Available parts; this worker's share of them is on disk.
        answer: Result<Vec<HeldPart>, String>,
    },
    /// End of downloads from the archive for this worker's start; the available files are on disk.
    Unarchived {
        /// Attempt, as counted by the synchroniser.
        attempt: u64,
        /// New starting point.
        start: Start,
    },
    /// A copy of another worker's checkpoint on disk; `None`: unavailable.
    Kept(Option<CheckpointOffer>),
    /// Request of a peer for a result.
    ServeResult {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
        /// Reply handle.
        reply: Reply<Option<(Bytes, Hash)>>,
    },
    /// Request for the owners of the results that the device waits for.
    Awaited {
        /// Reply handle, for other members.
        reply: Reply<BTreeSet<WorkerId>>,
    },
    /// Request of a peer for the state.
    ServeState {
        /// Earliest acceptable round; the request waits for it.
        from: Round,
        /// Reply handle; dropped without an answer.
        reply: Reply<HealedState>,
    },
    /// A member's secret for this worker's masks in a generation.
    MaskSecret {
        /// Generation.
        generation: Generation,
        /// Sender.
        from: WorkerId,
        /// Secret.
        secret: [u8; MASK_SECRET_BYTES],
    },
    /// Request of a peer for this worker's secret.
    ServeMaskSecret {
        /// Generation.
        generation: Generation,
        /// Requester, by its certificate.
        peer: WorkerId,
        /// Reply handle.
        reply: Reply<Option<[u8; MASK_SECRET_BYTES]>>,
    },
    /// Progress of the reduction within this site.
    Site(SiteEvent),
    /// End of the session.
    Stop,
    /// The background writer has finished; with the data to archive, if this member uploads checkpoints.
    CheckpointWritten(CheckpointReport, Option<Arc<CheckpointData>>),
    /// An upload to the archive has ended.
    CheckpointArchived(CheckpointReport),
}

/// A reply handle. A dropped handle means no answer.
pub type Reply<T> = Box<dyn Answer<T>>;

/// The waiting requester, which may have left.
pub trait Answer<T>: fmt::Debug + Send {
    /// Sends the answer.
    fn give(self: Box<Self>, answer: T);
    /// Reports whether the requester still waits.
    fn is_wanted(&self) -> bool;
}

/// A consistent copy of the synchronised state.
#[derive(Clone, Debug)]
pub struct HealedState {
    /// First round not contained.
    pub next_round: Round,
    /// sparse-local: θ_g. dense: θ, first and second moments.
    pub buffers: Vec<Arc<Vec<f32>>>,
    /// Optimiser steps behind the moments.
    pub updates: u64,
}
