//! Kinds of recorded activities.

use longhaul_common::id::{FragmentId, Round, WorkerId};
use longhaul_proto::frame::FrameKind;
use serde_json::{Value, json};

/// An activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Forward and backward pass of a step on the device.
    Compute {
        /// Round of the step.
        round: Round,
        /// Step.
        step: u64,
    },
    /// Wait of the device for a step's samples.
    WaitForData {
        /// Round of the step.
        round: Round,
        /// Step.
        step: u64,
    },
    /// Wait of the device, within a step, for other workers of its replica.
    WaitForOthers,
    /// Wait of the device for a round's result.
    WaitForResult {
        /// Round.
        round: Round,
    },
    /// Copy of the device's contribution.
    Contribute {
        /// Round of the contribution.
        round: Round,
    },
    /// Application of a result on the device.
    Apply {
        /// Round of the result.
        round: Round,
    },
    /// Evaluation on held-out samples.
    Evaluate,
    /// Copy of a checkpoint's state from the device.
    Checkpoint,
    /// Compression of the site's contribution by the synchroniser.
    Compress {
        /// Round.
        round: Round,
        /// Number of fragments side by side.
        fragments: u32,
    },
    /// Mean of the contributions, in the synchroniser.
    Reduce {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
    },
    /// Decoding of a result in the synchroniser.
    Decode {
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
    },
    /// Addition of a round's results to the synchronised parameters.
    Update {
        /// Round.
        round: Round,
    },
    /// Wait of the site thread for all of the site's contributions to a round.
    WaitForSite {
        /// Round.
        round: Round,
    },
    /// Sum within the site, in the site thread.
    SumSite {
        /// Round.
        round: Round,
    },
    /// Transfer of a frame to another worker, until its receipt.
    Send {
        /// Receiver.
        to: WorkerId,
        /// Kind of frame.
        kind: FrameKind,
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
        /// Length of the body.
        bytes: u32,
    },
    /// Receipt of a frame.
    Receive {
        /// Sender.
        from: WorkerId,
        /// Kind of frame.
        kind: FrameKind,
        /// Round.
        round: Round,
        /// Fragment.
        fragment: FragmentId,
        /// Length of the body.
        bytes: u32,
    },
}

/// Line of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// Device.
    Device = 1,
    /// Synchroniser.
    Synchroniser,
    /// Reduction within the site.
    Site,
    /// Frames.
    Network,
}

impl Track {
    /// All tracks.
    pub const ALL: [Self; 4] = [Self::Device, Self::Synchroniser, Self::Site, Self::Network];

    /// Returns the displayed name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Synchroniser => "synchroniser",
            Self::Site => "site",
            Self::Network => "network",
        }
    }
}

/// Shape in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One at a time on its track, or nested.
    Slice,
    /// Several at a time.
    Overlapping,
    /// A moment.
    Instant,
}

impl Activity {
    /// Returns the track of the activity.
    #[must_use]
    pub fn track(&self) -> Track {
        match self {
            Self::Compute { .. }
            | Self::WaitForData { .. }
            | Self::WaitForOthers
            | Self::WaitForResult { .. }
            | Self::Contribute { .. }
            | Self::Apply { .. }
            | Self::Evaluate
            | Self::Checkpoint => Track::Device,
            Self::Compress { .. } | Self::Reduce { .. } | Self::Decode { .. } | Self::Update { .. } => {
                Track::Synchroniser
            }
            Self::WaitForSite { .. } | Self::SumSite { .. } => Track::Site,
            Self::Send { .. } | Self::Receive { .. } => Track::Network,
        }
    }

    /// Returns the round, if the activity belongs to one.
    #[must_use]
    pub fn round(&self) -> Option<Round> {
        match *self {
            Self::WaitForOthers | Self::Evaluate | Self::Checkpoint => None,
            // Ranks of a replica count exchanges in place of rounds.
            Self::Send { kind: FrameKind::Stage, .. } | Self::Receive { kind: FrameKind::Stage, .. } => None,
            Self::Compute { round, .. }
            | Self::WaitForData { round, .. }
            | Self::WaitForResult { round }
            | Self::Contribute { round }
            | Self::Apply { round }
            | Self::Compress { round, .. }
            | Self::Reduce { round, .. }
            | Self::Decode { round, .. }
            | Self::Update { round }
            | Self::WaitForSite { round }
            | Self::SumSite { round }
            | Self::Send { round, .. }
            | Self::Receive { round, .. } => Some(round),
        }
    }

    /// Returns the shape in the trace.
    #[must_use]
    pub fn shape(&self) -> Shape {
        match self {
            Self::Send { .. } => Shape::Overlapping,
            Self::Receive { .. } => Shape::Instant,
            _ => Shape::Slice,
        }
    }

    /// Returns the displayed name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Compute { .. } => "compute",
            Self::WaitForData { .. } => "wait for data",
            Self::WaitForOthers => "wait for others",
            Self::WaitForResult { .. } => "wait for the result",
            Self::Contribute { .. } => "contribute",
            Self::Apply { .. } => "apply",
            Self::Evaluate => "evaluate",
            Self::Checkpoint => "checkpoint",
            Self::Compress { .. } => "compress",
            Self::Reduce { .. } => "reduce",
            Self::Decode { .. } => "decode",
            Self::Update { .. } => "update",
            Self::WaitForSite { .. } => "wait for the site",
            Self::SumSite { .. } => "sum within the site",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
        }
    }

    /// Returns all other fields as a JSON object.
    #[must_use]
    pub fn arguments(&self) -> Value {
        match *self {
            Self::WaitForOthers | Self::Evaluate | Self::Checkpoint => json!({}),
            Self::Compute { round, step } | Self::WaitForData { round, step } => {
                json!({ "round": round.0, "step": step })
            }
            Self::WaitForResult { round }
            | Self::Contribute { round }
            | Self::Apply { round }
            | Self::Update { round }
            | Self::WaitForSite { round }
            | Self::SumSite { round } => json!({ "round": round.0 }),
            Self::Compress { round, fragments } => json!({ "round": round.0, "fragments": fragments }),
            Self::Reduce { round, fragment } | Self::Decode { round, fragment } => {
                json!({ "round": round.0, "fragment": fragment.0 })
            }
            Self::Send { to: peer, kind, round, fragment, bytes }
            | Self::Receive { from: peer, kind, round, fragment, bytes } => {
                let (worker, frame) = (peer.to_string(), format!("{kind:?}").to_lowercase());
                match kind {
                    // Ranks of a replica count exchanges in place of rounds, and have no fragments.
                    FrameKind::Stage => {
                        json!({ "worker": worker, "frame": frame, "exchange": round.0, "bytes": bytes })
                    }
                    _ => json!({
                        "worker": worker,
                        "frame": frame,
                        "round": round.0,
                        "fragment": fragment.0,
                        "bytes": bytes,
                    }),
                }
            }
        }
    }
}
