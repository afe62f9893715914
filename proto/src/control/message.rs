//! Control messages, in postcard. `docs/protocol.md` describes their use.
//!
//! Both enums are ordered: the number of a variant is its place. Append new variants; a change to an old one
//! raises [`PROTOCOL_VERSION`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::BestCheckpoints;
use longhaul_common::id::{FragmentId, Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::plan::Membership;
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::Assignment;
use serde::{Deserialize, Serialize};

pub use super::report::{
    AUDIT_MAX, Audit, Measured, REFUSALS_REPORTED_MAX, Refusal, RefusalReason, RoundReport, TaskScore,
};

/// Version on which both sides of a control connection must agree.
pub const PROTOCOL_VERSION: u16 = 38;

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// State hash of a round's report where states are not compared: each member has computed the round by itself.
pub const NOT_COMPARED: Hash = [0; 32];

/// From a worker to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// First on every connection: the worker's identity and the state it still has.
    Join(Join),
    /// The model is built, and the state named by [`ToWorker::Prepare`] or [`ToWorker::Heal`] is in memory.
    Ready(Ready),
    /// Sent every [`HEARTBEAT_INTERVAL_MS`], or every [`OWN_WORD_EVERY`]th time while another worker reports
    /// for this one.
    Heartbeat(Heartbeat),
    /// A round's result is applied.
    RoundApplied(RoundReport),
    /// Reply to [`ToWorker::Settle`]: the worker has stopped all work under the old generation.
    Settled(Settled),
    /// A checkpoint was written or failed.
    Checkpoint(CheckpointReport),
    /// All rounds up to `GenerationStart::until` are applied and written.
    Finished {
        /// First round not started.
        next_round: Round,
        /// Final mean loss on the held-out samples, in nats per token or image; `None`: not evaluated.
        validation_loss: Option<f32>,
        /// Accuracy on held-out images; `None`: text, or not evaluated.
        validation_accuracy: Option<f32>,
    },
    /// This member's part of the questions of `evaluate.tasks` is scored: see [`TaskScore`].
    Scores {
        /// First round that the scored state does not contain.
        next_round: Round,
        /// At most one of each kind.
        scores: Vec<TaskScore>,
    },
    /// The user or the machine asks this worker to stop; it leaves on [`ToWorker::Dismiss`].
    Leaving,
    /// This worker cannot continue and sends the reason before it closes.
    Failed {
        /// Reason, for display.
        reason: String,
    },
    /// Capability of this worker, sent unasked while no plan exists.
    Profile(Profile),
    /// Reply to [`ToWorker::Probe`]: measured links, in the order of the named peers; `None`: no response.
    Links(Vec<Option<MeasuredLink>>),
    /// Links to other sites, as measured by this worker's own frames: at most [`LINKS_MAX`] at a time, on
    /// changes and every [`LINKS_REPEATED_S`].
    SeenLinks(Vec<SeenLink>),
    /// A copy of another worker's checkpoint, requested by [`ToWorker::Keep`], is on this worker's disk;
    /// `None`: not available.
    Kept(Option<CheckpointOffer>),
    /// Checkpoints available to this worker in the run's archive (`checkpoint.to`), newest first. Sent once
    /// per session unasked, even if empty or if the archive cannot be read.
    Archived(Vec<CheckpointOffer>),
    /// Replaces [`ToCoordinator::Heartbeat`] when other workers of the site have shown signs of life to this
    /// member.
    SiteHeartbeat {
        /// Own heartbeat.
        own: Heartbeat,
        /// Signs of life since the last message: at most [`SIGNS_MAX`], the newest of each worker.
        others: Vec<SignOfLife>,
    },
    /// Members that this worker cannot reach: data sent to them, or queries while it waits for them, got no
    /// packet in reply for [`OUT_OF_REACH_AFTER_MS`] plus two round trips. At most [`OUT_OF_REACH_MAX`]. Sent
    /// on changes, empty when over, and every [`OUT_OF_REACH_REPEATED_MS`] meanwhile.
    ///
    /// If it names this worker alone, the worker receives nothing from the coordinator, which may still
    /// receive this, sent in place of heartbeats.
    OutOfReach(Vec<WorkerId>),
    /// This worker's state of the run's training data. Sent on each connection once known, and on changes;
    /// the reply is [`ToWorker::DataHolders`].
    Data(DataAt),
    /// This worker's state of the pretrained model, in runs that start from one. Sent on each connection once
    /// known, and on changes; the reply is [`ToWorker::ModelHolders`].
    Model(ModelAt),
}

/// Time without a reply after which a member is out of reach, in milliseconds: two queries, a quarter of a
/// second apart.
pub const OUT_OF_REACH_AFTER_MS: u64 = 500;

/// Interval between repetitions of [`ToCoordinator::OutOfReach`], in milliseconds. An entry not repeated for
/// three intervals expires.
pub const OUT_OF_REACH_REPEATED_MS: u64 = 1000;

/// Maximum workers in one [`ToCoordinator::OutOfReach`]: a worker that cannot reach more has a problem of its
/// own.
pub const OUT_OF_REACH_MAX: usize = 256;

/// Interval between heartbeats, in milliseconds: several within the shortest sensible
/// `faults.silent_after_ms`, so that one lost packet is not taken for a death.
pub const HEARTBEAT_INTERVAL_MS: u64 = 500;

/// Share of heartbeats, one in this many, that a worker sends itself while another one reports for it. They
/// carry its counters and show that its own connection works.
pub const OWN_WORD_EVERY: u64 = 5;

/// Maximum workers in one [`ToCoordinator::SiteHeartbeat`]: more than a site has, and in 16 KiB.
pub const SIGNS_MAX: usize = 1024;

/// A sign of life of a worker, relayed by another one of its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignOfLife {
    /// Worker.
    pub worker: WorkerId,
    /// Its process: [`Join::incarnation`].
    pub incarnation: u64,
    /// Age when the message was written, in milliseconds.
    pub age_ms: u16,
}

/// First message on a control connection. The worker's certificate identifies it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// Random per session: a worker that returns with another incarnation has lost its state of the run.
    pub incarnation: u64,
    /// Name of its site.
    pub site: String,
    /// Address of its data endpoint for members of its site. An unspecified address means the address seen by
    /// the coordinator, with this port.
    pub lan_address: SocketAddr,
    /// The same for members of other sites.
    pub wan_address: SocketAddr,
    /// Host name and device, for display.
    pub device: String,
    /// Bytes available to the model, its optimiser and activations: GPU memory, if it has a GPU.
    pub memory_bytes: u64,
    /// On a GPU: bytes of host memory available for exchanged and written data ([`u64::MAX`]: unknown).
    /// `None`: one memory serves both.
    pub host_memory_bytes: Option<u64>,
    /// State still in memory from before the connection was lost.
    pub held: Option<(Generation, Round)>,
    /// Set if it was here before but could not take part, as no member still had the results missing from its
    /// state: the milliseconds that the transfer of the state took.
    pub too_late_ms: Option<u32>,
    /// Checkpoints of this run on its disk, newest first, at most [`CHECKPOINT_OFFERS_MAX`].
    pub checkpoints: Vec<CheckpointOffer>,
}

/// Capability of a machine for the model of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Sustained floating-point operations per second, in forward and backward passes of the model's own
    /// blocks.
    pub flops_per_s: f64,
    /// Entries of the tokenizer's vocabulary.
    pub vocabulary: u32,
    /// Hash of a gradient of this model's parts on a made-up batch: equal for machines that compute alike. 0: not
    /// measured, or a GPU, whose sums vary.
    pub gradient_hash: u64,
}

/// The link between two workers, from the probed one to the probing one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLink {
    /// Bytes per second of a transfer at full speed.
    pub bytes_per_s: f64,
    /// Round trip in seconds, without queueing.
    pub round_trip_s: f64,
}

/// The link to another site, as measured by traffic.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenLink {
    /// Site.
    pub to: SiteId,
    /// Bandwidth of one connection with enough to send, and its round trip without queueing.
    pub link: MeasuredLink,
}

/// Maximum sites in one [`ToCoordinator::SeenLinks`].
pub const LINKS_MAX: usize = 32;

/// Interval between reports of an unchanged link, in seconds. A restarted coordinator knows all links after
/// that.
pub const LINKS_REPEATED_S: u64 = 60;

/// Maximum peers in one probe: each takes about a second.
pub const PROBED_MAX: usize = 32;

/// Maximum checkpoints offered in a join: the `checkpoint.keep` newest of each part of the model matter, in a
/// folder that many may share.
pub const CHECKPOINT_OFFERS_MAX: usize = 1024;

/// A complete, verified checkpoint on a worker's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOffer {
    /// First round not contained.
    pub next_round: Round,
    /// Hash of the synchronised state, equal on every member.
    pub state_hash: Hash,
    /// Whether the worker's private state (local parameters, optimiser, residuals) is present.
    pub private: bool,
    /// Part of the model: 0, unless a replica spans several workers.
    pub rank: u32,
    /// Number of parts: 1, if each worker has the whole model.
    pub parts: u32,
    /// Generation that wrote it.
    pub generation: Generation,
}

/// A part of a checkpoint, with its holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPart {
    /// Part.
    pub offer: CheckpointOffer,
    /// Workers that have it on disk, the receiver's own site first; empty: the receiver has it.
    pub holders: Vec<Member>,
}

/// State in memory before a generation starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// First round not contained.
    pub next_round: Round,
    /// Hash of the synchronised state.
    pub state_hash: Hash,
    /// Part of the model: 0, unless a replica spans several workers.
    pub rank: u32,
    /// Parameters of the model, or of the part.
    pub parameters: u64,
    /// Training samples (sequences) of the data.
    pub samples: u64,
    /// Hash of the training tokens: members must train on the same text.
    pub data_hash: Hash,
    /// Data that the model is evaluated on.
    pub evaluation: EvaluationData,
}

/// Data that members evaluate on: their results are averaged, and those of a run compared with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluationData {
    /// Hash of the held-out samples; zeros: none are evaluated.
    pub held_out: Hash,
    /// Hash of the questions of `evaluate.tasks`; zeros: there are none.
    pub questions: Hash,
}

/// State of a member when a generation ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The generation that will start; echoes [`ToWorker::Settle`].
    pub generation: Generation,
    /// First round with missing results. All before it are applied, or ready to be.
    pub open_round: Round,
    /// Round that the device computes: later rounds were not started under the old generation.
    pub computing: Round,
    /// Results of `open_round` present.
    pub results: Vec<HeldResult>,
}

/// A result that a member has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldResult {
    /// Fragment.
    pub fragment: FragmentId,
    /// Hash of the bytes.
    pub hash: Hash,
    /// Sites that contributed.
    pub sites: Vec<SiteId>,
}

/// Outcome of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// First round not contained.
    pub next_round: Round,
    /// Generation that wrote it.
    pub generation: Generation,
    /// Path on the worker's machine.
    pub path: String,
    /// Hash of the synchronised state, or the reason of the failure.
    pub outcome: Result<Hash, String>,
}

/// From the coordinator to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Reply to [`ToCoordinator::Join`]. Repeated when a plan is made or withdrawn: the worker starts over
    /// with that configuration.
    Welcome(Welcome),
    /// Build the model and load this state.
    Prepare(Start),
    /// Fetch the state from one of these members; the reply is [`ToCoordinator::Ready`].
    Heal {
        /// Members that have it, the worker's own site first.
        donors: Vec<Member>,
    },
    /// A generation ends: stop sending and accepting under the old one and reply with
    /// [`ToCoordinator::Settled`]. The device finishes its current round.
    Settle {
        /// The generation that will start.
        generation: Generation,
    },
    /// A generation starts.
    Begin(Arc<GenerationStart>),
    /// This worker is done.
    Dismiss {
        /// Reason, for display.
        reason: String,
    },
    /// The worker cannot take part; retries are useless.
    Refused {
        /// Reason and remedy, for display.
        reason: String,
    },
    /// With replicas over several workers: this worker's part of the model from now on. Voids earlier orders
    /// to prepare or heal. `None`: its replica has broken up, and it has no part until the next order.
    Placed {
        /// Part.
        rank: Option<u32>,
    },
    /// While no plan exists: measure the links from these peers; the reply is [`ToCoordinator::Links`].
    Probe {
        /// At most [`PROBED_MAX`].
        peers: Vec<Member>,
    },
    /// Copy this checkpoint, which only one other worker has, to the own disk; the reply is
    /// [`ToCoordinator::Kept`].
    Keep(HeldPart),
    /// These workers are permanently revoked: close connections with them at once and refuse new ones. Sent
    /// to all on revocation, and to each joining worker after [`ToWorker::Welcome`].
    Revoked {
        /// At most [`REVOKED_MAX`]; further messages carry the rest.
        workers: Vec<WorkerId>,
    },
    /// No sign of this worker, own or relayed, has arrived for [`ASKED_AFTER_MS`]: it sends a heartbeat at
    /// once, and reports itself for a while.
    Speak,
    /// Holders of the run's training data. Sent to each worker that has sent [`ToCoordinator::Data`], then on
    /// changes.
    DataHolders(DataHolders),
    /// A leaving worker has state of the run that no other worker has. It continues until dismissed, once
    /// others have the state or it is on a disk, for [`HANDOVER_MAX`] at most.
    Handover,
    /// Holders of the pretrained model that the run starts from. Sent to each worker that has sent
    /// [`ToCoordinator::Model`], then on changes.
    ModelHolders(ModelHolders),
    /// Checkpoints to keep for their held-out loss, beside those of `checkpoint.keep`. In runs with
    /// `evaluate.keep_best`, sent to all workers after their admission, with each generation, and on changes.
    Best(BestCheckpoints),
}

/// Silence after which a worker is asked for an own heartbeat, in milliseconds: two heartbeats are missing,
/// and a reply is still in time.
pub const ASKED_AFTER_MS: u64 = 2 * HEARTBEAT_INTERVAL_MS;

/// Time for which a leaving worker stays until its unique state is on a disk, and with another worker if one
/// stays: enough for a checkpoint of gigabytes over a slow link.
pub const HANDOVER_MAX: Duration = Duration::from_secs(600);

/// Maximum workers in one [`ToWorker::Revoked`].
pub const REVOKED_MAX: usize = 4096;

pub use super::data::{
    DATA_HOLDERS_MAX, DATA_NEIGHBOURS_MAX, DataAt, DataHolders, DataName, MODEL_HOLDERS_MAX, ModelAt,
    ModelHolders,
};
pub use super::heartbeat::{Encoding, Heartbeat, TimeSpent, Traffic};
pub use super::settlement::{Adopted, Settlement};
pub use longhaul_common::plan::Member;

/// The run that a worker has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Run.
    pub run: RunId,
    /// The effective configuration, as TOML.
    pub config: String,
    /// Number of its site.
    pub site: SiteId,
    /// Whether the coordinator still counts it as a member with its state in memory: training then continues
    /// without preparation.
    pub resumed: bool,
}

/// Starting point of training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// Parameters drawn from the run's seed.
    Fresh,
    /// The checkpoint with this name on the worker's own disk.
    Checkpoint(CheckpointOffer),
    /// Parts of one checkpoint, fetched from their holders: the worker's own part of the model, if no holder
    /// takes that part, or all parts, if the model was split differently then.
    Held(Vec<HeldPart>),
}

/// Parameters of a new generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationStart {
    /// Members and their duties.
    pub membership: Membership,
    /// Outcome of the open round; `None`: start of a run.
    pub settlement: Option<Settlement>,
    /// First round with all members. Earlier rounds have those of `active_before`.
    pub first_round: Round,
    /// Members that contribute to rounds before `first_round`, sorted.
    pub active_before: Arc<[WorkerId]>,
    /// Sample assignments, from the one of the open round on.
    pub assignments: Vec<Arc<Assignment>>,
    /// Exclusive end: the end of the run, or of a drain.
    pub until: Round,
    /// Schedule of rounds: configured, or decided from measurements. Rounds already started are equal in
    /// both.
    pub schedule: RoundSchedule,
    /// The receiver's replica; `None`: it has the whole model. Members have the same part.
    pub replica: Option<ReplicaMembers>,
    /// Whether all write a checkpoint after `first_round`, besides those due.
    pub checkpoint: bool,
}

/// The workers of a replica, each with a part of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaMembers {
    /// Generation that formed it.
    pub session: Generation,
    /// Workers by rank. The samples of the first one apply to all.
    pub ranks: Vec<Member>,
}
