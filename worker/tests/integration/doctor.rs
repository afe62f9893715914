//! The real `worker doctor` against a coordinator's front, from the user's view.

use std::net::SocketAddr;
use std::process::Output;
use std::sync::Arc;
use std::time::SystemTime;

use longhaul_common::id::RunId;
use longhaul_proto::control::{Acceptor, AuthenticatedPeer, EnrolRefusal, EnrolReply, serve_enrol};
use longhaul_proto::identity::{Authority, Fingerprint, Token, coordinator_server};
use quinn::{Endpoint, ServerConfig};
use tokio::process::Command;

const RUN: RunId = RunId([0x11; 16]);

/// The real time, which TLS uses to verify certificates.
#[allow(clippy::disallowed_methods, reason = "rustls reads the same clock")]
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// A coordinator that enrols no workers and answers probes.
fn open_front() -> (SocketAddr, Fingerprint) {
    let authority = Authority::create(RUN, now_unix_s()).unwrap();
    let mut config = ServerConfig::with_crypto(coordinator_server(&authority, now_unix_s()).unwrap());
    let acceptor = Acceptor::new(RUN);
    acceptor.limit(Arc::get_mut(&mut config.transport).unwrap());
    let endpoint = Endpoint::server(config, ([127, 0, 0, 1], 0).into()).unwrap();
    let address = endpoint.local_addr().unwrap();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A doctor that rejects this coordinator fails the handshake.
                if let Ok(AuthenticatedPeer::Applicant(applicant)) = acceptor.admit(incoming).await {
                    let nobody = async |_, _| EnrolReply::Refused(EnrolRefusal::Full);
                    serve_enrol(applicant, nobody).await.unwrap();
                }
            });
        }
    });
    (address, authority.fingerprint())
}

async fn doctor(arguments: &[&str]) -> (Output, String) {
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-torch"));
    command.arg("doctor").args(arguments).args(["--device", "cpu", "--cache-dir"]).arg(cache.path());
    command.env_remove("LONGHAUL_TOKEN");
    let output = command.output().await.unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

/// The verdict of a check.
fn verdict<'a>(text: &'a str, check: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    let line = lines.find(|line| line.get(6..).is_some_and(|rest| rest.starts_with(&format!("{check} "))))?;
    Some(line[..4].trim_start())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_can_take_part_is_told_so_line_by_line() {
    let (address, authority) = open_front();
    let token = Token::create(authority).unwrap().to_string();
    let (output, text) = doctor(&[&address.to_string(), "--token", &token]).await;
    for check in
        ["libtorch", "device", "coordinator", "token", "udp", "versions", "round trip", "clock", "upload"]
    {
        assert_eq!(verdict(&text, check), Some("ok"), "{check} in:\n{text}");
    }
    for check in ["threads", "cache", "buffers"] {
        assert!(verdict(&text, check).is_some(), "{check} in:\n{text}");
    }
    assert!(output.status.success() && text.contains("A worker would run on this machine"), "{text}");
    assert!(!text.contains('\x1b') && !text.contains(&token), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_another_coordinator_fails_and_the_rest_is_examined_all_the_same() {
    let (address, _) = open_front();
    let token = Token::create(Fingerprint([7; 32])).unwrap().to_string();
    let (output, text) = doctor(&[&address.to_string(), "--token", &token]).await;
    assert!(!output.status.success());
    assert_eq!((verdict(&text, "token"), verdict(&text, "udp")), (Some("FAIL"), Some("ok")), "{text}");
    assert_eq!(verdict(&text, "clock"), Some("ok"), "{text}");
    assert!(text.contains("is not the one that made the token"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_and_a_name_that_does_not_resolve_are_told_apart() {
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (closed, nowhere) = (closed.to_string(), ["nowhere.invalid:7700"]);
    let closed = [&closed[..]];
    let ((output, text), (unresolved, unresolved_text)) = tokio::join!(doctor(&closed), doctor(&nowhere));
    assert!(!output.status.success() && !unresolved.status.success());
    assert_eq!((verdict(&text, "udp"), verdict(&text, "token")), (Some("FAIL"), Some("-")), "{text}");
    assert!(text.contains("nothing listens on its UDP port"), "{text}");
    assert_eq!(verdict(&unresolved_text, "coordinator"), Some("FAIL"), "{unresolved_text}");
    assert_eq!(verdict(&unresolved_text, "udp"), None, "{unresolved_text}");
}
