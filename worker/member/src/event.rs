//! What reaches the synchroniser's queue.

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

/// Events that wait for the synchroniser. Whoever has one more waits until there is room: the device, and the streams of peers, whose
/// flow control then holds them back.
pub const SYNC_QUEUE_EVENTS: usize = 256;

/// Input to [`super::Synchroniser`].
#[derive(Debug)]
pub enum SyncEvent {
    /// The coordinator said something.
    Coordinator(ToWorker),
    /// The device said something.
    Device(FromDevice),
    /// A member sent a frame; its hash is verified.
    Frame {
        /// What it sent.
        frame: Frame,
        /// What it occupies of the receiver's memory, so that a queue of frames is bounded in bytes. Released when the round protocol
        /// has taken the frame, whose own slots are bounded, or has turned it away.
        memory: Ongoing,
    },
    /// A peer was asked for a result, and gave it or not.
    Pulled {
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
        /// Who was asked.
        from: WorkerId,
        /// What came.
        answer: Option<(Bytes, Hash)>,
    },
    /// The state was fetched from a donor, or from none of them.
    Healed {
        /// Which attempt at it, as the synchroniser counts them.
        attempt: u64,
        /// What came.
        answer: Result<HealedState, String>,
    },
    /// Parts of a checkpoint were fetched from their holders, or could not be.
    CopiesHere {
        /// Which attempt at it, as the synchroniser counts them.
        attempt: u64,
        /// Which parts there are of it; what this worker needs of them is on the disk.
        answer: Result<Vec<HeldPart>, String>,
    },
    /// What could be had from the archive of what this worker is to start from is on the disk.
    Unarchived {
        /// Which attempt at it, as the synchroniser counts them.
        attempt: u64,
        /// What it starts from now.
        start: Start,
    },
    /// A copy of another worker's checkpoint is on the disk; none: it could not be had.
    Kept(Option<CheckpointOffer>),
    /// A peer asks for a result.
    ServeResult {
        /// Which round.
        round: Round,
        /// Which fragment.
        fragment: FragmentId,
        /// Where the answer goes.
        reply: Reply<Option<(Bytes, Hash)>>,
    },
    /// Whose results the device waits for.
    Awaited {
        /// Where the answer goes: other members.
        reply: Reply<BTreeSet<WorkerId>>,
    },
    /// A peer asks for the state.
    ServeState {
        /// Not from before this round: it waits until the state is there.
        from: Round,
        /// Where the answer goes; dropped when there is none.
        reply: Reply<HealedState>,
    },
    /// A member has given the secret that it has drawn for this one's masks in a generation.
    MaskSecret {
        /// Which generation.
        generation: Generation,
        /// Who gave it.
        from: WorkerId,
        /// What it gave.
        secret: [u8; MASK_SECRET_BYTES],
    },
    /// A peer asks for the secret that this worker has drawn for it.
    ServeMaskSecret {
        /// Which generation.
        generation: Generation,
        /// Who asks, by its certificate.
        peer: WorkerId,
        /// Where the answer goes.
        reply: Reply<Option<[u8; MASK_SECRET_BYTES]>>,
    },
    /// The reduction within this site has got on.
    Site(SiteEvent),
    /// The session ends.
    Stop,
    /// The background writer is done. With what is to go into the archive, where this member is who puts it there.
    CheckpointWritten(CheckpointReport, Option<Arc<CheckpointData>>),
    /// The archive has a checkpoint, or could not be given it.
    CheckpointArchived(CheckpointReport),
}

/// Where an answer goes. Dropped, it is none.
pub type Reply<T> = Box<dyn Answer<T>>;

/// Somebody who waits for an answer, and may have gone.
pub trait Answer<T>: fmt::Debug + Send {
    /// Gives it.
    fn give(self: Box<Self>, answer: T);
    /// Whether somebody still waits.
    fn is_wanted(&self) -> bool;
}

/// A consistent copy of the synchronised state.
#[derive(Clone, Debug)]
pub struct HealedState {
    /// The first round that is not in it.
    pub next_round: Round,
    /// sparse-local: θ_g. dense: θ, first and second moments.
    pub buffers: Vec<Arc<Vec<f32>>>,
    /// Optimiser steps behind the moments.
    pub updates: u64,
}
