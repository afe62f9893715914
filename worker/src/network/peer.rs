//! One other worker: a queue of frames for it, and a connection while there is something to send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{SiteId, WorkerId};
use longhaul_proto::control::message::Hash;
use longhaul_proto::frame::{Frame, FrameMeta};
use longhaul_proto::identity::PeerName;
use longhaul_proto::transport::bulk::{BULK_STREAMS_MAX, BulkSender, SendError};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Network;

/// Frames that wait for one peer: several rounds of a model of a few hundred fragments.
const PEER_QUEUE_FRAMES: usize = 1024;
/// How often a peer may refuse a frame before it is given up: slow paths and full memory pass, a frame that cannot be read stays so.
const REFUSALS_MAX: u32 = 5;
/// Failed attempts at a connection after which the user is told.
const ATTEMPTS_UNTIL_WARNED: u32 = 5;
/// A connection that takes longer is tried anew.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Between attempts to reach a peer. The coordinator takes a peer that is gone out of the membership, which ends them.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// A frame on its way out.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub meta: FrameMeta,
    pub body: Bytes,
    /// BLAKE3 of the body, where it is known already.
    pub hash: Option<Hash>,
}

/// Another worker. Dropping the last reference ends its task.
#[derive(Debug)]
pub(super) struct Peer {
    pub address: SocketAddr,
    pub site: SiteId,
    worker: WorkerId,
    frames: mpsc::Sender<Outgoing>,
    sender: Mutex<Option<BulkSender>>,
}

impl Peer {
    pub(super) fn start(
        network: &Arc<Network>,
        worker: WorkerId,
        site: SiteId,
        address: SocketAddr,
    ) -> Arc<Self> {
        let (frames, queue) = mpsc::channel(PEER_QUEUE_FRAMES);
        let peer = Arc::new(Self { address, site, worker, frames, sender: Mutex::new(None) });
        let (weak, owner) = (Arc::downgrade(&peer), Arc::clone(network));
        network.spawn(async move { deliver(&owner, &weak, queue).await });
        peer
    }

    /// Queues a frame; false: the queue is full.
    pub(super) fn queue(&self, frame: Outgoing) -> bool {
        self.frames.try_send(frame).is_ok()
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
        let name = PeerName::Worker(self.worker).in_run(network.run);
        let connecting = network.endpoint.connect_with(network.client(), self.address, &name);
        let connecting = connecting.with_context(|| format!("dial {}", self.worker))?;
        let connection = timeout(CONNECT_MAX, connecting).await.context("no answer")?;
        let connection =
            connection.with_context(|| format!("connect to {} at {}", self.worker, self.address))?;
        Ok(sender.insert(BulkSender::new(connection)).clone())
    }
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

async fn send(network: Arc<Network>, peer: std::sync::Weak<Peer>, outgoing: Outgoing) {
    let Outgoing { meta, body, hash } = outgoing;
    let frame = match hash {
        Some(hash) => Frame::with_known_hash(meta, body, hash.into()),
        None => Frame::new(meta, body),
    };
    let frame = match frame {
        Ok(frame) => frame,
        Err(error) => return tracing::error!(%error, "a frame cannot be sent"),
    };
    let (mut refusals, mut failures) = (0, 0);
    // Nobody sends a frame again: without it, the round would wait for ever. So it is tried for as long as the peer is a member.
    while refusals < REFUSALS_MAX {
        let Some(peer) = peer.upgrade() else { return };
        match peer.connection(&network).await {
            Ok(sender) => match sender.send(&frame).await {
                Ok(()) => return,
                Err(SendError::Refused(code)) => {
                    refusals += 1;
                    tracing::debug!(peer = %peer.worker, %code, "a frame was refused");
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
    tracing::warn!(fragment = %meta.fragment, round = %meta.round, "a frame was given up");
}
