//! The durable state of a run, for a restart of the coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use longhaul_common::config::{ParallelConfig, RunConfig};
use longhaul_common::id::{Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::{CheckpointReport, EvaluationData, Hash};
use serde::{Deserialize, Serialize};

use crate::run::accounting::evaluations::Evaluations;
use crate::run::accounting::late::Late;
use crate::run::accounting::ledger::Ledger;
use crate::run::accounting::releases::Releases;
use crate::run::accounting::residuals::ResidualsLost;
use crate::run::accounting::tally::Tally;
use crate::run::accounting::tasks::Tasks;
use crate::run::generations::generation_config::GenerationConfig;
use crate::run::planning::replanning::Moving;
use crate::run::recovery::rewinds::Rewinds;
use crate::run::views::snapshot::Snapshot;
use crate::run::ways::Ways;

/// Phase of a run's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Waiting for workers to join.
    Gathering,
    /// Workers build the model and load the state.
    Preparing,
    /// Rounds take place.
    Training,
    /// The last rounds take place.
    Draining,
    /// Over.
    Finished,
}

/// The durable part of a run. All other state belongs to connections, which do not survive a restart.
///
/// Stored in postcard, which writes fields one after the other: the order of all fields here and in its parts is part
/// of the format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// The run's id.
    pub run: RunId,
    /// The present phase. A restart turns [`Phase::Preparing`] into [`Phase::Gathering`].
    pub phase: Phase,
    /// Open requests.
    pub requests: Requests,
    /// Sites and workers.
    pub roster: Roster,
    /// Generations so far.
    pub generations: GenerationsState,
    /// The coordinator's plans, where it makes them.
    pub plans: PlansState,
    /// Rounds and their samples.
    pub rounds: RoundsState,
    /// The model's past.
    pub lineage: Lineage,
    /// Speeds of the links between sites.
    pub ways: Ways,
    /// Checkpoints up to the one before this round have another division of the model; none: it was never cut anew.
    pub cut_at: Option<Round>,
    /// Work of all workers, past and present.
    pub tally: Tally,
    /// Changes that workers had not sent.
    pub residuals: ResidualsState,
    /// Contributions of each site.
    pub releases: Releases,
    /// Checkpoints, written and requested.
    pub checkpoints: CheckpointsState,
    /// The end of the run.
    pub end: EndState,
    /// Verdicts on held-out losses.
    pub evaluations: Evaluations,
    /// Scores of questions.
    pub tasks: Tasks,
}

/// Requests to a run that are still open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// An orderly end was requested.
    pub drain: bool,
    /// A pause was requested.
    pub pause: bool,
}

/// The sites and workers of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Workers excluded for good.
    pub revoked: BTreeSet<WorkerId>,
    /// Names of the sites, by number.
    pub sites: Vec<String>,
    /// All workers that ever joined.
    pub workers: BTreeMap<WorkerId, Known>,
}

/// The generations of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationsState {
    /// The present generation; none before the first, or once all its members are lost.
    pub present: Option<GenerationConfig>,
    /// The highest announced generation, begun or not. Numbers are never reused.
    pub announced: Generation,
}

/// Plans made by the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlansState {
    /// The present plan, where the coordinator makes one.
    pub decided: Option<Decided>,
    /// The next plan, once the present generation has ended.
    pub moving: Option<Moving>,
    /// Entries of the tokenizer's vocabulary, where a plan has asked for them.
    pub vocabulary: Option<u32>,
}

/// The rounds of a run and their samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundsState {
    /// Pace of the rounds, as configured or as decided since.
    pub schedule: RoundSchedule,
    /// First round at the last decided pace; none: as configured.
    pub paced_from: Option<Round>,
    /// Samples that count.
    pub ledger: Ledger,
    /// Counted samples that wait in a residual.
    pub late: Late,
}

/// The past of the model that is trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lineage {
    /// Facts that all members must agree on; none before the first generation.
    pub facts: Option<Facts>,
    /// For rounds followed by checkpoints: hash of each part of the model before the next round, by rank. They tell parts of different pasts apart.
    pub milestones: BTreeMap<Round, BTreeMap<u32, Hash>>,
    /// Rounds that the run went back to.
    pub rewinds: Rewinds,
    /// The run that this one is a fork of.
    pub fork: Option<Fork>,
}

/// The beginning of a run from another one's checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The other run.
    pub of: RunId,
    /// Its steps before the checkpoint.
    pub step: u64,
    /// The first round of this run: that before which its workers have the checkpoint.
    pub first_round: Round,
}

/// Residuals that no present worker has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResidualsState {
    /// Lost with workers that died or left.
    pub lost: ResidualsLost,
    /// During a pause: the last generation, and the workers whose own checkpoints may hold unsent changes.
    pub resting: Option<(GenerationConfig, BTreeSet<WorkerId>)>,
}

/// The checkpoints of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointsState {
    /// The newest checkpoints, newest first.
    pub newest: Vec<Checkpoint>,
    /// A checkpoint was requested, and no generation has begun since.
    pub is_asked: bool,
    /// All members write one after the first round of this generation.
    pub due_in: Option<Generation>,
}

/// The end of a run, for those who look at it or extend it later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndState {
    /// Steps before the run was extended; none: it never was.
    pub first_steps: Option<u64>,
    /// Workers that left in order with the only checkpoints of the rounds before this one; none once the run has gone
    /// on.
    pub left_with: Option<(Round, BTreeSet<WorkerId>)>,
    /// The workers at the end of the run.
    pub last_snapshot: Option<Snapshot>,
}

/// The coordinator's decisions in place of `run.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// `[parallel]`
    pub parallel: ParallelConfig,
    /// `train.recompute`
    pub recompute: bool,
    /// Members of each copy, by rank, while no states exist: unlike machines have unlike parts. Empty: any workers.
    pub copies: Vec<Vec<WorkerId>>,
    /// `sync.warmup_redundant`, where that is `auto`.
    pub redundant_warmup: bool,
    /// The plan and its reasons, in a sentence for people.
    pub why: String,
}

/// A worker's identity, from its last `Join`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The process.
    pub incarnation: u64,
    /// Its site.
    pub site: SiteId,
    /// Address for its own site.
    pub lan_address: SocketAddr,
    /// Address for other sites.
    pub wan_address: SocketAddr,
    /// Device name, for display.
    pub device: String,
    /// Bytes that the model may take: of the GPU's memory, where it has one.
    pub memory_bytes: u64,
    /// Bytes of the machine's memory besides. `None`: one memory serves both.
    pub host_memory_bytes: Option<u64>,
    /// Speed on the model, in FLOPs a second; none: never measured.
    pub flops_per_s: Option<u64>,
}

impl Known {
    /// Whether these are its addresses.
    #[must_use]
    pub fn is_at(&self, lan_address: SocketAddr, wan_address: SocketAddr) -> bool {
        (self.lan_address, self.wan_address) == (lan_address, wan_address)
    }
}

/// Facts that all members must agree on to train one model on one text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Parameters of each part of the model, by rank.
    pub parameters: Vec<u64>,
    /// Samples of the training data.
    pub samples: u64,
    /// Hash over the training tokens.
    pub data_hash: Hash,
    /// Data that the model is evaluated on.
    pub evaluation: EvaluationData,
}

/// A checkpoint and its writer, for display: a resume is chosen from the offers of joining workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its writer.
    pub worker: WorkerId,
    /// The writer's report.
    pub report: CheckpointReport,
}

impl RunState {
    /// Creates a run without workers.
    #[must_use]
    pub fn new(run: RunId, config: &RunConfig) -> Self {
        Self {
            run,
            phase: Phase::Gathering,
            requests: Requests::default(),
            roster: Roster::default(),
            generations: GenerationsState { present: None, announced: Generation(0) },
            plans: PlansState::default(),
            rounds: RoundsState {
                schedule: config.round_schedule(),
                paced_from: None,
                ledger: Ledger::new(config.round_schedule(), u64::from(config.train.batch)),
                late: Late::default(),
            },
            lineage: Lineage::default(),
            ways: Ways::default(),
            cut_at: None,
            tally: Tally::default(),
            residuals: ResidualsState::default(),
            releases: Releases::default(),
            checkpoints: CheckpointsState::default(),
            end: EndState::default(),
            evaluations: Evaluations::default(),
            tasks: Tasks::default(),
        }
    }

    /// Creates a run without workers that begins from another one's checkpoint.
    #[must_use]
    pub fn forked(run: RunId, config: &RunConfig, fork: Fork) -> Self {
        let mut state = Self::new(run, config);
        let batch = u64::from(config.train.batch);
        state.rounds.ledger = Ledger::forked(state.rounds.schedule, batch, fork.first_round);
        // Whether the other run was cut alike is unknown: the parts are assembled from those of its checkpoint.
        let is_whole = !config.parallel.is_divided() && !config.is_plan_open();
        state.cut_at = (!is_whole).then_some(fork.first_round);
        state.lineage.fork = Some(fork);
        state
    }

    /// Has a fork go on in the samples of the other run, as they were before that run's `round`: samples that did not count there are
    /// given out again. Returns whether the other run's books reach back that far; otherwise nothing changes.
    pub fn continue_samples(&mut self, config: &RunConfig, there: &Self, round: Round) -> bool {
        let Some(fork) = self.lineage.fork else { return false };
        let here = (self.rounds.schedule, u64::from(config.train.batch), fork.first_round);
        let books = Ledger::continuing(here, (&there.rounds.ledger, &there.rounds.late, round));
        books.map(|books| self.rounds.ledger = books).is_some()
    }

    /// Extends a finished run to this many steps in all; with the same number, a stopped run goes on to its own end.
    ///
    /// # Errors
    /// Nothing is left to do; a sentence gives the reason.
    pub fn extend(&mut self, steps: u64) -> Result<(), String> {
        let (before, round) = (self.rounds.schedule, self.rounds.ledger.through());
        if steps < before.steps {
            return Err(format!("it is one of {} steps, and run.steps is {steps}", before.steps));
        }
        let Some(schedule) = before.extended(round, steps) else {
            let done = before.steps_of(round).start;
            return Err(match steps > done {
                true => "it ended within its warm-up, before a round of that was whole".to_owned(),
                false => format!("its {done} steps are done"),
            });
        };
        // The run waits for the writers of the last checkpoint, in any order of arrival.
        let has_all = |checkpoint: &&Checkpoint| {
            checkpoint.report.next_round == round && checkpoint.report.outcome.is_ok()
        };
        let holders: BTreeSet<WorkerId> =
            self.checkpoints.newest.iter().filter(has_all).map(|checkpoint| checkpoint.worker).collect();
        if self.end.left_with.is_none() && round > Round(0) && !holders.is_empty() {
            self.end.left_with = Some((round, holders));
        }
        if steps > before.steps {
            self.end.first_steps.get_or_insert(before.steps);
        }
        self.rounds.schedule = schedule;
        self.rounds.ledger.follow(schedule);
        (self.phase, self.requests) = (Phase::Gathering, Requests::default());
        self.rest();
        self.evaluations.go_on();
        (self.checkpoints.is_asked, self.checkpoints.due_in) = (false, None);
        (self.plans.moving, self.end.last_snapshot) = (None, None);
        Ok(())
    }

    /// Stops training. Each member's own checkpoint may hold its unsent changes.
    pub fn rest(&mut self) {
        if let Some(lineup) = self.generations.present.take() {
            let is_owed = self.rounds.ledger.through() <= lineup.first_round;
            self.checkpoints.is_asked |= is_owed && self.checkpoints.due_in == Some(lineup.generation);
            let kept = lineup.members().map(|member| member.worker).collect();
            self.residuals.resting = Some((lineup, kept));
        }
    }

    /// Returns the end of the rounds: that of the run, or of the drain.
    #[must_use]
    pub fn until(&self) -> Option<Round> {
        self.generations.present.as_ref().map(|generation| generation.until)
    }
}
