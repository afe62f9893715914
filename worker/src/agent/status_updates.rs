//! What the coordinator is told when it changes: who is out of reach, and what there is of the training data.

use std::sync::Arc;

use longhaul_peer::Network;
use longhaul_proto::control::ControlSender;
use longhaul_proto::control::message::{DataAt, ToCoordinator};
use tokio::sync::watch;

use super::reach::ReachWords;

/// Of one connection to the coordinator, which may be another one than was told before.
pub(super) struct StatusUpdates {
    reach: ReachWords,
    data_at: watch::Receiver<Option<DataAt>>,
}

/// Of what there is something to say.
pub(super) enum About {
    Reach,
    Data,
}

impl StatusUpdates {
    pub fn new(network: &Arc<Network>) -> Self {
        let mut data_at = network.data_at();
        data_at.mark_changed();
        Self { reach: ReachWords::new(Arc::clone(network)), data_at }
    }

    /// Returns when there is something to say. May stand in a `select!`.
    pub async fn wait(&mut self) -> About {
        tokio::select! {
            () = self.reach.wait() => About::Reach,
            Ok(_) = self.data_at.changed() => About::Data,
        }
    }

    /// Says it; false: the connection is lost.
    pub fn say(&mut self, about: &About, sender: &ControlSender<ToCoordinator>) -> bool {
        match about {
            About::Reach => self.reach.say(sender),
            About::Data => {
                let at = *self.data_at.borrow_and_update();
                at.is_none_or(|at| sender.send(&ToCoordinator::Data(at)).is_ok())
            }
        }
    }
}
