//! The round protocol with the numbers behind its commands, and the synchronised state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use longhaul_checkpoint::{CheckpointData, RunArchive};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::model::Evaluation;
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_common::schedule::{Pace, RoundSchedule};
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::{RoundReport, Start, ToCoordinator, ToWorker};
use longhaul_proto::round::{Command, Event, FragmentResult, FrameHeader, Member};

use super::adaptation::Adaptation;
use super::arriving::Arriving;
use super::columns::ColumnContributions;
use super::compressor::Compressor;
use super::contributions::Finished;
use super::donating::Donations;
use super::event::SyncEvent;
use super::layouts::Layouts;
use super::masking::Masking;
use super::outside::Outside;
use super::reducer::Reducer;
use super::refusals::Refusals;
use super::replica::Replica;
use super::site::SiteReduction;
use super::tiling::Tiling;
use crate::message::{DeviceState, FromDevice, Load, Place, Prepared, PutBack, ToDevice};
use crate::sparse_ranges::SparseRanges;

/// How a session ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The coordinator has let this worker go.
    Dismissed(String),
    /// This member cannot follow the others any more: it joins again, and heals.
    Rejoin(String),
    /// It was too far behind to take part at all, after a state that took so long to come: it joins again, too.
    TooLate(String, Duration),
}

/// The run as this worker takes part in it.
pub struct Synchroniser {
    pub(super) worker: WorkerId,
    pub(super) run: RunId,
    pub(super) site: SiteId,
    /// Which part of the model it has: the first, where there is only one. None: it waits to be told.
    pub(super) rank: Option<u32>,
    /// Whether the device was told to build a part and has not said that it has.
    pub(super) building: bool,
    pub(super) config: Arc<RunConfig>,
    pub(super) checkpoint_dir: PathBuf,
    pub(super) outside: Box<dyn Outside>,
    pub(super) stage: Stage,
    pub(super) outcome: Option<Outcome>,
    /// Wants of the coordinator that came before the device was ready.
    pub(super) wanted: Option<Wanted>,
    /// Counts what the coordinator wanted: a state that was fetched for an earlier want comes too late.
    pub(super) wants: u64,
    pub(super) prepared: Option<Prepared>,
    pub(super) writing_checkpoint: bool,
    /// Where checkpoints go besides its disk, where the run has such a place.
    pub(super) archive: Option<RunArchive>,
    /// Whether a checkpoint is on its way there.
    pub(super) archiving: bool,
    /// The last checkpoint, while the one before it is on its way there.
    pub(super) last_to_archive: Option<Arc<CheckpointData>>,
    /// The end that the device has come to, and what it makes of held-out samples, until its checkpoint is written.
    pub(super) finishing: Option<(Round, Option<Evaluation>)>,
    /// The last checkpoint, while the one before it is being written.
    pub(super) last_checkpoint: Option<(Round, DeviceState)>,
    pub(super) donations: Donations,
    /// When it began to fetch the state, since the session began.
    pub(super) fetches_since: Duration,
    /// What the state took that it came in with, until it takes part.
    pub(super) came_after: Option<Duration>,
}

/// What the coordinator wants prepared.
#[derive(Debug)]
pub(super) enum Wanted {
    Start(Start),
    Heal(Vec<longhaul_common::plan::Member>),
}

/// How far this worker has come.
pub(super) enum Stage {
    /// The model or the state is not here.
    Preparing,
    /// It takes part.
    Running(Box<Running>),
}

/// Everything about taking part.
pub(super) struct Running {
    /// Of the model.
    pub layout: FragmentLayout,
    /// Of what is exchanged, round by round.
    pub layouts: Layouts,
    /// The order in which values are exchanged, where it is not that of the flat vector.
    pub tiling: Option<Tiling>,
    /// Parts of contributions that are in no result and go back to the device.
    pub put_back: Vec<PutBack>,
    pub generation: Generation,
    /// Rounds from here on are not begun.
    pub until: Round,
    pub membership: Option<Membership>,
    pub member: Member,
    /// What it asked for, and is not done yet.
    pub postponed: Option<Command>,
    pub replica: Replica,
    pub compressor: Compressor,
    pub reducer: Reducer,
    /// In a run with secure aggregation.
    pub masking: Option<Masking>,
    pub decoder: Decoder,
    pub adaptation: Option<Adaptation>,
    pub schedule: RoundSchedule,
    /// What the device loads when it enters.
    pub load: Option<Load>,
    /// Where it computes with others, until it enters: with whom.
    pub place: Option<Box<Place>>,
    /// Whether the device was told to enter.
    pub entered: bool,
    /// The barrier's epoch that the device was last told.
    pub epoch: u64,
    /// The round that the device computes, or computed last.
    pub begun: Option<Round>,
    /// Whether the device has contributed what it began.
    pub idle: bool,
    /// The round that the barrier was told to let through next.
    pub named: Option<Round>,
    /// What was contributed, by round, until the protocol releases it.
    pub contributed: BTreeMap<Round, SparseRanges>,
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
    /// What is decoded of the results that are here.
    pub arriving: Arriving,
    /// Complete rounds that are not applied.
    pub completed: VecDeque<(Round, Vec<FragmentResult>)>,
    /// Reports that wait for the device to have applied the round.
    pub reports: BTreeMap<Round, RoundReport>,
    /// Rounds that the device has jumped over and nobody was told of.
    pub skipped: Vec<Round>,
    /// Contributions that were refused and nobody was told of.
    pub refusals: Refusals,
    /// What members of this site do together before anything leaves it.
    pub site: SiteReduction,
}

impl Running {
    /// From now on, rounds are these; those that were begun are as they were.
    pub(super) fn follow(&mut self, schedule: RoundSchedule) {
        let schedule = schedule.for_fragments(self.layout.count());
        if schedule != self.schedule {
            let Pace { every, groups } = schedule.last_pace();
            tracing::info!(every, groups, "rounds follow what was measured");
        }
        self.schedule = schedule;
        self.layouts = self.layouts.following(schedule);
        self.compressor.follow(self.layouts);
        self.reducer.follow(self.layouts);
        if let Some(adaptation) = &mut self.adaptation {
            adaptation.follow(self.layouts);
        }
    }
}

impl Synchroniser {
    /// A synchroniser for a session of this worker.
    #[must_use]
    pub fn new(
        worker: WorkerId,
        run: RunId,
        site: SiteId,
        config: Arc<RunConfig>,
        checkpoint_dir: PathBuf,
        outside: Box<dyn Outside>,
    ) -> Self {
        Self {
            worker,
            run,
            site,
            rank: (!config.parallel.is_divided()).then_some(0),
            building: false,
            config,
            checkpoint_dir,
            outside,
            stage: Stage::Preparing,
            outcome: None,
            wanted: None,
            wants: 0,
            prepared: None,
            writing_checkpoint: false,
            archive: None,
            archiving: false,
            last_to_archive: None,
            finishing: None,
            last_checkpoint: None,
            donations: Donations::default(),
            fetches_since: Duration::ZERO,
            came_after: None,
        }
    }

    /// The same, with an archive that checkpoints go to as well.
    #[must_use]
    pub fn with_archive(self, archive: Option<RunArchive>) -> Self {
        Self { archive, ..self }
    }

    /// Takes an event, or none where [`Self::timeout`] is over, and does all that follows from it. Answers how the session ends, once it does.
    ///
    /// # Errors
    /// This worker cannot go on: the device failed, training diverged, or a thread is gone.
    pub fn step(&mut self, event: Option<SyncEvent>) -> Result<Option<Outcome>> {
        match event {
            Some(event) => self.handle(event)?,
            None => self.feed(Event::Timeout),
        }
        self.carry_out()?;
        Ok(self.outcome.take())
    }

    /// When it wants to be called without an event, since the session began.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        match &self.stage {
            Stage::Running(running) => running.member.poll_timeout(),
            Stage::Preparing => None,
        }
    }

    pub(super) fn handle(&mut self, event: SyncEvent) -> Result<()> {
        match event {
            SyncEvent::Coordinator(message) => self.handle_coordinator(message),
            SyncEvent::Device(message) => self.handle_device(message),
            SyncEvent::Frame { frame, memory } => {
                let FrameHeader { kind, round, fragment, .. } = frame.header;
                tracing::trace!(?kind, %round, %fragment, bytes = frame.body.len(), "a frame is here");
                if let Some(frame) = self.after_site(frame) {
                    self.feed(Event::Frame(frame));
                }
                drop(memory);
                Ok(())
            }
            SyncEvent::Pulled { round, fragment, from, answer } => {
                self.feed(match answer {
                    Some((body, hash)) => Event::Pulled { round, fragment, body, hash },
                    None => Event::PullFailed { round, fragment, from },
                });
                Ok(())
            }
            SyncEvent::Healed { attempt, .. } if attempt != self.wants => Ok(()),
            SyncEvent::Healed { answer: Ok(state), .. } => self.take_state(state),
            SyncEvent::Healed { answer: Err(reason), .. } => {
                self.outcome = Some(Outcome::Rejoin(format!("no donor gave the state: {reason}")));
                Ok(())
            }
            SyncEvent::CopiesHere { attempt, .. } if attempt != self.wants => Ok(()),
            SyncEvent::CopiesHere { answer: Ok(parts), .. } => self.start_from_held(&parts),
            SyncEvent::CopiesHere { answer: Err(reason), .. } => {
                self.outcome = Some(Outcome::Rejoin(reason));
                Ok(())
            }
            SyncEvent::Unarchived { attempt, .. } if attempt != self.wants => Ok(()),
            SyncEvent::Unarchived { start, .. } => self.start_from_disk(start),
            SyncEvent::Kept(offer) => {
                self.report(ToCoordinator::Kept(offer));
                Ok(())
            }
            SyncEvent::ServeResult { round, fragment, reply } => {
                let found = match &self.stage {
                    Stage::Running(running) => running.member.lookup(round, fragment),
                    Stage::Preparing => None,
                };
                // Who asked may have gone.
                reply.give(found);
                Ok(())
            }
            SyncEvent::Awaited { reply } => {
                let awaited = match &self.stage {
                    Stage::Running(running) => running.member.awaited(),
                    Stage::Preparing => BTreeSet::new(),
                };
                // The session may have ended.
                reply.give(awaited);
                Ok(())
            }
            SyncEvent::ServeState { from, reply } => self.serve_state(from, reply),
            SyncEvent::MaskSecret { generation, from, secret } => {
                self.take_mask_secret(generation, from, secret)
            }
            SyncEvent::ServeMaskSecret { generation, peer, reply } => {
                self.serve_mask_secret(generation, peer, reply);
                Ok(())
            }
            SyncEvent::Site(event) => {
                self.site_has_news(event);
                Ok(())
            }
            SyncEvent::Stop => {
                self.outcome = Some(Outcome::Dismissed("the session ended".into()));
                Ok(())
            }
            SyncEvent::CheckpointWritten(report, to_archive) => self.checkpoint_written(report, to_archive),
            SyncEvent::CheckpointArchived(report) => self.checkpoint_archived(report),
        }
    }

    fn handle_coordinator(&mut self, message: ToWorker) -> Result<()> {
        match message {
            ToWorker::Prepare(start) => self.want(Wanted::Start(start)),
            ToWorker::Heal { donors } => self.want(Wanted::Heal(donors)),
            ToWorker::Settle { generation } => {
                if let Stage::Running(running) = &mut self.stage
                    && generation > running.generation
                    && let Some(begun) = self.outside.barrier().close()
                    && running.begun != Some(begun)
                {
                    // The device's own word of it is still in the queue.
                    self.device_began(begun);
                }
                self.feed(Event::Settle { generation });
                Ok(())
            }
            ToWorker::Begin(start) => self.begin(Arc::unwrap_or_clone(start)),
            ToWorker::Seat { rank } => self.take_seat(rank),
            ToWorker::Dismiss { reason } => {
                self.outcome = Some(Outcome::Dismissed(reason));
                Ok(())
            }
            ToWorker::Welcome(_) => {
                // The first one was read before there was a session.
                self.outcome =
                    Some(Outcome::Rejoin("all begin anew, from what they have written down".into()));
                Ok(())
            }
            ToWorker::Keep(part) => {
                self.outside.keep(self.root_store(), part);
                Ok(())
            }
            ToWorker::Revoked { workers } => {
                // Connections with them are closed since it came.
                self.leave_site_of(&workers);
                Ok(())
            }
            ToWorker::Refused { .. }
            | ToWorker::Probe { .. }
            | ToWorker::Speak
            | ToWorker::Handover
            | ToWorker::DataHolders(_) => Ok(()),
        }
    }

    fn handle_device(&mut self, message: FromDevice) -> Result<()> {
        match message {
            // Meanwhile this worker was told to have another part.
            FromDevice::Prepared(prepared) if Some(prepared.rank) != self.rank => {
                self.building = false;
                self.build()
            }
            FromDevice::Prepared(prepared) => {
                self.building = false;
                self.prepared = Some(prepared);
                self.prepare_if_possible()
            }
            FromDevice::Interrupted(reason) => {
                self.outcome = Some(Outcome::Rejoin(reason));
                Ok(())
            }
            FromDevice::Begun(round) => {
                tracing::debug!(%round, "the device computes");
                self.device_began(round);
                Ok(())
            }
            FromDevice::Finished(part) => self.finished(part),
            FromDevice::Contribute(update) => self.contribute(update),
            FromDevice::Applied(applied) => self.applied(applied),
            FromDevice::State { next_round, state } => {
                self.state_exported(next_round, state);
                Ok(())
            }
            FromDevice::Ended { next_round, state, validation } => self.ended(next_round, state, validation),
            FromDevice::Failed(reason) => bail!(reason),
        }
    }

    fn device_began(&mut self, round: Round) {
        if let Stage::Running(running) = &mut self.stage
            && running.begun.is_none_or(|begun| begun < round)
        {
            running.begun = Some(round);
            running.named = None;
            running.idle = false;
            self.feed(Event::Computing { round });
        }
    }

    /// Hands an event to the round protocol.
    pub(super) fn feed(&mut self, event: Event) {
        let now = self.now();
        if let Stage::Running(running) = &mut self.stage {
            running.member.handle(now, event);
        }
    }

    /// Time since the session began.
    pub(super) fn now(&self) -> Duration {
        self.outside.now()
    }

    /// Tells the coordinator something.
    pub(super) fn report(&self, message: ToCoordinator) {
        self.outside.report(message);
    }

    pub(super) fn tell_device(&self, message: ToDevice) -> Result<()> {
        self.outside.tell_device(message)
    }

    /// Whether members update their parameters from results alone in this round, and are equal in all they have when it begins.
    pub(super) fn shares_everything_in(&self, round: Round) -> bool {
        let is_opening = self.config.round_schedule().is_opening(round);
        self.config.sync.source_in(is_opening).is_gradient()
    }
}
