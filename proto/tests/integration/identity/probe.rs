//! Probes without a token, and their cost to the coordinator.

use std::net::UdpSocket;

use longhaul_proto::control::{
    FromDesk, Hello, PROBE_BYTES_MAX, PROBE_REQUESTS_MAX, PROBE_UPLOADS_MAX, Probe, ProbeError, ProbeReply,
    ProbeRequest, STRANGER_WINDOW_BYTES, ServeEnrolError, ToDesk, open,
};
use longhaul_proto::identity::{Authority, probe_client};
use quinn::{ClientConfig, Connection, Endpoint};

use super::net::{Front, RUN, client_endpoint, data_endpoint, now_unix_s};

const COORDINATOR: &str = "coordinator.longhaul";

/// The connection of a prober that ignores the rules.
async fn dial(front: &Front, endpoint: &Endpoint) -> Connection {
    let config = ClientConfig::new(probe_client(None).unwrap());
    endpoint.connect_with(config, front.address, COORDINATOR).unwrap().await.unwrap()
}

#[tokio::test]
async fn a_stranger_learns_version_and_time_and_how_much_arrives() {
    let mut front = Front::open(now_unix_s());
    let before = now_unix_s() * 1000;
    let mut probe = Probe::dial(&client_endpoint(), front.address, None).await.unwrap();
    assert_eq!(probe.coordinator(), &Hello::ours());
    let echo = probe.echo().await.unwrap();
    assert!((before..=(now_unix_s() + 1) * 1000).contains(&echo.unix_ms), "{echo:?}");
    assert_eq!(probe.upload().await.unwrap().bytes, PROBE_BYTES_MAX);
    // The exchange continues after the upload has filled its windows.
    probe.echo().await.unwrap();
    probe.finish().await;
    front.served.recv().await.unwrap().unwrap();
    assert_eq!(front.issuer.lock().unwrap().workers().count(), 0);
}

#[tokio::test]
async fn a_probe_with_a_token_tells_the_right_coordinator_from_another() {
    let front = Front::open(now_unix_s());
    let endpoint = client_endpoint();
    let authority = front.token(None).authority;
    Probe::dial(&endpoint, front.address, Some(authority)).await.unwrap();
    let elsewhere = Authority::create(RUN, now_unix_s()).unwrap().fingerprint();
    let refused = Probe::dial(&endpoint, front.address, Some(elsewhere)).await.unwrap_err();
    assert!(matches!(refused, ProbeError::WrongCoordinator), "{refused}");
}

#[tokio::test]
async fn somebody_else_s_server_is_no_coordinator() {
    let front = Front::open(now_unix_s());
    let (listener, address) = data_endpoint(&front.member(1, now_unix_s()).identity);
    let endpoint = client_endpoint();
    let accept = async { listener.accept().await.unwrap().await };
    let (accepted, probed) = tokio::join!(accept, Probe::dial(&endpoint, address, None));
    accepted.unwrap_err();
    assert!(matches!(probed, Err(ProbeError::NotACoordinator { .. })), "{probed:?}");
}

#[tokio::test]
async fn a_port_that_never_answers_is_silent() {
    let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
    let endpoint = client_endpoint();
    tokio::time::pause();
    let probed = Probe::dial(&endpoint, mute.local_addr().unwrap(), None).await;
    assert!(matches!(probed, Err(ProbeError::Silent)), "{probed:?}");
}

#[tokio::test]
async fn a_coordinator_of_next_year_is_out_of_date_by_this_clock() {
    let year_s = 366 * 24 * 3600;
    let authority = Authority::create(RUN, now_unix_s() + year_s).unwrap();
    let tls = longhaul_proto::identity::coordinator_server(&authority, now_unix_s() + year_s).unwrap();
    let listener =
        Endpoint::server(quinn::ServerConfig::with_crypto(tls), ([127, 0, 0, 1], 0).into()).unwrap();
    let endpoint = client_endpoint();
    let address = listener.local_addr().unwrap();
    let accept = async { listener.accept().await.unwrap().await };
    let dial = Probe::dial(&endpoint, address, Some(authority.fingerprint()));
    let (accepted, probed) = tokio::join!(accept, dial);
    accepted.unwrap_err();
    assert!(matches!(probed, Err(ProbeError::OutOfDate)), "{probed:?}");
}

#[tokio::test]
async fn an_upload_beyond_the_limit_is_cut_off() {
    let mut front = Front::open(now_unix_s());
    let endpoint = client_endpoint();
    let connection = dial(&front, &endpoint).await;
    let (sender, mut receiver) = open::<ToDesk, FromDesk>(&connection).await.unwrap();
    sender.send(&ToDesk::Probe(ProbeRequest::Upload)).unwrap();
    let mut stream = connection.open_uni().await.unwrap();
    let mut pushed = 0;
    while stream.write_all(&[0; 64 << 10]).await.is_ok() {
        pushed += 64 << 10;
        // Bytes read by the coordinator, and those that still fit its window.
        assert!(pushed <= PROBE_BYTES_MAX + 10 * u64::from(STRANGER_WINDOW_BYTES), "it reads on and on");
    }
    receiver.receive().await.unwrap_err();
    let served = front.served.recv().await.unwrap();
    assert!(matches!(served, Err(ServeEnrolError::Excess)), "{served:?}");
}

#[tokio::test]
async fn an_upload_that_stalls_is_answered_with_what_came() {
    let front = Front::open(now_unix_s());
    let endpoint = client_endpoint();
    let connection = dial(&front, &endpoint).await;
    let (sender, mut receiver) = open::<ToDesk, FromDesk>(&connection).await.unwrap();
    sender.send(&ToDesk::Probe(ProbeRequest::Upload)).unwrap();
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(&[0; 1000]).await.unwrap();
    stream.finish().unwrap();
    // All of it is present; the other streams never come.
    stream.stopped().await.unwrap();
    tokio::time::pause();
    let reply = receiver.receive().await.unwrap();
    assert!(matches!(reply, Some(FromDesk::Probe(ProbeReply::Uploaded { bytes: 1000, .. }))), "{reply:?}");
}

#[tokio::test]
async fn a_probe_that_asks_and_asks_is_cut_off() {
    let mut front = Front::open(now_unix_s());
    let mut probe = Probe::dial(&client_endpoint(), front.address, None).await.unwrap();
    for _ in 0..PROBE_REQUESTS_MAX {
        probe.echo().await.unwrap();
    }
    probe.echo().await.unwrap_err();
    let served = front.served.recv().await.unwrap();
    assert!(matches!(served, Err(ServeEnrolError::Excess)), "{served:?}");
}

#[tokio::test]
async fn a_second_upload_is_cut_off() {
    let mut front = Front::open(now_unix_s());
    let mut probe = Probe::dial(&client_endpoint(), front.address, None).await.unwrap();
    probe.upload().await.unwrap();
    probe.upload().await.unwrap_err();
    let served = front.served.recv().await.unwrap();
    assert!(matches!(served, Err(ServeEnrolError::Excess)), "{served:?}");
}

#[tokio::test]
async fn uploads_beyond_the_limit_are_told_to_come_back() {
    let mut front = Front::open(now_unix_s());
    let endpoint = client_endpoint();
    let mut crowd = Vec::new();
    for _ in 0..PROBE_UPLOADS_MAX {
        let connection = dial(&front, &endpoint).await;
        let (sender, receiver) = open::<ToDesk, FromDesk>(&connection).await.unwrap();
        sender.send(&ToDesk::Probe(ProbeRequest::Upload)).unwrap();
        // Only holders of a slot may open streams.
        let stream = connection.open_uni().await.unwrap();
        crowd.push((connection, sender, receiver, stream));
    }
    let mut late = Probe::dial(&endpoint, front.address, None).await.unwrap();
    let refused = late.upload().await.unwrap_err();
    assert!(matches!(refused, ProbeError::Busy), "{refused}");
    let (first, ..) = crowd.swap_remove(0);
    first.close(0u32.into(), b"");
    front.served.recv().await.unwrap().unwrap_err();
    assert_eq!(late.upload().await.unwrap().bytes, PROBE_BYTES_MAX);
}
