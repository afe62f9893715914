//! A member that takes part: the round protocol's state machine, and what is behind its commands.

use std::collections::{BTreeMap, VecDeque};

use longhaul_common::id::{Generation, Round};
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_common::schedule::{Pace, RoundSchedule};
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::RoundReport;
use longhaul_proto::round::{Command, FragmentResult, Member};

use super::adaptation::Adaptation;
use super::arriving::Arriving;
use super::columns::ColumnContributions;
use super::contributions::Finished;
use super::layouts::Layouts;
use super::masks::Masking;
use super::replica::Replica;
use super::site::SiteReduction;
use crate::encode::compressor::Compressor;
use crate::encode::tiling::Tiling;
use crate::message::{Load, Place, PutBack};
use crate::reduce::reducer::Reducer;
use crate::reduce::refusals::Refusals;
use crate::sparse_ranges::SparseRanges;

/// How far this worker has come.
pub(super) enum Stage {
    /// The model or the state is not here.
    Preparing,
    /// It takes part.
    Running(Box<Running>),
}

/// Everything about taking part.
pub(super) struct Running {
    pub generation: Generation,
    pub membership: Option<Membership>,
    pub member: Member,
    /// What the round protocol asked for, and is not done yet.
    pub postponed: Option<Command>,
    pub rounds: Rounds,
    pub device: DeviceView,
    pub contributions: Contributions,
    pub codec: Codec,
    /// What members of this site do together before anything leaves it.
    pub site: SiteReduction,
    pub results: Results,
    pub replica: Replica,
}

/// What rounds are of, and when.
pub(super) struct Rounds {
    /// Of the model.
    pub layout: FragmentLayout,
    /// Of what is exchanged, round by round.
    pub layouts: Layouts,
    /// The order in which values are exchanged, where it is not that of the flat vector.
    pub tiling: Option<Tiling>,
    pub schedule: RoundSchedule,
    /// Rounds from here on are not begun.
    pub until: Round,
}

/// The device, as far as it has said and was told.
pub(super) struct DeviceView {
    /// What it loads when it enters.
    pub load: Option<Load>,
    /// Where it computes with others, until it enters: with whom.
    pub place: Option<Box<Place>>,
    /// Whether it was told to enter.
    pub entered: bool,
    /// The barrier's epoch that it was last told.
    pub epoch: u64,
    /// The round that it computes, or computed last.
    pub begun: Option<Round>,
    /// Whether it has contributed what it began.
    pub idle: bool,
    /// The round that the barrier was told to let through next.
    pub named: Option<Round>,
    /// Parts of contributions that are in no result and go back to it.
    pub put_back: Vec<PutBack>,
}

/// What this worker has learnt and the round protocol has not released.
pub(super) struct Contributions {
    pub of_rounds: BTreeMap<Round, SparseRanges>,
    /// The same where gradients are of columns.
    pub columns: ColumnContributions,
    /// What of that is in the next contribution as well, as long.
    pub repeated: BTreeMap<Round, Vec<f32>>,
    /// Of a round that the device still computes.
    pub finished: Option<Finished>,
    /// With deltas: the local parameters that were due at the end of the last round, until its result is applied.
    pub snapshot: Option<(Round, SparseRanges)>,
    /// Slices that were in no result; part of the next contribution.
    pub carry: Option<Vec<f32>>,
}

/// From updates to frames and back.
pub(super) struct Codec {
    pub compressor: Compressor,
    pub reducer: Reducer,
    /// In a run with secure aggregation.
    pub masking: Option<Masking>,
    pub decoder: Decoder,
    pub adaptation: Option<Adaptation>,
}

/// Results, and what is said of them.
#[derive(Default)]
pub(super) struct Results {
    /// What is decoded of those that are here.
    pub arriving: Arriving,
    /// Complete rounds that are not applied.
    pub completed: VecDeque<(Round, Vec<FragmentResult>)>,
    /// Reports that wait for the device to have applied the round.
    pub reports: BTreeMap<Round, RoundReport>,
    /// Rounds that the device has jumped over and nobody was told of.
    pub skipped: Vec<Round>,
    /// Contributions that were refused and nobody was told of.
    pub refusals: Refusals,
}

impl Running {
    /// What the round protocol asks for next.
    pub fn next_command(&mut self) -> Option<Command> {
        self.postponed.take().or_else(|| self.member.poll_command())
    }

    /// From now on, rounds are these; those that were begun are as they were.
    pub fn follow(&mut self, schedule: RoundSchedule) {
        let Self { rounds, codec, .. } = self;
        let schedule = schedule.for_fragments(rounds.layout.count());
        if schedule != rounds.schedule {
            let Pace { every, groups } = schedule.last_pace();
            tracing::info!(every, groups, "rounds follow what was measured");
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
    /// One that waits to be told to enter, with this.
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
