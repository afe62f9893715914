//! Serving this worker's data to others.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Round, WorkerId};
use longhaul_data::{BlockName, BlockProvider, LentBlock};
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::transport::bulk::PullReply;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval_at, timeout};

use super::super::Network;
use super::super::request::{FILE_FRAME_BYTES, meta};
use super::Lent;
use super::fetch::BLOCK_MAX;
use super::places::Taken;
use super::route::{PeerLocation, is_keeper};

/// Interval of signs to a worker that waits for a block in flight: several within the timeout for a death.
const SIGN_EVERY: Duration = Duration::from_secs(5);

/// A block to serve, and its room in memory.
type Given = (LentBlock, Taken);

/// Answers with the catalogue, in frames of [`FILE_FRAME_BYTES`].
pub async fn send_catalogue(network: &Network, reply: PullReply) -> Result<()> {
    let lent = lent(network);
    send_long(network, reply, lent.map(|lent| Arc::clone(&lent.provider.catalogue))).await
}

/// Answers with the `tokenizer.json`, likewise.
pub async fn send_tokenizer(network: &Network, reply: PullReply) -> Result<()> {
    let lent = lent(network);
    send_long(network, reply, lent.and_then(|lent| lent.provider.tokenizer.clone())).await
}

/// Answers with bytes of any length, in frames of [`FILE_FRAME_BYTES`].
pub async fn send_long(network: &Network, mut reply: PullReply, bytes: Option<Arc<[u8]>>) -> Result<()> {
    let Some(bytes) = bytes else {
        reply.refuse();
        return Ok(());
    };
    for (part, index) in bytes.chunks(FILE_FRAME_BYTES).zip(0..) {
        send(&mut reply, &frame(network, index, Bytes::copy_from_slice(part))?).await?;
    }
    Ok(timeout(BLOCK_MAX, reply.finish()).await.context(TOO_SLOW)??)
}

/// Answers with the head of a block's shard, and the block: one frame each. A keeper fetches a missing block for a neighbour with `to_be_fetched`, and sends
/// empty frames meanwhile.
pub async fn send_block(
    network: &Arc<Network>,
    mut reply: PullReply,
    to: WorkerId,
    name: BlockName,
    to_be_fetched: bool,
) -> Result<()> {
    let mut finding = pin!(find(network, to, name, to_be_fetched));
    let mut signs = interval_at(Instant::now() + SIGN_EVERY, SIGN_EVERY);
    let found = loop {
        tokio::select! {
            found = &mut finding => break found,
            // A fetch may take a while: a requester that left frees its room.
            () = reply.unwanted() => return Ok(()),
            _ = signs.tick(), if to_be_fetched => send(&mut reply, &frame(network, 0, Bytes::new())?).await?,
        }
    };
    let Ok(Some((LentBlock { head, bytes }, _place))) = found else {
        reply.refuse();
        return found.map(|_| ());
    };
    send(&mut reply, &frame(network, 0, head.into())?).await?;
    send(&mut reply, &frame(network, 1, bytes.into())?).await?;
    // Sent data stays in memory until the peer has it.
    Ok(timeout(BLOCK_MAX, reply.finish()).await.context(TOO_SLOW)??)
}

/// Error for a peer that does not read.
const TOO_SLOW: &str = "the peer does not read the requested data";

/// Sends a frame, with a timeout for peers that do not read.
async fn send(reply: &mut PullReply, frame: &Frame) -> Result<()> {
    Ok(timeout(BLOCK_MAX, reply.send(frame)).await.context(TOO_SLOW)??)
}

async fn find(
    network: &Arc<Network>,
    to: WorkerId,
    name: BlockName,
    to_be_fetched: bool,
) -> Result<Option<Given>> {
    let Some(Lent { provider, supplier }) = lent(network) else { return Ok(None) };
    let here = read(network, &provider, to, name).await?;
    let Some(supplier) = supplier.filter(|_| here.is_none()) else { return Ok(here) };
    // Only neighbours make this worker fetch or wait; others get present blocks.
    let is_neighbour = network.peer_data.holders.borrow().neighbours.iter().any(|member| member.worker == to);
    let is_relied_on = to_be_fetched && is_own_to_fetch(network, name);
    if is_neighbour && supplier.is_brought_for_another(name, is_relied_on).await {
        return read(network, &provider, to, name).await;
    }
    Ok(None)
}

/// Reports whether this worker is the keeper.
fn is_own_to_fetch(network: &Network, name: BlockName) -> bool {
    let place = PeerLocation { worker: network.own.worker, site: network.own.site };
    is_keeper(&network.peer_data.holders.borrow(), place, name)
}

/// `None`: it is not here.
async fn read(
    network: &Network,
    provider: &Arc<BlockProvider>,
    to: WorkerId,
    name: BlockName,
) -> Result<Option<Given>> {
    let peer_data = &network.peer_data;
    if peer_data.broken.has(&name.shard, Instant::now()) {
        return Ok(None);
    }
    let place = peer_data.places.take(to).await.context(NOTHING)?;
    let turn = Arc::clone(&peer_data.turns).acquire_owned().await.context(NOTHING)?;
    let provider = Arc::clone(provider);
    let reading = spawn_blocking(move || {
        // The requester may leave before it is read.
        let _turn = turn;
        provider.block(name)
    });
    match reading.await.context("read a block for another worker")? {
        Ok(found) => Ok(found.map(|found| (found, place))),
        Err(error) => {
            peer_data.broken.note(name.shard, Instant::now());
            Err(error).context("read a block for another worker")
        }
    }
}

const NOTHING: &str = "this worker no longer lends data";

fn lent(network: &Network) -> Option<Lent> {
    network.peer_data.lent.borrow().clone()
}

fn frame(network: &Network, index: u32, body: Bytes) -> Result<Frame> {
    let sender: WorkerId = network.own.worker;
    Ok(Frame::new(meta(FrameKind::State, sender, Round(0), FragmentId(index), 0), body)?)
}
