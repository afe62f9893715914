//! Requests to holders of the run's data: the catalogue, the tokenizer, and blocks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use longhaul_common::back_off::BackOff;
use longhaul_common::plan::Member;
use longhaul_common::units::Bytes as Size;
use longhaul_data::{BlockName, BlockProvider, BlockStore, Catalogue, NotTheBlock, Supply};
use longhaul_proto::control::message::{DataAt, DataName};
use longhaul_proto::frame::FrameKind;
use longhaul_proto::transport::bulk::{PullResponse, ReceiveLimits, pull};
use quinn::Connection;
use tokio::time::{Instant, sleep, timeout};

use super::super::Network;
use super::super::request::{FILE_FRAME_BYTES, Request};
use super::donors::Donors;
use super::supplier::Supplier;
use super::{Lent, PeerData};

/// Most bytes of a catalogue or a `tokenizer.json`: six million shards, of a hundred terabytes.
const LONG_BYTES_MAX: usize = 256 << 20;
/// Longest time for a whole one. That of ten terabytes, 25 MiB, needs 350 kbit/s.
const LONG_MAX: Duration = Duration::from_secs(600);
/// Longest wait for the start of an answer.
pub(in super::super) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Longest silence of a worker that fetches the block first: it sends a sign every five seconds.
const SIGN_MAX: Duration = Duration::from_secs(20);
/// Longest time for that: 24 blocks one after the other at 700 kbit/s.
const FETCHING_MAX: Duration = Duration::from_secs(300);
/// Longest time for a block: 70 kbit/s, or 600 for eight at a time.
pub(in super::super) const BLOCK_MAX: Duration = Duration::from_secs(120);
/// Interval of log lines about waiting.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// The worker follows the request, but takes long.
#[derive(Debug, thiserror::Error)]
#[error("it did not get the block within {FETCHING_MAX:?}")]
pub struct StillFetching;

/// The run's data, as learnt by a worker without it.
#[derive(Debug)]
pub struct FoundData {
    /// Name of the data.
    pub name: DataName,
    /// Content.
    pub catalogue: Catalogue,
    /// `tokenizer.json`; `None`: tokens are bytes.
    pub tokenizer: Option<Vec<u8>>,
}

/// A block as received; the sender is untrusted.
#[derive(Debug)]
pub struct Fetched {
    /// Header and table of its shard.
    pub head: Bytes,
    /// Items.
    pub bytes: Bytes,
}

impl Network {
    /// Waits for a holder of the run's data, and fetches its description; data of the `refused` names is useless. Blocks the thread.
    ///
    /// # Errors
    /// The session has ended.
    pub fn find_data(&self, refused: &[DataName]) -> Result<FoundData> {
        self.peer_data.at.send_replace(Some(DataAt::Nowhere));
        let mut stopped = self.stopped.subscribe();
        self.runtime.block_on(async {
            tokio::select! {
                found = self.search(refused) => Ok(found),
                _ = stopped.wait_for(|stopped| *stopped) => bail!("the session is over"),
            }
        })
    }

    /// Creates the fetcher of that data's blocks into this stock.
    pub fn supplier(self: &Arc<Self>, stock: &Arc<BlockStore>) -> Arc<dyn Supply> {
        let supplier = Supplier::new(self, Arc::clone(stock));
        self.peer_data.supplier.send_replace(Some(Arc::clone(&supplier)));
        supplier
    }

    /// Lends fetched blocks of this data within the site, and accepts requests for missing ones.
    pub fn lend_fetched(&self, provider: Arc<BlockProvider>, name: DataName) {
        let PeerData { supplier, lent, at, .. } = &self.peer_data;
        let supplier = supplier.borrow().clone();
        lent.send_replace(Some(Lent { provider, supplier }));
        at.send_replace(Some(DataAt::Fetched(name)));
    }

    async fn search(&self, refused: &[DataName]) -> FoundData {
        let (mut holders, donors, mut back_off) =
            (self.peer_data.holders.subscribe(), Donors::default(), BackOff::default());
        let mut said: Option<(String, Instant)> = None;
        loop {
            let known = holders.borrow_and_update().clone();
            let name = known.name.filter(|name| !refused.contains(name));
            let reason = match (name, known.name) {
                (Some(name), _) => match self.ask_holders(&donors, name, &known.holders).await {
                    Ok(found) => return found,
                    Err(reasons) => reasons.join("; "),
                },
                (None, Some(_)) => "the data of the run's workers is not this run's".to_owned(),
                (None, None) => "no worker with the run's data has joined yet".to_owned(),
            };
            let now = Instant::now();
            if said.as_ref().is_none_or(|(before, at)| *before != reason || now >= *at + REMIND_EVERY) {
                tracing::info!(reason, "waiting for a worker with the run's data");
                said = Some((reason, now));
            }
            let pause = if name.is_none() { REMIND_EVERY } else { back_off.next_pause() };
            tokio::select! {
                _ = holders.changed() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Asks one after the other, failed and wrong ones last.
    async fn ask_holders(
        &self,
        donors: &Donors,
        name: DataName,
        holders: &[Member],
    ) -> Result<FoundData, Vec<String>> {
        let (mut failures, now) = (Vec::new(), Instant::now());
        let mut others: Vec<&Member> =
            holders.iter().filter(|member| member.worker != self.own.worker).collect();
        others.sort_by_key(|member| donors.is_passed_over(member.worker, now));
        for member in others {
            let holder = member.worker;
            let answer = tokio::select! {
                answer = self.ask_what_there_is(donors, name, member) => answer,
                () = self.peer_data.until_left(holder) => {
                    failures.push(format!("{holder} has left"));
                    continue;
                }
            };
            match answer {
                Ok(found) => {
                    let (shards, items) = found.catalogue.size();
                    tracing::info!(%holder, shards, items, "description of the run's data received from another worker");
                    return Ok(found);
                }
                Err(error) => {
                    if error.is::<NotTheData>() {
                        donors.note_lied(holder, Instant::now());
                    } else {
                        donors.note_failed(holder, Instant::now());
                    }
                    failures.push(format!("{holder}: {error:#}"));
                }
            }
        }
        if failures.is_empty() {
            failures.push("no worker with the run's data is here".to_owned());
        }
        Err(failures)
    }

    async fn ask_what_there_is(&self, donors: &Donors, name: DataName, member: &Member) -> Result<FoundData> {
        let connection = donors.connection(self, member).await?;
        let talk = async {
            let bytes = fetch_long(&connection, Request::Catalogue).await.context("ask for the catalogue")?;
            ensure!(blake3::hash(&bytes) == name.catalogue, NotTheData("catalogue"));
            let catalogue = Catalogue::from_bytes(&bytes)?;
            let Some(hash) = catalogue.tokenizer else {
                return Ok(FoundData { name, catalogue, tokenizer: None });
            };
            let json = fetch_long(&connection, Request::Tokenizer).await.context("ask for the tokenizer")?;
            ensure!(blake3::hash(&json) == hash, NotTheData("tokenizer"));
            Ok(FoundData { name, catalogue, tokenizer: Some(json) })
        };
        self.while_of_run(member.worker, &connection, talk).await
    }
}

/// A holder sent other data.
#[derive(Debug, thiserror::Error)]
#[error("its {0} differs from that of most of the run's workers")]
struct NotTheData(&'static str);

/// Fetches a block, with the head of its shard. The caller must check its hashes.
pub async fn fetch_block(
    connection: &Connection,
    stock: &BlockStore,
    name: BlockName,
    to_be_fetched: bool,
) -> Result<Fetched> {
    let BlockName { shard, block } = name;
    let request = Request::Block { shard, block, to_be_fetched };
    let request = postcard::to_stdvec(&request).context("write a request")?;
    let stall_deadline = if to_be_fetched { SIGN_MAX } else { ANSWER_MAX };
    let limits = ReceiveLimits { stall_deadline, frame_deadline: BLOCK_MAX, ..ReceiveLimits::default() };
    let mut response = pull(connection, &request, limits).await?;
    let head = match to_be_fetched {
        true => timeout(FETCHING_MAX, after_signs(&mut response)).await.map_err(|_| StillFetching)??,
        false => next_part(&mut response).await?.context("the answer is empty")?,
    };
    if stock.head_bytes(&shard) != Some(head.len()) {
        return Err(NotTheBlock::Head.into());
    }
    let bytes = next_part(&mut response).await?.context("the block is missing")?;
    // Further frames are declined.
    Ok(Fetched { head, bytes })
}

/// Returns the first frame after the empty ones, which mean that the other worker is fetching.
async fn after_signs(response: &mut PullResponse) -> Result<Bytes> {
    loop {
        let part = next_part(response).await?.context("the answer is empty")?;
        if !part.is_empty() {
            return Ok(part);
        }
    }
}

/// Returns a whole answer of bounded length.
pub(in super::super) async fn fetch_long(connection: &Connection, request: Request) -> Result<Vec<u8>> {
    let request = postcard::to_stdvec(&request).context("write a request")?;
    let limits =
        ReceiveLimits { stall_deadline: ANSWER_MAX, frame_deadline: BLOCK_MAX, ..ReceiveLimits::default() };
    let all = async {
        let (mut response, mut bytes) = (pull(connection, &request, limits).await?, Vec::new());
        while let Some(part) = next_part(&mut response).await? {
            let most = Size(LONG_BYTES_MAX as u64);
            ensure!(
                bytes.len().is_multiple_of(FILE_FRAME_BYTES) && !part.is_empty(),
                "its pieces are too small"
            );
            ensure!(part.len() <= FILE_FRAME_BYTES, "its pieces are too large");
            ensure!(bytes.len() + part.len() <= LONG_BYTES_MAX, "it is longer than {most}");
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    };
    timeout(LONG_MAX, all).await.with_context(|| format!("it did not arrive within {LONG_MAX:?}"))?
}

async fn next_part(response: &mut PullResponse) -> Result<Option<Bytes>> {
    let Some(frame) = response.next().await? else { return Ok(None) };
    ensure!(frame.meta().kind == FrameKind::State, "the answer is of another kind");
    Ok(Some(frame.into_parts().1))
}
