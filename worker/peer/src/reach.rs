//! Reachability of members: those with frames in flight, and those that this worker waits for. `worker/docs/agent.md` describes the design.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_member::SyncEvent;
use longhaul_proto::control::message::{OUT_OF_REACH_AFTER_MS, OUT_OF_REACH_MAX};
use longhaul_proto::transport::{self, Heard};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Network;
use super::peer::Peer;

/// Interval of checks.
const LOOK: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS / 4);
/// Longer delay of a check after which this process or its synchroniser was suspended: unanswered peers may not have been asked.
const LATE: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS * 3 / 4);
/// Pause between attempts at a connection.
const DIAL_PAUSE: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS);
/// Shortest wait of the device that counts: results that arrive just in time cause a short wait in each round.
const WAIT_MIN: Duration = LOOK;
/// Silence after which a peer is asked for a sign, while the device waits.
const ASKED_AFTER: Duration = Duration::from_millis(OUT_OF_REACH_AFTER_MS / 2);
/// Timeout without a connection: it takes two round trips and more, and only the second or third attempt may arrive.
const CONNECTED_WITHIN: Duration = Duration::from_millis(3 * OUT_OF_REACH_AFTER_MS);

/// A peer that has yet to answer.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    /// Connection, and data received over it; `None`: not connected.
    heard: Option<(usize, Heard)>,
    /// Start of the silence.
    since: Instant,
    /// Last attempt at a connection.
    dialled: Option<Instant>,
}

/// Watches the members of the generation.
pub(super) async fn watch_over(network: Arc<Network>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut unanswered, mut looked) = (BTreeMap::new(), Instant::now());
    loop {
        looks.tick().await;
        let awaited = network.awaited().await;
        let now = Instant::now();
        if now.saturating_duration_since(looked) > LATE {
            unanswered.clear();
        }
        looked = now;
        let out_of_reach = network.look_at_all(&awaited, &mut unanswered, now);
        network.excluded.out_of_reach.send_if_modified(|before| {
            let is_news = *before != out_of_reach;
            *before = out_of_reach;
            is_news
        });
    }
}

impl Network {
    /// Returns the unreachable members, as they change.
    pub fn out_of_reach(&self) -> watch::Receiver<BTreeSet<WorkerId>> {
        self.excluded.out_of_reach.subscribe()
    }

    /// Returns the workers that the device may be waiting for: owners of results, its replica, and its site. Empty if it does not wait.
    async fn awaited(&self) -> BTreeSet<WorkerId> {
        let now = Instant::now().into_std();
        let waits = self.progress.waits_since();
        if waits.is_none_or(|since| now.saturating_duration_since(since) < WAIT_MIN) {
            return BTreeSet::new();
        }
        let (reply, answer) = super::reply();
        if self.queue.send(SyncEvent::Awaited { reply }).await.is_err() {
            return BTreeSet::new();
        }
        let mut awaited = answer.await.unwrap_or_default();
        awaited.extend(self.stage_inbox.workers());
        awaited.remove(&self.own.worker);
        let state = self.lock();
        awaited.extend(
            state.peers.iter().filter(|(_, peer)| peer.site == self.own.site).map(|(&worker, _)| worker),
        );
        awaited
    }

    fn look_at_all(
        self: &Arc<Self>,
        awaited: &BTreeSet<WorkerId>,
        unanswered: &mut BTreeMap<WorkerId, Unanswered>,
        now: Instant,
    ) -> BTreeSet<WorkerId> {
        let peers = self.lock().peers.clone();
        unanswered.retain(|worker, _| peers.contains_key(worker));
        let is_out = |(worker, peer): (WorkerId, Arc<Peer>)| {
            let before =
                unanswered.entry(worker).or_insert(Unanswered { heard: None, since: now, dialled: None });
            self.is_out_of_reach(&peer, awaited.contains(&worker), before, now).then_some(worker)
        };
        peers.into_iter().filter_map(is_out).take(OUT_OF_REACH_MAX).collect()
    }

    /// Reports whether frames to a peer, or requests to an awaited one, have been unanswered for too long.
    fn is_out_of_reach(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        is_awaited: bool,
        before: &mut Unanswered,
        now: Instant,
    ) -> bool {
        let connection = peer.connected();
        let connection = connection.as_ref().map(|sender| sender.connection());
        let heard = connection.map(|connection| (connection.stable_id(), Heard::on(connection)));
        let (is_news, has_sent) = match (heard, before.heard) {
            (Some((id, heard)), Some((of, before))) if id == of => {
                (heard.is_more_than(&before), heard.has_sent_since(&before))
            }
            (Some(_), _) => (true, false),
            (None, _) => (false, peer.has_waiting()),
        };
        if is_news || !is_awaited && !has_sent {
            *before = Unanswered { heard, since: now, dialled: before.dialled };
            return false;
        }
        let silent = now.saturating_duration_since(before.since);
        let Some(connection) = connection else {
            if before.dialled.is_none_or(|at| now.saturating_duration_since(at) >= DIAL_PAUSE) {
                before.dialled = Some(now);
                self.dial(peer);
            }
            return silent >= CONNECTED_WITHIN;
        };
        if is_awaited && silent >= ASKED_AFTER {
            transport::nudge_once(connection);
        }
        // Includes present queues, in which an answer waits.
        let round_trip = transport::round_trip(connection).max(connection.rtt());
        silent >= Duration::from_millis(OUT_OF_REACH_AFTER_MS) + 2 * round_trip
    }

    /// Connects to a peer in the background, unless an attempt is in progress.
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

    use longhaul_common::id::{FragmentId, Generation, Round};
    use longhaul_common::plan::Member;
    use longhaul_proto::round::{FrameHeader, FrameKind};
    use longhaul_proto::transport::bulk::ReceiveLimits;
    use tokio::net::UdpSocket;
    use tokio::task::JoinHandle;

    use super::super::StageGroup;
    use super::*;
    use crate::testing::{Worker, authority, member};
    use longhaul_flight::Awaited;

    /// A path to `target` from its own address for one client; carries nothing while cut.
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
    async fn who_does_not_answer_is_out_of_reach_until_it_does() {
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
                reply.give([2, 3, 4].map(WorkerId).into());
            }
        });
        let mut out_of_reach = network.out_of_reach();
        let mut becomes = async |workers: &[u32]| {
            let workers: BTreeSet<_> = workers.iter().map(|number| WorkerId(*number)).collect();
            out_of_reach.wait_for(|now| *now == workers).await.unwrap();
        };
        becomes(&[]).await;
        network.progress.begins_to_wait(Awaited::Result, Instant::now().into_std());
        becomes(&[3]).await;
        way.is_cut.store(true, Ordering::Relaxed);
        becomes(&[2, 3]).await;
        way.is_cut.store(false, Ordering::Relaxed);
        becomes(&[3]).await;
        network.progress.waited(Instant::now().into_std());
        becomes(&[]).await;
        // Without waiting, it learns from its own frames.
        way.is_cut.store(true, Ordering::Relaxed);
        let header = FrameHeader {
            kind: FrameKind::Contribution,
            generation: Generation(1),
            round: Round(0),
            fragment: FragmentId(0),
            weight: 1,
            site: network.own.site,
        };
        network.send(WorkerId(2), header, vec![0; 100].into(), None);
        becomes(&[2]).await;
        way.is_cut.store(false, Ordering::Relaxed);
        becomes(&[]).await;
        way.relay.abort();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn while_the_device_waits_who_computes_with_it_and_who_is_near_is_waited_for() {
        let (authority, limits) = (authority(), ReceiveLimits::default());
        let Worker { network, mut queue, .. } = Worker::start(&authority, 1, limits);
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let near = Member { site: network.own.site, ..member(2, address) };
        network.set_members(&[near, member(3, address), member(4, address)], 0);
        let workers = vec![WorkerId(1), WorkerId(3)];
        network.join_replica(Some(StageGroup { session: Generation(1), workers }));
        tokio::spawn(async move {
            while let Some(SyncEvent::Awaited { reply }) = queue.recv().await {
                reply.give(BTreeSet::new());
            }
        });
        assert!(network.awaited().await.is_empty());
        let long_ago = Instant::now().into_std().checked_sub(WAIT_MIN).unwrap();
        network.progress.begins_to_wait(Awaited::Others, long_ago);
        assert_eq!(network.awaited().await, [2, 3].map(WorkerId).into());
        network.progress.waited(Instant::now().into_std());
        assert!(network.awaited().await.is_empty());
    }
}
