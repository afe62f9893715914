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
use longhaul_data::Lending;
use longhaul_proto::control::message::{DataAt, DataHolders, DataName};
use tokio::sync::{Semaphore, watch};

use self::broken::Broken;
pub use self::fetch::FoundData;
use self::places::Places;
pub(super) use self::serve::{send_block, send_catalogue, send_tokenizer};
use self::supplier::Supplier;
use super::Network;

/// What this network knows of the run's data, and gives of it.
pub(super) struct PeerData {
    /// Who has it, as the coordinator says.
    holders: watch::Sender<DataHolders>,
    /// What this worker has, for the coordinator.
    at: watch::Sender<Option<DataAt>>,
    /// What others may have.
    lent: watch::Sender<Option<Lent>>,
    /// Who fetches what is not here.
    supplier: watch::Sender<Option<Arc<Supplier>>>,
    /// Blocks that are read for others at a time,
    turns: Arc<Semaphore>,
    /// and that are in memory for them.
    places: Places,
    /// Shards that could not be read, nor made again.
    broken: Broken,
}

/// A dataset that others may have blocks of, and who fetches those that are not here; none: all are.
#[derive(Clone)]
struct Lent {
    lending: Arc<Lending>,
    supplier: Option<Arc<Supplier>>,
}

/// Each is a MiB in memory, read from the disk and hashed on a thread of its own: more would take cores from the device.
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
    /// Others get nothing any more.
    pub fn clear(&self) {
        self.lent.send_replace(None);
        self.supplier.send_replace(None);
    }

    /// Returns when the coordinator says who has the run's data, and this worker has none. Where it names nobody, it may not have heard of them yet, as after its own restart.
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
    /// The coordinator says who has the run's data.
    pub fn note_data_holders(&self, holders: &DataHolders) {
        self.peer_data.holders.send_if_modified(|known| {
            let is_news = known != holders;
            known.clone_from(holders);
            is_news
        });
    }

    /// What this worker has of the run's data, as it changes; none: it does not know yet.
    pub fn data_at(&self) -> watch::Receiver<Option<DataAt>> {
        self.peer_data.at.subscribe()
    }

    /// From now on others may have blocks of this data, all of which is here, or can be made here.
    pub fn lend(&self, lending: Arc<Lending>, data_hash: [u8; 32]) {
        let name = DataName { data: data_hash, catalogue: lending.catalogue_hash() };
        self.peer_data.lent.send_replace(Some(Lent { lending, supplier: None }));
        self.peer_data.at.send_replace(Some(DataAt::Here(name)));
    }
}
