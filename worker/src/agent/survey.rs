//! Participation before a plan exists: measurements of this machine and its links for the coordinator.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use longhaul_common::config::RunConfig;
use longhaul_common::explained::Explained;
use longhaul_flight::Progress;
use longhaul_peer::Network;
use longhaul_proto::control::message::{
    HEARTBEAT_INTERVAL_MS, MeasuredLink, Profile, ToCoordinator, ToWorker,
};
use longhaul_proto::identity::Identity;
use longhaul_proto::transport::bulk::ReceiveLimits;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use super::connection::Conversation;
use super::join::JoinedRun;
use super::speed;
use crate::stop::StopSignal;

/// The result of a survey.
pub(super) enum Surveyed {
    /// A plan exists, or another configuration was sent for another reason.
    Welcomed(Conversation),
    /// The connection to the coordinator is lost.
    Lost,
    /// Another process has this worker's identity; this process becomes another worker.
    Twin,
    /// The worker's part is over.
    Over(String),
}

/// Events of the survey's loop.
enum Wake {
    Message(Option<ToWorker>),
    Heartbeat,
    Profiled(Result<Profile>),
    Probed(Vec<Option<MeasuredLink>>),
    Stop,
}

/// Measures this machine and the links that the coordinator requests, until a plan exists.
///
/// # Errors
/// This machine cannot compute, or the coordinator refuses it.
pub(super) async fn attend(
    membership: &Arc<JoinedRun>,
    identity: &Identity,
    config: RunConfig,
    mut conversation: Conversation,
    stop: &mut StopSignal,
) -> Result<Surveyed> {
    tracing::info!("there is no plan yet: measuring what this machine can do");
    let progress = Arc::new(Progress::default());
    // Peers may only measure the link to this worker; other requests would get no answer.
    let (nobody, _) = mpsc::channel(1);
    let endpoint = membership.dialler.endpoint.clone();
    let (site, limits) = (conversation.welcome.site, ReceiveLimits::default());
    let network = Network::start(endpoint, identity, site, nobody, Arc::clone(&progress), limits)?;
    let mut survey = Survey { network, profiling: Some(profile(membership, config)), probing: None };
    let ended = survey.converse(&mut conversation, &progress, stop).await;
    survey.network.stop();
    if let (Ok(End::Welcomed | End::Lost), Some(profiling)) = (&ended, survey.profiling.take()) {
        // It uses the device for another second, and its successor needs the device alone. The result is discarded.
        let _ = profiling.await;
    }
    match ended? {
        End::Welcomed => Ok(Surveyed::Welcomed(conversation)),
        End::Lost if conversation.sender.was_replaced().await && membership.yields_to_a_twin() => {
            Ok(Surveyed::Twin)
        }
        End::Lost => Ok(Surveyed::Lost),
        // The last messages.
        End::Over(reason) => {
            conversation.sender.finish().await;
            Ok(Surveyed::Over(reason))
        }
        End::Failed(error) => {
            conversation.sender.finish().await;
            Err(error)
        }
    }
}

fn profile(membership: &Arc<JoinedRun>, config: RunConfig) -> JoinHandle<Result<Profile>> {
    let membership = Arc::clone(membership);
    spawn_blocking(move || speed::measure(&membership.args, &config))
}

struct Survey {
    network: Arc<Network>,
    profiling: Option<JoinHandle<Result<Profile>>>,
    probing: Option<JoinHandle<Vec<Option<MeasuredLink>>>>,
}

enum End {
    Welcomed,
    Lost,
    Over(String),
    Failed(anyhow::Error),
}

impl Survey {
    async fn converse(
        &mut self,
        conversation: &mut Conversation,
        progress: &Progress,
        stop: &mut StopSignal,
    ) -> Result<End> {
        let mut heartbeats = interval(Duration::from_millis(HEARTBEAT_INTERVAL_MS));
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wake = tokio::select! {
                message = conversation.receiver.receive() => Wake::Message(message.ok().flatten()),
                profile = finished(&mut self.profiling) => Wake::Profiled(profile.flatten()),
                links = finished(&mut self.probing) => Wake::Probed(links.unwrap_or_default()),
                _ = heartbeats.tick() => Wake::Heartbeat,
                () = stop.asked() => Wake::Stop,
            };
            let said = match wake {
                Wake::Message(None) => return Ok(End::Lost),
                Wake::Message(Some(message)) => match self.follow(message, conversation)? {
                    Some(end) => return Ok(end),
                    None => continue,
                },
                Wake::Heartbeat => ToCoordinator::Heartbeat(progress.heartbeat()),
                Wake::Profiled(Ok(profile)) => {
                    let gflops = (profile.flops_per_s / 1e9).round();
                    tracing::info!(gflops, "measured this machine on the run's model");
                    ToCoordinator::Profile(profile)
                }
                Wake::Profiled(Err(error)) => {
                    let reason = Explained(&*error).to_string();
                    // The worker fails whether or not this message arrives.
                    let _ = conversation.sender.send(&ToCoordinator::Failed { reason });
                    return Ok(End::Failed(error));
                }
                Wake::Probed(links) => ToCoordinator::Links(links),
                Wake::Stop => {
                    let _ = conversation.sender.send(&ToCoordinator::Leaving);
                    return Ok(End::Over("asked to stop".to_owned()));
                }
            };
            if conversation.sender.send(&said).is_err() {
                return Ok(End::Lost);
            }
        }
    }

    /// Handles a message; returns the end of the survey, if it is one.
    fn follow(&mut self, message: ToWorker, conversation: &mut Conversation) -> Result<Option<End>> {
        match message {
            ToWorker::Welcome(welcome) => {
                conversation.welcome = welcome;
                Ok(Some(End::Welcomed))
            }
            ToWorker::Probe { peers } => {
                let network = Arc::clone(&self.network);
                self.probing = Some(tokio::spawn(async move { network.probe(&peers).await }));
                Ok(None)
            }
            ToWorker::Revoked { workers } => {
                self.network.revoke(&workers);
                Ok(None)
            }
            ToWorker::Dismiss { reason } => Ok(Some(End::Over(reason))),
            ToWorker::Refused { reason } => bail!("the coordinator: {reason}"),
            // These concern a state that this worker does not have yet.
            ToWorker::Prepare(_)
            | ToWorker::Heal { .. }
            | ToWorker::Settle { .. }
            | ToWorker::Begin(_)
            | ToWorker::Placed { .. }
            | ToWorker::Keep(_)
            | ToWorker::Best(_) => Ok(None),
            // Heartbeats are sent in any case.
            // Holders belong to the previous session.
            ToWorker::Speak | ToWorker::DataHolders(_) | ToWorker::ModelHolders(_) | ToWorker::Handover => {
                Ok(None)
            }
        }
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        if let Some(probing) = &self.probing {
            probing.abort();
        }
    }
}

/// Yields a task's result once; otherwise pending forever.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Result<T> {
    let Some(running) = task else { return std::future::pending().await };
    let result = running.await;
    *task = None;
    result.context("a measurement ended early")
}
