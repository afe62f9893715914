//! Diagnosis of a UDP port that does not complete a QUIC handshake.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::timeout;

/// Packets sent before the port counts as silent: a long link may lose one or two.
const ATTEMPTS: usize = 3;
/// Timeout of each packet: the longest plausible round trip.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);

/// The smallest datagram that a QUIC server answers (RFC 9000 §14.1).
const DATAGRAM_BYTES: usize = 1200;

/// The result of a knock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knock {
    /// No answer: the machine is absent, or a device on the path drops UDP.
    Silence,
    /// The machine answers, but the port is closed.
    Closed,
    /// The port answers.
    Answer,
    /// The port answers only packets that routers may fragment, which QUIC forbids (RFC 9000 §14).
    AnswerToPieces,
}

/// Sends a QUIC packet of an unsupported version, which any QUIC server answers with its own versions (RFC 9000 §6.1).
///
/// # Errors
/// This machine has no route to the address.
pub(super) async fn knock(address: SocketAddr, patience: Duration) -> io::Result<Knock> {
    match attempt(address, patience, true).await? {
        Knock::Answer => match attempt(address, patience, false).await {
            Ok(Knock::Answer) => Ok(Knock::Answer),
            // The kernel may already know that the path MTU is too small.
            _ => Ok(Knock::AnswerToPieces),
        },
        other => Ok(other),
    }
}

async fn attempt(address: SocketAddr, patience: Duration, may_be_in_pieces: bool) -> io::Result<Knock> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    if !may_be_in_pieces {
        // As quinn does for all packets.
        quinn::udp::UdpSocketState::new((&socket).into())?;
    }
    // The kernel reports closed ports only to connected sockets.
    socket.connect(address).await?;
    for _ in 0..ATTEMPTS {
        let round = async {
            socket.send(&unknown_version()).await?;
            socket.recv(&mut [0; DATAGRAM_BYTES]).await
        };
        match timeout(patience, round).await {
            Err(_) => {}
            Ok(Ok(_)) => return Ok(Knock::Answer),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(Knock::Closed),
            Ok(Err(error)) => return Err(error),
        }
    }
    Ok(Knock::Silence)
}

/// A long header (RFC 8999 §5.1) with a version reserved for this purpose (RFC 9000 §15) and two connection ids of 8 bytes.
fn unknown_version() -> [u8; DATAGRAM_BYTES] {
    let mut datagram = [0; DATAGRAM_BYTES];
    let head = [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1];
    datagram[..head.len()].copy_from_slice(&head);
    datagram
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::RunId;
    use longhaul_proto::identity::{Authority, coordinator_server};

    use super::*;

    #[tokio::test]
    async fn a_quic_server_answers_whatever_it_serves() {
        let authority = Authority::create(RunId([1; 16]), 1_900_000_000).unwrap();
        let tls = coordinator_server(&authority, 1_900_000_000).unwrap();
        let server =
            quinn::Endpoint::server(quinn::ServerConfig::with_crypto(tls), ([127, 0, 0, 1], 0).into())
                .unwrap();
        assert_eq!(
            knock(server.local_addr().unwrap(), Duration::from_secs(60)).await.unwrap(),
            Knock::Answer
        );
    }

    #[tokio::test]
    async fn a_closed_port_is_told_from_a_silent_one() {
        let mute = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = mute.local_addr().unwrap();
        assert_eq!(knock(address, Duration::from_millis(1)).await.unwrap(), Knock::Silence);
        drop(mute);
        assert_eq!(knock(address, Duration::from_secs(60)).await.unwrap(), Knock::Closed);
    }
}
