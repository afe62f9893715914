//! Connection to the next member.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use longhaul_proto::identity::PeerName;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Stream};

use super::HANDSHAKE_MAX;
use super::clock::{left, now};
use super::hello::{WELCOME, hello};
use super::link::Secured;
use super::setup::RingIdentity;
use super::stop::{STOP_CHECK, Stop};
use crate::{CollectiveError, Peer};

/// Pause before the next attempt: short compared with joining a generation, long compared with an attempt.
const RETRY_EVERY: Duration = Duration::from_millis(50);

/// Dials until the next member welcomes this one, or the deadline: it may start later, or still be in another session.
pub(super) fn dial(
    identity: &RingIdentity<'_>,
    until: Instant,
) -> Result<Secured<ClientConnection>, CollectiveError> {
    let begun = now();
    let next = identity.next();
    // An earlier answer is more informative than a later lost connection.
    let mut answered = None;
    loop {
        let error = match attempt(identity, &next, until.min(now() + HANDSHAKE_MAX)) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        if identity.stop.is_stopped() {
            return Err(CollectiveError::Stopped);
        }
        if left(until) <= RETRY_EVERY {
            return Err(CollectiveError::NotJoined {
                peer: next,
                waited: now() - begun,
                reason: answered.unwrap_or_else(|| error.to_string()),
            });
        }
        if error.kind() == ErrorKind::Other {
            answered = Some(error.to_string());
        }
        pause();
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "another machine does not announce when it listens; attempts have to be repeated"
)]
fn pause() {
    std::thread::sleep(RETRY_EVERY);
}

fn attempt(
    identity: &RingIdentity<'_>,
    next: &Peer,
    until: Instant,
) -> io::Result<Secured<ClientConnection>> {
    let socket = TcpStream::connect_timeout(&next.address, left(until).max(Duration::from_millis(1)))?;
    socket.set_nodelay(true)?;
    let name = PeerName::Worker(next.worker).in_run(identity.tls.run);
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(identity.tls.client.clone(), name).map_err(io::Error::other)?;
    let mut timed = Timed { socket: &socket, until, stop: identity.stop };
    let mut stream = Stream::new(&mut tls, &mut timed);
    stream.write_all(&hello(&identity.group, identity.rank))?;
    stream.flush()?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    if answer != [WELCOME] {
        return Err(io::Error::other("it has another list of members, or is in another session"));
    }
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    Ok(Secured { tls, socket })
}

/// A socket whose every call ends by a deadline, even for trickling bytes.
struct Timed<'a> {
    socket: &'a TcpStream,
    until: Instant,
    stop: &'a Stop,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = if self.stop.is_stopped() { Duration::ZERO } else { left(self.until) };
        let late = || io::Error::new(ErrorKind::TimedOut, "it did not finish the handshake in time");
        if left.is_zero() { Err(late()) } else { Ok(left) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.socket.set_read_timeout(Some(self.left()?.min(STOP_CHECK)))?;
            match self.socket.read(into) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                read => return read,
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
