//! Data over real connections, from workers of all kinds.

mod bad;
mod waiting;

use std::slice::from_ref;
use std::time::Duration;

use longhaul_common::config::{DataConfig, read_toml};
use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_data::{BlockName, BlockStore, Catalogue, DataError, Dataset, Supply, Tokenizer, Work};
use longhaul_proto::identity::Authority;
use longhaul_proto::transport::bulk::ReceiveLimits;
use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::donors::Donors;
use super::fetch::fetch_block;
use super::*;
use crate::testing::{Worker, authority, endpoint, member};

/// No wait here takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a prepared text of some blocks, and one for fetched data.
struct Text {
    folder: TempDir,
    data: Arc<Dataset>,
    provider: Arc<BlockProvider>,
    name: DataName,
}

fn config(folder: &TempDir) -> DataConfig {
    let path = folder.path().join("text.txt");
    read_toml(&format!("path = {path:?}\nsequence_length = 256")).unwrap()
}

impl Text {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..180_000).map(|number| format!("line {}\n", number * 7919 % 100_003)).collect();
        std::fs::write(folder.path().join("text.txt"), text).unwrap();
        let cache = folder.path().join("cache");
        let data = Dataset::open(&config(&folder), &Tokenizer::Bytes, &cache, &Work::default()).unwrap();
        let data = Arc::new(data);
        let provider = Arc::new(BlockProvider::new(Arc::clone(&data), &Tokenizer::Bytes).unwrap());
        let name = DataName { data: data.data_hash(), catalogue: provider.catalogue_hash() };
        Self { folder, data, provider, name }
    }

    fn blocks(&self) -> Vec<BlockName> {
        let catalogue = Catalogue::from_bytes(&self.provider.catalogue).unwrap();
        let of_shard = |shard| (0..).map(move |block| BlockName { shard, block });
        let there = |shard| of_shard(shard).take_while(|name| self.provider.block(*name).unwrap().is_some());
        catalogue.shard_hashes().flat_map(there).collect()
    }

    fn holders(&self, holders: &[Member], neighbours: &[Member]) -> DataHolders {
        DataHolders { name: Some(self.name), holders: holders.to_vec(), neighbours: neighbours.to_vec() }
    }
}

/// A worker that has all of it.
fn holder(authority: &(Authority, u64), number: u32, text: &Text) -> Worker {
    let worker = Worker::start(authority, number, ReceiveLimits::default());
    worker.network.lend(Arc::clone(&text.provider), text.name.data);
    worker
}

/// A worker that fetches.
struct Remote {
    worker: Worker,
    supplier: Arc<Supplier>,
    data: Arc<Dataset>,
    _cache: TempDir,
}

impl Remote {
    fn new(authority: &(Authority, u64), number: u32, site: SiteId, text: &Text) -> Self {
        let worker = Worker::start_at(authority, number, site, ReceiveLimits::default());
        let cache = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::from_bytes(&text.provider.catalogue).unwrap();
        let config = config(&text.folder);
        let stock = BlockStore::open(&config, &catalogue, &Tokenizer::Bytes, (cache.path(), None)).unwrap();
        let supply = worker.network.supplier(&stock);
        let data = Dataset::elsewhere(&config, &Tokenizer::Bytes, &catalogue, &stock, &supply).unwrap();
        let data = Arc::new(data);
        let provider = Arc::new(BlockProvider::new(Arc::clone(&data), &Tokenizer::Bytes).unwrap());
        worker.network.lend_fetched(provider, text.name);
        let supplier = worker.network.peer_data.supplier.borrow().clone().unwrap();
        Self { worker, supplier, data, _cache: cache }
    }

    fn told(&self, holders: DataHolders) {
        self.worker.network.note_data_holders(&holders);
    }

    /// Fetches all of it, several at a time.
    async fn fetch(&self, text: &Text) {
        let blocks = text.blocks();
        assert!(blocks.len() > 3);
        blocks.iter().for_each(|name| _ = self.supplier.expect(*name));
        for name in blocks {
            timeout(PATIENCE, self.supplier.until_here(name)).await.unwrap().unwrap();
        }
        let before = self.fetched();
        let (data, whole) = (Arc::clone(&self.data), Arc::clone(&text.data));
        let same =
            spawn_blocking(move || data.peek(0, u64::MAX).unwrap() == whole.peek(0, u64::MAX).unwrap());
        assert!(same.await.unwrap(), "the fetched data differs");
        assert_eq!(self.fetched(), before, "present data was fetched again");
    }

    /// Waits for a block, in a task of its own.
    fn waiting(&self, name: BlockName) -> JoinHandle<Result<(), DataError>> {
        let supplier = Arc::clone(&self.supplier);
        tokio::spawn(async move { supplier.until_here(name).await })
    }

    /// Waits for this many failed attempts with all workers for a block in flight.
    async fn until_failed(&self, name: BlockName, times: u32) {
        let open = loop {
            if let Some(open) = self.supplier.open(name) {
                break open;
            }
            tokio::task::yield_now().await;
        };
        timeout(PATIENCE, open.stage().wait_for(|stage| stage.failed >= times)).await.unwrap().unwrap();
    }

    /// Requests a block as `worker`, from this one alone.
    async fn asked(&self, worker: &Worker, name: BlockName, to_be_fetched: bool) -> anyhow::Result<()> {
        let connection = Donors::default().connection(&worker.network, &self.worker.member).await?;
        let answer = fetch_block(&connection, &self.supplier.stock, name, to_be_fetched);
        timeout(PATIENCE, answer).await?.map(drop)
    }

    /// Returns the bytes from other sites, and from the own one.
    fn fetched(&self) -> (u64, u64) {
        let counts = self.worker.network.progress.heartbeat();
        (counts.traffic.data_wan_bytes, counts.traffic.data_lan_bytes)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_a_site_fetch_each_block_once_over_the_long_way() {
    let (authority, text) = (authority(), Text::new());
    let far = holder(&authority, 9, &text);
    let [one, two] = [1, 2].map(|number| Remote::new(&authority, number, SiteId(1), &text));
    let neighbours = [one.worker.member.clone(), two.worker.member.clone()];
    for remote in [&one, &two] {
        remote.told(text.holders(from_ref(&far.member), &neighbours));
    }
    tokio::join!(one.fetch(&text), two.fetch(&text));
    let whole: u64 = text
        .blocks()
        .iter()
        .map(|name| text.provider.block(*name).unwrap().unwrap())
        .map(|lent| (lent.head.len() + lent.bytes.len()) as u64)
        .sum();
    let ((wan_one, lan_one), (wan_two, lan_two)) = (one.fetched(), two.fetched());
    assert_eq!(wan_one + wan_two, whole, "{wan_one} and {wan_two} from afar");
    assert_eq!((wan_one + lan_one, wan_two + lan_two), (whole, whole));
    assert!(wan_one > 0 && wan_two > 0, "one of them fetched everything");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_later_takes_what_its_site_has_and_who_has_it_all_on_the_site_is_asked_alone() {
    let (authority, text) = (authority(), Text::new());
    let far = holder(&authority, 9, &text);
    let one = Remote::new(&authority, 1, SiteId(1), &text);
    one.told(text.holders(from_ref(&far.member), from_ref(&one.worker.member)));
    one.fetch(&text).await;
    let two = Remote::new(&authority, 2, SiteId(1), &text);
    let neighbours = [one.worker.member.clone(), two.worker.member.clone()];
    one.told(text.holders(from_ref(&far.member), &neighbours));
    two.told(text.holders(from_ref(&far.member), &neighbours));
    two.fetch(&text).await;
    assert_eq!(two.fetched().0, 0, "the site's own data came from afar");
    // The holder of site 9 is a neighbour of this one.
    let near = Remote::new(&authority, 3, SiteId(9), &text);
    let (far_ones, neighbours) =
        ([far.member.clone(), one.worker.member.clone()], [near.worker.member.clone()]);
    near.told(text.holders(&far_ones, &neighbours));
    near.fetch(&text).await;
    assert_eq!(near.fetched().0, 0);
}
