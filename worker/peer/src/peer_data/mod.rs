//! Training data from worker to worker: see `data/docs/data.md`, *From other workers*.

mod broken;
mod donors;
mod fetch;
mod open;
mod places;
mod route;
mod serve;
mod supplier;
#[cfg(test)]
mod tests;
mod told;
mod turns;

use std::sync::Arc;

use longhaul_common::id::WorkerId;
use longhaul_data::BlockProvider;
use longhaul_proto::control::message::{DataAt, DataHolders, DataName};
use tokio::sync::{Semaphore, watch};

use self::broken::Broken;
pub(super) use self::donors::Donors;
pub use self::fetch::FoundData;
pub(super) use self::fetch::{ANSWER_MAX, BLOCK_MAX, fetch_long};
use self::places::Places;
pub(super) use self::serve::{send_block, send_catalogue, send_long, send_tokenizer};
use self::supplier::Supplier;
use super::Network;

/// This network's knowledge and share of the run's data.
pub(super) struct PeerData {
    /// Holders, from the coordinator.
    holders: watch::Sender<DataHolders>,
    /// This worker's data, for the coordinator.
    at: watch::Sender<Option<DataAt>>,
    lent: watch::Sender<Option<Lent>>,
    /// Fetcher of missing blocks.
    supplier: watch::Sender<Option<Arc<Supplier>>>,
    /// Permits for parallel reads for others.
    turns: Arc<Semaphore>,
    /// Room in memory for blocks for others.
    places: Places,
    /// Shards that could neither be read nor remade.
    broken: Broken,
}

/// A lent dataset, and the fetcher of missing blocks; `None`: the data is complete.
#[derive(Clone)]
struct Lent {
    provider: Arc<BlockProvider>,
    supplier: Option<Arc<Supplier>>,
}

/// Each is a MiB in memory, read from disk and hashed on its own thread: more would take cores from the device.
const SERVED_AT_ONCE: usize = 4;

impl Default for PeerData {
    fn default() -> Self {
        Self {
            holders: watch::channel(DataHolders::default()).0,
            at: watch::channel(None).0,
            lent: watch::channel(None).0,
            supplier: watch::channel(None).0,
            turns: Arc::new(Semaphore::new(SERVED_AT_ONCE)),
            places: Places::default(),
            broken: Broken::default(),
        }
    }
}

impl PeerData {
    /// Stops providing.
    pub fn clear(&self) {
        self.lent.send_replace(None);
        self.supplier.send_replace(None);
    }

    /// Returns once the coordinator's list of holders lacks this worker. A list that names no worker may be incomplete, as after a restart of the
    /// coordinator.
    async fn until_left(&self, worker: WorkerId) {
        let mut holders = self.holders.subscribe();
        let is_gone = |holders: &DataHolders| {
            let mut all = holders.holders.iter().chain(&holders.neighbours);
            holders.name.is_some() && !holders.holders.is_empty() && all.all(|member| member.worker != worker)
        };
        // The sender lives as long as the network.
        let _ = holders.wait_for(is_gone).await;
    }
}

impl Network {
    /// Notes the coordinator's list of holders.
    pub fn note_data_holders(&self, holders: &DataHolders) {
        self.peer_data.holders.send_if_modified(|known| {
            let is_news = known != holders;
            known.clone_from(holders);
            is_news
        });
    }

    /// Returns this worker's data as it changes; `None`: unknown yet.
    pub fn data_at(&self) -> watch::Receiver<Option<DataAt>> {
        self.peer_data.at.subscribe()
    }

    /// Lends this data, which is complete here or can be made here.
    pub fn lend(&self, provider: Arc<BlockProvider>, data_hash: [u8; 32]) {
        let name = DataName { data: data_hash, catalogue: provider.catalogue_hash() };
        self.peer_data.lent.send_replace(Some(Lent { provider, supplier: None }));
        self.peer_data.at.send_replace(Some(DataAt::Here(name)));
    }
}
