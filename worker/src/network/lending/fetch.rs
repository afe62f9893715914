//! What is asked of workers that have the run's data: the catalogue, the tokenizer, and blocks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use longhaul_common::plan::Member;
use longhaul_common::units::Bytes as Size;
use longhaul_proto::control::message::{DataAt, DataName};
use longhaul_proto::frame::FrameKind;
use longhaul_proto::transport::bulk::{PullResponse, ReceiveLimits, pull};
use quinn::Connection;
use tokio::time::{Instant, sleep};

use super::super::Network;
use super::super::request::Request;
use super::donors::Donors;
use super::supplier::Supplier;
use super::{Lent, Shelf};
use crate::back_off::BackOff;
use crate::data::{BlockName, Catalogue, Lending, NotTheBlock, Stock, Supply};

/// Bytes of a catalogue or of a `tokenizer.json`, at most: six million shards, of a hundred terabytes.
const LONG_BYTES_MAX: usize = 256 << 20;
/// How long a worker may take to begin an answer,
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// and where it has to fetch what it is asked for.
const FETCHING_MAX: Duration = Duration::from_secs(60);
/// How long a block may take: 70 kbit/s.
const BLOCK_MAX: Duration = Duration::from_secs(120);
/// How often it is said what is waited for.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// What a worker without data is told of the run's.
#[derive(Debug)]
pub struct FoundData {
    /// Which data that is.
    pub name: DataName,
    /// What it consists of.
    pub catalogue: Catalogue,
    /// The `tokenizer.json`; none: tokens are bytes.
    pub tokenizer: Option<Vec<u8>>,
}

/// A block as it came: who sent it may not be trusted.
#[derive(Debug)]
pub struct Fetched {
    /// Header and table of its shard.
    pub head: Bytes,
    /// The tokens.
    pub bytes: Bytes,
}

impl Network {
    /// Waits until somebody has the run's data, and asks what it consists of. Not for a thread that others wait for.
    ///
    /// # Errors
    /// The session is over, or the data is none of this release.
    pub fn find_data(&self) -> Result<FoundData> {
        self.shelf.at.send_replace(Some(DataAt::Nowhere));
        let mut stopped = self.stopped.subscribe();
        self.runtime.block_on(async {
            tokio::select! {
                found = self.search() => found,
                _ = stopped.wait_for(|stopped| *stopped) => bail!("the session is over"),
            }
        })
    }

    /// Who fetches blocks for that data into this stock.
    pub fn supplier(self: &Arc<Self>, stock: &Arc<Stock>) -> Arc<dyn Supply> {
        let supplier = Supplier::new(self, Arc::clone(stock));
        self.shelf.supplier.send_replace(Some(Arc::clone(&supplier)));
        supplier
    }

    /// From now on others of the site may have what was fetched of this data, and ask for what is not here yet.
    pub fn lend_fetched(&self, lending: Arc<Lending>, name: DataName) {
        let Shelf { supplier, lent, at, .. } = &self.shelf;
        let supplier = supplier.borrow().clone();
        lent.send_replace(Some(Lent { lending, supplier }));
        at.send_replace(Some(DataAt::Fetched(name)));
    }

    async fn search(&self) -> Result<FoundData> {
        let (mut holders, donors, mut back_off) =
            (self.shelf.holders.subscribe(), Donors::default(), BackOff::default());
        let mut said: Option<(String, Instant)> = None;
        loop {
            let known = holders.borrow_and_update().clone();
            let reason = match known.name {
                None => "nobody who has the run's data has joined yet".to_owned(),
                Some(name) => match self.ask_holders(&donors, name, &known.holders).await {
                    Ok(found) => return Ok(found),
                    Err(reasons) => reasons.join("; "),
                },
            };
            let now = Instant::now();
            if said.as_ref().is_none_or(|(before, at)| *before != reason || now >= *at + REMIND_EVERY) {
                tracing::info!(reason, "waiting for a worker that has the run's data");
                said = Some((reason, now));
            }
            let pause = if known.name.is_none() { REMIND_EVERY } else { back_off.next_pause() };
            tokio::select! {
                _ = holders.changed() => {}
                () = sleep(pause) => {}
            }
        }
    }

    async fn ask_holders(
        &self,
        donors: &Donors,
        name: DataName,
        holders: &[Member],
    ) -> Result<FoundData, Vec<String>> {
        let mut failures = Vec::new();
        for member in holders.iter().filter(|member| member.worker != self.worker) {
            match self.ask_what_there_is(donors, name, member).await {
                Ok(found) => {
                    let (shards, tokens) = found.catalogue.size();
                    tracing::info!(holder = %member.worker, shards, tokens, "another worker has said what the run's data consists of");
                    return Ok(found);
                }
                Err(error) => failures.push(format!("{}: {error:#}", member.worker)),
            }
        }
        if failures.is_empty() {
            failures.push("nobody who has the run's data is here".to_owned());
        }
        Err(failures)
    }

    async fn ask_what_there_is(&self, donors: &Donors, name: DataName, member: &Member) -> Result<FoundData> {
        let connection = donors.connection(self, member).await?;
        let talk = async {
            let bytes = fetch_long(&connection, Request::Catalogue).await.context("ask for the catalogue")?;
            ensure!(
                blake3::hash(&bytes) == name.catalogue,
                "its catalogue is not the one that most of the run's workers have"
            );
            let catalogue = Catalogue::from_bytes(&bytes)?;
            let Some(hash) = catalogue.tokenizer else {
                return Ok(FoundData { name, catalogue, tokenizer: None });
            };
            let json = fetch_long(&connection, Request::Tokenizer).await.context("ask for the tokenizer")?;
            ensure!(blake3::hash(&json) == hash, "its tokenizer is not the one of the catalogue");
            Ok(FoundData { name, catalogue, tokenizer: Some(json) })
        };
        self.while_of_run(member.worker, &connection, talk).await
    }
}

/// A block, with the head of its shard. Its hashes are the caller's to check.
pub async fn fetch_block(
    connection: &Connection,
    stock: &Stock,
    name: BlockName,
    to_be_fetched: bool,
) -> Result<Fetched> {
    let BlockName { shard, block } = name;
    let request = Request::Block { shard, block, to_be_fetched };
    let request = postcard::to_stdvec(&request).context("write a request")?;
    let stall_deadline = if to_be_fetched { FETCHING_MAX } else { ANSWER_MAX };
    let limits = ReceiveLimits { stall_deadline, frame_deadline: BLOCK_MAX, ..ReceiveLimits::default() };
    let mut response = pull(connection, &request, limits).await?;
    let head = next_part(&mut response).await?.context("the answer is empty")?;
    if stock.head_bytes(&shard) != Some(head.len()) {
        return Err(NotTheBlock::Head.into());
    }
    let bytes = next_part(&mut response).await?.context("the block is missing")?;
    // What else it would send it is told to keep.
    Ok(Fetched { head, bytes })
}

/// Everything that answers a request, as far as it may be.
async fn fetch_long(connection: &Connection, request: Request) -> Result<Vec<u8>> {
    let request = postcard::to_stdvec(&request).context("write a request")?;
    let limits =
        ReceiveLimits { stall_deadline: ANSWER_MAX, frame_deadline: BLOCK_MAX, ..ReceiveLimits::default() };
    let mut response = pull(connection, &request, limits).await?;
    let mut bytes = Vec::new();
    while let Some(part) = next_part(&mut response).await? {
        let most = Size(LONG_BYTES_MAX as u64);
        ensure!(bytes.len() + part.len() <= LONG_BYTES_MAX, "it is longer than {most}");
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

async fn next_part(response: &mut PullResponse) -> Result<Option<Bytes>> {
    let Some(frame) = response.next().await? else { return Ok(None) };
    ensure!(frame.meta().kind == FrameKind::State, "the answer is of another kind");
    Ok(Some(frame.into_parts().1))
}
