//! Frames and requests from peers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::id::{Round, SiteId, WorkerId};
use longhaul_data::BlockName;
use longhaul_member::SyncEvent;
use longhaul_member::activity::Activity;
use longhaul_proto::control::CloseCode;
use longhaul_proto::control::message::Hash;
use longhaul_proto::frame::{FRAME_HEADER_BYTES, FrameKind};
use longhaul_proto::identity::peer_worker;
use longhaul_proto::round::{Frame, FrameHeader};
use longhaul_proto::transport::bulk::{BulkReceiver, PullReply, PullRequest, ReceiveLimits, ReceivedFrame};
use longhaul_proto::transport::{Nudging, Strangers};
use quinn::{Connection, ConnectionError, Incoming};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use super::Network;
use super::base_model::{send_model_file, send_model_files};
use super::copies;
use super::peer_data::{send_block, send_catalogue, send_tokenizer};
use super::request::{
    Manifest, Request, answer_sign, manifest_of, send_manifest, send_mask_secret, send_piece, send_probe,
    send_result,
};
use super::revoked::hang_up;
use super::stage_inbox::About;

/// Parallel connections of peers: a run of hundreds of workers, with room for reconnections.
const CONNECTIONS_MAX: usize = 1024;
/// Parallel handshakes, at most a quarter from one address.
const HANDSHAKES_MAX: usize = 256;
/// Longest handshake: some round trips of the longest links.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Parallel requests on one connection.
const REQUESTS_MAX: usize = 512;

/// Accepts peers until the network is stopped.
pub(super) async fn accept(network: Arc<Network>, limits: ReceiveLimits) {
    let (receiver, frames) = BulkReceiver::new(limits, |_| false);
    network.spawn(pass_on(Arc::clone(&network), frames));
    let (connections, strangers) =
        (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Strangers::new(HANDSHAKES_MAX));
    let mut stopped = network.stopped.subscribe();
    loop {
        let incoming = tokio::select! {
            incoming = network.endpoint.accept() => incoming,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        let Some(incoming) = incoming else { return };
        let (served_by, receiver) = (Arc::clone(&network), receiver.clone());
        let (connections, strangers) = (Arc::clone(&connections), strangers.clone());
        network.spawn(async move {
            if let Err(error) = serve(&served_by, receiver, incoming, &strangers, &connections).await {
                tracing::debug!(reason = format!("{error:#}"), "a peer was rejected");
            }
        });
    }
}

/// Serves one connection to its end. The handshake has verified the peer's certificate. A frame must name its own sender; the round protocol checks its
/// membership.
async fn serve(
    network: &Arc<Network>,
    receiver: BulkReceiver,
    incoming: Incoming,
    strangers: &Strangers,
    connections: &Semaphore,
) -> Result<()> {
    let handshake = strangers.shake_hands(incoming, Instant::now() + HANDSHAKE_MAX);
    let (connection, place) = handshake.await.context("shake hands")?;
    let worker = peer_worker(&connection, network.own.run).context("read the peer's certificate")?;
    drop(place);
    let Ok(_connected) = connections.try_acquire() else {
        CloseCode::Full.close(&connection, "too many connections of workers");
        anyhow::bail!("{CONNECTIONS_MAX} connections of workers are open");
    };
    let admitting = Arc::clone(network);
    // Before any read: a certificate is valid for a day, and its worker may have been removed.
    if network.is_revoked(worker) {
        hang_up(&connection);
        anyhow::bail!("{worker} was taken out of the run");
    }
    let receiver = receiver.admitting(move |header| {
        let meta = &header.meta;
        let mail = &admitting.stage_inbox;
        // The round protocol checks all other kinds.
        let is_awaited = meta.kind != FrameKind::Stage
            || About::of_meta(meta)
                .is_some_and(|about| mail.admits(meta.generation, worker, about, header.body_len as usize));
        meta.sender == worker && is_awaited
    });
    let _nudging = Nudging::of(&connection);
    tokio::select! {
        reason = receiver.serve(&connection) => tracing::debug!(peer = %worker, %reason, "a peer's connection ended"),
        () = answer_requests(network, &connection, worker) => {}
        () = network.until_revoked(worker) => {
            hang_up(&connection);
            tracing::info!(peer = %worker, "a worker was taken out of the run: its connection is closed");
        }
    }
    if !is_lost(&connection) {
        network.snapshots.release(connection.stable_id());
    }
    Ok(())
}

/// Reports whether the connection was lost, and its worker may return for the rest of a transfer; a peer that closed it will not.
fn is_lost(connection: &Connection) -> bool {
    let reason = connection.close_reason();
    matches!(reason, Some(ConnectionError::TimedOut | ConnectionError::Reset))
}

/// Passes complete frames to the synchroniser, or to a rank's device, in order.
async fn pass_on(network: Arc<Network>, mut frames: mpsc::Receiver<ReceivedFrame>) {
    while let Some(received) = frames.recv().await {
        let (frame, memory) = received.into_parts();
        let meta = frame.meta();
        network.progress.note(Activity::Receive {
            from: meta.sender,
            kind: meta.kind,
            round: meta.round,
            fragment: meta.fragment,
            bytes: frame.header().body_len,
        });
        if network.site_of(meta.sender).is_some_and(|site| site != network.own.site) {
            network.progress.received_over_wan((frame.body().len() + FRAME_HEADER_BYTES) as u64);
        }
        if meta.kind == FrameKind::Stage {
            if let Some(about) = About::of_meta(meta) {
                let body = frame.body().clone();
                network.stage_inbox.deliver(meta.generation, meta.sender, about, meta.part, body);
            }
            continue;
        }
        let Ok(kind) = meta.kind.try_into() else { continue };
        let header = FrameHeader {
            kind,
            generation: meta.generation,
            round: meta.round,
            fragment: meta.fragment,
            weight: meta.weight,
            site: SiteId(meta.part),
        };
        let hash = *frame.header().body_hash.as_bytes();
        let frame = Frame { from: meta.sender, header, body: frame.body().clone(), hash };
        if network.queue.send(SyncEvent::Frame { frame, memory: Box::new(memory) }).await.is_err() {
            return;
        }
    }
}

async fn answer_requests(network: &Arc<Network>, connection: &Connection, worker: WorkerId) {
    let turns = Arc::new(Semaphore::new(REQUESTS_MAX));
    while let Ok(turn) = Arc::clone(&turns).acquire_owned().await {
        let Ok((send, receive)) = connection.accept_bi().await else { return };
        let (answering, connection) = (Arc::clone(network), connection.clone());
        network.spawn(async move {
            let request = PullRequest::read(send, receive, &ReceiveLimits::default()).await;
            let answered = match request {
                Ok(request) => answer(&answering, &connection, worker, request).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = answered {
                tracing::debug!(peer = %worker, reason = format!("{error:#}"), "a request was not answered");
            }
            drop(turn);
        });
    }
}

async fn answer(
    network: &Arc<Network>,
    connection: &Connection,
    peer: WorkerId,
    pull: PullRequest,
) -> Result<()> {
    let PullRequest { request, reply } = pull;
    let Ok(request) = postcard::from_bytes::<Request>(&request) else {
        reply.refuse();
        anyhow::bail!("the request cannot be read");
    };
    match request {
        Request::Result { round, fragment } => {
            let (answer, found) = super::reply();
            let ask = SyncEvent::ServeResult { round, fragment, reply: answer };
            network.queue.send(ask).await.ok().context("the synchroniser is gone")?;
            match found.await.ok().flatten() {
                Some((body, hash)) => {
                    send_result(reply, network.own.worker, round, fragment, body, hash).await
                }
                None => {
                    reply.refuse();
                    Ok(())
                }
            }
        }
        Request::State { from, known } => {
            offer_state(network, (connection, peer), reply, (from, known)).await
        }
        Request::StatePiece(hash) => match network.snapshots.piece(peer, &hash, Instant::now()) {
            Some(piece) => send_piece(reply, network.own.worker, piece.values()).await,
            None => {
                reply.refuse();
                Ok(())
            }
        },
        Request::Checkpoint(of) => copies::send_list(network, reply, of).await,
        Request::CheckpointFile { of, file, offset } => {
            copies::send_file(network, reply, (of, file), offset).await
        }
        Request::Catalogue => send_catalogue(network, reply).await,
        Request::Tokenizer => send_tokenizer(network, reply).await,
        Request::Block { shard, block, to_be_fetched } => {
            send_block(network, reply, peer, BlockName { shard, block }, to_be_fetched).await
        }
        Request::ModelFiles(model) => send_model_files(network, reply, model).await,
        Request::ModelFile { model, index, offset } => {
            send_model_file(network, reply, (model, index), offset).await
        }
        Request::Probe { bytes } => send_probe(reply, network.own.worker, bytes).await,
        Request::Alive { incarnation } => {
            let is_neighbour = network.site_of(peer) == Some(network.own.site);
            let shown = is_neighbour.then(|| network.signs.show(peer, incarnation, Instant::now()));
            match shown.flatten() {
                Some(next_in) => answer_sign(reply, network.own.worker, next_in).await,
                None => {
                    reply.refuse();
                    Ok(())
                }
            }
        }
        Request::MaskSecret { generation } => {
            let (answer, found) = super::reply();
            let ask = SyncEvent::ServeMaskSecret { generation, peer, reply: answer };
            network.queue.send(ask).await.ok().context("the synchroniser is gone")?;
            match found.await.ok().flatten() {
                Some(secret) => send_mask_secret(reply, network.own.worker, secret).await,
                None => {
                    reply.refuse();
                    Ok(())
                }
            }
        }
    }
}

/// Keeps a copy of the state for a peer, and sends its manifest.
async fn offer_state(
    network: &Arc<Network>,
    peer: (&Connection, WorkerId),
    reply: PullReply,
    wanted: (Round, Option<Hash>),
) -> Result<()> {
    let kept = tokio::select! {
        kept = keep_state(network, peer, wanted) => kept?,
        // A round may take minutes: a requester that left frees its slot.
        () = reply.unwanted() => return Ok(()),
    };
    let Some(manifest) = kept else {
        reply.refuse();
        return Ok(());
    };
    send_manifest(reply, network.own.worker, &manifest).await
}

/// `None`: no state or no free slot.
async fn keep_state(
    network: &Arc<Network>,
    (connection, worker): (&Connection, WorkerId),
    (from, known): (Round, Option<Hash>),
) -> Result<Option<Manifest>> {
    let over = connection.stable_id();
    let again = known.and_then(|name| network.snapshots.again(worker, &name, over, Instant::now()));
    if again.is_some() {
        return Ok(again);
    }
    let Some(asking) = network.snapshots.ask(worker, Instant::now()) else { return Ok(None) };
    let (answer, found) = super::reply();
    let ask = SyncEvent::ServeState { from, reply: answer };
    network.queue.send(ask).await.ok().context("the synchroniser is gone")?;
    let Ok(state) = found.await else { return Ok(None) };
    let described = spawn_blocking(move || (manifest_of(&state), state)).await;
    let (manifest, state) = described.context("read the state")?;
    let is_first = network.snapshots.forget_unused(Instant::now()).is_none();
    let is_kept = asking.keep(over, &manifest, state, Instant::now());
    if connection.close_reason().is_some() && !is_lost(connection) {
        // The kept copy may have been dropped already.
        network.snapshots.release(over);
    }
    if is_first {
        let forgetting = Arc::clone(network);
        network.spawn(async move {
            while let Some(then) = forgetting.snapshots.forget_unused(Instant::now()) {
                sleep_until(then).await;
            }
        });
    }
    Ok(is_kept.then_some(manifest))
}
