//! What the coordinator is told of members that are out of reach.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_peer::Network;
use longhaul_proto::control::ControlSender;
use longhaul_proto::control::message::{OUT_OF_REACH_REPEATED_MS, ToCoordinator};
use tokio::sync::watch;
use tokio::time::{Instant, Interval};

use super::session::ticks;

/// Says it when it changes, and again as long as there is anybody.
pub(super) struct ReachWords {
    network: Arc<Network>,
    out_of_reach: watch::Receiver<BTreeSet<WorkerId>>,
    repeats: Interval,
}

impl ReachWords {
    /// For one connection to the coordinator.
    pub fn new(network: Arc<Network>) -> Self {
        let out_of_reach = network.out_of_reach();
        Self { network, out_of_reach, repeats: ticks(Duration::from_millis(OUT_OF_REACH_REPEATED_MS)) }
    }

    /// Returns when there is something to say. May stand in a `select!`.
    pub async fn wait(&mut self) {
        let is_repeated = !self.out_of_reach.borrow().is_empty();
        tokio::select! {
            Ok(()) = self.out_of_reach.changed() => {}
            _ = self.repeats.tick(), if is_repeated => {}
            // The network is there as long as this is.
            else => std::future::pending().await,
        }
    }

    /// Says it; false: the connection is lost. Who cannot hear the coordinator does not blame others.
    pub fn say(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        let workers = self.out_of_reach.borrow_and_update().iter().copied().collect();
        !self.network.may_be_heard(Instant::now()) || sender.send(&ToCoordinator::OutOfReach(workers)).is_ok()
    }
}
