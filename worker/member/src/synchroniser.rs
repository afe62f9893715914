//! The round protocol, the arithmetic behind its commands, and the synchronised state.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use longhaul_checkpoint::{CheckpointData, KnownBest, RunArchive};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, RunId, SiteId, WorkerId};
use longhaul_common::model::Evaluation;
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{Start, ToCoordinator, ToWorker};
use longhaul_proto::round::{self, Event, FrameHeader};

use super::donating::Donations;
use super::event::SyncEvent;
use super::outside::Outside;
use super::running::Stage;
use crate::message::{DeviceState, FromDevice, Prepared, ToDevice};

/// End of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The coordinator dismissed this worker.
    Dismissed(String),
    /// This member cannot follow the others any more: it joins again, and heals.
    Rejoin(String),
    /// It was too far behind to take part at all, after this time for fetching a state: it joins again, too.
    TooLate(String, Duration),
}

/// This worker's view of the run.
pub struct Synchroniser {
    pub(super) worker: WorkerId,
    pub(super) run: RunId,
    pub(super) site: SiteId,
    pub(super) config: Arc<RunConfig>,
    pub(super) outside: Box<dyn Outside>,
    pub(super) part: ModelPart,
    pub(super) recovery: Recovery,
    pub(super) stage: Stage,
    pub(super) checkpoints: Checkpoints,
    pub(super) donations: Donations,
    pub(super) outcome: Option<Outcome>,
}

/// The device's part of the model.
pub(super) struct ModelPart {
    /// Part: the first, if the model is undivided. `None`: unassigned.
    pub rank: Option<u32>,
    /// Whether the device is building it.
    pub building: bool,
    /// Device's model and data, once built.
    pub prepared: Option<Prepared>,
}

/// State requested by the coordinator.
#[derive(Debug)]
pub(super) enum RequestedState {
    Start(Start),
    Heal(Vec<Member>),
}

/// The fetch of the state with which this worker joins.
#[derive(Default)]
pub(super) struct Recovery {
    /// Requested before the device was ready.
    pub wanted: Option<RequestedState>,
    /// Counts requests: a state fetched for an earlier one comes too late.
    pub wants: u64,
    /// Start of the fetch, since the session began.
    pub fetches_since: Duration,
    /// Duration of the fetch of the present state.
    pub came_after: Option<Duration>,
}

#[derive(Default)]
pub(super) struct Checkpoints {
    pub folder: PathBuf,
    /// Whether one is being written.
    pub writing: bool,
    /// The last one, while the one before it is being written.
    pub last: Option<(Round, DeviceState)>,
    /// Archive besides the disk, if configured.
    pub archive: Option<RunArchive>,
    /// Whether an upload is in flight.
    pub archiving: bool,
    /// The last one, while the one before it is being uploaded.
    pub last_to_archive: Option<Arc<CheckpointData>>,
    /// End reached by the device, with its final evaluation, until its checkpoint is written.
    pub finishing: Option<(Round, Option<Evaluation>)>,
    /// Those kept for their held-out loss.
    pub best: KnownBest,
}

impl Synchroniser {
    /// Creates the synchroniser of a session of this worker.
    #[must_use]
    pub fn new(
        worker: WorkerId,
        run: RunId,
        site: SiteId,
        config: Arc<RunConfig>,
        checkpoint_dir: PathBuf,
        outside: Box<dyn Outside>,
    ) -> Self {
        let rank = (!config.parallel.is_divided()).then_some(0);
        Self {
            worker,
            run,
            site,
            config,
            outside,
            part: ModelPart { rank, building: false, prepared: None },
            recovery: Recovery::default(),
            stage: Stage::Preparing,
            checkpoints: Checkpoints { folder: checkpoint_dir, ..Checkpoints::default() },
            donations: Donations::default(),
            outcome: None,
        }
    }

    /// Adds an archive for checkpoints.
    #[must_use]
    pub fn with_archive(mut self, archive: Option<RunArchive>) -> Self {
        self.checkpoints.archive = archive;
        self
    }

    /// Handles an event, or the end of [`Self::wait`] if `None`. Returns the session's outcome at its end.
    ///
    /// # Errors
    /// This worker cannot continue: the device failed, training diverged, or a thread ended.
    pub fn step(&mut self, event: Option<SyncEvent>) -> Result<Option<Outcome>> {
        match event {
            Some(event) => self.handle(event)?,
            None => self.feed(Event::Timeout),
        }
        self.carry_out()?;
        Ok(self.outcome.take())
    }

    /// Returns the longest wait before a call without an event; `None`: unlimited.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.timeout().map(|at| at.saturating_sub(self.now()))
    }

    /// Returns its side of the round protocol, once it has a state of the run.
    #[must_use]
    pub fn protocol(&self) -> Option<&round::Member> {
        match &self.stage {
            Stage::Running(running) => Some(&running.member),
            Stage::Preparing => None,
        }
    }

    /// Returns the time of the next call without an event, since the session began.
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
            SyncEvent::Healed { attempt, .. } if attempt != self.recovery.wants => Ok(()),
            SyncEvent::Healed { answer: Ok(state), .. } => self.take_state(state),
            SyncEvent::Healed { answer: Err(reason), .. } => {
                self.outcome = Some(Outcome::Rejoin(format!("no donor delivered the state: {reason}")));
                Ok(())
            }
            SyncEvent::CopiesHere { attempt, .. } if attempt != self.recovery.wants => Ok(()),
            SyncEvent::CopiesHere { answer: Ok(parts), .. } => self.start_from_held(&parts),
            SyncEvent::CopiesHere { answer: Err(reason), .. } => {
                self.outcome = Some(Outcome::Rejoin(reason));
                Ok(())
            }
            SyncEvent::Unarchived { attempt, .. } if attempt != self.recovery.wants => Ok(()),
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
                // The requester may have left.
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
            ToWorker::Prepare(start) => self.want(RequestedState::Start(start)),
            ToWorker::Heal { donors } => self.want(RequestedState::Heal(donors)),
            ToWorker::Settle { generation } => {
                if let Stage::Running(running) = &mut self.stage
                    && generation > running.generation
                    && let Some(begun) = self.outside.barrier().close()
                    && running.device.begun != Some(begun)
                {
                    // The device's own message about it is still queued.
                    self.device_began(begun);
                }
                self.feed(Event::Settle { generation });
                Ok(())
            }
            ToWorker::Begin(start) => self.begin(start),
            ToWorker::Placed { rank } => self.take_rank(rank),
            ToWorker::Dismiss { reason } => {
                self.outcome = Some(Outcome::Dismissed(reason));
                Ok(())
            }
            ToWorker::Welcome(_) => {
                // The first one was read before the session.
                self.outcome = Some(Outcome::Rejoin("all workers restart from their checkpoints".into()));
                Ok(())
            }
            ToWorker::Keep(part) => {
                self.outside.keep(self.root_store(), part);
                Ok(())
            }
            ToWorker::Revoked { workers } => {
                // Their connections have been closed since its receipt.
                self.leave_site_of(&workers);
                Ok(())
            }
            ToWorker::Best(best) => {
                self.checkpoints.best.hear(best);
                Ok(())
            }
            ToWorker::Refused { .. }
            | ToWorker::Probe { .. }
            | ToWorker::Speak
            | ToWorker::Handover
            | ToWorker::DataHolders(_)
            | ToWorker::ModelHolders(_) => Ok(()),
        }
    }

    fn handle_device(&mut self, message: FromDevice) -> Result<()> {
        match message {
            // Another part has been assigned since.
            FromDevice::Prepared(prepared) if Some(prepared.rank) != self.part.rank => {
                self.part.building = false;
                self.build()
            }
            FromDevice::Prepared(prepared) => {
                self.part.building = false;
                self.part.prepared = Some(*prepared);
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
            FromDevice::Scores { next_round, scores } => {
                if let Some(scores) = self.disclosed(Some(scores)) {
                    self.report(ToCoordinator::Scores { next_round, scores });
                }
                Ok(())
            }
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
            && running.device.begun.is_none_or(|begun| begun < round)
        {
            running.device.begun = Some(round);
            running.device.named = None;
            running.device.idle = false;
            self.feed(Event::Computing { round });
        }
    }

    /// Passes an event to the round protocol.
    pub(super) fn feed(&mut self, event: Event) {
        let now = self.now();
        if let Stage::Running(running) = &mut self.stage {
            self.outside.hears(&event);
            running.member.handle(now, event);
        }
    }

    /// Returns the time since the session began.
    pub(super) fn now(&self) -> Duration {
        self.outside.now()
    }

    /// Sends a message to the coordinator.
    pub(super) fn report(&self, message: ToCoordinator) {
        self.outside.report(message);
    }

    pub(super) fn tell_device(&self, message: ToDevice) -> Result<()> {
        self.outside.tell_device(message)
    }

    /// Reports whether members update their parameters from results alone in this round, and begin it with equal state.
    pub(super) fn shares_everything_in(&self, round: Round) -> bool {
        let is_warmup = self.config.round_schedule().is_warmup(round);
        self.config.sync.source_in(is_warmup).is_gradient()
    }
}
