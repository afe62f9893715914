//! The bulk frames of a round.

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};

use crate::control::message::Hash;

/// Payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameKind {
    /// A member's f32 slice, to its site's uploader. Weight zero: no update for this round, and an empty
    /// body.
    Local,
    /// A site's compressed update, to the owner. Weight zero: no update for this round, and an empty body.
    Contribution,
    /// A fragment's result ([`super::FragmentResult`]), from the owner to the uploaders and from them to
    /// their members.
    Result,
}

/// Place of a frame in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of payload.
    pub kind: FrameKind,
    /// Generation of the sender: a fence.
    pub generation: Generation,
    /// Round.
    pub round: Round,
    /// Fragment.
    pub fragment: FragmentId,
    /// Samples behind a local update or a contribution; zero in a result.
    pub weight: u32,
    /// The sender's site.
    pub site: SiteId,
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The worker of the sender's certificate.
    pub from: WorkerId,
    /// Header.
    pub header: FrameHeader,
    /// Body.
    pub body: Bytes,
    /// BLAKE3 of the body, verified.
    pub hash: Hash,
}

impl From<FrameKind> for crate::frame::FrameKind {
    fn from(kind: FrameKind) -> Self {
        match kind {
            FrameKind::Local => Self::Local,
            FrameKind::Contribution => Self::Contribution,
            FrameKind::Result => Self::Result,
        }
    }
}

/// A kind of frame that does not belong to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame of a round")]
pub struct NotOfARound;

impl TryFrom<crate::frame::FrameKind> for FrameKind {
    type Error = NotOfARound;

    fn try_from(kind: crate::frame::FrameKind) -> Result<Self, NotOfARound> {
        match kind {
            crate::frame::FrameKind::Local => Ok(Self::Local),
            crate::frame::FrameKind::Contribution => Ok(Self::Contribution),
            crate::frame::FrameKind::Result => Ok(Self::Result),
            crate::frame::FrameKind::State
            | crate::frame::FrameKind::MaskSecret
            | crate::frame::FrameKind::Stage => Err(NotOfARound),
        }
    }
}
