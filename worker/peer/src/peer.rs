//! Another worker: a queue of frames, and a connection on demand.

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

/// Bytes queued for a peer or in flight to it, in models of f32. A round needs at most two: an update to an uploader or owner, and the results; a lagging
/// peer may get a round or two more.
const PEER_QUEUE_MODELS: usize = 4;
/// The same for small models, in bytes: four of the largest frames, so that headers and a codec's overhead do not matter.
const PEER_QUEUE_BYTES_MIN: usize = 4 * FRAME_BODY_BYTES_MAX as usize;
/// Frames queued for a peer: this bounds their overhead of some 150 bytes each. A round needs at most two of each fragment, and others are at most this many
/// rounds ahead of a stuck peer.
pub(super) const PEER_QUEUE_FRAMES: usize = 2 * FRAGMENTS_MAX as usize * (1 + ROUNDS_AHEAD_MAX as usize);
/// Refusals of a frame before a warning: slow paths and full memory pass sooner.
const REFUSALS_UNTIL_WARNED: u32 = 5;
/// The same for a frame between ranks, which may be refused until the coordinator informs the other rank of its replica: about a minute.
const STAGE_REFUSALS_UNTIL_WARNED: u32 = 120;
/// Failed attempts at a connection before a warning.
const ATTEMPTS_UNTIL_WARNED: u32 = 5;
/// Timeout of a connection attempt.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Pause between attempts to reach a peer. The coordinator removes a lost peer from the membership, which ends them.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// An outgoing frame.
#[derive(Debug)]
struct Outgoing {
    meta: FrameMeta,
    body: Bytes,
    /// BLAKE3 of the body, if already known.
    hash: Option<Hash>,
    /// Its share of the queue's memory, until delivered or dropped.
    _memory: OwnedSemaphorePermit,
}

/// Another worker. Dropping the last reference ends its task.
#[derive(Debug)]
pub(super) struct Peer {
    pub address: SocketAddr,
    pub site: SiteId,
    worker: WorkerId,
    frames: mpsc::Sender<Outgoing>,
    /// Bytes left in the queue.
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

    /// Returns the connection's round trip without queues, if connected.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        // Locked while connecting: then no connection exists.
        let sender = self.sender.try_lock().ok()?;
        sender.as_ref().map(|sender| transport::round_trip(sender.connection()))
    }

    /// Returns the measured link, if the connection was ever full.
    pub(super) fn way(&self) -> Option<MeasuredLink> {
        let sender = self.sender.try_lock().ok()?;
        let connection = sender.as_ref()?.connection();
        let bytes_per_s = transport::delivery_rate(connection)?;
        Some(MeasuredLink { bytes_per_s, round_trip_s: transport::round_trip(connection).as_secs_f64() })
    }

    /// Reports whether frames for it are undelivered.
    pub(super) fn has_waiting(&self) -> bool {
        self.memory.available_permits() < self.memory_bytes
    }

    /// Returns the worker.
    pub(super) fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Returns room for a frame with this length of body; `None`: the queue is full.
    pub(super) fn room(&self, body_bytes: usize) -> Option<Room<'_>> {
        let memory = Arc::clone(&self.memory).try_acquire_many_owned(frame_bytes(body_bytes)).ok()?;
        Some(Room { slot: self.frames.try_reserve().ok()?, memory })
    }

    /// Waits for room for a frame with this length of body; `None` after `at_most`.
    pub(super) async fn room_within(&self, at_most: Duration, body_bytes: usize) -> Option<Room<'_>> {
        let room = async {
            // Never closed while this peer lives.
            let memory = Arc::clone(&self.memory).acquire_many_owned(frame_bytes(body_bytes)).await.ok()?;
            Some(Room { slot: self.frames.reserve().await.ok()?, memory })
        };
        timeout(at_most, room).await.ok().flatten()
    }

    /// Returns the connection to this peer, if any.
    pub(super) fn connected(&self) -> Option<BulkSender> {
        // Locked while connecting: then no connection exists.
        let sender = self.sender.try_lock().ok()?;
        sender.as_ref().filter(|sender| sender.connection().close_reason().is_none()).cloned()
    }

    /// Reports whether a connection to this peer is being made or handed over.
    pub(super) fn is_connecting(&self) -> bool {
        self.sender.try_lock().is_err()
    }

    /// Returns the connection to this peer, made on demand.
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

    /// Closes the connection, because the peer was removed from the run.
    pub(super) async fn hang_up(&self) {
        // A connection in the making notices by itself.
        if let Some(sender) = self.sender.lock().await.take() {
            hang_up(sender.connection());
        }
    }
}

/// Room for one frame in the queue to a peer, returned if unused.
pub(super) struct Room<'a> {
    slot: mpsc::Permit<'a, Outgoing>,
    memory: OwnedSemaphorePermit,
}

impl Room<'_> {
    /// Queues the frame.
    pub(super) fn put(self, meta: FrameMeta, body: Bytes, hash: Option<Hash>) {
        self.slot.send(Outgoing { meta, body, hash, _memory: self.memory });
    }
}

/// Returns a frame's memory in a queue.
fn frame_bytes(body_bytes: usize) -> u32 {
    u32::try_from(body_bytes + FRAME_HEADER_BYTES).unwrap_or(u32::MAX)
}

/// Returns the capacity of a peer's queue.
pub(super) fn queue_bytes(model_bytes: usize) -> usize {
    model_bytes.saturating_mul(PEER_QUEUE_MODELS).clamp(PEER_QUEUE_BYTES_MIN, Semaphore::MAX_PERMITS)
}

/// Sends queued frames to a peer, several at a time, until the peer is dropped.
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

/// Returns the recorded activity.
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
    // A lost frame is never sent again, and the round would wait for ever. So it is retried while the peer is a member. One between ranks, refused until its
    // receiver knows the replica or has room, is retried while their session lasts.
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
                            "another worker refuses frames, and the run waits; check that it has free memory and the same release"
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
                        "another worker is unreachable, and the run waits; check that no firewall or router blocks UDP to it, and \
                         its --listen and --advertise"
                    );
                }
            }
        }
        drop(peer);
        sleep(RECONNECT_PAUSE).await;
    }
    tracing::debug!(exchange = %meta.round, "dropped a frame for a former replica");
}
