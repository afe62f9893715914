//! Whether those that the device waits for are within reach. `docs/agent.md` has the design.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{OUT_OF_REACH_AFTER_MS, OUT_OF_REACH_MAX};
use longhaul_proto::transport;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Network;
use super::peer::Peer;
use crate::sync::SyncEvent;

/// Between looks, and between questions to a peer of which nothing arrives.
const LOOK: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS / 3);
/// A wait that is shorter is none: with results that come when they are wanted, the device waits a little in each round.
const WAIT_MIN: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS / 3);
/// Without a connection, one is to be made first: two round trips and more, of which the second or third attempt may be the one that arrives.
const CONNECTED_WITHIN: Duration = Duration::from_millis(2 * OUT_OF_REACH_AFTER_MS);

/// What has arrived from a peer, and when that was news.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The connection and the packets that it has brought; none: there is no connection.
    packets: Option<(usize, u64)>,
    at: Instant,
}

/// Looks after those that the device waits for, as long as it does.
pub(super) async fn watch_over(network: Arc<Network>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = BTreeMap::new();
    loop {
        looks.tick().await;
        let awaited = network.awaited().await;
        let out_of_reach = network.look_at(&awaited, &mut heard, Instant::now());
        network.out_of_reach.send_if_modified(|before| {
            let is_news = *before != out_of_reach;
            *before = out_of_reach;
            is_news
        });
    }
}

impl Network {
    /// Those that the device waits for and that are out of reach, whenever that changes.
    pub fn out_of_reach(&self) -> watch::Receiver<BTreeSet<WorkerId>> {
        self.out_of_reach.subscribe()
    }

    /// Members that the device may be waiting for: owners of results, who computes with it, and who is at its site. Nobody, where it does not wait.
    async fn awaited(&self) -> BTreeSet<WorkerId> {
        let now = Instant::now().into_std();
        let waits = self.progress.waits_since();
        if waits.is_none_or(|since| now.saturating_duration_since(since) < WAIT_MIN) {
            return BTreeSet::new();
        }
        let (reply, answer) = oneshot::channel();
        if self.queue.send(SyncEvent::Awaited { reply }).await.is_err() {
            return BTreeSet::new();
        }
        let mut awaited = answer.await.unwrap_or_default();
        awaited.extend(self.stage_mail.workers());
        let state = self.lock();
        awaited.extend(state.peers.iter().filter(|(_, peer)| peer.site == self.site).map(|(&worker, _)| worker));
        awaited.retain(|worker| state.peers.contains_key(worker));
        awaited
    }

    /// Asks those of whom nothing has arrived since the last look whether they are there. Who has been asked for long enough is out of reach.
    fn look_at(
        self: &Arc<Self>,
        awaited: &BTreeSet<WorkerId>,
        heard: &mut BTreeMap<WorkerId, Heard>,
        now: Instant,
    ) -> BTreeSet<WorkerId> {
        heard.retain(|worker, _| awaited.contains(worker));
        let mut out_of_reach = BTreeSet::new();
        for &worker in awaited {
            let Some(peer) = self.lock().peers.get(&worker).cloned() else { continue };
            let connection = peer.connected();
            let connection = connection.as_ref().map(|sender| sender.connection());
            let packets =
                connection.map(|connection| (connection.stable_id(), connection.stats().udp_rx.datagrams));
            let before = heard.entry(worker).or_insert(Heard { packets: None, at: now });
            if packets.is_some() && packets != before.packets {
                *before = Heard { packets, at: now };
                continue;
            }
            let patience = match connection {
                Some(connection) => {
                    transport::nudge_once(connection);
                    Duration::from_millis(OUT_OF_REACH_AFTER_MS) + 2 * transport::round_trip(connection)
                }
                None => {
                    self.dial(&peer);
                    CONNECTED_WITHIN
                }
            };
            if now.saturating_duration_since(before.at) >= patience && out_of_reach.len() < OUT_OF_REACH_MAX {
                out_of_reach.insert(worker);
            }
        }
        out_of_reach
    }

    /// Makes a connection to a peer beside all else, unless somebody does already.
    pub(super) fn dial(self: &Arc<Self>, peer: &Arc<Peer>) {
        if peer.is_connecting() {
            return;
        }
        let (network, peer) = (Arc::clone(self), Arc::clone(peer));
        self.spawn(async move {
            if let Err(error) = peer.connection(&network).await {
                tracing::debug!(peer = %peer.worker(), reason = format!("{error:#}"), "a peer is out of reach");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use longhaul_proto::transport::bulk::ReceiveLimits;
    use tokio::net::UdpSocket;
    use tokio::task::JoinHandle;

    use super::super::tests::{Worker, authority, member};
    use super::*;

    /// A way to `target` from its own address for one client, that carries nothing while it is cut.
    struct Way {
        address: SocketAddr,
        is_cut: Arc<AtomicBool>,
        relay: JoinHandle<()>,
    }

    impl Way {
        async fn to(target: SocketAddr) -> Self {
            let inner = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let outer = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let (address, is_cut) = (outer.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
            let cut = Arc::clone(&is_cut);
            let relay = tokio::spawn(async move {
                let (mut client, mut there, mut back) = (None, [0; 2048], [0; 2048]);
                loop {
                    let (socket, bytes, to) = tokio::select! {
                        got = outer.recv_from(&mut there) => {
                            let (len, from) = got.unwrap();
                            client = Some(from);
                            (&inner, &there[..len], Some(target))
                        }
                        got = inner.recv_from(&mut back) => (&outer, &back[..got.unwrap().0], client),
                    };
                    if let Some(to) = to.filter(|_| !cut.load(Ordering::Relaxed)) {
                        socket.send_to(bytes, to).await.unwrap();
                    }
                }
            });
            Self { address, is_cut, relay }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_does_not_answer_while_the_device_waits_is_out_of_reach_until_it_does() {
        let (authority, limits) = (authority(), ReceiveLimits::default());
        let Worker { network, mut queue, .. } = Worker::start(&authority, 1, limits);
        let peer = Worker::start(&authority, 2, limits);
        let way = Way::to(peer.member.wan_address).await;
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let members = [member(2, way.address), member(3, silent.local_addr().unwrap())];
        network.set_members(&members, 0);
        tokio::spawn(async move {
            while let Some(event) = queue.recv().await {
                let SyncEvent::Awaited { reply } = event else { panic!("{event:?}") };
                let _ = reply.send([WorkerId(2), WorkerId(3), WorkerId(4)].into());
            }
        });
        let mut out_of_reach = network.out_of_reach();
        let mut becomes = async |workers: &[u32]| {
            let workers: BTreeSet<_> = workers.iter().map(|number| WorkerId(*number)).collect();
            out_of_reach.wait_for(|now| *now == workers).await.unwrap();
        };
        becomes(&[]).await;
        network.progress.begins_to_wait(std::time::Instant::now());
        becomes(&[3]).await;
        way.is_cut.store(true, Ordering::Relaxed);
        becomes(&[2, 3]).await;
        way.is_cut.store(false, Ordering::Relaxed);
        becomes(&[3]).await;
        network.progress.waited(Duration::ZERO);
        becomes(&[]).await;
        way.relay.abort();
    }
}
