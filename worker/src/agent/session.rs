//! A session: one continuous membership of this worker, through any number of connections.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_checkpoint::{CheckpointStore, RunArchive};
use longhaul_common::config::RunConfig;
use longhaul_common::explained::Explained;
use longhaul_common::id::{Generation, Round};
use longhaul_common::model::ModelSpec;
use longhaul_flight::Progress;
use longhaul_member::step_barrier::StepBarrier;
use longhaul_member::{Outcome, SYNC_QUEUE_EVENTS, SyncEvent, Synchroniser};
use longhaul_peer::{Network, Shown};
use longhaul_proto::control::message::{HANDOVER_MAX, Join, ToCoordinator, ToWorker, Welcome};
use longhaul_proto::control::{ControlReceiver, ControlSender};
use longhaul_proto::identity::Identity;
use longhaul_proto::transport::bulk::ReceiveLimits;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout};

use super::connection::{Conversation, Found, unix_s};
use super::departure::{Departure, FAREWELL_MAX};
use super::device_thread::DeviceThread;
use super::ending::{Ending, ending_of};
use super::heartbeats::Heartbeats;
use super::join::JoinedRun;
use super::line::Line;
use super::link_reports::{LOOK, ToldLinks};
use super::offers::{Offers, tell_archived};
use super::reports::{Reports, as_of_now};
use super::status_updates::{About, StatusUpdates};
use crate::member::{self, Links};
use crate::stop::StopSignal;

/// Capacity of the queue to the device: at most an entry, a result and a request are in flight.
const DEVICE_QUEUE: usize = 8;
/// Capacity of the report queue from the synchroniser; the agent empties it at once.
const REPORT_QUEUE: usize = 256;
/// Reports sent in a burst and the pause after it: a backlog must not fill the connection's queue.
const REPORTS_AT_ONCE: usize = 32;
const REPORTS_PAUSE: Duration = Duration::from_millis(50);
/// Limit on a certificate renewal, which blocks the conversation: well within the coordinator's failure timeout.
const RENEWAL_MAX: Duration = Duration::from_secs(2);
/// Interval between checks of the certificate's age.
const RENEWAL_CHECK: Duration = Duration::from_secs(600);

/// The threads of a session and their channels.
pub(super) struct Session {
    membership: Arc<JoinedRun>,
    identity: Identity,
    config: Arc<RunConfig>,
    join: Join,
    progress: Arc<Progress>,
    barrier: Arc<StepBarrier>,
    network: Arc<Network>,
    synchroniser: Synchronising,
    /// The device thread.
    device_thread: JoinHandle<()>,
    telling: Telling,
    heartbeats: Heartbeats,
    /// The rank of the assigned part of the model, and the number of parts.
    part: (u32, u32),
    /// The last reported generation and round, for `Join.held`.
    held: Option<(Generation, Round)>,
    departure: Departure,
}

/// The synchroniser's thread and its channels.
struct Synchronising {
    events: mpsc::Sender<SyncEvent>,
    reports: mpsc::Receiver<ToCoordinator>,
    outcome: oneshot::Receiver<Result<Outcome>>,
    thread: JoinHandle<()>,
}

/// Reports to the coordinator, sent and queued.
struct Telling {
    reports: Reports,
    offers: RefCell<Offers>,
    links: ToldLinks,
    began: Instant,
}

/// More entries than any tokenizer has.
const VOCABULARY_MAX: u32 = 1 << 21;

/// The run's model without knowledge of the tokenizer: with the largest possible vocabulary.
fn largest_model(config: &RunConfig) -> Result<ModelSpec> {
    Ok(ModelSpec::of(config, config.vocabulary().unwrap_or(VOCABULARY_MAX))?)
}

/// Events of the conversation loop.
enum Wake {
    Message(Option<ToWorker>),
    Report(Option<ToCoordinator>),
    Backlog,
    Alive(Option<Shown>),
    Ways,
    StatusUpdates(About),
    Renewal,
    Outcome(Result<Outcome>),
    Stop,
    FarewellOver,
}

impl Session {
    pub(super) fn start(
        membership: Arc<JoinedRun>,
        identity: Identity,
        config: RunConfig,
        welcome: &Welcome,
        join: Join,
    ) -> Result<Self> {
        let parts = config.parallel.ranks_per_replica();
        let config = Arc::new(config);
        // Before the network starts, which stops only with the session.
        RunArchive::check(&config)?;
        let checkpoint_dir = membership.checkpoint_dir(&config)?;
        let (run, worker) = (identity.run(), identity.worker());
        let store = CheckpointStore::new(&checkpoint_dir, run, worker, config.checkpoint.retention());
        let shared = store.clone();
        let offers = RefCell::new(Offers::resume(store, join.checkpoints.clone()));
        let progress = Arc::new(Progress::recorded_by(membership.flight.recorder()));
        let barrier = Arc::new(StepBarrier::new(u64::from(config.train.batch), config.round_schedule()));
        let (to_sync, inbox) = mpsc::channel(SYNC_QUEUE_EVENTS);
        let (to_device, device_inbox) = sync_channel(DEVICE_QUEUE);
        let (reports, from_sync) = mpsc::channel(REPORT_QUEUE);
        let network = Network::start(
            membership.dialler.endpoint.clone(),
            &identity,
            welcome.site,
            to_sync.clone(),
            Arc::clone(&progress),
            ReceiveLimits::default(),
        )?;
        if config.may_be_shared() {
            network.share_checkpoints(shared, largest_model(&config)?);
        }
        let unusable = Arc::clone(&membership.unusable);
        let archive = RunArchive::of(Arc::clone(&config), run, unusable, tokio::runtime::Handle::current());
        if let Some(archive) = &archive {
            tell_archived(archive.clone(), reports.clone());
        }
        let links = Links::new(
            to_sync.clone(),
            to_device,
            Arc::clone(&barrier),
            Arc::clone(&network),
            reports,
            Arc::clone(&progress),
        );
        let synchroniser = Synchroniser::new(
            worker,
            run,
            welcome.site,
            Arc::clone(&config),
            checkpoint_dir,
            Box::new(links),
        )
        .with_archive(archive);
        let (thread, outcome) = member::start(synchroniser, inbox, Arc::clone(&barrier))?;
        let heartbeats =
            Heartbeats::new(Arc::clone(&network), Arc::clone(&progress), join.incarnation, &config.faults);
        let device = DeviceThread {
            membership: Arc::clone(&membership),
            worker,
            config: Arc::clone(&config),
            network: Arc::clone(&network),
            barrier: Arc::clone(&barrier),
            progress: Arc::clone(&progress),
            inbox: device_inbox,
            queue: to_sync.clone(),
        };
        let device_thread = device.start()?;
        Ok(Self {
            membership,
            identity,
            config,
            join,
            progress,
            barrier,
            network,
            synchroniser: Synchronising { events: to_sync, reports: from_sync, outcome, thread },
            device_thread,
            telling: Telling {
                reports: Reports::default(),
                offers,
                links: ToldLinks::default(),
                began: Instant::now(),
            },
            heartbeats,
            part: (0, parts),
            held: None,
            departure: Departure::default(),
        })
    }

    /// Serves the coordinator's conversation until the session ends, across reconnections.
    pub(super) async fn converse(
        mut self,
        first: Conversation,
        stop: &mut StopSignal,
    ) -> Result<(Ending, Identity)> {
        let line = Line::new(self.identity.worker(), &self.config, Arc::clone(&self.progress));
        let ending = tokio::select! {
            ending = self.follow(first, stop) => ending,
            never = line.follow() => match never {},
        };
        let identity = self.end(stop).await;
        Ok((ending?, identity))
    }

    async fn follow(&mut self, first: Conversation, stop: &mut StopSignal) -> Result<Ending> {
        let Conversation { mut sender, mut receiver, .. } = first;
        loop {
            self.heartbeats.begin(&sender);
            let over = self.talk(&sender, &mut receiver, stop).await.transpose();
            self.heartbeats.end();
            if let Some(over) = over {
                // The last message: a farewell, or this worker's failure.
                tokio::select! {
                    () = sender.finish() => {}
                    () = stop.asked() => {}
                }
                return over;
            }
            if self.departure.dismissed {
                return ending_of(
                    (&mut self.synchroniser.outcome).await.context("the synchroniser has ended")?,
                );
            }
            if self.departure.asked.is_some() && !self.departure.hands_over {
                return Ok(Ending::Over("asked to stop".into()));
            }
            if sender.was_replaced().await && self.membership.yields_to_a_twin() {
                return Ok(Ending::Twin);
            }
            tracing::warn!("the connection to the coordinator is lost; training goes on");
            let next = match self.reconnect(stop).await? {
                Reconnected::Resumed(next) => next,
                Reconnected::Ended(ending) => return Ok(ending),
            };
            self.telling.reports.repeat();
            self.telling.links.repeat();
            if self.departure.asked.is_some() {
                // A restarted coordinator no longer knows that the worker is leaving. A connection lost again is noticed soon.
                let _ = next.sender.send(&ToCoordinator::Leaving);
            }
            match self.telling.reports.forgotten() {
                0 => tracing::info!("the coordinator is back"),
                lost => tracing::warn!(
                    lost,
                    "the coordinator is back; it was away for longer than reports are kept"
                ),
            }
            (sender, receiver) = (next.sender, next.receiver);
        }
    }

    /// Reconnects to the coordinator; reports are queued meanwhile.
    async fn reconnect(&mut self, stop: &mut StopSignal) -> Result<Reconnected> {
        self.join.held = self.held;
        // If the last coordinator still leads, another one names it at once; if it is down, no timeout delays the others.
        self.membership.dialler.coordinators.go_on(None);
        let farewell = self.departure.farewell();
        let Self { membership, identity, join, synchroniser, telling, part, .. } = self;
        let Telling { reports, offers, .. } = telling;
        let Synchronising { reports: from_sync, outcome, .. } = synchroniser;
        let message = || Join { checkpoints: offers.borrow().current(), ..join.clone() };
        let mut connecting = std::pin::pin!(membership.dialler.connect(identity, message));
        let found = loop {
            tokio::select! {
                found = &mut connecting => break found?,
                Some(report) = from_sync.recv() => {
                    offers.borrow_mut().note_report(*part, &report);
                    reports.push(report);
                }
                outcome = &mut *outcome => {
                    let ending = ending_of(outcome.context("the synchroniser has ended")?)?;
                    return Ok(Reconnected::Ended(ending));
                }
                () = stop.asked() => {
                    return Ok(Reconnected::Ended(Ending::Over("asked to stop".into())));
                }
                () = sleep_until(farewell.unwrap_or_else(Instant::now)), if farewell.is_some() => {
                    return Ok(Reconnected::Ended(Ending::Over("asked to stop, and the coordinator was not found again".into())));
                }
            }
        };
        match found {
            Found::Welcomed(next) if next.welcome.resumed => Ok(Reconnected::Resumed(next)),
            Found::Welcomed(_) if farewell.is_some() => {
                Ok(Reconnected::Ended(Ending::Over("asked to stop".into())))
            }
            Found::Welcomed(next) => {
                let fresh = Join { held: None, ..message() };
                Ok(Reconnected::Ended(Ending::Replaced(fresh, Box::new(next))))
            }
            Found::Enrolled(new) => Ok(Reconnected::Ended(Ending::Renamed(new))),
        }
    }

    /// Serves one connection; `None`: it is lost.
    async fn talk(
        &mut self,
        sender: &ControlSender<ToCoordinator>,
        receiver: &mut ControlReceiver<ToWorker>,
        stop: &mut StopSignal,
    ) -> Result<Option<Ending>> {
        let mut renewals = ticks(RENEWAL_CHECK);
        let mut looks = ticks(LOOK);
        let mut backlog = ticks(REPORTS_PAUSE);
        let mut words = StatusUpdates::new(&self.network);
        loop {
            let farewell = self.departure.farewell();
            let wake = tokio::select! {
                message = receiver.receive() => Wake::Message(message.unwrap_or_else(|error| {
                    tracing::debug!(%error, "the conversation broke off");
                    None
                })),
                report = self.synchroniser.reports.recv() => Wake::Report(report),
                _ = backlog.tick(), if self.telling.reports.next().is_some() => Wake::Backlog,
                shown = self.heartbeats.wait() => Wake::Alive(shown),
                _ = looks.tick() => Wake::Ways,
                about = words.wait() => Wake::StatusUpdates(about),
                _ = renewals.tick() => Wake::Renewal,
                outcome = &mut self.synchroniser.outcome => Wake::Outcome(outcome.context("the synchroniser has ended")?),
                () = stop.asked() => Wake::Stop,
                () = sleep_until(farewell.unwrap_or_else(Instant::now)), if farewell.is_some() => Wake::FarewellOver,
            };
            let sent = match wake {
                Wake::Message(None) => return Ok(None),
                Wake::Message(Some(ToWorker::Refused { reason })) => {
                    anyhow::bail!("the coordinator: {reason}")
                }
                Wake::Message(Some(ToWorker::Speak)) => self.heartbeats.answer(sender),
                Wake::Message(Some(message)) => {
                    self.note(&message);
                    self.synchroniser.events.send(SyncEvent::Coordinator(message)).await.is_ok()
                }
                // The outcome has the reason.
                Wake::Report(None) => true,
                Wake::Report(Some(report)) => self.pass_on(sender, report),
                Wake::Backlog => self.say_backlog(sender, REPORTS_AT_ONCE),
                Wake::Alive(shown) => self.heartbeats.act(sender, shown),
                Wake::Ways => self.tell_ways(sender),
                Wake::StatusUpdates(about) => words.say(&about, sender),
                Wake::Renewal => {
                    self.renew_if_due().await;
                    true
                }
                Wake::Outcome(Err(error)) => {
                    let reason = Explained(&*error).to_string();
                    // The worker fails whether or not this message arrives.
                    let _ = sender.send(&ToCoordinator::Failed { reason });
                    return Err(error);
                }
                // A stop was requested, so the worker does not rejoin.
                Wake::Outcome(Ok(Outcome::Rejoin(reason))) if self.departure.asked.is_some() => {
                    return Ok(Some(Ending::Over(reason)));
                }
                Wake::Outcome(outcome) => return ending_of(outcome).map(Some),
                Wake::Stop if self.departure.asked.is_some() => {
                    return Ok(Some(Ending::Over("asked twice to stop".into())));
                }
                Wake::Stop => {
                    tracing::info!("leaving; a second signal leaves without a farewell");
                    self.departure.asked = Some(Instant::now());
                    sender.send(&ToCoordinator::Leaving).is_ok()
                }
                Wake::FarewellOver => {
                    return Ok(Some(Ending::Over("the coordinator did not answer the farewell".into())));
                }
            };
            if !sent {
                return Ok(None);
            }
        }
    }

    fn pass_on(&mut self, sender: &ControlSender<ToCoordinator>, report: ToCoordinator) -> bool {
        match &report {
            ToCoordinator::RoundApplied(applied) => {
                self.held = self.held.max(Some((applied.generation, applied.round.next())));
            }
            report => self.telling.offers.get_mut().note_report(self.part, report),
        }
        let behind_others = self.telling.reports.next().is_some();
        self.telling.reports.push(report);
        behind_others || self.say_backlog(sender, 1)
    }

    /// Sends the oldest queued reports; false: the connection is lost.
    fn say_backlog(&mut self, sender: &ControlSender<ToCoordinator>, at_most: usize) -> bool {
        for _ in 0..at_most {
            let Some(report) = self.telling.reports.next() else { break };
            if sender.send(&as_of_now(report, &self.progress)).is_err() {
                return false;
            }
            self.telling.reports.said();
        }
        true
    }

    /// Sends measurements of links to other sites; false: the connection is lost.
    fn tell_ways(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        let news = self.telling.links.news(self.telling.began.elapsed(), &self.network.ways());
        news.is_empty() || sender.send(&ToCoordinator::SeenLinks(news)).is_ok()
    }

    fn note(&mut self, message: &ToWorker) {
        match message {
            ToWorker::Begin(start) => {
                self.held = self.held.max(Some((start.membership.generation, start.first_round)));
            }
            ToWorker::Placed { rank: Some(rank) } => self.part.0 = *rank,
            ToWorker::Dismiss { .. } => self.departure.dismissed = true,
            ToWorker::Handover => {
                self.departure.hands_over = true;
                tracing::info!(
                    "this worker is needed until its state is on a disk, and with another worker where one stays: {} minutes at most",
                    HANDOVER_MAX.as_secs() / 60
                );
            }
            ToWorker::DataHolders(holders) => self.network.note_data_holders(holders),
            ToWorker::ModelHolders(holders) => self.network.note_model_holders(holders),
            // Immediately, as the synchroniser may be busy with a round.
            ToWorker::Revoked { workers } => self.network.revoke(workers),
            _ => {}
        }
    }

    async fn renew_if_due(&mut self) {
        if unix_s() < self.identity.renew_at_unix_s() {
            return;
        }
        let renewing = self.membership.dialler.renew(&self.identity);
        let renewed = timeout(RENEWAL_MAX, renewing).await.context("no answer in time").flatten();
        let taken = renewed.and_then(|identity| {
            self.membership.listen_as(&identity)?;
            self.network.use_identity(&identity)?;
            self.identity = identity;
            tracing::info!("the certificate is renewed");
            Ok(())
        });
        if let Err(error) = taken {
            tracing::warn!(
                reason = %Explained(&*error),
                "the certificate could not be renewed; trying again later"
            );
        }
    }

    /// Stops the threads. Returns once they have ended, or once the user refuses to wait.
    async fn end(self, stop: &mut StopSignal) -> Identity {
        let Self { identity, barrier, network, synchroniser, device_thread, .. } = self;
        let Synchronising { events, reports, thread, .. } = synchroniser;
        barrier.stop();
        network.stop();
        let ended = async move {
            // A synchroniser with an outcome has already ended.
            let _ = events.send(SyncEvent::Stop).await;
            drop((events, reports, network));
            // The device finishes its step first. A panic has been reported on standard error.
            let _ = spawn_blocking(move || drop((thread.join(), device_thread.join()))).await;
        };
        tokio::select! {
            ended = timeout(FAREWELL_MAX, ended) => {
                if ended.is_err() {
                    tracing::warn!("the device thread does not end");
                }
            }
            () = stop.asked() => {}
        }
        identity
    }
}

/// The result of a reconnection.
enum Reconnected {
    /// The coordinator resumes this session.
    Resumed(Conversation),
    /// The session is over.
    Ended(Ending),
}

/// An interval that does not catch up after a delay.
pub(super) fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
