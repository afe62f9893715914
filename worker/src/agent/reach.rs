//! Reports of unreachable members to the coordinator.

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

/// Reports each change, and repeats a non-empty report.
pub(super) struct ReachWords {
    network: Arc<Network>,
    out_of_reach: watch::Receiver<BTreeSet<WorkerId>>,
    repeats: Interval,
}

impl ReachWords {
    /// Creates the reports of one connection to the coordinator.
    pub fn new(network: Arc<Network>) -> Self {
        let out_of_reach = network.out_of_reach();
        Self { network, out_of_reach, repeats: ticks(Duration::from_millis(OUT_OF_REACH_REPEATED_MS)) }
    }

    /// Waits until a report is due. Cancel-safe in a `select!`.
    pub async fn wait(&mut self) {
        let is_repeated = !self.out_of_reach.borrow().is_empty();
        tokio::select! {
            Ok(()) = self.out_of_reach.changed() => {}
            _ = self.repeats.tick(), if is_repeated => {}
            // The network outlives this.
            else => std::future::pending().await,
        }
    }

    /// Sends the report; false: the connection is lost. A worker that receives nothing from the coordinator blames no peers.
    pub fn say(&mut self, sender: &ControlSender<ToCoordinator>) -> bool {
        let workers = self.out_of_reach.borrow_and_update().iter().copied().collect();
        !self.network.may_be_heard(Instant::now()) || sender.send(&ToCoordinator::OutOfReach(workers)).is_ok()
    }
}
