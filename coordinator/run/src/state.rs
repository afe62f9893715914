//! What a run must remember across a restart of the coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use longhaul_common::config::{ParallelConfig, RunConfig};
use longhaul_common::id::{Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::{CheckpointReport, Hash};
use serde::{Deserialize, Serialize};

use crate::accounting::late::Late;
use crate::accounting::ledger::Ledger;
use crate::accounting::releases::Releases;
use crate::accounting::residuals::ResidualsLost;
use crate::accounting::tally::Tally;
use crate::generations::generation_config::GenerationConfig;
use crate::planning::replanning::Moving;
use crate::recovery::rewinds::Rewinds;
use crate::views::snapshot::Snapshot;
use crate::ways::Ways;

/// Where a run is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Waiting for workers to join.
    Gathering,
    /// Workers build the model and load the state.
    Preparing,
    /// Rounds happen.
    Training,
    /// The last rounds happen.
    Draining,
    /// Over.
    Finished,
}

/// The durable part of a run. All other state is about connections, and those do not survive a restart anyway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Which run.
    pub run: RunId,
    /// Where it is. A restart turns [`Phase::Preparing`] into [`Phase::Gathering`].
    pub phase: Phase,
    /// Somebody asked for an orderly end.
    pub drain: bool,
    /// Somebody asked that nobody trains for now.
    pub paused: bool,
    /// Workers that are out of the run for good.
    pub revoked: BTreeSet<WorkerId>,
    /// The names of the sites; a site's number is its place.
    pub sites: Vec<String>,
    /// Every worker that ever joined.
    pub workers: BTreeMap<WorkerId, Known>,
    /// The generation that runs; none before the first, or when all its members were lost.
    pub generation: Option<GenerationConfig>,
    /// The highest generation that any worker was told of, begun or not. Numbers are never used twice.
    pub announced: Generation,
    /// How copies of the model are cut, where that was the coordinator's to decide and it has.
    pub plan: Option<Decided>,
    /// The plan that is to take its place, once the generation that is has ended.
    pub moving: Option<Moving>,
    /// Entries of the tokenizer's vocabulary, where a plan has asked for them.
    pub vocabulary: Option<u32>,
    /// When rounds happen: as configured, or as decided since.
    pub schedule: RoundSchedule,
    /// The round from which on they are as was last decided; none: as configured.
    pub paced_from: Option<Round>,
    /// Which samples count.
    pub ledger: Ledger,
    /// Which of them wait in a residual.
    pub late: Late,
    /// What all members must agree on; none before the first generation.
    pub facts: Option<Facts>,
    /// At rounds after which checkpoints are written: what each part of the model is before the next one, by rank. So parts of different pasts are told apart.
    pub milestones: BTreeMap<Round, BTreeMap<u32, Hash>>,
    /// Where the run went back to.
    pub rewinds: Rewinds,
    /// How fast the ways between sites are.
    pub ways: Ways,
    /// Checkpoints up to the one before this round are of other parts than the model is in now; none: it was never cut anew.
    pub cut_at: Option<Round>,
    /// What all workers have done, past and present.
    pub tally: Tally,
    /// What died or left with workers before it was sent.
    pub residuals_lost: ResidualsLost,
    /// While nobody trains: who trained last, and those whose own checkpoints may have what they had yet to send.
    pub resting: Option<(GenerationConfig, BTreeSet<WorkerId>)>,
    /// How often each site has contributed.
    pub releases: Releases,
    /// The newest checkpoints, newest first.
    pub checkpoints: Vec<Checkpoint>,
    /// Somebody has asked for a checkpoint, and no generation has begun since.
    pub checkpoint_asked: bool,
    /// All write one after the first round of this generation.
    pub checkpoint_in: Option<Generation>,
    /// The steps that the run was to have before it was extended; none: it never was.
    pub first_steps: Option<u64>,
    /// Workers that left in order with the only checkpoints of all before a round; none once the run has gone on.
    pub left_with: Option<(Round, BTreeSet<WorkerId>)>,
    /// The workers at the end, once it has come.
    pub last_snapshot: Option<Snapshot>,
}

/// What the coordinator has decided in the place of `run.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// `[parallel]`
    pub parallel: ParallelConfig,
    /// `train.recompute`
    pub recompute: bool,
    /// Who makes a copy together, by rank, as long as nobody has a state: unlike machines have unlike parts. Empty: any do.
    pub copies: Vec<Vec<WorkerId>>,
    /// What it is and why, in a sentence for people.
    pub why: String,
}

/// A worker's identity, as of its last `Join`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Which process.
    pub incarnation: u64,
    /// Where it is.
    pub site: SiteId,
    /// Where its own site reaches it.
    pub lan_address: SocketAddr,
    /// Where other sites reach it.
    pub wan_address: SocketAddr,
    /// For people.
    pub device: String,
    /// What the model may take there: of the GPU's memory, where there is one,
    pub memory_bytes: u64,
    /// and then of the machine's besides. None: there is one memory for all.
    pub host_memory_bytes: Option<u64>,
    /// What it computes of the model in a second; none: it was never asked.
    pub flops_per_s: Option<u64>,
}

impl Known {
    /// Whether these are where its own site and others reach it.
    #[must_use]
    pub fn is_at(&self, lan_address: SocketAddr, wan_address: SocketAddr) -> bool {
        (self.lan_address, self.wan_address) == (lan_address, wan_address)
    }
}

/// What all members must agree on to train one model on one text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Parameters of each part of the model, by rank.
    pub parameters: Vec<u64>,
    /// Samples of the training data.
    pub samples: u64,
    /// Hash over the training tokens.
    pub data_hash: Hash,
}

/// A checkpoint somewhere, for people: a resume is chosen from what joining workers offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Who wrote it.
    pub worker: WorkerId,
    /// What it wrote.
    pub report: CheckpointReport,
}

impl State {
    /// A run that nobody has joined yet.
    #[must_use]
    pub fn new(run: RunId, config: &RunConfig) -> Self {
        Self {
            run,
            phase: Phase::Gathering,
            drain: false,
            paused: false,
            revoked: BTreeSet::new(),
            sites: Vec::new(),
            workers: BTreeMap::new(),
            generation: None,
            announced: Generation(0),
            plan: None,
            moving: None,
            vocabulary: None,
            schedule: config.round_schedule(),
            paced_from: None,
            ledger: Ledger::new(config.round_schedule(), u64::from(config.train.batch)),
            late: Late::default(),
            facts: None,
            milestones: BTreeMap::new(),
            rewinds: Rewinds::default(),
            ways: Ways::default(),
            cut_at: None,
            tally: Tally::default(),
            residuals_lost: ResidualsLost::default(),
            resting: None,
            releases: Releases::default(),
            checkpoints: Vec::new(),
            checkpoint_asked: false,
            checkpoint_in: None,
            first_steps: None,
            left_with: None,
            last_snapshot: None,
        }
    }

    /// Goes on with a run that is over, up to so many steps in all; one that was stopped goes on to its own end where these are the same.
    ///
    /// # Errors
    /// There is nothing more to do, in words.
    pub fn extend(&mut self, steps: u64) -> Result<(), String> {
        let (before, round) = (self.schedule, self.ledger.through());
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
        // The run waits for those who wrote the last checkpoint, whoever comes first.
        let has_all = |checkpoint: &&Checkpoint| {
            checkpoint.report.next_round == round && checkpoint.report.outcome.is_ok()
        };
        let holders: BTreeSet<WorkerId> =
            self.checkpoints.iter().filter(has_all).map(|checkpoint| checkpoint.worker).collect();
        if self.left_with.is_none() && round > Round(0) && !holders.is_empty() {
            self.left_with = Some((round, holders));
        }
        if steps > before.steps {
            self.first_steps.get_or_insert(before.steps);
        }
        self.schedule = schedule;
        self.ledger.follow(schedule);
        (self.phase, self.drain, self.paused) = (Phase::Gathering, false, false);
        self.rest();
        (self.checkpoint_asked, self.checkpoint_in) = (false, None);
        (self.moving, self.last_snapshot) = (None, None);
        Ok(())
    }

    /// Nobody trains any more. Each member's own checkpoint may have what it had yet to send.
    pub fn rest(&mut self) {
        if let Some(lineup) = self.generation.take() {
            let is_owed = self.ledger.through() <= lineup.first_round;
            self.checkpoint_asked |= is_owed && self.checkpoint_in == Some(lineup.generation);
            let kept = lineup.members().map(|member| member.worker).collect();
            self.resting = Some((lineup, kept));
        }
    }

    /// The first round that is not begun: the end of the run, or of the drain.
    #[must_use]
    pub fn until(&self) -> Option<Round> {
        self.generation.as_ref().map(|generation| generation.until)
    }
}
