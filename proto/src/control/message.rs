//! Control messages, in postcard. `docs/protocol.md` tells the story that they play.
//!
//! Both enums are ordered: a variant's number is its place, so new ones go to the end, and a change to an old one
//! raises [`PROTOCOL_VERSION`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::{FragmentId, Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::plan::Membership;
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::Assignment;
use serde::{Deserialize, Serialize};

pub use super::report::{
    AUDIT_MAX, Audit, Measured, REFUSALS_REPORTED_MAX, Refusal, RefusalReason, RoundReport,
};

/// What both sides of a control connection must agree on.
pub const PROTOCOL_VERSION: u16 = 25;

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// From a worker to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// First on every connection: who this is and what it still holds.
    Join(Join),
    /// The model is built and the state that [`ToWorker::Prepare`] or [`ToWorker::Heal`] named is in memory.
    Ready(Ready),
    /// Sent every [`HEARTBEAT_INTERVAL_MS`]; by a worker for which another one speaks, every [`OWN_WORD_EVERY`] of those.
    Heartbeat(Heartbeat),
    /// A round's result is applied here.
    RoundApplied(RoundReport),
    /// Answers [`ToWorker::Settle`]: nothing more happens here under the old generation.
    Settled(Settled),
    /// A checkpoint was written, or could not be.
    Checkpoint(CheckpointReport),
    /// Everything up to `GenerationStart::until` is applied and written.
    Finished {
        /// The first round that was not begun.
        next_round: Round,
        /// Mean loss on the held-out samples at the end, nats a token, or an image; none where it was not evaluated.
        validation_loss: Option<f32>,
        /// The share of held-out images whose class is told; none of text, and where it was not evaluated.
        validation_accuracy: Option<f32>,
    },
    /// The user or the machine asks this worker to stop; it goes when told [`ToWorker::Dismiss`].
    Leaving,
    /// This worker cannot go on, and says why before it closes.
    Failed {
        /// For people.
        reason: String,
    },
    /// Where there is no plan yet: what this worker can do. Said without being asked.
    Profile(Profile),
    /// Answers [`ToWorker::Probe`]: what was reached, in the order of the peers that were named; none: nobody answered there.
    Links(Vec<Option<MeasuredLink>>),
    /// What this worker's own frames have shown of the ways to other sites: at most [`LINKS_MAX`] at a time, when something has changed and every
    /// [`LINKS_REPEATED_S`].
    SeenLinks(Vec<SeenLink>),
    /// A copy of another worker's checkpoint, as [`ToWorker::Keep`] asks for, is on this worker's disk; none: it could not be had.
    Kept(Option<CheckpointOffer>),
    /// What this worker can have from the run's archive of checkpoints (`checkpoint.to`), newest first. Said once in each session without being asked, also where there
    /// is nothing or the archive cannot be read.
    Archived(Vec<CheckpointOffer>),
    /// In place of [`ToCoordinator::Heartbeat`], from a member that was shown signs of life by other workers of its site.
    SiteHeartbeat {
        /// Its own.
        own: Heartbeat,
        /// What it was shown since the last one: at most [`SIGNS_MAX`], of each worker the newest.
        others: Vec<SignOfLife>,
    },
    /// Other members that are out of this worker's reach: what it has sent there, or asked while it waits for them, has not been answered by a single packet for
    /// [`OUT_OF_REACH_AFTER_MS`] and two round trips.
    /// At most [`OUT_OF_REACH_MAX`]. Said when it changes, with nobody when it is over, and every [`OUT_OF_REACH_REPEATED_MS`] as long as it is not.
    ///
    /// This worker alone: it hears nothing of the coordinator, which may hear it, and says this in place of heartbeats.
    OutOfReach(Vec<WorkerId>),
    /// What this worker has of the run's training data. Said on each connection as soon as it is known, and when it changes; answered by [`ToWorker::DataHolders`].
    Data(DataAt),
}

/// After how long without an answer a member is out of reach, in milliseconds: it was asked twice, a quarter of a second apart.
pub const OUT_OF_REACH_AFTER_MS: u64 = 500;

/// How often a worker repeats who is out of its reach, in milliseconds. What was not repeated for three times as long does not count any more.
pub const OUT_OF_REACH_REPEATED_MS: u64 = 1000;

/// Workers in one [`ToCoordinator::OutOfReach`]: who can reach so few of those it waits for has a problem of its own, whoever else is missing.
pub const OUT_OF_REACH_MAX: usize = 256;

/// How often a worker says that it is alive, in milliseconds: several times within the shortest sensible
/// `faults.silent_after_ms`, so that one lost packet is not a death.
pub const HEARTBEAT_INTERVAL_MS: u64 = 500;

/// Of so many heartbeats, a worker for which another one speaks says one itself, with its counts: that shows that its own connection works, for which nobody else can speak.
pub const OWN_WORD_EVERY: u64 = 5;

/// Workers in one [`ToCoordinator::SiteHeartbeat`]: more than a site has, and in 16 KiB.
pub const SIGNS_MAX: usize = 1024;

/// That a worker was alive, as another one of its site was shown by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignOfLife {
    /// Which worker.
    pub worker: WorkerId,
    /// Of which process: [`Join::incarnation`].
    pub incarnation: u64,
    /// How long ago that was when the message was written, in milliseconds.
    pub age_ms: u16,
}

/// The first message on a control connection. The worker's identity is in its certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// Random for each session: a worker that comes back with another incarnation has lost what it had of the run.
    pub incarnation: u64,
    /// The name of its site.
    pub site: String,
    /// Where members of its own site reach its data endpoint. An unspecified address means: as seen by the coordinator,
    /// with this port.
    pub lan_address: SocketAddr,
    /// Where members of other sites reach it, likewise.
    pub wan_address: SocketAddr,
    /// For people: host name and device.
    pub device: String,
    /// Bytes that the model, its optimiser and activations may take: of the GPU's memory, where there is one.
    pub memory_bytes: u64,
    /// Where it computes on a GPU: bytes of the machine's memory that what is exchanged and written may take ([`u64::MAX`]: nobody knows). None: there is one memory for all.
    pub host_memory_bytes: Option<u64>,
    /// What is still in memory from before the connection was lost.
    pub held: Option<(Generation, Round)>,
    /// It was here before and could not take part, as nobody had the results any more that its state lacked; and how many milliseconds that state took to come.
    pub too_late_ms: Option<u32>,
    /// Checkpoints of this run on its disk, newest first, at most [`CHECKPOINT_OFFERS_MAX`].
    pub checkpoints: Vec<CheckpointOffer>,
}

/// What a machine can do with the model of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Floating point operations in a second, sustained, in forward and backward passes of the model's own blocks.
    pub flops_per_s: f64,
    /// Entries of the tokenizer's vocabulary.
    pub vocabulary: u32,
}

/// The way between two workers, from the one that was asked to the one that asked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLink {
    /// Bytes in a second, of a transfer that had come up to speed.
    pub bytes_per_s: f64,
    /// A round trip in seconds, without queues.
    pub round_trip_s: f64,
}

/// What traffic has shown of the way to another site.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenLink {
    /// Which site.
    pub to: SiteId,
    /// What one connection delivered there when it had enough to send, and its round trip without queues.
    pub link: MeasuredLink,
}

/// Sites in one [`ToCoordinator::SeenLinks`].
pub const LINKS_MAX: usize = 32;

/// How often a worker tells again of a way that has not changed, in seconds: a coordinator that was started anew knows of all after that.
pub const LINKS_REPEATED_S: u64 = 60;

/// Peers that a worker is asked to probe, at most: each takes about a second.
pub const PROBED_MAX: usize = 32;

/// Checkpoints offered when joining: the `checkpoint.keep` newest matter, of each part of the model in a folder that many share.
pub const CHECKPOINT_OFFERS_MAX: usize = 1024;

/// A complete, verified checkpoint on a worker's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOffer {
    /// The round that follows the ones it contains.
    pub next_round: Round,
    /// Hash of the synchronised state: equal on every member.
    pub state_hash: Hash,
    /// Whether the worker's private state (local parameters, optimiser, residuals) is there too.
    pub private: bool,
    /// Which part of the model it is: 0, unless copies are on several workers.
    pub rank: u32,
    /// Of how many: 1, where everybody has all of it.
    pub parts: u32,
    /// The generation in which it was written.
    pub generation: Generation,
}

/// A part of a checkpoint, and who has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPart {
    /// Which.
    pub offer: CheckpointOffer,
    /// Workers that have it on their disks, the receiver's own site first; none: the receiver has it itself.
    pub holders: Vec<Member>,
}

/// The state in memory before a generation starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The first round that it does not contain.
    pub next_round: Round,
    /// Hash of the synchronised state.
    pub state_hash: Hash,
    /// Which part of the model it is the state of: 0, unless copies are on several workers.
    pub rank: u32,
    /// Parameters of the model, or of the part.
    pub parameters: u64,
    /// Samples (sequences) of the training part of the data.
    pub samples: u64,
    /// Hash over the training tokens: members must train on the same text.
    pub data_hash: Hash,
}

/// What a worker says of itself twice a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The step of the run that it computes.
    pub step: u64,
    /// Since the process, or its part in the run, began, like all that follows: tokens of the samples that it has worked on.
    pub tokens: u64,
    /// Of these, those of samples that were selected for backward passes: all, where every sample is trained on.
    pub selected_tokens: u64,
    /// Seconds in forward, backward and optimiser.
    pub compute_s: f64,
    /// Seconds in which the device waited for the network.
    pub wait_s: f64,
    /// Seconds in which the device waited for training data.
    pub data_wait_s: f64,
    /// Seconds in which training stood still while the device's state was copied for checkpoints.
    pub checkpoint_s: f64,
    /// Seconds in which updates were encoded or decoded, whatever the device did meanwhile; what was side by side counts once.
    pub encode_s: f64,
    /// Of `wait_s`, those in which the device waited for a round's result meanwhile.
    pub encode_wait_s: f64,
    /// Of `wait_s`, those in which it waited, within a step, for other ranks of its pipeline: the pipeline's bubble.
    pub bubble_s: f64,
    /// Bytes sent to other sites.
    pub wan_sent_bytes: u64,
    /// Bytes received from other sites.
    pub wan_received_bytes: u64,
    /// Bytes sent within the site.
    pub lan_sent_bytes: u64,
    /// What the same rounds would have sent to other sites as dense f32.
    pub dense_bytes: u64,
    /// Bytes of training data that came from other sites.
    pub data_wan_bytes: u64,
    /// Bytes of training data that came from workers of the own site.
    pub data_lan_bytes: u64,
    /// Mean training loss of the last finished step, nats a token; NaN where it is kept back, or nothing was trained on.
    pub loss: f32,
    /// How it encoded what it last sent to other sites as its own; none: nothing yet, or in a form that has no such numbers.
    pub encoding: Option<Encoding>,
}

/// How updates are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Encoding {
    /// The share of an update's values that is sent: its density.
    pub density: f32,
    /// Bits of each of these, with their share of scales, without where they are and before entropy coding.
    pub value_bits: f32,
}

/// What a member holds when a generation ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The generation that will start; echoes [`ToWorker::Settle`].
    pub generation: Generation,
    /// The first round whose results are not all here. All before it are applied, or ready to be.
    pub open_round: Round,
    /// The round whose steps the device computes now: later rounds were not begun under the old generation.
    pub computing: Round,
    /// Results of `open_round` that are here.
    pub results: Vec<HeldResult>,
}

/// A result that a member holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldResult {
    /// Which fragment.
    pub fragment: FragmentId,
    /// The name of the bytes.
    pub hash: Hash,
    /// Sites whose contribution is in it.
    pub sites: Vec<SiteId>,
}

/// A checkpoint that was written, or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// The round that follows the ones it contains.
    pub next_round: Round,
    /// The generation in which it was written.
    pub generation: Generation,
    /// Where it is, on the worker's machine.
    pub path: String,
    /// Hash of the synchronised state, or why it could not be written.
    pub outcome: Result<Hash, String>,
}

/// From the coordinator to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Answers [`ToCoordinator::Join`]. Said again when a plan is made, or when one that was is not any more: the worker begins anew with that configuration.
    Welcome(Welcome),
    /// Build the model and load this state.
    Prepare(Start),
    /// Fetch the state from one of these members; answered by [`ToCoordinator::Ready`].
    Heal {
        /// Members that hold it, the worker's own site first.
        donors: Vec<Member>,
    },
    /// A generation ends: stop sending and accepting under the old one, answer [`ToCoordinator::Settled`]. The device
    /// finishes the round it computes.
    Settle {
        /// The generation that will start.
        generation: Generation,
    },
    /// A generation starts.
    Begin(Arc<GenerationStart>),
    /// This worker's part is over.
    Dismiss {
        /// For people.
        reason: String,
    },
    /// The worker cannot take part, and trying again is of no use.
    Refused {
        /// For people: what is wrong and what to do.
        reason: String,
    },
    /// Where copies of the model are on several workers: which part of it this one has from now on. What it was told to prepare or to heal
    /// before is void. None: its copy has come apart, and it has no part until it is told another.
    Seat {
        /// The part.
        rank: Option<u32>,
    },
    /// Where there is no plan yet: how fast are the ways from these to you? Answered by [`ToCoordinator::Links`].
    Probe {
        /// At most [`PROBED_MAX`].
        peers: Vec<Member>,
    },
    /// Have a copy of this checkpoint on your disk, as one other worker alone has it; answered by [`ToCoordinator::Kept`].
    Keep(HeldPart),
    /// These workers are out of the run for good: connections with them are closed at once, and new ones refused. Said to everybody when it
    /// happens, and to each who joins, after [`ToWorker::Welcome`].
    Revoked {
        /// At most [`REVOKED_MAX`]; more come in further messages.
        workers: Vec<WorkerId>,
    },
    /// Nothing has been heard of this worker for [`ASKED_AFTER_MS`], from itself or another one: it says a heartbeat at once, and speaks for itself for a while.
    Speak,
    /// Who has the run's training data. Said to each who has said [`ToCoordinator::Data`], then and when it changes.
    DataHolders(DataHolders),
    /// A worker that is to leave has something of the run's state that nobody else has: it goes on until it is dismissed, for [`HANDOVER_MAX`] at most: when others have that, or it is on a disk.
    Handover,
}

/// After how much silence a worker is asked to speak for itself, in milliseconds: two heartbeats are missing, and an answer is in time yet.
pub const ASKED_AFTER_MS: u64 = 2 * HEARTBEAT_INTERVAL_MS;

/// How long a worker that is to leave stays until what it alone has is on a disk, and with another worker where one stays: a checkpoint of gigabytes over a slow link.
pub const HANDOVER_MAX: Duration = Duration::from_secs(600);

/// Workers in one [`ToWorker::Revoked`].
pub const REVOKED_MAX: usize = 4096;

pub use super::data::{DATA_HOLDERS_MAX, DATA_NEIGHBOURS_MAX, DataAt, DataHolders, DataName};
pub use super::settlement::{Adopted, Settlement};
pub use longhaul_common::plan::Member;

/// The run that a worker has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Which run.
    pub run: RunId,
    /// The effective configuration, as TOML.
    pub config: String,
    /// The number of its site.
    pub site: SiteId,
    /// Whether the coordinator still counts it as a member with the memory it holds: then training just goes on, and no
    /// preparation follows.
    pub resumed: bool,
}

/// Where training starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// From parameters drawn from the run's seed.
    Fresh,
    /// From the checkpoint with this name on the worker's own disk.
    Checkpoint(CheckpointOffer),
    /// From parts of one checkpoint that are fetched from their holders: the worker's own part of the model, where nobody who has it is to take that part, or all parts,
    /// where the model was cut in other parts then.
    Held(Vec<HeldPart>),
}

/// All that a member must know about a new generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationStart {
    /// Members and their duties.
    pub membership: Membership,
    /// What becomes of the round that was open; none at the start of a run.
    pub settlement: Option<Settlement>,
    /// The first round in which all members take part. Until then those of `active_before` do.
    pub first_round: Round,
    /// Members that contribute to rounds before `first_round`, sorted.
    pub active_before: Vec<WorkerId>,
    /// Sample assignments, from the one that covers the open round on.
    pub assignments: Vec<Assignment>,
    /// Rounds from here on are not begun: the end of the run, or of a drain.
    pub until: Round,
    /// When rounds happen: as configured, or as decided from what members have measured. Rounds that were begun are the same in both.
    pub schedule: RoundSchedule,
    /// With whom the receiver holds a copy of the model; none: it has all of it. Members are those that hold the same part.
    pub replica: Option<Replica>,
    /// Whether all write a checkpoint after `first_round`, besides those that are due.
    pub checkpoint: bool,
}

/// The workers that hold a copy of the model together, each a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// The generation in which they came together.
    pub session: Generation,
    /// By rank. The samples of the first one are those of all.
    pub ranks: Vec<Member>,
}
