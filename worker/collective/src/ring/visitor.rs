use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use longhaul_proto::identity::PeerName;
use rustls::ServerConnection;

use super::hello::{ANOTHER_GROUP, HELLO_BYTES, WELCOME, hello};
use super::link::Secured;
use super::setup::RingIdentity;

/// An unidentified connection. Never blocks.
pub(super) struct Visitor {
    socket: TcpStream,
    address: SocketAddr,
    tls: ServerConnection,
    hello: [u8; HELLO_BYTES],
    hello_read: usize,
    /// End of its time.
    pub expires: Instant,
}

pub(super) enum Progress {
    /// Its greeting is incomplete.
    Waiting,
    /// It is the previous member, and has received the welcome.
    Welcomed,
}

impl Visitor {
    pub fn new(
        identity: &RingIdentity<'_>,
        socket: TcpStream,
        address: SocketAddr,
        expires: Instant,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let tls = ServerConnection::new(identity.tls.server.clone()).map_err(io::Error::other)?;
        Ok(Self { socket, address, tls, hello: [0; HELLO_BYTES], hello_read: 0, expires })
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Handles received data.
    ///
    /// # Errors
    /// Reason of its refusal.
    pub fn advance(&mut self, identity: &RingIdentity<'_>) -> Result<Progress, String> {
        let read = self.read_what_is_there();
        let at = self.address;
        read.map_err(|error| format!("a connection from {at} was refused: {error}"))?;
        if self.hello_read < HELLO_BYTES {
            return Ok(Progress::Waiting);
        }
        let judged = self.judge(identity);
        let answer = if judged.is_ok() { WELCOME } else { ANOTHER_GROUP };
        let answered = self.tls.writer().write_all(&[answer]).and_then(|()| self.write_all());
        judged?;
        answered.map_err(|error| format!("the connection from {at} ended: {error}"))?;
        Ok(Progress::Welcomed)
    }

    /// Returns the connection, which blocks from now on.
    pub fn into_secured(self) -> io::Result<Secured<ServerConnection>> {
        self.socket.set_nonblocking(false)?;
        Ok(Secured { tls: self.tls, socket: self.socket })
    }

    fn read_what_is_there(&mut self) -> io::Result<()> {
        while self.hello_read < HELLO_BYTES {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            let processed = self.tls.process_new_packets();
            // The handshake's next flight, or the alert with the error.
            let written = self.write_all();
            processed.map_err(io::Error::other)?;
            written?;
            match self.tls.reader().read(&mut self.hello[self.hello_read..]) {
                Ok(count) => self.hello_read += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A handshake's output fits a new socket's buffer; otherwise the peer is refused.
    fn write_all(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Checks that it is the previous member, of the same group.
    fn judge(&self, identity: &RingIdentity<'_>) -> Result<(), String> {
        let (at, previous) = (self.address, identity.previous());
        let chain = self.tls.peer_certificates().unwrap_or_default();
        let certificate = chain.first().ok_or_else(|| format!("the peer at {at} showed no certificate"))?;
        let name = PeerName::of_certificate(certificate, identity.tls.run)
            .map_err(|error| format!("the peer at {at} was refused: {error}"))?;
        if name != PeerName::Worker(previous.worker) {
            return Err(format!("{} connected from {at} in its place", name.in_run(identity.tls.run)));
        }
        if self.hello != hello(&identity.group, previous.rank) {
            return Err("it has another list of members, or is in another session".to_owned());
        }
        Ok(())
    }
}
