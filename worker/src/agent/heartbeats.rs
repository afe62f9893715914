//! Heartbeats to the coordinator: this worker's own, and those that members of its site have passed to it.

use std::sync::Arc;

use longhaul_common::config::FaultConfig;
use longhaul_flight::Progress;
use longhaul_peer::{Network, Shown};
use longhaul_proto::control::ControlSender;
use longhaul_proto::control::message::ToCoordinator;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::speaking::{Beat, Speaking};

/// Sends heartbeats to the coordinator, or passes them to the site's speaker.
pub(super) struct Heartbeats {
    speaking: Speaking,
    network: Arc<Network>,
    progress: Arc<Progress>,
    incarnation: u64,
    /// The heartbeat in flight to the speaker.
    showing: Option<JoinHandle<Shown>>,
}

impl Heartbeats {
    /// Creates the heartbeats of this process's incarnation.
    pub fn new(
        network: Arc<Network>,
        progress: Arc<Progress>,
        incarnation: u64,
        faults: &FaultConfig,
    ) -> Self {
        let speaking = Speaking::new(faults.one_may_speak_for_a_site(), Instant::now());
        Self { speaking, network, progress, incarnation, showing: None }
    }

    /// Starts with a new conversation.
    pub fn begin(&mut self, sender: &ControlSender<ToCoordinator>) {
        self.showing = None;
        self.speaking.begin(Instant::now());
        let ear = sender.ear();
        self.network.open_signs(move || (ear.heard(), ear.round_trip()), self.speaking.next_at());
    }

    /// Ends with the conversation: peers no longer rely on this worker.
    pub fn end(&mut self) {
        self.network.close_signs();
    }

    /// Waits for the next action: `Some`: the result of passing a heartbeat on; `None`: the next heartbeat is due. Cancel-safe in a `select!`.
    pub async fn wait(&mut self) -> Option<Shown> {
        let next_at = self.speaking.next_at();
        let Some(showing) = &mut self.showing else {
            sleep_until(next_at).await;
            return None;
        };
        // This takes less than a heartbeat interval.
        let shown = showing.await;
        self.showing = None;
        Some(shown.unwrap_or(Shown::Unanswered))
    }

    /// Performs the action; false: the connection is lost.
    pub fn act(&mut self, sender: &ControlSender<ToCoordinator>, shown: Option<Shown>) -> bool {
        match shown {
            Some(shown) => !self.speaking.shown(Instant::now(), shown) || self.say_if_heard(sender),
            None => self.beat(sender),
        }
    }

    /// Answers the coordinator's query for a heartbeat; false: the connection is lost.
    pub fn answer(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        self.speaking.asked(Instant::now());
        self.say(sender)
    }

    fn beat(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        let (speaker, is_relied_on) = (self.network.speaker(), self.network.has_signs());
        match self.speaking.beat(Instant::now(), speaker, is_relied_on) {
            Beat::Own => self.say_if_heard(sender),
            Beat::Through(speaker) => {
                self.network.put_off_signs(self.speaking.next_at());
                let (network, incarnation) = (Arc::clone(&self.network), self.incarnation);
                let showing = async move { network.show_sign(speaker, incarnation).await };
                self.showing = Some(tokio::spawn(showing));
                true
            }
        }
    }

    /// Sends a heartbeat only if this worker receives from the coordinator; otherwise it cannot take part. It then reports that it receives nothing, so that
    /// the coordinator misses it at least as soon as an unreachable worker, until the connection's own probes are acknowledged.
    fn say_if_heard(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        if self.network.may_be_heard(Instant::now()) {
            return self.say(sender);
        }
        sender.send(&ToCoordinator::OutOfReach(vec![self.network.worker()])).is_ok()
    }

    /// Sends this worker's heartbeat and those passed to it.
    fn say(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        let others = self.network.take_signs(Instant::now(), self.speaking.next_at());
        let own = self.progress.heartbeat();
        let message = match others.is_empty() {
            true => ToCoordinator::Heartbeat(own),
            false => ToCoordinator::SiteHeartbeat { own, others },
        };
        sender.send(&message).is_ok()
    }
}
