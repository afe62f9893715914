//! Data over real connections, from workers of all kinds.

use std::slice::from_ref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_common::config::{DataConfig, read_toml};
use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::identity::Authority;
use longhaul_proto::transport::bulk::{PullRequest, ReceiveLimits};
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::super::request::{Request, meta};
use super::super::tests::{Worker, authority, endpoint, member};
use super::*;
use crate::data::{BlockName, Catalogue, DataError, Dataset, Stock, Supply, Tokenizer, Work};

/// Nothing that is awaited here takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a text of some blocks, prepared, and one for what others fetch.
struct Text {
    folder: TempDir,
    data: Arc<Dataset>,
    lending: Arc<Lending>,
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
        let lending = Arc::new(Lending::new(Arc::clone(&data), &Tokenizer::Bytes).unwrap());
        let name = DataName { data: data.data_hash(), catalogue: lending.catalogue_hash() };
        Self { folder, data, lending, name }
    }

    /// All blocks that there are.
    fn blocks(&self) -> Vec<BlockName> {
        let catalogue = Catalogue::from_bytes(&self.lending.catalogue).unwrap();
        let of_shard = |shard| (0..).map(move |block| BlockName { shard, block });
        let there = |shard| of_shard(shard).take_while(|name| self.lending.block(*name).is_some());
        catalogue.shard_hashes().flat_map(there).collect()
    }

    fn holders(&self, holders: &[Member], neighbours: &[Member]) -> DataHolders {
        DataHolders { name: Some(self.name), holders: holders.to_vec(), neighbours: neighbours.to_vec() }
    }
}

/// A worker that has all of it.
fn holder(authority: &(Authority, u64), number: u32, text: &Text) -> Worker {
    let worker = Worker::start(authority, number, ReceiveLimits::default());
    worker.network.lend(Arc::clone(&text.lending), text.name.data);
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
        let catalogue = Catalogue::from_bytes(&text.lending.catalogue).unwrap();
        let config = config(&text.folder);
        let stock = Stock::open(&config, &catalogue, &Tokenizer::Bytes, (cache.path(), None)).unwrap();
        let supply = worker.network.supplier(&stock);
        let data = Dataset::elsewhere(&config, &catalogue, &stock, &supply).unwrap();
        let data = Arc::new(data);
        let lending = Arc::new(Lending::new(Arc::clone(&data), &Tokenizer::Bytes).unwrap());
        worker.network.lend_fetched(lending, text.name);
        let supplier = worker.network.shelf.supplier.borrow().clone().unwrap();
        Self { worker, supplier, data, _cache: cache }
    }

    fn told(&self, holders: DataHolders) {
        self.worker.network.note_data_holders(&holders);
    }

    /// Fetches all of it, several at a time.
    async fn fetch(&self, text: &Text) {
        let blocks = text.blocks();
        assert!(blocks.len() > 3);
        blocks.iter().for_each(|name| self.supplier.expect(*name));
        for name in blocks {
            timeout(PATIENCE, self.supplier.until_here(name)).await.unwrap().unwrap();
        }
        let before = self.fetched();
        let (data, whole) = (Arc::clone(&self.data), Arc::clone(&text.data));
        let same =
            spawn_blocking(move || data.peek(0, u64::MAX).unwrap() == whole.peek(0, u64::MAX).unwrap());
        assert!(same.await.unwrap(), "what was fetched is something else");
        assert_eq!(self.fetched(), before, "what is here was fetched again");
    }

    /// Bytes that came from other sites, and from the own one.
    fn fetched(&self) -> (u64, u64) {
        let counts = self.worker.network.progress.heartbeat();
        (counts.data_wan_bytes, counts.data_lan_bytes)
    }
}

/// What a worker does that is asked for blocks and is not as it should be.
#[derive(Clone, Copy, Debug)]
enum Bad {
    /// A bit is another one.
    Flips,
    /// The block is too short.
    Short,
    /// Frames as long as any, without end.
    Endless,
    /// It has another shard's head.
    OtherHead,
    /// Nothing is to be had.
    Refuses,
    /// The connection ends within an answer.
    HangsUp,
    /// Its frames are of another kind.
    OtherKind,
}

/// Such a worker, and how often it was asked.
fn bad_holder(
    authority: &(Authority, u64),
    number: u32,
    text: &Text,
    bad: Bad,
) -> (Member, Arc<AtomicUsize>) {
    let (_, endpoint) = endpoint(authority, number);
    let (member, lending) = (member(number, endpoint.local_addr().unwrap()), Arc::clone(&text.lending));
    let asked = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let Ok(connection) = incoming.await else { continue };
            let (lending, counting) = (Arc::clone(&lending), Arc::clone(&counting));
            tokio::spawn(async move {
                while let Ok((send, receive)) = connection.accept_bi().await {
                    let pull = PullRequest::read(send, receive, &ReceiveLimits::default()).await.unwrap();
                    counting.fetch_add(1, Ordering::Relaxed);
                    if matches!(bad, Bad::HangsUp) {
                        connection.close(0u32.into(), b"gone");
                    }
                    // Who was refused what it sent hangs up on it.
                    let _ = answer_badly(pull, number, &lending, bad).await;
                }
            });
        }
    });
    (member, asked)
}

async fn answer_badly(pull: PullRequest, number: u32, lending: &Lending, bad: Bad) -> anyhow::Result<()> {
    let PullRequest { request, mut reply } = pull;
    let Ok(Request::Block { shard, block, .. }) = postcard::from_bytes(&request) else {
        panic!("{request:?}")
    };
    let mut lent = lending.block(BlockName { shard, block }).unwrap();
    let kind = if matches!(bad, Bad::OtherKind) { FrameKind::Result } else { FrameKind::State };
    let frame = |index, body: Vec<u8>| {
        Frame::new(meta(kind, WorkerId(number), Round(0), FragmentId(index), 0), body.into()).unwrap()
    };
    match bad {
        Bad::Refuses => {
            reply.refuse();
            return Ok(());
        }
        Bad::Flips => lent.bytes[1000] ^= 4,
        Bad::Short => lent.bytes.truncate(1000),
        Bad::OtherHead => lent.head[40] ^= 1,
        Bad::Endless => {
            reply.send(&frame(0, lent.head)).await?;
            loop {
                reply.send(&frame(1, vec![0; 16 << 20])).await?;
            }
        }
        Bad::HangsUp | Bad::OtherKind => {}
    }
    reply.send(&frame(0, lent.head)).await?;
    reply.send(&frame(1, lent.bytes)).await?;
    Ok(reply.finish().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_sends_something_else_is_found_out_and_others_give_what_was_asked_for() {
    let (authority, text) = (authority(), Text::new());
    let honest = holder(&authority, 9, &text);
    let all =
        [Bad::Flips, Bad::Short, Bad::Endless, Bad::OtherHead, Bad::Refuses, Bad::HangsUp, Bad::OtherKind];
    let bad: Vec<_> =
        (10..).zip(all).map(|(number, bad)| bad_holder(&authority, number, &text, bad)).collect();
    let remote = Remote::new(&authority, 1, SiteId(1), &text);
    let mut members: Vec<Member> = bad.iter().map(|(member, _)| member.clone()).collect();
    members.push(honest.member.clone());
    remote.told(text.holders(&members, from_ref(&remote.worker.member)));
    remote.fetch(&text).await;
    for ((_, asked), bad) in bad.iter().zip(all) {
        let asked = asked.load(Ordering::Relaxed);
        assert!(asked > 0, "{bad:?} was not asked");
        // Some blocks are asked for at a time.
        assert!(matches!(bad, Bad::Refuses) || asked <= 16, "{bad:?} was asked {asked} times");
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
        .map(|name| text.lending.block(*name).map_or(0, |lent| (lent.head.len() + lent.bytes.len()) as u64))
        .sum();
    let ((wan_one, lan_one), (wan_two, lan_two)) = (one.fetched(), two.fetched());
    assert_eq!(wan_one + wan_two, whole, "{wan_one} and {wan_two} over the long way");
    assert_eq!((wan_one + lan_one, wan_two + lan_two), (whole, whole));
    assert!(wan_one > 0 && wan_two > 0, "one of them had it all to fetch");
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
    assert_eq!(two.fetched().0, 0, "what the site has came over the long way");
    // The holder of site 9 is a neighbour of this one.
    let near = Remote::new(&authority, 3, SiteId(9), &text);
    let (far_ones, neighbours) =
        ([far.member.clone(), one.worker.member.clone()], [near.worker.member.clone()]);
    near.told(text.holders(&far_ones, &neighbours));
    near.fetch(&text).await;
    assert_eq!(near.fetched().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_who_have_it_are_gone_it_waits_and_goes_on_with_another_one() {
    let (authority, text) = (authority(), Text::new());
    let first = holder(&authority, 9, &text);
    let remote = Remote::new(&authority, 1, SiteId(1), &text);
    let own = [remote.worker.member.clone()];
    remote.told(text.holders(from_ref(&first.member), &own));
    let blocks = text.blocks();
    timeout(PATIENCE, remote.supplier.until_here(blocks[0])).await.unwrap().unwrap();
    // It hangs up on everybody, and answers nobody.
    first.network.endpoint.close(0u32.into(), b"dead");
    first.network.stop();
    let waiting = Arc::clone(&remote.supplier);
    let awaited = blocks[1];
    let mut waiting = tokio::spawn(async move { waiting.until_here(awaited).await });
    remote.told(text.holders(&[], &own));
    assert!(is_pending(&mut waiting).await);
    let second = holder(&authority, 8, &text);
    remote.told(text.holders(from_ref(&second.member), &own));
    timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    // And at the end of a session nobody waits any more.
    remote.told(text.holders(&[], &own));
    let (waiting, awaited) = (Arc::clone(&remote.supplier), blocks[2]);
    let mut waiting = tokio::spawn(async move { waiting.until_here(awaited).await });
    assert!(is_pending(&mut waiting).await);
    remote.worker.network.stop();
    let ended = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(matches!(ended, Err(DataError::Stopped)), "{ended:?}");
    // What the run's data does not have, nobody is asked for.
    let unknown = BlockName { shard: [1; 32], block: 0 };
    assert!(matches!(remote.supplier.until_here(unknown).await, Err(DataError::NotKept { .. })));
}

async fn is_pending<T>(task: &mut tokio::task::JoinHandle<T>) -> bool {
    tokio::select! {
        biased;
        _ = task => false,
        () = std::future::ready(()) => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_nothing_waits_for_somebody_who_says_what_there_is_and_believes_only_what_the_run_has() {
    let (authority, text) = (authority(), Text::new());
    let worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let searching = Arc::clone(&worker.network);
    let found = spawn_blocking(move || searching.find_data());
    let mut at = worker.network.data_at();
    timeout(PATIENCE, at.wait_for(|at| *at == Some(DataAt::Nowhere))).await.unwrap().unwrap();
    // Somebody has other data than the coordinator names.
    let other_name = DataName { catalogue: [5; 32], ..text.name };
    let honest = holder(&authority, 9, &text);
    let mut holders = text.holders(from_ref(&honest.member), &[]);
    holders.name = Some(other_name);
    worker.network.note_data_holders(&holders);
    worker.network.note_data_holders(&text.holders(from_ref(&honest.member), &[]));
    let found = timeout(PATIENCE, found).await.unwrap().unwrap().unwrap();
    assert_eq!((found.name, found.tokenizer), (text.name, None));
    assert_eq!(found.catalogue.to_bytes().unwrap(), *text.lending.catalogue);
    // A session that ends is not waited for.
    let (searching, network) = (Arc::clone(&worker.network), Arc::clone(&worker.network));
    worker.network.note_data_holders(&DataHolders::default());
    let found = spawn_blocking(move || searching.find_data());
    network.stop();
    assert!(timeout(PATIENCE, found).await.unwrap().unwrap().is_err());
}
