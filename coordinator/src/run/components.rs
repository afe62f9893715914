//! The state of a run's components. Each has a field of [`Run`](super::machine::Run), and handles its part of an event with [`Core`](super::core::Core) at hand; a part
//! that several take part in is of `Run` itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use super::absent_holders::AbsentHolders;
use super::addresses::Moves;
use super::audits::Audits;
use super::departures::Departures;
use super::generation::Settling;
use super::handovers::Handovers;
use super::latecomers::Latecomers;
use super::pace::Watch;
use super::parity::Parity;
use super::planning::WorkedOut;
use super::prepare::Preparing;
use super::progress::Summaries;
use super::reach::Reach;
use super::refusals::Refusals;
use super::replanning::Replanning;
use super::reports::Roll;
use super::shares::Shares;
use super::speeds::Speeds;
use super::survey::Surveys;
use super::together::Together;

/// The failure detector: who can be heard, by whom, and at which address.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Liveness {
    /// When to look for those that have been silent for too long, at the latest; none: nobody is connected.
    pub silence_at: Option<Duration>,
    pub reach: Reach,
    /// Those who were here since this coordinator was started, and are not any more.
    pub departures: Departures,
    pub moves: Moves,
}

/// How one generation follows another: who prepares, settles, is awaited or is out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Generations {
    pub preparing: Option<Preparing>,
    pub settling: Option<Settling>,
    /// Until then awaited members may come back.
    pub grace_until: Option<Duration>,
    /// Members of the generation that cannot come back as such.
    pub gone: BTreeSet<WorkerId>,
    /// All are to leave, and nobody new comes in. A coordinator that is started again knows nothing of it: the run goes on then.
    pub suspending: bool,
    pub begun_at: Duration,
    pub last_join: Duration,
    /// Copies of the model that were ever put together.
    pub replicas_formed: u64,
}

impl Generations {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            preparing: None,
            settling: None,
            grace_until: None,
            gone: BTreeSet::new(),
            suspending: false,
            begun_at: now,
            last_join: now,
            replicas_formed: 0,
        }
    }
}

/// The copies of the run's state: who holds one, who hands one over, and what becomes of a run whose holders are away.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Recovery {
    pub handovers: Handovers,
    pub absent_holders: AbsentHolders,
    pub together: Together,
    /// Meanwhile something was lost that had been trained.
    pub is_short: bool,
    /// A copy of a checkpoint could not be had, and people were told.
    pub copy_failed: bool,
}

/// Which plan the run follows, and which part of the work each worker has.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Placement {
    /// What was said of those who are here, for whom no plan fits.
    pub unfit: Option<String>,
    /// What those who are here have told for a plan; nothing, once there is one.
    pub surveys: Surveys,
    pub worked_out: WorkedOut,
    pub replanning: Replanning,
    pub shares: Shares,
    pub speeds: Speeds,
}

/// What members report of their rounds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Accounting {
    pub summaries: Summaries,
    pub refusals: Refusals,
    pub audits: Audits,
    /// Of what members measure, for the pace of rounds.
    pub watch: Watch,
    /// What reports of rounds are counted against, until somebody comes, goes or changes.
    pub roll: Option<Roll>,
    /// By rank.
    pub parity: BTreeMap<u32, Parity>,
    pub latecomers: Latecomers,
}

impl Accounting {
    pub(super) fn new(config: &RunConfig) -> Self {
        Self {
            summaries: Summaries::default(),
            refusals: Refusals::default(),
            audits: Audits::default(),
            watch: Watch::new(config),
            roll: None,
            parity: BTreeMap::new(),
            latecomers: Latecomers::default(),
        }
    }
}

/// Who has the run's data.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DataAvailability {
    /// They may be others than were told.
    pub data_moved: bool,
    /// People were told that nobody has it.
    pub told_no_data: bool,
}
