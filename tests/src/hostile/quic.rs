//! At the doors of coordinator and workers.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::PROTOCOL_VERSION;
use longhaul_proto::control::{EnrolError, enrol};
use longhaul_proto::identity::{
    ALPN_CONTROL, ALPN_DATA, ALPN_ENROL, COORDINATOR_OF_ANY_RUN, Identity, PeerName, Token,
};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use rand::Rng;
use rand_chacha::ChaCha12Rng;
use tokio::time::timeout;

use super::arms::{Arms, client, record};

/// Datagrams of random bytes.
const DATAGRAMS: usize = 8;
/// Who is turned away hears it within some round trips of this machine, however busy it is.
const HANG_UP_MAX: Duration = Duration::from_secs(20);
/// Numbers that workers of a small run have.
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
    arms.socket(&mut random)?.send_to(&datagram, door)?;
    Ok(())
}

pub(super) async fn replayed_handshake(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    arms.socket(&mut random)?.send_to(&arms.recorded, arms.target.coordinator)?;
    Ok(())
}

pub(super) async fn wrong_alpn(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let config = client(&arms.member, b"h3", Some(&arms.member))?;
    let dialled = Dialled::to(arms, &mut random, config).await?;
    ensure!(dialled.connection.is_none(), "a protocol that nobody speaks was agreed on");
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

/// A token of the right number, and another secret.
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
        // The coordinator may have hung up.
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
        // The coordinator may hang up in the middle.
        let _ = stream.write_all(&[&hello[..], &[0xff; 4096]].concat()).await;
        await_end(&connection).await?;
    }
    Ok(())
}

/// With a good certificate: each stream is refused, and the connection may stay.
pub(super) async fn bad_frames(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let workers = &arms.target.workers;
    let worker = workers[random.random_range(0..workers.len())];
    let endpoint = arms.endpoint(&mut random)?;
    let config = client(&arms.member, ALPN_DATA, Some(&arms.member))?;
    // Whoever asks for another worker than the one that listens there is turned away.
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

/// A peer that was dialled, or hung up before there was a connection.
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

/// Dials a door, says something at once, and waits until the peer hangs up, which it must.
async fn intrude(arms: &Arms, mut random: ChaCha12Rng, shown: Option<&Identity>) -> Result<()> {
    let alpn = if random.random_bool(0.5) { ALPN_CONTROL } else { ALPN_DATA };
    let dialled = Dialled::to(arms, &mut random, client(&arms.member, alpn, shown)?).await?;
    let Some(connection) = &dialled.connection else { return Ok(()) };
    // In TLS 1.3 a client is done before the server has seen its certificate, so this is on its way in time.
    if let Ok(mut stream) = connection.open_uni().await {
        let _ = stream.write_all(b"let me in").await;
    }
    await_end(connection).await
}

async fn await_end(connection: &Connection) -> Result<()> {
    match timeout(HANG_UP_MAX, connection.closed()).await {
        Ok(ConnectionError::LocallyClosed) => bail!("it was not the peer that hung up"),
        Ok(_) => Ok(()),
        Err(_) => bail!("the peer did not hang up within {HANG_UP_MAX:?}"),
    }
}
