//! One other worker: a queue of frames for it, and a connection while there is something to send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use longhaul_common::config::FRAGMENTS_MAX;
use longhaul_common::id::{SiteId, WorkerId};
use longhaul_member::activity::Activity;
use longhaul_proto::control::message::{Hash, MeasuredLink};
use longhaul_proto::frame::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, Frame, FrameKind, FrameMeta};
use longhaul_proto::identity::PeerName;
use longhaul_proto::round::ROUNDS_AHEAD_MAX;
use longhaul_proto::transport;
use longhaul_proto::transport::bulk::{BULK_STREAMS_MAX, BulkSender, SendError};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Network;
use super::revoked::hang_up;

/// Bytes that wait for one peer or are on their way to it, in models of f32. A round asks for two at most: an update to an uploader or owner,
/// and the results, which a peer that lags may get of a round or two before it has taken the last ones.
const PEER_QUEUE_MODELS: usize = 4;
/// The same for small models, in bytes: four of the largest frames, so that headers and a codec's overhead do not matter.
const PEER_QUEUE_BYTES_MIN: usize = 4 * FRAME_BODY_BYTES_MAX as usize;
/// Frames that wait for one peer: bytes bound what they hold, this bounds what each costs besides, some 150 bytes. A round asks for two of each fragment at most, and others
/// are so many rounds ahead of a peer that takes nothing.
pub(super) const PEER_QUEUE_FRAMES: usize = 2 * FRAGMENTS_MAX as usize * (1 + ROUNDS_AHEAD_MAX as usize);
/// Refusals of one frame after which the user is told: slow paths and full memory pass sooner.
const REFUSALS_UNTIL_WARNED: u32 = 5;
/// The same of a frame between ranks, which may be refused for as long as a coordinator takes to tell the other rank of its replica: about a minute.
const STAGE_REFUSALS_UNTIL_WARNED: u32 = 120;
/// Failed attempts at a connection after which the user is told.
const ATTEMPTS_UNTIL_WARNED: u32 = 5;
/// A connection that takes longer is tried anew.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Between attempts to reach a peer. The coordinator takes a peer that is gone out of the membership, which ends them.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// A frame on its way out.
#[derive(Debug)]
struct Outgoing {
    meta: FrameMeta,
    body: Bytes,
    /// BLAKE3 of the body, where it is known already.
    hash: Option<Hash>,
    /// Its share of what may wait for the peer, until it is there or is given up.
    _memory: OwnedSemaphorePermit,
}

/// Another worker. Dropping the last reference ends its task.
#[derive(Debug)]
pub(super) struct Peer {
    pub address: SocketAddr,
    pub site: SiteId,
    worker: WorkerId,
    frames: mpsc::Sender<Outgoing>,
    /// Bytes that may still be queued.
    memory: Arc<Semaphore>,
    memory_bytes: usize,
    sender: Mutex<Option<BulkSender>>,
}

impl Peer {
    pub(super) fn start(
        network: &Arc<Network>,
        worker: WorkerId,
        site: SiteId,
        address: SocketAddr,
        model_bytes: usize,
    ) -> Arc<Self> {
        let (frames, queue) = mpsc::channel(PEER_QUEUE_FRAMES);
        let memory_bytes = queue_bytes(model_bytes);
        let memory = Arc::new(Semaphore::new(memory_bytes));
        let sender = Mutex::new(None);
        let peer = Arc::new(Self { address, site, worker, frames, memory, memory_bytes, sender });
        let (weak, owner) = (Arc::downgrade(&peer), Arc::clone(network));
        network.spawn(async move { deliver(&owner, &weak, queue).await });
        peer
    }

    /// The round trip of the connection without queues, if there is one.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        // Locked while a connection is being made: then there is none.
        let sender = self.sender.try_lock().ok()?;
        sender.as_ref().map(|sender| transport::round_trip(sender.connection()))
    }

    /// What the connection carries, if there is one that was ever full.
    pub(super) fn way(&self) -> Option<MeasuredLink> {
        let sender = self.sender.try_lock().ok()?;
        let connection = sender.as_ref()?.connection();
        let bytes_per_s = transport::delivery_rate(connection)?;
        Some(MeasuredLink { bytes_per_s, round_trip_s: transport::round_trip(connection).as_secs_f64() })
    }

    /// Whether there are frames for it that it does not have.
    pub(super) fn has_waiting(&self) -> bool {
        self.memory.available_permits() < self.memory_bytes
    }

    /// Which worker it is.
    pub(super) fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Room for a frame with so many bytes of body; none: the queue is full.
    pub(super) fn room(&self, body_bytes: usize) -> Option<Room<'_>> {
        let memory = Arc::clone(&self.memory).try_acquire_many_owned(frame_bytes(body_bytes)).ok()?;
        Some(Room { slot: self.frames.try_reserve().ok()?, memory })
    }

    /// Room for a frame with so many bytes of body, as soon as there is some; none: there was none for so long.
    pub(super) async fn room_within(&self, at_most: Duration, body_bytes: usize) -> Option<Room<'_>> {
        let room = async {
            // Closed by nobody while this peer lives.
            let memory = Arc::clone(&self.memory).acquire_many_owned(frame_bytes(body_bytes)).await.ok()?;
            Some(Room { slot: self.frames.reserve().await.ok()?, memory })
        };
        timeout(at_most, room).await.ok().flatten()
    }

    /// The connection to this peer, if there is one now.
    pub(super) fn connected(&self) -> Option<BulkSender> {
        // Locked while a connection is being made: then there is none.
        let sender = self.sender.try_lock().ok()?;
        sender.as_ref().filter(|sender| sender.connection().close_reason().is_none()).cloned()
    }

    /// Whether somebody makes a connection to this peer now, or hands one on.
    pub(super) fn is_connecting(&self) -> bool {
        self.sender.try_lock().is_err()
    }

    /// The connection to this peer, made if there is none.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub(super) async fn connection(&self, network: &Network) -> Result<BulkSender> {
        let mut sender = self.sender.lock().await;
        if let Some(sender) = &*sender
            && sender.connection().close_reason().is_none()
        {
            return Ok(sender.clone());
        }
        let name = PeerName::Worker(self.worker).in_run(network.own.run);
        let client = network.client();
        let client = if self.site == network.own.site { transport::within_site(client) } else { client };
        let connecting = network.endpoint.connect_with(client, self.address, &name);
        let connecting = connecting.with_context(|| format!("dial {}", self.worker))?;
        let connection = timeout(CONNECT_MAX, connecting).await.context("no answer")?;
        let connection =
            connection.with_context(|| format!("connect to {} at {}", self.worker, self.address))?;
        if network.is_revoked(self.worker) {
            hang_up(&connection);
            bail!("{} was taken out of the run", self.worker);
        }
        Ok(sender.insert(BulkSender::new(connection)).clone())
    }

    /// Closes the connection, as this worker is out of the run.
    pub(super) async fn hang_up(&self) {
        // One that is being made finds out by itself.
        if let Some(sender) = self.sender.lock().await.take() {
            hang_up(sender.connection());
        }
    }
}

/// Room in the queue to a peer for one frame, given back when it is not used.
pub(super) struct Room<'a> {
    slot: mpsc::Permit<'a, Outgoing>,
    memory: OwnedSemaphorePermit,
}

impl Room<'_> {
    /// Queues the frame that this is the room for.
    pub(super) fn put(self, meta: FrameMeta, body: Bytes, hash: Option<Hash>) {
        self.slot.send(Outgoing { meta, body, hash, _memory: self.memory });
    }
}

/// What a frame with such a body takes of the memory of a queue.
fn frame_bytes(body_bytes: usize) -> u32 {
    u32::try_from(body_bytes + FRAME_HEADER_BYTES).unwrap_or(u32::MAX)
}

/// How much may wait for a peer.
pub(super) fn queue_bytes(model_bytes: usize) -> usize {
    model_bytes.saturating_mul(PEER_QUEUE_MODELS).clamp(PEER_QUEUE_BYTES_MIN, Semaphore::MAX_PERMITS)
}

/// Sends what is queued for a peer, several frames at a time, until the peer is dropped.
async fn deliver(network: &Arc<Network>, peer: &std::sync::Weak<Peer>, mut queue: mpsc::Receiver<Outgoing>) {
    let mut sending = JoinSet::new();
    loop {
        tokio::select! {
            frame = queue.recv(), if sending.len() < BULK_STREAMS_MAX as usize => match frame {
                Some(frame) => { sending.spawn(send(Arc::clone(network), peer.clone(), frame)); }
                None => break,
            },
            Some(_) = sending.join_next() => {}
        }
    }
}

/// As it is recorded.
fn sending(to: WorkerId, frame: &Frame) -> Activity {
    let FrameMeta { kind, round, fragment, .. } = *frame.meta();
    Activity::Send { to, kind, round, fragment, bytes: frame.header().body_len }
}

async fn send(network: Arc<Network>, peer: std::sync::Weak<Peer>, outgoing: Outgoing) {
    let Outgoing { meta, body, hash, _memory } = outgoing;
    let frame = match hash {
        Some(hash) => Frame::with_known_hash(meta, body, hash.into()),
        None => Frame::new(meta, body),
    };
    let frame = match frame {
        Ok(frame) => frame,
        Err(error) => return tracing::error!(%error, "a frame cannot be sent"),
    };
    let to = peer.upgrade().map(|peer| peer.worker);
    let _sending = to.map(|to| network.progress.begin(sending(to, &frame)));
    let (mut refusals, mut failures) = (0, 0);
    // Nobody sends a frame again: without it, the round would wait for ever. So it is tried for as long as the peer is a member; one between ranks,
    // which its receiver refuses until it has been told of the replica or has room, for as long as their session lasts here.
    while meta.kind != FrameKind::Stage || network.stage_inbox.is_open(meta.generation) {
        let Some(peer) = peer.upgrade() else { return };
        match peer.connection(&network).await {
            Ok(sender) => match sender.send(&frame).await {
                Ok(()) => return,
                Err(SendError::Refused(code)) => {
                    refusals += 1;
                    tracing::debug!(peer = %peer.worker, %code, "a frame was refused");
                    let until_warned = match meta.kind {
                        FrameKind::Stage => STAGE_REFUSALS_UNTIL_WARNED,
                        _ => REFUSALS_UNTIL_WARNED,
                    };
                    if refusals == until_warned {
                        tracing::warn!(
                            peer = %peer.worker, fragment = %meta.fragment, round = %meta.round, %code,
                            "another worker refuses what it needs, and the run waits; has it memory left, and the same release?"
                        );
                    }
                }
                Err(error) => tracing::debug!(peer = %peer.worker, %error, "a frame is sent again"),
            },
            Err(error) => {
                failures += 1;
                let reason = format!("{error:#}");
                tracing::debug!(peer = %peer.worker, reason, "a peer is out of reach");
                if failures == ATTEMPTS_UNTIL_WARNED {
                    tracing::warn!(
                        peer = %peer.worker, address = %peer.address, reason,
                        "another worker cannot be reached, and the run waits; does a firewall or a router keep UDP from it? \
                         its --listen and --advertise say where it is reached"
                    );
                }
            }
        }
        drop(peer);
        sleep(RECONNECT_PAUSE).await;
    }
    tracing::debug!(exchange = %meta.round, "a frame for another rank of a replica that is no more");
}
