//! Attacks on the QUIC ports of coordinator and workers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::control::message::PROTOCOL_VERSION;
use longhaul_proto::control::{EnrolError, enrol};
use longhaul_proto::frame::{Frame, FrameKind, FrameMeta};
use longhaul_proto::identity::{
    ALPN_CONTROL, ALPN_DATA, ALPN_ENROL, COORDINATOR_OF_ANY_RUN, Identity, PeerName, Token,
};
use longhaul_proto::transport::bulk::BulkSender;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use rand::Rng;
use rand_chacha::ChaCha12Rng;
use tokio::time::timeout;

use super::arms::{Arms, client, record};

/// Datagrams of random bytes.
const DATAGRAMS: usize = 8;
/// Timeout of a rejection, which takes some local round trips even on a busy machine.
const HANG_UP_MAX: Duration = Duration::from_secs(20);
/// Maximum reply to an unvalidated address, as a multiple of the bytes received.
const AMPLIFICATION_MAX: usize = 3;
/// One more datagram: quinn sends whole ones while any budget is left.
const DATAGRAM_BYTES: usize = 1200;
/// Longer than the initial timeout of a lost reply (RFC 9002, section 6.2.2: a second).
const QUIET: Duration = Duration::from_secs(3);
/// Generations, rounds and fragments of a young run.
const YOUNG: u64 = 8;
/// Worker numbers of a small run.
const NUMBERS: u32 = 4;

pub(super) async fn garbage(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let (socket, door) = (arms.socket(&mut random)?, arms.any_door(&mut random));
    for _ in 0..DATAGRAMS {
        let mut bytes: Vec<u8> = (0..random.random_range(1..1400)).map(|_| random.random()).collect();
        if random.random_bool(0.5) {
            // The beginning of an Initial of QUIC version 1.
            let header = [0xc0, 0, 0, 0, 1, 8];
            let length = header.len().min(bytes.len());
            bytes[..length].copy_from_slice(&header[..length]);
        }
        socket.send_to(&bytes, door)?;
    }
    Ok(())
}

pub(super) async fn half_handshake(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let door = arms.any_door(&mut random);
    let alpn = if door == arms.target.coordinator { ALPN_ENROL } else { ALPN_DATA };
    let datagram = record(&client(&arms.member, alpn, None)?).await?;
    send_unproved(arms, &mut random, &datagram, door).await
}

pub(super) async fn replayed_handshake(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    // Several of these are one connection to the coordinator, whose replies all go to one of them, so
    // individual replies cannot be told apart.
    arms.socket(&mut random)?.send_to(&arms.recorded, arms.target.coordinator)?;
    Ok(())
}

/// Sends one datagram from an unvalidated address, and counts the bytes that would have been sent there (RFC
/// 9000, section 8.1).
async fn send_unproved(
    arms: &Arms,
    random: &mut ChaCha12Rng,
    datagram: &[u8],
    door: SocketAddr,
) -> Result<()> {
    let socket = arms.socket(random)?;
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UdpSocket::from_std(socket)?;
    socket.send_to(datagram, door).await?;
    let (mut answered, mut bytes) = (0, vec![0; 2048]);
    while let Ok(received) = timeout(QUIET, socket.recv(&mut bytes)).await {
        answered += received?;
    }
    let most = AMPLIFICATION_MAX * datagram.len() + DATAGRAM_BYTES;
    ensure!(
        answered <= most,
        "{} bytes from an unvalidated address got a reply of {answered}",
        datagram.len()
    );
    Ok(())
}

pub(super) async fn wrong_alpn(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let config = client(&arms.member, b"h3", Some(&arms.member))?;
    let dialled = Dialled::to(arms, &mut random, config).await?;
    ensure!(dialled.connection.is_none(), "an unknown protocol was negotiated");
    Ok(())
}

pub(super) async fn no_certificate(arms: &Arms, random: ChaCha12Rng) -> Result<()> {
    intrude(arms, random, None).await
}

pub(super) async fn other_run(arms: &Arms, random: ChaCha12Rng) -> Result<()> {
    intrude(arms, random, Some(&arms.elsewhere)).await
}

pub(super) async fn kicked(arms: &Arms, random: ChaCha12Rng) -> Result<()> {
    intrude(arms, random, Some(&arms.kicked)).await
}

/// A token with a valid id and a wrong secret.
pub(super) async fn guessed_token(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let endpoint = arms.endpoint(&mut random)?;
    let guess = Token { id: arms.token.id, ..Token::create(arms.token.authority)? };
    match enrol(&endpoint, arms.target.coordinator, &guess, "hostile").await {
        Ok(identity) => bail!("a guess got {} into the run", identity.worker()),
        Err(EnrolError::Refused(_) | EnrolError::Connection(_) | EnrolError::Slow) => Ok(()),
        Err(EnrolError::Control(_) | EnrolError::NoReply) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn silent_applicant(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let endpoint = arms.endpoint(&mut random)?;
    let config = client(&arms.member, ALPN_ENROL, None)?;
    let dialled = endpoint.connect_with(config, arms.target.coordinator, COORDINATOR_OF_ANY_RUN)?.await;
    let Ok(connection) = dialled else { return Ok(()) };
    if let Ok((mut stream, _receive)) = connection.open_bi().await {
        // The coordinator may have closed.
        let _ = stream.write_all(b"l").await;
        connection.closed().await;
    }
    Ok(())
}

pub(super) async fn oversized_message(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let endpoint = arms.endpoint(&mut random)?;
    let config = client(&arms.member, ALPN_CONTROL, Some(&arms.member))?;
    let name = PeerName::Coordinator.in_run(arms.member.run());
    let Ok(connection) = endpoint.connect_with(config, arms.target.coordinator, &name)?.await else {
        return Ok(());
    };
    if let Ok((mut stream, _receive)) = connection.open_bi().await {
        let hello = [b"lngh", &PROTOCOL_VERSION.to_le_bytes()[..], b"\x00"].concat();
        // The coordinator may close meanwhile.
        let _ = stream.write_all(&[&hello[..], &[0xff; 4096]].concat()).await;
        await_end(&connection).await?;
    }
    Ok(())
}

/// With a valid certificate: each stream is refused, and the connection may stay.
pub(super) async fn bad_frames(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let workers = &arms.target.workers;
    let worker = workers[random.random_range(0..workers.len())];
    let endpoint = arms.endpoint(&mut random)?;
    let config = client(&arms.member, ALPN_DATA, Some(&arms.member))?;
    // A request for another worker than the one listening there is rejected.
    for number in 1..=NUMBERS {
        let name = PeerName::Worker(WorkerId(number)).in_run(arms.member.run());
        let Ok(connection) = endpoint.connect_with(config.clone(), worker, &name)?.await else { continue };
        let bytes: Vec<u8> = (0..random.random_range(1..5000)).map(|_| random.random()).collect();
        if let Ok(mut stream) = connection.open_uni().await {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.finish();
        }
        if let Ok((mut send, mut receive)) = connection.open_bi().await {
            let _ = send.write_all(&bytes).await;
            let _ = send.finish();
            let answered = timeout(HANG_UP_MAX, receive.read_to_end(1 << 20)).await;
            ensure!(
                !answered.is_ok_and(|answer| answer.is_ok_and(|bytes| !bytes.is_empty())),
                "random bytes were answered"
            );
        }
    }
    Ok(())
}

/// With a valid certificate, and well formed; but from a worker in no generation.
pub(super) async fn foreign_frames(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let workers = &arms.target.workers;
    let address = workers[random.random_range(0..workers.len())];
    let endpoint = arms.endpoint(&mut random)?;
    let config = client(&arms.member, ALPN_DATA, Some(&arms.member))?;
    for number in 0..NUMBERS {
        let name = PeerName::Worker(WorkerId(number)).in_run(arms.member.run());
        let Ok(connection) = endpoint.connect_with(config.clone(), address, &name)?.await else { continue };
        let sender = BulkSender::new(connection);
        for kind in [FrameKind::Local, FrameKind::Contribution, FrameKind::Result] {
            // As many values as a fragment of a small model may have, all invalid.
            let body = vec![0x7e; 4 * random.random_range(1..16_384)];
            let meta = FrameMeta {
                kind,
                generation: Generation(random.random_range(0..YOUNG)),
                round: Round(random.random_range(0..YOUNG)),
                fragment: FragmentId(random.random_range(0..YOUNG as u32)),
                sender: arms.member.worker(),
                weight: 1_000_000,
                part: 0,
            };
            // Whether accepted or not, it must change nothing.
            let _ = timeout(HANG_UP_MAX, sender.send(&Frame::new(meta, body.into())?)).await;
        }
    }
    Ok(())
}

/// A dialled peer, or one that closed before the connection was established.
struct Dialled {
    connection: Option<Connection>,
    _endpoint: Endpoint,
}

impl Dialled {
    async fn to(arms: &Arms, random: &mut ChaCha12Rng, config: ClientConfig) -> Result<Self> {
        let door = arms.any_door(random);
        let name = if door == arms.target.coordinator {
            PeerName::Coordinator.in_run(arms.member.run())
        } else {
            PeerName::Worker(WorkerId(random.random_range(1..=NUMBERS))).in_run(arms.member.run())
        };
        let endpoint = arms.endpoint(random)?;
        let connection = endpoint.connect_with(config, door, &name)?.await.ok();
        Ok(Self { connection, _endpoint: endpoint })
    }
}

/// Dials a port, sends bytes at once, and waits until the peer closes, which it must.
async fn intrude(arms: &Arms, mut random: ChaCha12Rng, shown: Option<&Identity>) -> Result<()> {
    let alpn = if random.random_bool(0.5) { ALPN_CONTROL } else { ALPN_DATA };
    let dialled = Dialled::to(arms, &mut random, client(&arms.member, alpn, shown)?).await?;
    let Some(connection) = &dialled.connection else { return Ok(()) };
    // In TLS 1.3 a client finishes before the server has seen its certificate, so this is sent in time.
    if let Ok(mut stream) = connection.open_uni().await {
        let _ = stream.write_all(b"let me in").await;
    }
    await_end(connection).await
}

async fn await_end(connection: &Connection) -> Result<()> {
    match timeout(HANG_UP_MAX, connection.closed()).await {
        Ok(ConnectionError::LocallyClosed) => bail!("the peer did not close the connection"),
        Ok(_) => Ok(()),
        Err(_) => bail!("the peer did not close the connection within {HANG_UP_MAX:?}"),
    }
}
