//! Two incompatible releases: each side names both, and the one to upgrade.

use std::net::SocketAddr;
use std::time::SystemTime;

use longhaul_common::id::RunId;
use longhaul_proto::control::message::PROTOCOL_VERSION;
use longhaul_proto::control::{CloseCode, SOFTWARE_BYTES_MAX};
use longhaul_proto::identity::{
    Authority, COORDINATOR_OF_ANY_RUN, Fingerprint, Token, coordinator_server, enrol_client,
};
use longhaul_proto::transport;
use longhaul_tests::cluster::Process;
use quinn::{ConnectionError, Endpoint};
use tokio::runtime::Runtime;

use super::{assert_says, join, refusal};
use crate::scenario::{RUN_MAX, Setup};

/// First bytes of a release newer than any.
const HELLO: &[u8] = b"lngh\xff\xff\x059.9.9";
const NEWER: &str = "longhaul 9.9.9 (protocol 65535)";
const REMEDY: &str = "install the same release on both machines";

fn ours() -> String {
    format!("(protocol {PROTOCOL_VERSION})")
}

#[allow(clippy::disallowed_methods, reason = "rustls reads the same clock")]
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// A coordinator of the newer release, which runs as long as the runtime.
fn newer_coordinator(runtime: &Runtime) -> (SocketAddr, Fingerprint) {
    let authority = Authority::create(RunId([3; 16]), now_unix_s()).unwrap();
    let tls = coordinator_server(&authority, now_unix_s()).unwrap();
    let _context = runtime.enter();
    let (socket, _) = transport::bind_udp(([127, 0, 0, 1], 0).into()).unwrap();
    let endpoint = transport::endpoint(socket, Some(tls)).unwrap();
    let address = endpoint.local_addr().unwrap();
    runtime.spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                // A doctor with enough information may close at any point.
                let Ok(connection) = incoming.await else { return };
                let Ok((mut sink, _source)) = connection.accept_bi().await else { return };
                if sink.write_all(HELLO).await.is_ok() {
                    connection.closed().await;
                }
            });
        }
    });
    (address, authority.fingerprint())
}

#[test]
fn a_worker_and_a_doctor_that_meet_a_newer_coordinator_name_both_releases_and_the_remedy() {
    let runtime = Runtime::new().unwrap();
    let (address, authority) = newer_coordinator(&runtime);
    let token = Token::create(authority).unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let worker = join(folder.path(), "worker", address, &token, &[]);
    let doctor = Process::start_as("worker", "doctor", folder.path(), |command| {
        command.args(["doctor", &address.to_string(), "--token", &token]);
        command.args(["--device", "cpu", "--cache-dir", "doctor"]);
    })
    .unwrap();
    assert_says(&refusal(worker), &[NEWER, &ours(), REMEDY, "the older one is on this side"]);
    assert_says(&refusal(doctor), &[NEWER, &ours(), REMEDY]);
}

#[test]
fn a_coordinator_tells_a_newer_worker_and_its_own_log_which_releases_met() {
    let mut scenario = Setup::default().gather();
    let token: Token = scenario.cluster.token().unwrap().parse().unwrap();
    let address = scenario.cluster.listen();
    let (heard, closed) = Runtime::new().unwrap().block_on(async {
        let client = transport::client_config(enrol_client(token.authority).unwrap());
        let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        let dialled = endpoint.connect_with(client, address, COORDINATOR_OF_ANY_RUN).unwrap();
        let connection = dialled.await.unwrap();
        let (mut sink, mut source) = connection.open_bi().await.unwrap();
        sink.write_all(HELLO).await.unwrap();
        let heard = source.read_to_end(7 + SOFTWARE_BYTES_MAX).await.unwrap();
        (heard, connection.closed().await)
    });
    assert_eq!(heard[..6], [b"lngh", &PROTOCOL_VERSION.to_le_bytes()[..]].concat());
    let ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed}") };
    assert_eq!(close.error_code, CloseCode::Version.into());
    let words = [NEWER, &ours(), REMEDY, "the older one is on this side"];
    assert_says(&String::from_utf8_lossy(&close.reason), &words);
    let coordinator = scenario.cluster.coordinator().unwrap();
    coordinator.wait_for_words("rejected a worker of another release", RUN_MAX).unwrap();
    assert_says(&coordinator.log(), &words);
}
