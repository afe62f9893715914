//! Rejection of strangers: each kind of bad input, and its outcome.

use longhaul_common::id::RunId;
use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{PROTOCOL_VERSION, Start, ToCoordinator, ToWorker};
use longhaul_proto::control::{
    AcceptorError, CloseCode, ControlError, ControlReceiver, HelloError, ServeEnrolError,
    UNAUTHENTICATED_CONNECTIONS_MAX, accept, enrol, open,
};
use longhaul_proto::identity::{
    ALPN_CONTROL, ALPN_DATA, ALPN_ENROL, Authority, COORDINATOR_OF_ANY_RUN, Exporter, PeerError, PeerName,
    data_client,
};
use longhaul_proto::transport::HandshakeError;
use quinn::{ClientConfig, ConnectionError, Endpoint, VarInt};

use super::net::{
    DAY_S, Front, Member, RUN, client_endpoint, data_endpoint, intrude, member, now_unix_s, rogue_client,
};

/// A rogue dials a worker's data endpoint and sends bytes before the worker can identify it. The handshake
/// fails at the worker, which thus has no connection to read from.
async fn intrude_on_data(front: &Front, shown: Option<&Member>) {
    let host = front.member(1, now_unix_s());
    let (listener, address) = data_endpoint(&host.identity);
    let config = rogue_client(&front.authority, ALPN_DATA, shown);
    let name = PeerName::Worker(WorkerId(1)).in_run(RUN);
    let accept = async { listener.accept().await.unwrap().await };
    let (accepted, told) = tokio::join!(accept, intrude(config, address, &name));
    assert!(matches!(accepted, Err(ConnectionError::TransportError(_))), "{accepted:?}");
    assert!(matches!(told, ConnectionError::ConnectionClosed(_)), "{told:?}");
}

/// The same at the coordinator, on the control ALPN.
async fn intrude_on_control(front: &mut Front, shown: Option<&Member>) -> (AcceptorError, ConnectionError) {
    let config = rogue_client(&front.authority, ALPN_CONTROL, shown);
    let told = intrude(config, front.address, &PeerName::Coordinator.in_run(RUN)).await;
    let turned_away = front.turned_away.recv().await.unwrap();
    assert!(front.workers.try_recv().is_err());
    (turned_away, told)
}

#[tokio::test]
async fn without_a_certificate_nobody_gets_a_byte_through_to_a_worker() {
    let front = Front::open(now_unix_s());
    intrude_on_data(&front, None).await;
}

#[tokio::test]
async fn without_a_certificate_nobody_gets_to_the_control_channel() {
    let mut front = Front::open(now_unix_s());
    let (turned_away, told) = intrude_on_control(&mut front, None).await;
    assert!(matches!(turned_away, AcceptorError::Stranger(PeerError::NoCertificate)), "{turned_away}");
    let ConnectionError::ApplicationClosed(close) = told else { panic!("{told}") };
    assert_eq!(close.error_code, VarInt::from(CloseCode::Stranger));
}

#[tokio::test]
async fn a_certificate_of_another_run_opens_nothing() {
    let mut front = Front::open(now_unix_s());
    // Another run's authority, and one that lies about its run.
    for run in [RunId([0x22; 16]), RUN] {
        let elsewhere = Authority::create(run, now_unix_s()).unwrap();
        let stranger = member(&elsewhere, 0, now_unix_s());
        intrude_on_data(&front, Some(&stranger)).await;
        let (turned_away, _) = intrude_on_control(&mut front, Some(&stranger)).await;
        assert!(matches!(turned_away, AcceptorError::Handshake(HandshakeError::Failed(_))), "{turned_away}");
    }
}

#[tokio::test]
async fn an_expired_certificate_opens_nothing() {
    let mut front = Front::open(now_unix_s());
    let expired = front.member(0, now_unix_s() - DAY_S - 60);
    intrude_on_data(&front, Some(&expired)).await;
    let (turned_away, _) = intrude_on_control(&mut front, Some(&expired)).await;
    assert!(matches!(turned_away, AcceptorError::Handshake(HandshakeError::Failed(_))), "{turned_away}");
}

#[tokio::test]
async fn a_member_does_not_pass_for_another() {
    let front = Front::open(now_unix_s());
    let (listener, address) = data_endpoint(&front.member(1, now_unix_s()).identity);
    let dialler = front.member(0, now_unix_s()).identity;
    let config = ClientConfig::new(data_client(&dialler).unwrap());
    let name = PeerName::Worker(WorkerId(2)).in_run(RUN);
    let endpoint = client_endpoint();
    let dial = async { endpoint.connect_with(config, address, &name).unwrap().await };
    let accept = async { listener.accept().await.unwrap().await };
    let (dialled, accepted) = tokio::join!(dial, accept);
    assert!(matches!(dialled, Err(ConnectionError::TransportError(_))), "{dialled:?}");
    assert!(accepted.is_err());
}

#[tokio::test]
async fn a_peer_that_connects_and_says_nothing_is_cut_off() {
    let mut front = Front::open(now_unix_s());
    let member = front.member(0, now_unix_s());
    let (ours, theirs) = front.connect(&member.identity).await;
    tokio::time::pause();
    let error = accept::<ToWorker, ToCoordinator>(&theirs).await.unwrap_err();
    assert!(matches!(error, ControlError::Hello(HelloError::Silent)), "{error}");
    let ConnectionError::ApplicationClosed(close) = ours.closed().await else { panic!("not closed") };
    assert_eq!(close.error_code, VarInt::from(CloseCode::Protocol));
}

#[tokio::test]
async fn an_applicant_that_says_hello_and_then_nothing_is_cut_off() {
    let mut front = Front::open(now_unix_s());
    let config = rogue_client(&front.authority, ALPN_ENROL, None);
    let endpoint = client_endpoint();
    let connection =
        endpoint.connect_with(config, front.address, COORDINATOR_OF_ANY_RUN).unwrap().await.unwrap();
    let (mut sink, mut source) = connection.open_bi().await.unwrap();
    sink.write_all(&[b"lngh", &PROTOCOL_VERSION.to_le_bytes()[..], b"\x00"].concat()).await.unwrap();
    source.read_exact(&mut [0; 7]).await.unwrap();
    tokio::time::pause();
    let served = front.served.recv().await.unwrap();
    assert!(matches!(served, Err(ServeEnrolError::Slow)), "{served:?}");
}

#[tokio::test]
async fn strangers_beyond_the_limit_wait_outside_and_members_do_not_count() {
    let mut front = Front::open(now_unix_s());
    let config = rogue_client(&front.authority, ALPN_ENROL, None);
    let addresses = [2, 3, 4, 5].map(|last| Endpoint::client(([127, 0, 0, last], 0).into()).unwrap());
    let address = front.address;
    let dial =
        |endpoint: &Endpoint| endpoint.connect_with(config.clone(), address, COORDINATOR_OF_ANY_RUN).unwrap();
    let mut crowd = Vec::new();
    for endpoint in &addresses {
        for _ in 0..UNAUTHENTICATED_CONNECTIONS_MAX / addresses.len() {
            crowd.push(dial(endpoint).await.unwrap());
        }
        // Its share is used up.
        let refused = dial(endpoint).await;
        assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "{refused:?}");
        // A member that joins in between takes a slot only during its handshake.
        if crowd.len() < UNAUTHENTICATED_CONNECTIONS_MAX {
            let member = front.member(0, now_unix_s());
            front.connect(&member.identity).await;
        }
    }
    let endpoint = client_endpoint();
    let refused = dial(&endpoint).await;
    assert!(matches!(refused, Err(ConnectionError::ConnectionClosed(_))), "{refused:?}");
    // When one leaves, the next gets in.
    let first = crowd.swap_remove(0);
    first.close(VarInt::from_u32(0), b"");
    front.served.recv().await.unwrap().unwrap_err();
    enrol(&endpoint, front.address, &front.token(None), "amsterdam").await.unwrap();
}

#[tokio::test]
async fn a_session_has_keying_material_of_its_own_and_no_early_data() {
    let mut front = Front::open(now_unix_s());
    let member = front.member(0, now_unix_s());
    // This client would resume sessions and send early data; the server offers neither.
    let config = rogue_client(&front.authority, ALPN_CONTROL, Some(&member));
    let endpoint = client_endpoint();
    let name = PeerName::Coordinator.in_run(RUN);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let connecting = endpoint.connect_with(config.clone(), front.address, &name).unwrap();
        let connecting = connecting.into_0rtt().err().expect("the session before gave no ticket");
        let ours = connecting.await.unwrap();
        let (_, theirs) = front.workers.recv().await.unwrap();
        let exporter = Exporter::of(&ours).unwrap();
        assert_eq!(exporter, Exporter::of(&theirs).unwrap());
        // Messages go both ways, so that a ticket would have arrived.
        let (opened, accepted) = tokio::join!(open::<ToCoordinator, ToWorker>(&ours), accept(&theirs));
        let (_, mut receiver): (_, ControlReceiver<ToWorker>) = opened.unwrap();
        let (sender, _receiver): (_, ControlReceiver<ToCoordinator>) = accepted.unwrap();
        sender.send(&ToWorker::Prepare(Start::Fresh)).unwrap();
        receiver.receive().await.unwrap();
        assert!(!seen.contains(&exporter));
        seen.push(exporter);
    }
}
