//! The control channel between a member and the coordinator.

use longhaul_common::id::{Round, SiteId};
use longhaul_proto::control::message::{
    Heartbeat, PROTOCOL_VERSION, Start, ToCoordinator, ToWorker, Welcome,
};
use longhaul_proto::control::{
    CONTROL_FRAME_BYTES_MAX, CloseCode, ControlError, ControlReceiver, ControlSender, FrameError, HelloError,
    REPORT_FRAME_BYTES_MAX, SendError, accept, open,
};
use quinn::{Connection, ConnectionError, VarInt};

use super::net::{Front, RUN, now_unix_s};

type Coordinator = (ControlSender<ToWorker>, ControlReceiver<ToCoordinator>);
type Worker = (ControlSender<ToCoordinator>, ControlReceiver<ToWorker>);

/// Both ends of a control connection, before any message; the worker's end first.
async fn connect() -> (Front, Connection, Connection) {
    let mut front = Front::open(now_unix_s());
    let member = front.member(0, now_unix_s());
    let (worker, coordinator) = front.connect(&member.identity).await;
    (front, worker, coordinator)
}

async fn converse(worker: &Connection, coordinator: &Connection) -> (Worker, Coordinator) {
    let (worker, coordinator) = tokio::join!(open(worker), accept(coordinator));
    (worker.unwrap(), coordinator.unwrap())
}

fn heartbeat(step: u64) -> ToCoordinator {
    ToCoordinator::Heartbeat(Heartbeat { step, ..Heartbeat::default() })
}

fn welcome(config: String) -> ToWorker {
    ToWorker::Welcome(Welcome { run: RUN, config, site: SiteId(0), resumed: false })
}

fn code(error: ConnectionError) -> VarInt {
    match error {
        ConnectionError::ApplicationClosed(close) => close.error_code,
        other => panic!("not closed by the peer: {other}"),
    }
}

#[tokio::test]
async fn messages_arrive_in_order_and_all_before_the_end() {
    let (_front, worker, coordinator) = connect().await;
    let (mut at_worker, mut at_coordinator) = converse(&worker, &coordinator).await;
    at_coordinator.0.send(&ToWorker::Prepare(Start::Fresh)).unwrap();
    assert_eq!(at_worker.1.receive().await.unwrap(), Some(ToWorker::Prepare(Start::Fresh)));
    for step in 0..100 {
        at_worker.0.send(&heartbeat(step)).unwrap();
    }
    at_worker
        .0
        .send(&ToCoordinator::Finished {
            next_round: Round(5),
            validation_loss: None,
            validation_accuracy: None,
        })
        .unwrap();
    let listen = async {
        for step in 0..100 {
            assert_eq!(at_coordinator.1.receive().await.unwrap(), Some(heartbeat(step)));
        }
        let last = at_coordinator.1.receive().await.unwrap();
        assert_eq!(
            last,
            Some(ToCoordinator::Finished {
                next_round: Round(5),
                validation_loss: None,
                validation_accuracy: None
            })
        );
        assert_eq!(at_coordinator.1.receive().await.unwrap(), None);
    };
    tokio::join!(listen, at_worker.0.finish());
}

#[tokio::test]
async fn the_longest_message_passes_and_a_longer_one_does_not_leave() {
    let (_front, worker, coordinator) = connect().await;
    let (mut at_worker, at_coordinator) = converse(&worker, &coordinator).await;
    let overhead = longhaul_proto::control::encode(&welcome("x".repeat(1 << 22))).unwrap().len() - (1 << 22);
    let longest = welcome("x".repeat(CONTROL_FRAME_BYTES_MAX - overhead));
    at_coordinator.0.send(&longest).unwrap();
    assert!(at_worker.1.receive().await.unwrap() == Some(longest));
    let longer = welcome("x".repeat(CONTROL_FRAME_BYTES_MAX - overhead + 1));
    let bytes = CONTROL_FRAME_BYTES_MAX + 1;
    let too_long = SendError::TooLong { bytes, bytes_max: CONTROL_FRAME_BYTES_MAX };
    assert_eq!(at_coordinator.0.send(&longer), Err(too_long));
}

#[tokio::test]
async fn a_peer_that_does_not_take_its_messages_is_closed_and_the_sender_never_waits() {
    for message in [welcome("x".repeat(1 << 20)), ToWorker::Prepare(Start::Fresh)] {
        let (_front, worker, coordinator) = connect().await;
        let (_at_worker, at_coordinator) = converse(&worker, &coordinator).await;
        // This test awaits nothing here, so nothing leaves the queue: either bound is reached.
        let refused = (0..1000).find_map(|_| at_coordinator.0.send(&message).err());
        assert_eq!(refused, Some(SendError::TooSlow));
        assert_eq!(code(worker.closed().await), VarInt::from(CloseCode::TooSlow));
    }
}

#[tokio::test]
async fn a_worker_of_another_version_and_the_coordinator_both_learn_it() {
    let (_front, worker, coordinator) = connect().await;
    let other_release = async {
        let (mut sink, mut source) = worker.open_bi().await.unwrap();
        sink.write_all(b"lngh\xff\x00\x059.9.9").await.unwrap();
        source.read_to_end(100).await.unwrap()
    };
    let (heard, accepted) = tokio::join!(other_release, accept::<ToWorker, ToCoordinator>(&coordinator));
    assert_eq!(heard[..6], [b"lngh", &PROTOCOL_VERSION.to_le_bytes()[..]].concat());
    let error = accepted.unwrap_err();
    assert!(matches!(error, ControlError::Hello(HelloError::Version { .. })), "{error}");
    let text = error.to_string();
    let ours = format!("(protocol {PROTOCOL_VERSION})");
    assert!(text.contains("longhaul 9.9.9 (protocol 255)") && text.contains(&ours), "{text}");
    assert_eq!(code(worker.closed().await), VarInt::from(CloseCode::Version));
}

#[tokio::test]
async fn a_coordinator_of_another_version_is_named_to_the_worker() {
    let (_front, worker, coordinator) = connect().await;
    let other_release = async {
        let (mut sink, mut source) = coordinator.accept_bi().await.unwrap();
        sink.write_all(b"lngh\xff\x00\x059.9.9").await.unwrap();
        source.read_to_end(100).await.unwrap()
    };
    let (_, opened) = tokio::join!(other_release, open::<ToCoordinator, ToWorker>(&worker));
    let text = opened.unwrap_err().to_string();
    assert!(
        text.contains("longhaul 9.9.9 (protocol 255)") && text.contains("install the same release"),
        "{text}"
    );
}

#[tokio::test]
async fn garbage_instead_of_a_hello_is_cut_off() {
    let (_front, worker, coordinator) = connect().await;
    let garbage = async {
        let (mut sink, mut source) = worker.open_bi().await.unwrap();
        sink.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        source.read_to_end(100).await.unwrap();
    };
    let ((), accepted) = tokio::join!(garbage, accept::<ToWorker, ToCoordinator>(&coordinator));
    assert!(matches!(accepted.err(), Some(ControlError::Hello(HelloError::NotLonghaul))));
    assert_eq!(code(worker.closed().await), VarInt::from(CloseCode::Protocol));
}

/// Sends a proper hello, then these bytes; returns the coordinator's error.
async fn after_hello(bytes: &[u8]) -> ControlError {
    let (_front, worker, coordinator) = connect().await;
    let rogue = async {
        let (mut sink, source) = worker.open_bi().await.unwrap();
        sink.write_all(&[b"lngh", &PROTOCOL_VERSION.to_le_bytes()[..], b"\x00"].concat()).await.unwrap();
        sink.write_all(bytes).await.unwrap();
        sink.finish().unwrap();
        source
    };
    let (_source, accepted) = tokio::join!(rogue, accept::<ToWorker, ToCoordinator>(&coordinator));
    let (_sender, mut receiver) = accepted.unwrap();
    let error = receiver.receive().await.unwrap_err();
    assert_eq!(code(worker.closed().await), VarInt::from(CloseCode::Protocol));
    error
}

#[tokio::test]
async fn a_length_beyond_the_limit_is_refused_before_its_bytes_come() {
    let error = after_hello(&(REPORT_FRAME_BYTES_MAX as u32 + 1).to_le_bytes()).await;
    assert!(matches!(error, ControlError::Frame(FrameError::TooLong { .. })), "{error}");
}

#[tokio::test]
async fn frames_that_are_no_messages_close_the_connection() {
    let unknown_variant = after_hello(b"\x01\x00\x00\x00\x7f").await;
    assert!(matches!(unknown_variant, ControlError::Decode(_)), "{unknown_variant}");
    // `Leaving` is variant 7 and has no fields.
    let trailing = after_hello(b"\x02\x00\x00\x00\x07\x00").await;
    assert!(matches!(trailing, ControlError::Decode(_)), "{trailing}");
    let cut_off = after_hello(b"\x02\x00\x00\x00\x07").await;
    assert!(matches!(cut_off, ControlError::Frame(FrameError::CutOff)), "{cut_off}");
}
