//! Workers removed from the run: their peers close connections with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, bail};
use longhaul_common::id::WorkerId;
use longhaul_proto::control::CloseCode;
use quinn::Connection;

use super::Network;

/// Reason in the close frame to a removed worker.
const REASON: &str = "this worker was taken out of the run";

/// Closes a connection with a removed worker.
pub(super) fn hang_up(connection: &Connection) {
    CloseCode::Stranger.close(connection, REASON);
}

impl Network {
    /// Removes these workers: connections with them are closed, and new ones refused.
    pub fn revoke(self: &Arc<Self>, workers: &[WorkerId]) {
        let is_new = |revoked: &mut BTreeSet<WorkerId>| {
            let known = revoked.len();
            revoked.extend(workers);
            revoked.len() > known
        };
        // First, so that a concurrent connection finds it.
        if !self.excluded.revoked.send_if_modified(is_new) {
            return;
        }
        let gone: Vec<_> = {
            let mut state = self.lock();
            workers.iter().filter_map(|worker| state.peers.remove(worker)).collect()
        };
        for peer in gone {
            self.spawn(async move { peer.hang_up().await });
        }
    }

    /// Reports whether this worker was removed from the run.
    pub(super) fn is_revoked(&self, worker: WorkerId) -> bool {
        self.excluded.revoked.borrow().contains(&worker)
    }

    /// Returns once this worker is removed from the run.
    pub(super) async fn until_revoked(&self, worker: WorkerId) {
        let mut revoked = self.excluded.revoked.subscribe();
        // The sender lives as long as this network.
        let _ = revoked.wait_for(|revoked| revoked.contains(&worker)).await;
    }

    /// Runs `talk` over a connection while the other worker belongs to the run.
    ///
    /// # Errors
    /// Those of `talk`, or a removal of the other worker.
    pub(super) async fn while_of_run<T>(
        &self,
        worker: WorkerId,
        connection: &Connection,
        talk: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            // Polled first: no byte goes to a removed worker.
            biased;
            () = self.until_revoked(worker) => {
                hang_up(connection);
                bail!("{worker} was taken out of the run")
            }
            done = talk => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_proto::transport::bulk::ReceiveLimits;
    use quinn::ConnectionError;

    use super::super::peer::Peer;
    use super::*;
    use crate::testing::{Worker, authority};

    fn peer_of(worker: &Worker, other: u32) -> Arc<Peer> {
        Arc::clone(&worker.network.lock().peers[&WorkerId(other)])
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_that_is_out_of_the_run_is_hung_up_on_both_ways_and_not_taken_again() {
        let authority = authority();
        let stays = Worker::start(&authority, 1, ReceiveLimits::default());
        let goes = Worker::start(&authority, 2, ReceiveLimits::default());
        stays.network.set_members(std::slice::from_ref(&goes.member), 0);
        goes.network.set_members(std::slice::from_ref(&stays.member), 0);
        let to = peer_of(&stays, 2).connection(&stays.network).await.unwrap();
        let peer = peer_of(&goes, 1);
        let from = peer.connection(&goes.network).await.unwrap();
        stays.network.revoke(&[WorkerId(2)]);
        let stranger = CloseCode::Stranger.into();
        let by_peer = |error: ConnectionError| match error {
            ConnectionError::ApplicationClosed(close) => close.error_code == stranger,
            _ => false,
        };
        assert!(by_peer(from.connection().closed().await));
        assert!(matches!(to.connection().closed().await, ConnectionError::LocallyClosed));
        // A certificate is valid for a day: the handshake succeeds, and nothing after it.
        let again = peer.connection(&goes.network).await.unwrap();
        assert!(by_peer(again.connection().closed().await));
        // A generation announced before does not restore it.
        stays.network.set_members(std::slice::from_ref(&goes.member), 0);
        assert!(stays.network.lock().peers.is_empty());
        let dialled = stays.network.probe(std::slice::from_ref(&goes.member)).await;
        assert_eq!(dialled, [None]);
    }
}
