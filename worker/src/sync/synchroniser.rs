//! One thread that owns the round protocol and the synchronised state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round, RunId, SiteId, WorkerId};
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_common::schedule::{Pace, RoundSchedule};
use longhaul_proto::codec::Decoder;
use longhaul_proto::control::message::{RoundReport, Start, ToCoordinator, ToWorker};
use longhaul_proto::round::{Command, Event, FragmentResult, FrameHeader, Member};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::adaptation::Adaptation;
use super::arriving::Arriving;
use super::columns::ColumnContributions;
use super::compressor::Compressor;
use super::contributions::Finished;
use super::donating::Donations;
use super::event::SyncEvent;
use super::layouts::Layouts;
use super::masking::Masking;
use super::reducer::Reducer;
use super::refusals::Refusals;
use super::replica::Replica;
use super::site::SiteReduction;
use super::tiling::Tiling;
use crate::network::Network;
use crate::train::gate::Gate;
use crate::train::message::{DeviceState, FromDevice, Load, Place, Prepared, PutBack, ToDevice};
use crate::train::progress::Progress;
use crate::train::stretches::Stretches;
use longhaul_checkpoint::{CheckpointData, RunArchive};
use longhaul_engine::Evaluation;

/// Whom the synchroniser speaks with.
pub struct Links {
    /// Its queue.
    pub inbox: mpsc::Receiver<SyncEvent>,
    /// For those who are asked to answer into the queue.
    pub own_queue: mpsc::Sender<SyncEvent>,
    /// The device.
    pub device: SyncSender<ToDevice>,
    /// The device's gate.
    pub gate: Arc<Gate>,
    /// The peers.
    pub network: Arc<Network>,
    /// The coordinator.
    pub coordinator: mpsc::Sender<ToCoordinator>,
    /// Counters.
    pub progress: Arc<Progress>,
    /// The runtime whose timers it waits on.
    pub runtime: Handle,
}

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
    pub(super) links: Links,
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
    pub(super) began: Instant,
    /// When it began to fetch the state, after that.
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
    /// The gate's life that the device was last told.
    pub life: u64,
    /// The round that the device computes, or computed last.
    pub begun: Option<Round>,
    /// Whether the device has contributed what it began.
    pub idle: bool,
    /// The round that the gate was told to let through next.
    pub named: Option<Round>,
    /// What was contributed, by round, until the protocol releases it.
    pub contributed: BTreeMap<Round, Stretches>,
    /// The same where gradients are of columns.
    pub columns: ColumnContributions,
    /// What of that is in the next contribution as well, as long.
    pub repeated: BTreeMap<Round, Vec<f32>>,
    /// Of a round that the device still computes.
    pub finished: Option<Finished>,
    /// With deltas: the local parameters that were due at the end of the last round, until its result is applied.
    pub snapshot: Option<(Round, Stretches)>,
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
    #[allow(clippy::disallowed_methods, reason = "the protocol's time is measured from here")]
    pub fn new(
        worker: WorkerId,
        run: RunId,
        site: SiteId,
        config: Arc<RunConfig>,
        checkpoint_dir: PathBuf,
        links: Links,
    ) -> Self {
        Self {
            worker,
            run,
            site,
            rank: (!config.parallel.is_divided()).then_some(0),
            building: false,
            config,
            checkpoint_dir,
            links,
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
            began: Instant::now(),
            fetches_since: Duration::ZERO,
            came_after: None,
        }
    }

    /// The same, with an archive that checkpoints go to as well.
    #[must_use]
    pub fn with_archive(self, archive: Option<RunArchive>) -> Self {
        Self { archive, ..self }
    }

    /// Works until the session ends.
    ///
    /// # Errors
    /// This worker cannot go on: the device failed, training diverged, or a thread is gone.
    pub fn run(mut self) -> Result<Outcome> {
        loop {
            match self.next_event()? {
                Some(event) => self.handle(event)?,
                None => self.feed(Event::Timeout),
            }
            self.carry_out()?;
            if let Some(outcome) = self.outcome.take() {
                self.links.gate.stop();
                return Ok(outcome);
            }
        }
    }

    /// The next event; none: the protocol's timer is due.
    fn next_event(&mut self) -> Result<Option<SyncEvent>> {
        let now = self.began.elapsed();
        let timeout = match &self.stage {
            Stage::Running(running) => running.member.poll_timeout().map(|at| at.saturating_sub(now)),
            Stage::Preparing => None,
        };
        let inbox = &mut self.links.inbox;
        let received = self.links.runtime.block_on(async {
            match timeout {
                Some(wait) => tokio::time::timeout(wait, inbox.recv()).await.ok(),
                None => Some(inbox.recv().await),
            }
        });
        received.map(|event| event.context("every part of this worker is gone")).transpose()
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
                let _ = reply.send(found);
                Ok(())
            }
            SyncEvent::Awaited { reply } => {
                let awaited = match &self.stage {
                    Stage::Running(running) => running.member.awaited(),
                    Stage::Preparing => BTreeSet::new(),
                };
                // The session may have ended.
                let _ = reply.send(awaited);
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
                    && let Some(begun) = self.links.gate.close()
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
                self.links.network.keep(self.root_store(), part);
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
        self.began.elapsed()
    }

    /// Tells the coordinator something; while it is away, the agent keeps what it can.
    pub(super) fn report(&self, message: ToCoordinator) {
        if self.links.coordinator.try_send(message).is_err() {
            tracing::warn!("a report to the coordinator was dropped, as too many wait");
        }
    }

    pub(super) fn tell_device(&self, message: ToDevice) -> Result<()> {
        self.links.device.try_send(message).map_err(|error| anyhow::anyhow!("tell the device: {error}"))
    }

    /// Whether members update their parameters from results alone in this round, and are equal in all they have when it begins.
    pub(super) fn shares_everything_in(&self, round: Round) -> bool {
        let is_opening = self.config.round_schedule().is_opening(round);
        self.config.sync.source_in(is_opening).is_gradient()
    }
}
