//! The run as people and other programs see it. [`Run::status`](super::Run::status) makes a status.

use serde::{Deserialize, Serialize};

use crate::run::accounting::evaluations::Evaluated;
use crate::run::accounting::refusals::Cause;
use crate::run::accounting::releases::PrivacyStatus;
use crate::run::accounting::residuals::ResidualsLost;
use crate::run::command::{Notice, Severity};
use crate::run::generations::operate::Suspended;
use crate::run::liveness::departures::GoneStatus;
use crate::run::state::Phase;
use crate::run::views::member_status::MemberStatus;

/// What `GET /api/v1/status` answers. Numbers that are not known yet are null. Its parts are one object in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The run itself.
    #[serde(flatten)]
    pub run: RunStatus,
    /// How far it is.
    #[serde(flatten)]
    pub progress: ProgressStatus,
    /// How well the model learns.
    #[serde(flatten)]
    pub training: TrainingStatus,
    /// How fast it is trained.
    #[serde(flatten)]
    pub throughput: ThroughputStatus,
    /// What devices spend beside computing.
    #[serde(flatten)]
    pub overhead: OverheadStatus,
    /// Updates between sites.
    #[serde(flatten)]
    pub traffic: TrafficStatus,
    /// Seconds to the end at the present speed.
    pub eta_s: Option<f64>,
    /// The samples of the run.
    #[serde(flatten)]
    pub samples: SamplesStatus,
    /// Workers and links.
    #[serde(flatten)]
    pub cluster: ClusterStatus,
    /// Whether the coordinator stays when the run is finished.
    #[serde(default)]
    pub stays: bool,
    /// How the run has stopped for now, if it has, and everybody has left.
    #[serde(default)]
    pub suspended: Option<Suspended>,
    /// The newest checkpoints, newest first.
    pub checkpoints: Vec<CheckpointStatus>,
    /// The last events, oldest first.
    pub events: Vec<EventStatus>,
    /// Refusals, losses and notices.
    #[serde(flatten)]
    pub accounting: AccountingStatus,
    /// What a person should look at now.
    pub problems: Vec<String>,
}

/// The run itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The run's id.
    #[serde(rename = "run")]
    pub id: String,
    /// Its name in `run.toml`.
    pub name: String,
    /// Where it is.
    pub phase: Phase,
    /// Whether it was asked to stop.
    pub stopping: bool,
    /// Whether nobody trains until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// The run that this one is a fork of, and the step.
    #[serde(default)]
    pub fork: Option<String>,
    /// The reason of an early end (`evaluate.patience`).
    #[serde(default)]
    pub ended_early: Option<String>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressStatus {
    /// The generation that runs.
    pub generation: Option<u64>,
    /// Rounds that are applied everywhere.
    pub round: u64,
    /// Rounds of the run.
    pub rounds: u64,
    /// Steps in the rounds that are applied everywhere.
    pub step: u64,
    /// Steps of the run.
    pub steps: u64,
}

/// How well the model learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingStatus {
    /// Mean training loss over the members in the newest round that all have applied, weighted by samples, nats a token.
    pub loss: Option<f32>,
    /// L2 norm of a member's own gradient, before clipping, in the newest round that says: the root mean square over its steps and over the members. Of a model in parts, that of all parts.
    #[serde(default)]
    pub gradient_norm: Option<f32>,
    /// The newest validation loss, nats a token: at the end, the mean over the members.
    pub validation_loss: Option<f32>,
    /// The newest share of held-out images whose class is told: at the end, the mean over the members. None of text.
    #[serde(default)]
    pub validation_accuracy: Option<f32>,
    /// Whether samples are images: each then counts as one token where tokens are counted.
    #[serde(default)]
    pub images: bool,
    /// About how many exchanges' changes wait in error feedback, where most do, after the newest round that says: norms of residuals over those of what the round added.
    #[serde(default)]
    pub residual_ratio: Option<f32>,
    /// The evaluation with the lowest held-out loss, in a run with `[evaluate]`.
    #[serde(default)]
    pub best: Option<Evaluated>,
    /// The evaluation whose checkpoint is kept as the best: `best`, once its checkpoint is complete.
    #[serde(default)]
    pub best_checkpoint: Option<Evaluated>,
    /// Evaluations since the last improvement, with `evaluate.patience`.
    #[serde(default)]
    pub evaluations_without_improvement: u64,
    /// The newest scores of `evaluate.tasks`.
    #[serde(default)]
    pub scores: Vec<ScoreStatus>,
}

/// The score of a model on one kind of questions, by one measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreStatus {
    /// Kind of questions.
    pub task: String,
    /// Measure, as lm-evaluation-harness calls it.
    pub measure: String,
    /// Share of right answers.
    pub value: f64,
    /// Questions.
    pub questions: u64,
    /// Steps of the scored state.
    pub step: u64,
}

/// How fast it is trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputStatus {
    /// Tokens of samples that were worked on, over all workers and the whole run. Less than steps × batch × sequence length by what members skipped
    /// (a run has so many steps, and what is given out again takes the place of other samples), and more by what was trained on
    /// and did not count.
    pub tokens: u64,
    /// The share of them whose samples were selected for backward passes (`[train.selective_backward]`): 1, where every sample is trained on.
    #[serde(default)]
    pub selected_share: Option<f64>,
    /// Tokens per second over all workers, over the last interval.
    pub tokens_per_s: Option<f64>,
    /// The same over the whole run, while a coordinator watched.
    pub tokens_per_s_mean: Option<f64>,
    /// Σ compute / (Σ compute + Σ wait) over the last interval: how near the run is to machines that need not communicate.
    pub share_of_local_speed: Option<f64>,
    /// The same over the whole run.
    pub share_of_local_speed_mean: Option<f64>,
}

/// What devices spend beside computing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverheadStatus {
    /// Milliseconds in which devices waited for training data, over all workers and the whole run.
    #[serde(default)]
    pub data_wait_ms: f64,
    /// The same, over the whole time of the devices.
    #[serde(default)]
    pub data_wait_share: Option<f64>,
    /// Milliseconds in which workers encoded and decoded updates, whatever their devices did meanwhile, over the whole run.
    #[serde(default)]
    pub encode_ms: f64,
    /// What devices waited for results meanwhile, over their whole time.
    #[serde(default)]
    pub encode_wait_share: Option<f64>,
    /// Milliseconds in which devices waited, within steps, for other ranks of their pipelines, over the whole run.
    #[serde(default)]
    pub bubble_ms: f64,
    /// The same, over the whole time of the devices.
    #[serde(default)]
    pub bubble_share: Option<f64>,
    /// Bytes of training data that workers without it have fetched from other sites, over the whole run.
    #[serde(default)]
    pub data_wan_bytes: u64,
    /// Those that they have fetched from workers of their own sites.
    #[serde(default)]
    pub data_lan_bytes: u64,
    /// What training stood still for checkpoints, over the whole time of the devices.
    #[serde(default)]
    pub checkpoint_stall_share: Option<f64>,
}

/// Updates between sites.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrafficStatus {
    /// Bytes sent between sites, over the whole run.
    pub wan_bytes: u64,
    /// What the same rounds would have sent as dense f32.
    pub dense_bytes: u64,
    /// `dense_bytes` / `wan_bytes`, where both are more than nothing.
    pub bytes_ratio: Option<f64>,
}

/// The samples of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplesStatus {
    /// Samples that count in rounds that are applied everywhere: never less than before, but where all processes go back to a checkpoint.
    #[serde(rename = "samples_counted")]
    pub counted: u64,
    /// Samples of such rounds that are in no result yet, as they came too late: with a later result they count, and where their worker goes before that they are given out again.
    #[serde(default)]
    #[serde(rename = "samples_late")]
    pub late: u64,
    /// Samples that wait to be given out again.
    #[serde(rename = "samples_pending")]
    pub pending: u64,
    /// The same books, so that a program can check them.
    pub ledger: LedgerStatus,
    /// Whether what workers have sent and what they keep add up to what there was.
    #[serde(default)]
    pub audit: AuditStatus,
}

/// Workers and links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Parts that a copy of the model is in.
    pub parts: u32,
    /// Which plan the coordinator has made, and why, and the one that is to take its place; none: it was written.
    #[serde(default)]
    pub plan: Option<String>,
    /// Workers that have joined. When the run is finished: those that were there to the end.
    pub members: Vec<MemberStatus>,
    /// Workers that have joined at some time and are not here.
    #[serde(default)]
    pub gone: Vec<GoneStatus>,
    /// The newest round that all members reported.
    pub parity: Option<ParityStatus>,
    /// The round after which members are compared first, while each computes the whole warm-up.
    #[serde(default)]
    pub parity_from: Option<u64>,
    /// The ways between sites, as they were measured or as the run's traffic has shown them.
    #[serde(default)]
    pub links: Vec<LinkStatus>,
}

/// Refusals, losses and notices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccountingStatus {
    /// Contributions that owners refused since this coordinator was started, by site and reason.
    #[serde(default)]
    pub refused: Vec<RefusalStatus>,
    /// Refusals beyond those: of a bad site, each report names a few.
    #[serde(default)]
    pub refused_unnamed: u64,
    /// Fragments whose residual was lost with a worker that died or left.
    #[serde(default)]
    pub residuals_lost: ResidualsLost,
    /// What a private run has told of each site's data.
    #[serde(default)]
    pub privacy: Option<PrivacyStatus>,
}

/// The books of the sample stream: every position is to be applied exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerStatus {
    /// Different positions in rounds that are applied everywhere, those that wait for a later result included.
    pub positions_applied: u64,
    /// Positions that were applied when they had been applied before, in all: 0, or exactly-once is broken.
    pub duplicates: u64,
    /// Positions that wait to be given out again.
    pub pending: u64,
    /// Positions below this one were given out for rounds that are applied everywhere.
    #[serde(default)]
    pub given_out: u64,
    /// Of these, those that do not count and are to be given out again. The others are all in `positions_applied`, or exactly-once is broken.
    #[serde(default)]
    pub waiting: u64,
}

/// What came of comparing what workers have sent and what they keep with what there was: since this coordinator was started, and since those came who are here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditStatus {
    /// Fragments that were looked at.
    pub fragments: u64,
    /// The largest difference of one value, over the largest value of its fragment: of f32, some 1e-7.
    pub worst: f32,
}

/// Whether all members hold the same bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParityStatus {
    /// After which round.
    pub round: u64,
    /// The hash that counts.
    pub hash: String,
    /// Whether all have it.
    pub equal: bool,
}

/// What owners refused of a site for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// The name of the site.
    pub site: String,
    /// Why.
    pub reason: Cause,
    /// How many contributions, each to one fragment.
    pub count: u64,
    /// The round of the newest.
    pub round: u64,
    /// Who refused the newest.
    pub by: String,
}

/// The way from one site to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The name of the site from which it leads,
    pub from: String,
    /// and of that to which.
    pub to: String,
    /// What it carries.
    pub bytes_per_s: f64,
    /// There and back, without queues.
    pub round_trip_s: f64,
    /// Seconds since traffic has shown it; none: it was measured before there was a plan.
    pub seen_s: Option<f64>,
}

/// A checkpoint, or the failure to write one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// Who wrote it.
    pub worker: String,
    /// The round that follows the ones it contains.
    pub next_round: u64,
    /// Where it is, on that worker's machine.
    pub path: String,
    /// Its state's hash.
    pub state_hash: Option<String>,
    /// Why it was not written.
    pub error: Option<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStatus {
    /// Unix time in milliseconds.
    pub at_unix_ms: u64,
    /// How much it matters.
    pub severity: Severity,
    /// Whom it concerns.
    pub worker: Option<String>,
    /// One sentence.
    pub text: String,
}

impl EventStatus {
    /// A notice as others see it. `clock_started_unix_ms` is the Unix time at which the run's clock was zero.
    #[must_use]
    pub fn of(notice: &Notice, clock_started_unix_ms: u64) -> Self {
        Self {
            at_unix_ms: clock_started_unix_ms.saturating_add(notice.at_ms),
            severity: notice.severity,
            worker: notice.worker.map(|worker| worker.to_string()),
            text: notice.text.clone(),
        }
    }
}
