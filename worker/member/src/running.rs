//! A participating member: the round protocol's state machine, and the state behind its commands.

use std::collections::{BTreeMap, VecDeque};

use longhaul_common::id::{Generation, Round, SiteId};
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_common::schedule::{Pace, RoundSchedule};
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::{Hash, RoundReport};
use longhaul_proto::round::{Command, FragmentResult, Member};

use super::adaptation::Adaptation;
use super::arriving::Arriving;
use super::columns::ColumnContributions;
use super::contributions::Finished;
use super::layouts::Layouts;
use super::masks::Masking;
use super::outside::Outside;
use super::replica::Replica;
use super::site::SiteReduction;
use crate::encode::compressor::Compressor;
use crate::encode::tiling::Tiling;
use crate::message::{Load, PutBack, ReplicaPosition};
use crate::reduce::reducer::Reducer;
use crate::reduce::refusals::Refusals;
use crate::sparse_ranges::SparseRanges;
use crate::unsent::Unsent;

/// Progress of this worker.
pub(super) enum Stage {
    /// The model or the state is not here.
    Preparing,
    /// It takes part.
    Running(Box<Running>),
}

pub(super) struct Running {
    pub generation: Generation,
    pub membership: Option<Membership>,
    pub member: Member,
    /// A command of the round protocol that is not executed yet.
    pub postponed: Option<Command>,
    pub rounds: Rounds,
    pub device: DeviceView,
    pub contributions: Contributions,
    pub codec: Codec,
    /// Reduction among members of this site.
    pub site: SiteReduction,
    pub results: Results,
    pub replica: Replica,
}

/// Content and times of rounds.
pub(super) struct Rounds {
    /// The model's layout.
    pub layout: FragmentLayout,
    /// Layouts of the exchanged values, round by round.
    pub layouts: Layouts,
    /// Order of exchanged values, if not that of the flat vector.
    pub tiling: Option<Tiling>,
    pub schedule: RoundSchedule,
    /// First round not to begin.
    pub until: Round,
}

/// The device, as far as messages have shown.
pub(super) struct DeviceView {
    /// State to load on entry.
    pub load: Option<Load>,
    /// Its place among other workers, until it enters.
    pub place: Option<Box<ReplicaPosition>>,
    /// Whether it was told to enter.
    pub entered: bool,
    /// Barrier epoch of its last entry.
    pub epoch: u64,
    /// Round in computation, or computed last.
    pub begun: Option<Round>,
    /// Whether it has contributed to the begun round.
    pub idle: bool,
    /// Next round released at the barrier.
    pub named: Option<Round>,
    /// Parts of contributions that reached no result and return to the device.
    pub put_back: Vec<PutBack>,
}

/// This worker's updates not yet released by the round protocol.
pub(super) struct Contributions {
    pub of_rounds: BTreeMap<Round, SparseRanges>,
    /// The same for gradients of columns.
    pub columns: ColumnContributions,
    /// Parts that recur in the next contribution, as full vectors.
    pub repeated: BTreeMap<Round, Vec<f32>>,
    /// Whole gradients of a redundant warm-up, which no result has.
    pub redundant: BTreeMap<Round, Vec<f32>>,
    /// Parts of a round in computation.
    pub finished: Option<Finished>,
    /// With deltas: the due local parameters at the end of the last round, until its result is applied.
    pub snapshot: Option<(Round, SparseRanges)>,
    /// The part of error feedback that is also in the local parameters.
    pub unsent: Unsent,
    /// Slices that reached no result; part of the next contribution.
    pub carry: Option<Vec<f32>>,
    /// Of a released contribution, for the next one.
    pub memory: Vec<f32>,
}

/// Conversion from updates to frames and back.
pub(super) struct Codec {
    pub compressor: Compressor,
    pub reducer: Reducer,
    /// Set in runs with secure aggregation.
    pub masking: Option<Masking>,
    pub decoder: Decoder,
    pub adaptation: Option<Adaptation>,
}

#[derive(Default)]
pub(super) struct Results {
    /// Decoded part of the results here.
    pub arriving: Arriving,
    /// Complete rounds not yet applied.
    pub completed: VecDeque<(Round, Vec<FragmentResult>)>,
    /// Reports that wait for the device to apply the round.
    pub reports: BTreeMap<Round, RoundReport>,
    /// Rounds passed by the device and not yet reported.
    pub passed: Vec<PassedRound>,
    /// Refused contributions not yet reported.
    pub refusals: Refusals,
}

/// A round whose result is in the state with which the device enters another one.
pub(super) struct PassedRound {
    pub round: Round,
    /// Sites named in the results of all due fragments.
    pub sites: Vec<SiteId>,
    /// Hash of the state after it; [`NOT_COMPARED`](longhaul_proto::control::message::NOT_COMPARED) before a replay.
    pub state_hash: Hash,
}

impl Running {
    /// Returns the round protocol's next command.
    pub fn next_command(&mut self, outside: &dyn Outside) -> Option<Command> {
        let decide = || self.member.poll_command().inspect(|command| outside.decides(command));
        self.postponed.take().or_else(decide)
    }

    /// Switches to another schedule of rounds; begun rounds are unaffected.
    pub fn follow(&mut self, schedule: RoundSchedule) {
        let Self { rounds, codec, .. } = self;
        let schedule = schedule.for_fragments(rounds.layout.count());
        if schedule != rounds.schedule {
            let Pace { overlap, groups, every } = schedule.last_pace();
            tracing::info!(every, overlap, groups, "the schedule of rounds follows the measured links");
        }
        rounds.schedule = schedule;
        rounds.layouts = rounds.layouts.following(schedule);
        codec.compressor.follow(rounds.layouts);
        codec.reducer.follow(rounds.layouts);
        if let Some(adaptation) = &mut codec.adaptation {
            adaptation.follow(rounds.layouts);
        }
    }
}

impl DeviceView {
    /// Returns the view of a device that waits to enter with this load.
    pub fn to_load(load: Load) -> Self {
        Self {
            load: Some(load),
            place: None,
            entered: false,
            epoch: 0,
            begun: None,
            idle: true,
            named: None,
            put_back: Vec::new(),
        }
    }
}
