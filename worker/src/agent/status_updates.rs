//! Status updates to the coordinator on change: unreachable members, available training data, and the pretrained model.

use std::sync::Arc;

use longhaul_peer::Network;
use longhaul_proto::control::ControlSender;
use longhaul_proto::control::message::{DataAt, ModelAt, ToCoordinator};
use tokio::sync::watch;

use super::reach::ReachWords;

/// Updates over one connection to the coordinator, which may be a new one.
pub(super) struct StatusUpdates {
    reach: ReachWords,
    data_at: watch::Receiver<Option<DataAt>>,
    model_at: watch::Receiver<Option<ModelAt>>,
}

/// The subject of an update.
pub(super) enum About {
    Reach,
    Data,
    Model,
}

impl StatusUpdates {
    pub fn new(network: &Arc<Network>) -> Self {
        let mut data_at = network.data_at();
        data_at.mark_changed();
        let mut model_at = network.model_at();
        model_at.mark_changed();
        Self { reach: ReachWords::new(Arc::clone(network)), data_at, model_at }
    }

    /// Waits until an update is due. Cancel-safe in a `select!`.
    pub async fn wait(&mut self) -> About {
        tokio::select! {
            () = self.reach.wait() => About::Reach,
            Ok(_) = self.data_at.changed() => About::Data,
            Ok(_) = self.model_at.changed() => About::Model,
        }
    }

    /// Sends the update; false: the connection is lost.
    pub fn say(&mut self, about: &About, sender: &ControlSender<ToCoordinator>) -> bool {
        match about {
            About::Reach => self.reach.say(sender),
            About::Data => {
                let at = *self.data_at.borrow_and_update();
                at.is_none_or(|at| sender.send(&ToCoordinator::Data(at)).is_ok())
            }
            About::Model => {
                let at = *self.model_at.borrow_and_update();
                at.is_none_or(|at| sender.send(&ToCoordinator::Model(at)).is_ok())
            }
        }
    }
}
