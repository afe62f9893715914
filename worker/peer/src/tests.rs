use std::net::UdpSocket;
use std::sync::atomic::Ordering;

use longhaul_common::config::FRAGMENTS_MAX;
use longhaul_common::id::Generation;
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::round::{FrameKind as RoundFrameKind, ROUNDS_AHEAD_MAX};
use tokio::time::Instant;

use super::peer::{PEER_QUEUE_FRAMES, queue_bytes};
use super::testing::{Worker, authority, member};
use super::*;

const MIB: usize = 1 << 20;

impl Worker {
    fn peer(&self, worker: u32) -> Arc<Peer> {
        Arc::clone(&self.network.lock().peers[&WorkerId(worker)])
    }
}

fn frame(round: u64) -> Frame {
    let meta = FrameMeta {
        kind: FrameKind::Contribution,
        generation: Generation(1),
        round: Round(round),
        fragment: FragmentId(0),
        sender: WorkerId(1),
        weight: 1,
        part: 1,
    };
    Frame::new(meta, vec![round as u8; MIB].into()).unwrap()
}

/// Returns the header of a frame from worker 1.
fn header(kind: RoundFrameKind, round: u64, fragment: u32) -> FrameHeader {
    let (round, fragment) = (Round(round), FragmentId(fragment));
    FrameHeader { kind, generation: Generation(1), round, fragment, weight: 1, site: SiteId(1) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_occupies_the_receivers_memory_until_the_synchroniser_has_dealt_with_it() {
    let authority = authority();
    let sender = Worker::start(&authority, 1, ReceiveLimits::default());
    let limits = ReceiveLimits { bytes_max: 3 * MIB / 2, ..ReceiveLimits::default() };
    let mut receiver = Worker::start(&authority, 2, limits);
    sender.network.set_members(&[receiver.member.clone()], 0);
    let connection = sender.peer(2).connection(&sender.network).await.unwrap();
    // Both fit a stream's window: after sending, the receiver's transport has all of them.
    for round in 0..2 {
        connection.send(&frame(round)).await.unwrap();
    }
    let first = receiver.queue.recv().await.unwrap();
    assert!(matches!(&first, SyncEvent::Frame { frame, .. } if frame.header.round == Round(0)));
    // Requests are answered meanwhile: only the second frame waits.
    for _ in 0..20 {
        let asking = sender.network.fetch_result(WorkerId(2), Round(0), FragmentId(0));
        let answering = async {
            match receiver.queue.recv().await.unwrap() {
                SyncEvent::ServeResult { reply, .. } => reply.give(None),
                _ => panic!("the second frame was taken without memory for it"),
            }
        };
        assert!(tokio::join!(asking, answering).0.is_err());
    }
    drop(first);
    let second = receiver.queue.recv().await.unwrap();
    assert!(matches!(&second, SyncEvent::Frame { frame, .. } if frame.header.round == Round(1)));
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Returns the outcome of a sign, independent of this machine's load.
async fn shown(from: &Worker, to: u32, incarnation: u64) -> Shown {
    loop {
        match from.network.show_sign(WorkerId(to), incarnation).await {
            // The connecting task needs a turn.
            Shown::Unconnected | Shown::Unanswered => tokio::time::sleep(LOOK_AGAIN).await,
            shown => return shown,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_for_a_site_is_shown_signs_of_life_by_its_workers_alone() {
    let (authority, limits) = (authority(), ReceiveLimits::default());
    let start = |number, site| Worker::start_at(&authority, number, SiteId(site), limits);
    let workers = [start(1, 7), start(2, 7), start(3, 7), start(4, 8)];
    let members = workers.each_ref().map(|worker| worker.member.clone());
    workers.iter().for_each(|worker| worker.network.set_members(&members, 0));
    let speakers = workers.each_ref().map(|worker| worker.network.speaker());
    assert_eq!(speakers, [None, Some(WorkerId(1)), Some(WorkerId(1)), None]);

    let [speaker, second, third, elsewhere] = &workers;
    assert_eq!(second.network.show_sign(WorkerId(1), 20).await, Shown::Unconnected);
    assert_eq!(shown(second, 1, 20).await, Shown::Refused, "it has no conversation with the coordinator");
    // An acknowledgement arrives between any two checks.
    let heard = AtomicU64::new(0);
    let ear = move || (heard.fetch_add(1, Ordering::Relaxed), Duration::ZERO);
    let later = Instant::now() + Duration::from_secs(3600);
    speaker.network.open_signs(ear, later);
    assert_eq!(shown(second, 1, 20).await, Shown::Refused, "unknown whether its messages arrive");
    for _ in 0..2 {
        assert!(speaker.network.take_signs(Instant::now(), later).is_empty());
    }
    for _ in 0..2 {
        assert!(matches!(shown(second, 1, 20).await, Shown::Taken { .. }));
    }
    assert!(matches!(shown(third, 1, 30).await, Shown::Taken { .. }));
    assert_eq!(shown(elsewhere, 1, 40).await, Shown::Refused);
    assert_eq!(shown(second, 3, 20).await, Shown::Refused);
    assert!(speaker.network.has_signs());
    // Whatever the time taken: other tests cover the age of signs.
    let told = speaker.network.take_signs(later - Duration::from_secs(3600), later);
    let told: Vec<_> = told.iter().map(|sign| (sign.worker, sign.incarnation)).collect();
    assert_eq!(told, [(WorkerId(2), 20), (WorkerId(3), 30)]);
    speaker.network.close_signs();
    assert_eq!(shown(second, 1, 20).await, Shown::Refused);
}

#[tokio::test]
async fn what_waits_for_a_peer_that_takes_nothing_is_bounded_in_bytes() {
    let worker = Worker::start(&authority(), 1, ReceiveLimits::default());
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let model_bytes = 20 * MIB;
    worker.network.set_members(&[member(2, silent.local_addr().unwrap())], model_bytes);
    let body = Bytes::from(vec![0; MIB]);
    let bound = queue_bytes(model_bytes);
    for round in 0..2 * bound / MIB {
        let header = header(RoundFrameKind::Contribution, round as u64, 0);
        worker.network.send(WorkerId(2), header, body.clone(), None);
    }
    let queued = worker.network.progress.heartbeat().traffic.wan_sent_bytes;
    assert_eq!(bound, 80 * MIB);
    assert_eq!(queued, 79 * (MIB + FRAME_HEADER_BYTES) as u64);
}

/// A dropped frame is never sent again, so the queue has room for all frames for a peer that is as far behind as possible.
#[tokio::test]
async fn all_frames_of_the_rounds_that_a_peer_may_be_behind_wait_for_it() {
    let worker = Worker::start(&authority(), 1, ReceiveLimits::default());
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    worker.network.set_members(&[member(2, silent.local_addr().unwrap())], 0);
    for round in 0..=ROUNDS_AHEAD_MAX {
        for fragment in 0..FRAGMENTS_MAX {
            for kind in [RoundFrameKind::Contribution, RoundFrameKind::Result] {
                let header = header(kind, round, fragment);
                worker.network.send(WorkerId(2), header, Bytes::new(), None);
            }
        }
    }
    let queued = worker.network.progress.heartbeat().traffic.wan_sent_bytes;
    assert_eq!(queued, (PEER_QUEUE_FRAMES * FRAME_HEADER_BYTES) as u64);
}

/// A lost connection costs the fragments in flight, and none that had arrived.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_connection_contributions_go_on_from_the_fragment_that_is_missing() {
    const FRAGMENTS: u32 = 12;
    const TAKEN: usize = 4;
    // More than the window of a stream: the transport cannot have acknowledged all of an unread message.
    const BYTES: usize = 3 * MIB;
    let authority = authority();
    let sender = Worker::start(&authority, 1, ReceiveLimits::default());
    // Memory for four: the others wait at the sender while the connection is lost.
    let limits = ReceiveLimits { bytes_max: TAKEN * BYTES + BYTES / 2, ..ReceiveLimits::default() };
    let mut receiver = Worker::start(&authority, 2, limits);
    sender.network.set_members(&[receiver.member.clone()], 16 * MIB);
    for fragment in 0..FRAGMENTS {
        let header = header(RoundFrameKind::Contribution, 3, fragment);
        sender.network.send(WorkerId(2), header, vec![fragment as u8; BYTES].into(), None);
    }
    let mut arrived = BTreeMap::new();
    let mut take = async || {
        let SyncEvent::Frame { frame, memory } = receiver.queue.recv().await.unwrap() else {
            panic!("only frames were sent");
        };
        let fragment = frame.header.fragment;
        assert_eq!(frame.body.len(), BYTES);
        assert!(frame.body.iter().all(|byte| u32::from(*byte) == fragment.0));
        *arrived.entry(fragment).or_insert(0) += 1;
        (arrived.len(), arrived.values().filter(|&&times| times > 1).count(), memory)
    };
    let mut held = Vec::new();
    for _ in 0..TAKEN {
        held.push(take().await.2);
    }
    let connection = sender.peer(2).connection(&sender.network).await.unwrap();
    connection.connection().close(0u32.into(), b"lost");
    drop(held);
    loop {
        let (different, twice, _) = take().await;
        // A received one whose acknowledgement was lost may come again.
        assert!(twice <= TAKEN, "{twice} of {FRAGMENTS} came again");
        if different == FRAGMENTS as usize {
            break;
        }
    }
}
