//! A session: this worker with one memory of the run, through any number of connections.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::RunConfig;
use longhaul_common::id::{Generation, Round};
use longhaul_common::model::ModelSpec;
use longhaul_proto::control::message::{HEARTBEAT_INTERVAL_MS, Join, ToCoordinator, ToWorker, Welcome};
use longhaul_proto::control::{ControlReceiver, ControlSender};
use longhaul_proto::identity::Identity;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::connection::{Conversation, unix_s};
use super::join::{Membership, stop_signal};
use super::reports::Reports;
use crate::data::{Dataset, Tokenizer};
use crate::engine::{Engine, choose_device};
use crate::network::Network;
use crate::sync::{Links, Outcome, SYNC_QUEUE_EVENTS, SyncEvent, Synchroniser};
use crate::train::device::Device;
use crate::train::gate::Gate;
use crate::train::message::{FromDevice, Prepared};
use crate::train::progress::Progress;

/// Messages to the device: at most an entry, a result and a request are ever under way.
const DEVICE_QUEUE: usize = 8;
/// Reports between the synchroniser and the agent, which takes them at once.
const REPORT_QUEUE: usize = 256;
/// How long a leaving worker waits to be dismissed: a settlement takes a round trip or two.
const FAREWELL_MAX: Duration = Duration::from_secs(30);
/// How often the certificate's age is looked at.
const RENEWAL_CHECK: Duration = Duration::from_secs(600);

/// How a session ended.
pub(super) enum Ending {
    /// For good.
    Over(String),
    /// This worker has lost the thread, and joins anew.
    Again(String),
    /// The coordinator does not know this session any more; it has welcomed the worker as a new one.
    Replaced(Join, Box<Conversation>),
}

/// The threads of a session and the ends of their channels.
pub(super) struct Session {
    membership: Arc<Membership>,
    identity: Identity,
    join: Join,
    progress: Arc<Progress>,
    gate: Arc<Gate>,
    network: Arc<Network>,
    to_sync: mpsc::Sender<SyncEvent>,
    from_sync: mpsc::Receiver<ToCoordinator>,
    outcome: oneshot::Receiver<Result<Outcome>>,
    threads: Vec<JoinHandle<()>>,
    reports: Reports,
    /// The last generation and round that were reported, for `Join.held`.
    held: Option<(Generation, Round)>,
    leaving: Option<Instant>,
    dismissed: bool,
}

/// What the conversation's loop woke for.
enum Wake {
    Message(Option<ToWorker>),
    Report(Option<ToCoordinator>),
    Heartbeat,
    Renewal,
    Outcome(Result<Outcome>),
    Stop,
    FarewellOver,
}

impl Session {
    pub(super) fn start(
        membership: Arc<Membership>,
        identity: Identity,
        welcome: &Welcome,
        join: Join,
    ) -> Result<Self> {
        let config = RunConfig::parse(&welcome.config).context("read the run's configuration")?;
        let config = Arc::new(config);
        let progress = Arc::new(Progress::default());
        let gate = Arc::new(Gate::new(u64::from(config.train.batch)));
        let (to_sync, inbox) = mpsc::channel(SYNC_QUEUE_EVENTS);
        let (to_device, device_inbox) = sync_channel(DEVICE_QUEUE);
        let (reports, from_sync) = mpsc::channel(REPORT_QUEUE);
        let network = Network::start(
            membership.dialler.endpoint.clone(),
            &identity,
            welcome.site,
            to_sync.clone(),
            Arc::clone(&progress),
        )?;
        let links = Links {
            inbox,
            own_queue: to_sync.clone(),
            device: to_device,
            gate: Arc::clone(&gate),
            network: Arc::clone(&network),
            coordinator: reports,
            progress: Arc::clone(&progress),
            runtime: tokio::runtime::Handle::current(),
        };
        let checkpoint_dir = membership.checkpoint_dir(&config)?;
        let synchroniser = Synchroniser::new(
            identity.worker(),
            identity.run(),
            welcome.site,
            Arc::clone(&config),
            checkpoint_dir,
            links,
        );
        let (said, outcome) = oneshot::channel();
        let sync_thread = std::thread::Builder::new().name("synchroniser".into()).spawn(move || {
            // Nobody listens when the process is on its way out.
            let _ = said.send(synchroniser.run());
        })?;
        let device = DeviceThread {
            membership: Arc::clone(&membership),
            worker: identity.worker(),
            config,
            gate: Arc::clone(&gate),
            progress: Arc::clone(&progress),
            inbox: device_inbox,
            queue: to_sync.clone(),
        };
        let device_thread = std::thread::Builder::new().name("device".into()).spawn(move || device.run())?;
        Ok(Self {
            membership,
            identity,
            join,
            progress,
            gate,
            network,
            to_sync,
            from_sync,
            outcome,
            threads: vec![sync_thread, device_thread],
            reports: Reports::default(),
            held: None,
            leaving: None,
            dismissed: false,
        })
    }

    /// Speaks with the coordinator until the session ends, over as many connections as it takes.
    pub(super) async fn converse(mut self, first: Conversation) -> Result<(Ending, Identity)> {
        let Conversation { mut sender, mut receiver, .. } = first;
        loop {
            if let Some(ending) = self.talk(&sender, &mut receiver).await? {
                sender.finish().await;
                return Ok(self.end(ending).await);
            }
            if self.dismissed {
                let ending = ending_of((&mut self.outcome).await.context("the synchroniser is gone")?)?;
                return Ok(self.end(ending).await);
            }
            tracing::warn!("the connection to the coordinator is lost; training goes on");
            self.join.held = self.held;
            let next = tokio::select! {
                next = self.membership.dialler.connect(&self.identity, &self.join) => next?,
                outcome = &mut self.outcome => {
                    let ending = ending_of(outcome.context("the synchroniser is gone")?)?;
                    return Ok(self.end(ending).await);
                }
                () = stop_signal() => return Ok(self.end(Ending::Over("asked to stop".into())).await),
            };
            if !next.welcome.resumed {
                self.join.held = None;
                let ending = Ending::Replaced(self.join.clone(), Box::new(next));
                return Ok(self.end(ending).await);
            }
            match self.reports.forgotten() {
                0 => tracing::info!("the coordinator is back"),
                lost => tracing::warn!(
                    lost,
                    "the coordinator is back; it was away for longer than reports are kept"
                ),
            }
            (sender, receiver) = (next.sender, next.receiver);
        }
    }

    /// Talks over one connection. None: it is lost.
    async fn talk(
        &mut self,
        sender: &ControlSender<ToCoordinator>,
        receiver: &mut ControlReceiver<ToWorker>,
    ) -> Result<Option<Ending>> {
        let mut heartbeats = interval(Duration::from_millis(HEARTBEAT_INTERVAL_MS));
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewals = interval(RENEWAL_CHECK);
        while let Some(report) = self.reports.pop() {
            if sender.send(&report).is_err() {
                self.reports.push(report);
                return Ok(None);
            }
        }
        loop {
            let farewell = self.leaving.map(|since| since + FAREWELL_MAX);
            let wake = tokio::select! {
                message = receiver.receive() => Wake::Message(message.unwrap_or_else(|error| {
                    tracing::debug!(%error, "the conversation broke off");
                    None
                })),
                report = self.from_sync.recv() => Wake::Report(report),
                _ = heartbeats.tick() => Wake::Heartbeat,
                _ = renewals.tick() => Wake::Renewal,
                outcome = &mut self.outcome => Wake::Outcome(outcome.context("the synchroniser is gone")?),
                () = stop_signal() => Wake::Stop,
                () = sleep_until(farewell.unwrap_or_else(Instant::now)), if farewell.is_some() => Wake::FarewellOver,
            };
            let sent = match wake {
                Wake::Message(None) => return Ok(None),
                Wake::Message(Some(ToWorker::Refused { reason })) => {
                    anyhow::bail!("the coordinator: {reason}")
                }
                Wake::Message(Some(message)) => {
                    self.note(&message);
                    self.to_sync.send(SyncEvent::Coordinator(message)).await.is_ok()
                }
                // The outcome says why.
                Wake::Report(None) => true,
                Wake::Report(Some(report)) => self.pass_on(sender, report),
                Wake::Heartbeat => sender.send(&ToCoordinator::Heartbeat(self.progress.heartbeat())).is_ok(),
                Wake::Renewal => {
                    self.renew_if_due().await;
                    true
                }
                Wake::Outcome(Err(error)) => {
                    let reason = format!("{error:#}");
                    // The worker fails whether or not the coordinator hears of it.
                    let _ = sender.send(&ToCoordinator::Failed { reason });
                    return Err(error);
                }
                Wake::Outcome(outcome) => return ending_of(outcome).map(Some),
                Wake::Stop if self.leaving.is_some() => {
                    return Ok(Some(Ending::Over("asked twice to stop".into())));
                }
                Wake::Stop => {
                    tracing::info!("leaving after this round; once more leaves at once");
                    self.leaving = Some(Instant::now());
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
        if let ToCoordinator::RoundApplied(applied) = &report {
            self.held = Some((applied.generation, applied.round.next()));
        }
        let sent = sender.send(&report).is_ok();
        if !sent {
            self.reports.push(report);
        }
        sent
    }

    fn note(&mut self, message: &ToWorker) {
        match message {
            ToWorker::Begin(start) => self.held = Some((start.membership.generation, start.first_round)),
            ToWorker::Dismiss { .. } => self.dismissed = true,
            _ => {}
        }
    }

    async fn renew_if_due(&mut self) {
        if unix_s() < self.identity.renew_at_unix_s() {
            return;
        }
        let renewed = self.membership.dialler.renew(&self.identity, self.membership.slot.folder()).await;
        let taken = renewed.and_then(|identity| {
            self.membership.listen_as(&identity)?;
            self.network.use_identity(&identity)?;
            self.identity = identity;
            Ok(())
        });
        if let Err(error) = taken {
            tracing::warn!(
                reason = format!("{error:#}"),
                "the certificate could not be renewed; trying again later"
            );
        }
    }

    /// Stops the threads and answers once they have ended.
    async fn end(self, ending: Ending) -> (Ending, Identity) {
        let Self { identity, gate, network, to_sync, from_sync, threads, .. } = self;
        gate.stop();
        network.stop();
        // A synchroniser with an outcome has ended already, and takes nothing more.
        let _ = tokio::time::timeout(FAREWELL_MAX, to_sync.send(SyncEvent::Stop)).await;
        drop((to_sync, from_sync, network));
        // The device finishes its step first. A thread that panicked has said so on standard error.
        let joined = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|t| drop(t.join())));
        if tokio::time::timeout(FAREWELL_MAX, joined).await.is_err() {
            tracing::warn!("the device does not come to an end");
        }
        (ending, identity)
    }
}

fn ending_of(outcome: Result<Outcome>) -> Result<Ending> {
    Ok(match outcome? {
        Outcome::Dismissed(reason) => Ending::Over(reason),
        Outcome::Rejoin(reason) => Ending::Again(reason),
    })
}

/// What the device thread is made of: the tensors themselves are made on it.
struct DeviceThread {
    membership: Arc<Membership>,
    worker: longhaul_common::id::WorkerId,
    config: Arc<RunConfig>,
    gate: Arc<Gate>,
    progress: Arc<Progress>,
    inbox: std::sync::mpsc::Receiver<crate::train::message::ToDevice>,
    queue: mpsc::Sender<SyncEvent>,
}

impl DeviceThread {
    fn run(self) {
        let queue = self.queue.clone();
        let outbox = {
            let queue = queue.clone();
            Box::new(move |message| queue.blocking_send(SyncEvent::Device(message)).is_ok())
        };
        let first = match self.prepare() {
            Ok((engine, data, prepared)) => {
                let sent = queue.blocking_send(SyncEvent::Device(FromDevice::Prepared(prepared)));
                if sent.is_ok() {
                    let device = Device {
                        worker: self.worker,
                        config: (*self.config).clone(),
                        engine,
                        data,
                        gate: self.gate,
                        progress: self.progress,
                        inbox: self.inbox,
                        outbox,
                        next_round: Round(0),
                    };
                    device.run();
                }
                return;
            }
            Err(error) => FromDevice::Failed(format!("{error:#}")),
        };
        // When the synchroniser is gone, the session is over.
        let _ = queue.blocking_send(SyncEvent::Device(first));
    }

    fn prepare(&self) -> Result<(Engine, Dataset, Prepared)> {
        let (args, config) = (&self.membership.args, &*self.config);
        let tokenizer = Tokenizer::load(&config.data.tokenizer)?;
        let path = args.data.as_deref().unwrap_or(&config.data.path);
        let data = Dataset::open(&config.data, path, &tokenizer, &self.membership.cache_dir)?;
        let device = choose_device(&args.device)?;
        let spec = ModelSpec::resolve(&config.model, tokenizer.vocabulary())?;
        let threads = args.threads.and_then(|threads| NonZeroU32::new(u32::from(threads)));
        let run = &config.run;
        let engine = Engine::new(&spec, &config.train, run.steps, run.seed, device, threads)?;
        let mut parameters = Vec::new();
        engine.parameters_to_host(&mut parameters)?;
        let prepared = Prepared {
            spec,
            tokenizer: tokenizer.json(),
            parameters,
            samples: data.samples(),
            data_hash: data.data_hash(),
        };
        Ok((engine, data, prepared))
    }
}
