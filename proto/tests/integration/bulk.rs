//! Bulk frames over a real connection on loopback.

use std::time::Duration;

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::frame::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, Frame, FrameKind, FrameMeta};
use longhaul_proto::transport::bulk::{
    BULK_FRAMES_QUEUED_MAX, BULK_RECEIVE_BYTES_MAX, BULK_STREAMS_MAX, BulkReceiver, BulkSender,
    PULL_REQUEST_BYTES_MAX, PullRequest, ReceiveError, ReceiveLimits, ReceivedFrame, SendError, pull,
};
use tokio::sync::mpsc;

use crate::loopback::{Pair, connect, listen, tls};

async fn pair() -> Pair {
    let (server_tls, client_tls) = tls();
    let listening = listen(Some(server_tls));
    let address = listening.local_addr().expect("it is bound");
    connect(listening, listen(None), address, client_tls).await
}

fn frame(generation: u64, part: u32, length: usize) -> Frame {
    let meta = FrameMeta {
        kind: FrameKind::Contribution,
        generation: Generation(generation),
        round: Round(3),
        fragment: FragmentId(4),
        sender: WorkerId(5),
        weight: 6,
        part,
    };
    let body: Vec<u8> = (0..length).map(|index| (index as u32 ^ part) as u8).collect();
    Frame::new(meta, Bytes::from(body)).expect("within the limit")
}

/// A connection whose server side receives the frames of generation 1.
async fn receiving(limits: ReceiveLimits) -> (Pair, mpsc::Receiver<ReceivedFrame>) {
    let pair = pair().await;
    let (receiver, queue) = BulkReceiver::new(limits, |header| header.meta.generation == Generation(1));
    let server = pair.server.clone();
    tokio::spawn(async move { receiver.serve(&server).await });
    (pair, queue)
}

/// Opens a stream, writes `bytes` and returns the code with which the receiver stops it.
async fn stopped_with(pair: &Pair, bytes: &[u8], finish: bool) -> Option<u64> {
    let mut stream = pair.client.open_uni().await.expect("the connection lives");
    stream.write_all(bytes).await.expect("it fits the window");
    if finish {
        stream.finish().expect("it is open");
    }
    stream.stopped().await.expect("the connection lives").map(quinn::VarInt::into_inner)
}

#[tokio::test]
async fn frames_arrive_whole_however_many_are_sent_at_once() {
    let (pair, mut queue) = receiving(ReceiveLimits::default()).await;
    let sender = BulkSender::new(pair.client.clone());
    // More than may be in flight, in number and in bytes.
    let parts = BULK_STREAMS_MAX + 100;
    let mut sends = tokio::task::JoinSet::new();
    for part in 0..parts {
        let sender = sender.clone();
        sends.spawn(async move { sender.send(&frame(1, part, 200_000 + part as usize)).await });
    }
    let mut arrived = vec![false; parts as usize];
    for _ in 0..parts {
        let received = queue.recv().await.unwrap();
        let part = received.frame().meta().part;
        assert_eq!(*received.frame(), frame(1, part, 200_000 + part as usize));
        assert!(!std::mem::replace(&mut arrived[part as usize], true), "part {part} came twice");
    }
    while let Some(sent) = sends.join_next().await {
        sent.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_largest_and_the_empty_frame_pass() {
    let (pair, mut queue) = receiving(ReceiveLimits::default()).await;
    let sender = BulkSender::new(pair.client.clone());
    for length in [FRAME_BODY_BYTES_MAX as usize, 0] {
        let frame = frame(1, 0, length);
        let (sent, received) = tokio::join!(sender.send(&frame), queue.recv());
        sent.unwrap();
        assert_eq!(*received.unwrap().frame(), frame);
    }
}

#[tokio::test]
async fn a_frame_of_another_generation_is_refused_and_the_next_one_passes() {
    let (pair, mut queue) = receiving(ReceiveLimits::default()).await;
    let sender = BulkSender::new(pair.client.clone());
    // Longer than a stream's window, so that the refusal precedes the end of the body.
    let refused = sender.send(&frame(2, 0, 4 << 20)).await;
    assert!(matches!(refused, Err(SendError::Refused(_))), "{refused:?}");
    sender.send(&frame(1, 0, 1_000)).await.unwrap();
    assert_eq!(*queue.recv().await.unwrap().frame(), frame(1, 0, 1_000));
}

#[tokio::test]
async fn a_hostile_header_costs_only_its_stream() {
    let (pair, mut queue) = receiving(ReceiveLimits::default()).await;
    let mut header = frame(1, 0, 10).header().encode();
    header[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(stopped_with(&pair, &header, false).await, Some(2));
    assert_eq!(stopped_with(&pair, &[0xff; FRAME_HEADER_BYTES], false).await, Some(2));

    // Truncated frames, and ones with a wrong hash, leave no frame in the queue.
    let genuine = frame(1, 0, 10);
    let mut short = genuine.header().encode().to_vec();
    short.extend_from_slice(b"123");
    stopped_with(&pair, &short, true).await;
    let mut altered = genuine.header().encode().to_vec();
    altered.extend_from_slice(&[0x77; 10]);
    stopped_with(&pair, &altered, true).await;

    BulkSender::new(pair.client.clone()).send(&frame(1, 9, 20)).await.unwrap();
    assert_eq!(*queue.recv().await.unwrap().frame(), frame(1, 9, 20));
    assert!(pair.client.close_reason().is_none());
}

#[tokio::test]
async fn a_stream_that_goes_on_after_its_frame_is_refused() {
    let (pair, mut queue) = receiving(ReceiveLimits::default()).await;
    let mut bytes = frame(1, 0, 10).header().encode().to_vec();
    bytes.extend_from_slice(frame(1, 0, 10).body());
    bytes.push(0);
    assert_eq!(stopped_with(&pair, &bytes, false).await, Some(2));
    BulkSender::new(pair.client.clone()).send(&frame(1, 1, 10)).await.unwrap();
    assert_eq!(queue.recv().await.unwrap().frame().meta().part, 1);
}

#[tokio::test]
async fn a_frame_whose_end_comes_late_is_taken_and_its_sender_is_not_told_otherwise() {
    let (pair, mut queue) = receiving(ReceiveLimits::default()).await;
    let late = frame(1, 0, 10);
    let mut stream = pair.client.open_uni().await.unwrap();
    stream.write_all(&late.header().encode()).await.unwrap();
    stream.write_all(late.body()).await.unwrap();
    // Opened later, when the first frame's body has arrived, but complete first.
    BulkSender::new(pair.client.clone()).send(&frame(1, 1, 10)).await.unwrap();
    assert_eq!(queue.recv().await.unwrap().frame().meta().part, 1);
    stream.finish().unwrap();
    assert_eq!(*queue.recv().await.unwrap().frame(), late);
    assert_eq!(stream.stopped().await.unwrap(), None);
}

#[tokio::test]
async fn a_sender_that_stalls_is_given_up() {
    let limits = ReceiveLimits { stall_deadline: Duration::from_millis(50), ..ReceiveLimits::default() };
    let (pair, _queue) = receiving(limits).await;
    let header = frame(1, 0, 1_000).header().encode();
    assert_eq!(stopped_with(&pair, &header[..10], false).await, Some(2));
    assert_eq!(stopped_with(&pair, &header, false).await, Some(2));
}

#[tokio::test]
async fn a_full_memory_makes_senders_wait_until_a_frame_is_dropped() {
    let limits = ReceiveLimits { bytes_max: 1_500_000, ..ReceiveLimits::default() };
    let (pair, mut queue) = receiving(limits).await;
    let sender = BulkSender::new(pair.client.clone());
    let frames = [frame(1, 0, 1_000_000), frame(1, 1, 1_000_000)];
    let sends = async { tokio::join!(sender.send(&frames[0]), sender.send(&frames[1])) };
    let takes = async {
        let first = queue.recv().await.unwrap();
        assert!(queue.try_recv().is_err(), "there is no memory for two frames");
        drop(first);
        queue.recv().await.unwrap();
    };
    let ((first, second), ()) = tokio::join!(sends, takes);
    first.unwrap();
    second.unwrap();
}

#[tokio::test]
async fn a_pull_brings_the_frames_in_order_and_then_ends() {
    let pair = pair().await;
    let limits = ReceiveLimits::default();
    let server = pair.server.clone();
    let serving = tokio::spawn(async move {
        let (send, receive) = server.accept_bi().await.unwrap();
        let PullRequest { request, mut reply } = PullRequest::read(send, receive, &limits).await.unwrap();
        assert_eq!(request, Bytes::from_static(b"round 3, fragment 4"));
        for part in 0..5 {
            reply.send(&frame(1, part, 300_000)).await.unwrap();
        }
        reply.finish().await.unwrap();
    });
    let mut response = pull(&pair.client, b"round 3, fragment 4", limits).await.unwrap();
    for part in 0..5 {
        assert_eq!(response.next().await.unwrap().unwrap(), frame(1, part, 300_000));
    }
    assert!(response.next().await.unwrap().is_none());
    serving.await.unwrap();
}

#[tokio::test]
async fn a_pull_that_asks_too_much_or_in_vain_ends_in_an_error() {
    let pair = pair().await;
    let limits = ReceiveLimits::default();
    let server = pair.server.clone();
    let serving = tokio::spawn(async move {
        let (send, receive) = server.accept_bi().await.unwrap();
        let long = PullRequest::read(send, receive, &limits).await;
        assert!(matches!(long, Err(ReceiveError::Refused)));
        let (send, receive) = server.accept_bi().await.unwrap();
        PullRequest::read(send, receive, &limits).await.unwrap().reply.refuse();
    });
    let mut long = pull(&pair.client, &[0; PULL_REQUEST_BYTES_MAX + 1], limits).await.unwrap();
    assert!(matches!(long.next().await, Err(ReceiveError::Read(_))));
    let mut vain = pull(&pair.client, b"?", limits).await.unwrap();
    assert!(matches!(vain.next().await, Err(ReceiveError::Read(_))));
    serving.await.unwrap();
}

#[tokio::test]
async fn a_queue_that_nobody_empties_stays_bounded() {
    let (pair, mut queue) = receiving(ReceiveLimits::default()).await;
    let sender = BulkSender::new(pair.client.clone());
    let more = BULK_FRAMES_QUEUED_MAX as u32 + 2 * BULK_STREAMS_MAX;
    let sending = tokio::spawn(async move {
        let sends = (0..more).map(|part| (sender.clone(), frame(1, part, 100)));
        let mut running = tokio::task::JoinSet::new();
        for (sender, frame) in sends {
            running.spawn(async move { sender.send(&frame).await });
        }
        while let Some(sent) = running.join_next().await {
            sent.unwrap().unwrap();
        }
    });
    let mut arrived = 0;
    while arrived < more {
        assert!(queue.len() <= BULK_FRAMES_QUEUED_MAX);
        queue.recv().await.unwrap();
        arrived += 1;
    }
    sending.await.unwrap();
}

/// As many of the largest frames as all connections together may have, and one more.
#[tokio::test]
async fn a_peer_that_announces_more_than_there_is_room_for_holds_up_nobody_else() {
    let (bad, good) = (pair().await, pair().await);
    let (receiver, mut queue) = BulkReceiver::new(ReceiveLimits::default(), |_| true);
    for server in [bad.server.clone(), good.server.clone()] {
        let receiver = receiver.clone();
        tokio::spawn(async move { receiver.serve(&server).await });
    }
    let largest = FRAME_BODY_BYTES_MAX as usize;
    let header = frame(1, 0, largest).header().encode();
    let mut announced = Vec::new();
    for _ in 0..=BULK_RECEIVE_BYTES_MAX / largest {
        let mut stream = bad.client.open_uni().await.unwrap();
        stream.write_all(&header).await.unwrap();
        announced.push(stream);
    }
    // Of each connection's own share.
    let sender = BulkSender::new(bad.client.clone());
    let small = tokio::spawn(async move { sender.send(&frame(1, 1, 0)).await });
    assert_eq!(queue.recv().await.unwrap().frame().meta().part, 1, "what is announced has arrived");
    small.await.unwrap().unwrap();
    let wanted = frame(1, 2, largest);
    let sender = BulkSender::new(good.client.clone());
    let (sent, received) = tokio::join!(sender.send(&wanted), queue.recv());
    sent.unwrap();
    assert_eq!(*received.unwrap().frame(), wanted);
}
