//! The kinds of things that are recorded.

use longhaul_common::id::{FragmentId, Round, WorkerId};
use longhaul_proto::frame::FrameKind;
use serde_json::{Value, json};

/// Something that a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The device computes a step, forwards and backwards.
    Compute {
        /// In which round.
        round: Round,
        /// Which.
        step: u64,
    },
    /// The device waits for the samples of a step.
    WaitForData {
        /// In which round.
        round: Round,
        /// Which.
        step: u64,
    },
    /// The device waits, within a step, for other workers of its copy of the model.
    WaitForOthers,
    /// The device waits for a round's result.
    WaitForResult {
        /// Which.
        round: Round,
    },
    /// The device copies out what it contributes.
    Contribute {
        /// To which round.
        round: Round,
    },
    /// The device applies a result.
    Apply {
        /// Of which round.
        round: Round,
    },
    /// The device looks at held-out samples.
    Evaluate,
    /// The device copies out what a checkpoint holds.
    Checkpoint,
    /// The synchroniser compresses what leaves the site.
    Compress {
        /// In which round.
        round: Round,
        /// How many fragments side by side.
        fragments: u32,
    },
    /// The synchroniser takes the mean of contributions.
    Reduce {
        /// In which round.
        round: Round,
        /// Of what.
        fragment: FragmentId,
    },
    /// The synchroniser decodes a result.
    Decode {
        /// Of which round.
        round: Round,
        /// Of what.
        fragment: FragmentId,
    },
    /// The synchroniser takes a round's results into the synchronised parameters.
    Update {
        /// Which.
        round: Round,
    },
    /// The site thread waits until all of the site have something of a round.
    WaitForSite {
        /// Which.
        round: Round,
    },
    /// The site thread adds up, with the others of the site.
    SumSite {
        /// In which round.
        round: Round,
    },
    /// A frame is on its way to another worker, until that has it.
    Send {
        /// To whom.
        to: WorkerId,
        /// What it is.
        kind: FrameKind,
        /// Of which round.
        round: Round,
        /// Of what.
        fragment: FragmentId,
        /// Of its body.
        bytes: u32,
    },
    /// A frame is here.
    Receive {
        /// From whom.
        from: WorkerId,
        /// What it is.
        kind: FrameKind,
        /// Of which round.
        round: Round,
        /// Of what.
        fragment: FragmentId,
        /// Of its body.
        bytes: u32,
    },
}

/// Who does it: a line of its own in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// That of the device.
    Device = 1,
    /// That of the synchroniser.
    Synchroniser,
    /// That of the reduction within the site.
    Site,
    /// That of frames.
    Network,
}

impl Track {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Device, Self::Synchroniser, Self::Site, Self::Network];

    /// As people read it.
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

/// How it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One at a time on its track, or one within the other.
    Slice,
    /// Several at a time.
    Overlapping,
    /// A moment.
    Instant,
}

impl Activity {
    /// Whose it is.
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

    /// In which round.
    #[must_use]
    pub fn round(&self) -> Option<Round> {
        match *self {
            Self::WaitForOthers | Self::Evaluate | Self::Checkpoint => None,
            // Ranks of a copy count exchanges in the place of rounds.
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

    /// How it is shown.
    #[must_use]
    pub fn shape(&self) -> Shape {
        match self {
            Self::Send { .. } => Shape::Overlapping,
            Self::Receive { .. } => Shape::Instant,
            _ => Shape::Slice,
        }
    }

    /// As people read it.
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

    /// What is known of it besides, as an object.
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
                    // Ranks of a copy count exchanges in the place of rounds, and have no fragments.
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
