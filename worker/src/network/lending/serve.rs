//! What others are given of this worker's data.

use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Round, WorkerId};
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::transport::bulk::PullReply;
use tokio::task::spawn_blocking;

use super::super::Network;
use super::super::request::{FILE_FRAME_BYTES, meta};
use super::Lent;
use super::route::{Place, is_keeper};
use crate::data::{BlockName, Lending, LentBlock};

/// Answers with the catalogue, in frames of [`FILE_FRAME_BYTES`].
pub async fn send_catalogue(network: &Network, reply: PullReply) -> Result<()> {
    let lent = lent(network);
    send_long(network, reply, lent.map(|lent| Arc::clone(&lent.lending.catalogue))).await
}

/// Answers with the `tokenizer.json`, likewise.
pub async fn send_tokenizer(network: &Network, reply: PullReply) -> Result<()> {
    let lent = lent(network);
    send_long(network, reply, lent.and_then(|lent| lent.lending.tokenizer.clone())).await
}

async fn send_long(network: &Network, mut reply: PullReply, bytes: Option<Arc<[u8]>>) -> Result<()> {
    let Some(bytes) = bytes else {
        reply.refuse();
        return Ok(());
    };
    for (part, index) in bytes.chunks(FILE_FRAME_BYTES).zip(0..) {
        reply.send(&frame(network, index, Bytes::copy_from_slice(part))?).await?;
    }
    Ok(reply.finish().await?)
}

/// Answers with the head of a block's shard, and the block: one frame each. Where it is not here, and is `to_be_fetched`, it is fetched first, if this worker is its keeper.
pub async fn send_block(
    network: &Arc<Network>,
    mut reply: PullReply,
    name: BlockName,
    to_be_fetched: bool,
) -> Result<()> {
    let found = tokio::select! {
        found = find(network, name, to_be_fetched) => found,
        // What is fetched may take a while: the place of who does not wait for it is for others.
        () = reply.unwanted() => return Ok(()),
    };
    let Ok(Some(LentBlock { head, bytes })) = found else {
        reply.refuse();
        return found.map(|_| ());
    };
    reply.send(&frame(network, 0, head.into())?).await?;
    reply.send(&frame(network, 1, bytes.into())?).await?;
    Ok(reply.finish().await?)
}

async fn find(network: &Arc<Network>, name: BlockName, to_be_fetched: bool) -> Result<Option<LentBlock>> {
    let Some(Lent { lending, supplier }) = lent(network) else { return Ok(None) };
    let here = read(network, &lending, name).await?;
    let Some(supplier) = supplier.filter(|_| here.is_none()) else { return Ok(here) };
    // What is on its way anyway is waited for, and no other way is asked for twice.
    if !(supplier.is_fetching_from_afar(name) || to_be_fetched && may_fetch(network, name)) {
        return Ok(None);
    }
    supplier.until_here(name).await.context("fetch a block for another worker")?;
    read(network, &lending, name).await
}

/// Whether this worker is the keeper: so no two wait for each other.
fn may_fetch(network: &Network, name: BlockName) -> bool {
    let place = Place { worker: network.worker, site: network.site };
    is_keeper(&network.shelf.holders.borrow(), place, name)
}

async fn read(network: &Network, lending: &Arc<Lending>, name: BlockName) -> Result<Option<LentBlock>> {
    let _turn = network.shelf.turns.acquire().await.context("this worker lends nothing any more")?;
    let lending = Arc::clone(lending);
    spawn_blocking(move || lending.block(name)).await.context("read a block for another worker")
}

fn lent(network: &Network) -> Option<Lent> {
    network.shelf.lent.borrow().clone()
}

fn frame(network: &Network, index: u32, body: Bytes) -> Result<Frame> {
    let sender: WorkerId = network.worker;
    Ok(Frame::new(meta(FrameKind::State, sender, Round(0), FragmentId(index), 0), body)?)
}
