//! What this worker has the coordinator know of who is alive: itself, and those of its site that have shown it that they are.

use std::sync::Arc;

use longhaul_common::config::FaultConfig;
use longhaul_flight::Progress;
use longhaul_peer::{Network, Shown};
use longhaul_proto::control::ControlSender;
use longhaul_proto::control::message::ToCoordinator;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::speaking::{Beat, Speaking};

/// Says heartbeats, or shows them to who speaks for this worker.
pub(super) struct Heartbeats {
    speaking: Speaking,
    network: Arc<Network>,
    progress: Arc<Progress>,
    incarnation: u64,
    /// A sign of life that another worker is being shown.
    showing: Option<JoinHandle<Shown>>,
}

impl Heartbeats {
    /// Of a process of this incarnation.
    pub fn new(
        network: Arc<Network>,
        progress: Arc<Progress>,
        incarnation: u64,
        faults: &FaultConfig,
    ) -> Self {
        let speaking = Speaking::new(faults.one_may_speak_for_a_site(), Instant::now());
        Self { speaking, network, progress, incarnation, showing: None }
    }

    /// A conversation with the coordinator begins.
    pub fn begin(&mut self, sender: &ControlSender<ToCoordinator>) {
        self.showing = None;
        self.speaking.begin(Instant::now());
        let ear = sender.ear();
        self.network.open_signs(move || (ear.heard(), ear.round_trip()), self.speaking.next_at());
    }

    /// It is over: nobody relies on this worker any more.
    pub fn end(&mut self) {
        self.network.close_signs();
    }

    /// Returns when there is something to do: with what came of showing a sign; none: when the next heartbeat is due. May stand in a `select!`.
    pub async fn wait(&mut self) -> Option<Shown> {
        let next_at = self.speaking.next_at();
        let Some(showing) = &mut self.showing else {
            sleep_until(next_at).await;
            return None;
        };
        // It takes less time than there is between two heartbeats.
        let shown = showing.await;
        self.showing = None;
        Some(shown.unwrap_or(Shown::Unanswered))
    }

    /// Does that; false: the connection is lost.
    pub fn act(&mut self, sender: &ControlSender<ToCoordinator>, shown: Option<Shown>) -> bool {
        match shown {
            Some(shown) => !self.speaking.shown(Instant::now(), shown) || self.say_if_heard(sender),
            None => self.beat(sender),
        }
    }

    /// The coordinator asks whether this worker is alive; false: the connection is lost.
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

    /// Who cannot hear the coordinator cannot take part in anything. It says no more that it is alive, but that it hears nothing, so that it is missed at least as soon as one that cannot be heard, until its
    /// connection's own probes are acknowledged.
    fn say_if_heard(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        if self.network.may_be_heard(Instant::now()) {
            return self.say(sender);
        }
        sender.send(&ToCoordinator::OutOfReach(vec![self.network.worker()])).is_ok()
    }

    /// Says that this worker is alive, and who else is.
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
