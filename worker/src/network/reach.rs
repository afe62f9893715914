//! Whether those that this worker waits for are within reach. `docs/agent.md` has the design.

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
const LOOK: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS / 4);
/// Who has sent something within this time is not asked: an exchange may be open for long, as the slowest member has yet to contribute.
const ASKED_AFTER: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS / 2);
/// A wait of the device that is shorter is none: with what comes when it is wanted, it waits a little in each round.
const WAIT_MIN: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS / 4);
/// Without a connection, one is to be made first: two round trips and more, of which the second or third attempt may be the one that arrives.
const CONNECTED_WITHIN: Duration = Duration::from_millis(3 * OUT_OF_REACH_AFTER_MS / 2);

/// What has arrived from a peer, and when that was news.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The connection and the packets that it has brought; none: there is no connection.
    packets: Option<(usize, u64)>,
    at: Instant,
}

/// Looks after those that this worker waits for.
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
    /// Those that this worker waits for and that are out of reach, whenever that changes.
    pub fn out_of_reach(&self) -> watch::Receiver<BTreeSet<WorkerId>> {
        self.out_of_reach.subscribe()
    }

    /// Members that this worker waits for: owners of results, also while the device goes on without those; and where the device waits, who computes with it, and who is at its site.
    async fn awaited(&self) -> BTreeSet<WorkerId> {
        let (reply, answer) = oneshot::channel();
        if self.queue.send(SyncEvent::Awaited { reply }).await.is_err() {
            return BTreeSet::new();
        }
        let mut awaited = answer.await.unwrap_or_default();
        let now = Instant::now().into_std();
        let waits = self.progress.waits_since();
        let device_waits = waits.is_some_and(|since| now.saturating_duration_since(since) >= WAIT_MIN);
        awaited.extend(self.stage_mail.workers().into_iter().filter(|_| device_waits));
        let state = self.lock();
        let near = state.peers.iter().filter(|(_, peer)| device_waits && peer.site == self.site);
        awaited.extend(near.map(|(&worker, _)| worker));
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
            let silent = now.saturating_duration_since(before.at);
            let patience = match connection {
                Some(connection) => {
                    if silent >= ASKED_AFTER {
                        transport::nudge_once(connection);
                    }
                    Duration::from_millis(OUT_OF_REACH_AFTER_MS) + 2 * transport::round_trip(connection)
                }
                None => {
                    self.dial(&peer);
                    CONNECTED_WITHIN
                }
            };
            if silent >= patience && out_of_reach.len() < OUT_OF_REACH_MAX {
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
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use longhaul_common::id::Generation;
    use longhaul_common::plan::Member;
    use longhaul_proto::transport::bulk::ReceiveLimits;
    use tokio::net::UdpSocket;
    use tokio::task::JoinHandle;

    use super::super::Replica;
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
    async fn who_is_waited_for_and_does_not_answer_is_out_of_reach_until_it_does() {
        let (authority, limits) = (authority(), ReceiveLimits::default());
        let Worker { network, mut queue, .. } = Worker::start(&authority, 1, limits);
        let peer = Worker::start(&authority, 2, limits);
        let way = Way::to(peer.member.wan_address).await;
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let members = [member(2, way.address), member(3, silent.local_addr().unwrap())];
        network.set_members(&members, 0);
        let awaited = Arc::new(Mutex::new(BTreeSet::new()));
        let answers = Arc::clone(&awaited);
        tokio::spawn(async move {
            while let Some(event) = queue.recv().await {
                let SyncEvent::Awaited { reply } = event else { panic!("{event:?}") };
                let _ = reply.send(answers.lock().unwrap().clone());
            }
        });
        let mut out_of_reach = network.out_of_reach();
        let mut becomes = async |workers: &[u32]| {
            let workers: BTreeSet<_> = workers.iter().map(|number| WorkerId(*number)).collect();
            out_of_reach.wait_for(|now| *now == workers).await.unwrap();
        };
        becomes(&[]).await;
        *awaited.lock().unwrap() = [2, 3, 4].map(WorkerId).into();
        becomes(&[3]).await;
        way.is_cut.store(true, Ordering::Relaxed);
        becomes(&[2, 3]).await;
        way.is_cut.store(false, Ordering::Relaxed);
        becomes(&[3]).await;
        awaited.lock().unwrap().clear();
        becomes(&[]).await;
        way.relay.abort();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn while_the_device_waits_who_computes_with_it_and_who_is_near_is_waited_for() {
        let (authority, limits) = (authority(), ReceiveLimits::default());
        let Worker { network, mut queue, .. } = Worker::start(&authority, 1, limits);
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let near = Member { site: network.site, ..member(2, address) };
        network.set_members(&[near, member(3, address), member(4, address)], 0);
        let workers = vec![WorkerId(1), WorkerId(3)];
        network.join_replica(Some(Replica { session: Generation(1), workers }));
        tokio::spawn(async move {
            while let Some(SyncEvent::Awaited { reply }) = queue.recv().await {
                let _ = reply.send(BTreeSet::new());
            }
        });
        assert!(network.awaited().await.is_empty());
        let long_ago = Instant::now().into_std().checked_sub(WAIT_MIN).unwrap();
        network.progress.begins_to_wait(long_ago);
        assert_eq!(network.awaited().await, [2, 3].map(WorkerId).into());
        network.progress.waited(WAIT_MIN);
        assert!(network.awaited().await.is_empty());
    }
}
