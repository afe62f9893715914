//! The two connections of a member, each with the thread that blocks in it.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt;
use rustls::{ClientConnection, ServerConnection, Stream};

use super::frame::{CHUNK_BYTES, HEADER_BYTES, Header};

/// Frames under way in each direction: one in the socket, one waiting, one being filled or emptied, and one for jitter between threads: 1 MiB per direction.
pub(super) const BUFFERS: usize = 4;

/// Silence, including keepalives, after which a neighbour's machine is lost. Nothing else detects this while members wait for one that is still training.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// Idle time before the first keepalive, and interval of further ones.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Event of a member's connections.
pub(super) enum Event {
    /// A frame from the previous member. Its buffer must be given back.
    Received { header: Header, payload: Vec<u8> },
    /// The kernel has taken a frame for the next member. The buffer is empty.
    Written(Vec<u8>),
    /// The connection from the previous member ended. No further event comes from it.
    ReceiveFailed(io::Error),
    /// The connection to the next member ended. No further event comes from it.
    SendFailed(io::Error),
}

/// An encrypted connection after its handshake.
pub(super) struct Secured<C> {
    pub tls: C,
    pub socket: TcpStream,
}

/// Both connections, closed on drop.
pub(super) struct Link {
    // None only during drop: their threads end when these are dropped.
    to_write: Option<SyncSender<Vec<u8>>>,
    to_fill: Option<SyncSender<Vec<u8>>>,
    events: Receiver<Event>,
    sockets: [TcpStream; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Link {
    /// Also returns the buffers for outgoing frames.
    pub fn start(
        next: Secured<ClientConnection>,
        previous: Secured<ServerConnection>,
    ) -> io::Result<(Self, Vec<Vec<u8>>)> {
        let sockets = [next.socket.try_clone()?, previous.socket.try_clone()?];
        sockets.iter().try_for_each(ask_whether_it_is_there)?;
        // Room for every buffer of both directions and each thread's last event, so that no thread ever waits here.
        let (report, events) = sync_channel(2 * BUFFERS + 2);
        let (to_write, written) = sync_channel::<Vec<u8>>(BUFFERS);
        let (to_fill, empty) = sync_channel::<Vec<u8>>(BUFFERS);
        let mut link =
            Self { to_write: Some(to_write), to_fill: Some(to_fill), events, sockets, threads: Vec::new() };
        let reports = report.clone();
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        link.threads.push(named("site-send").spawn(move || send(next, &written, &reports))?);
        link.threads.push(named("site-receive").spawn(move || receive(previous, &empty, &report))?);
        for _ in 0..BUFFERS {
            link.give_back(Vec::with_capacity(CHUNK_BYTES));
        }
        let frames = (0..BUFFERS).map(|_| Vec::with_capacity(HEADER_BYTES + CHUNK_BYTES)).collect();
        Ok((link, frames))
    }

    /// Queues a frame. There are as many places as buffers, so this never waits; a thread that ended has reported it.
    pub fn send(&self, frame: Vec<u8>) {
        if let Some(queue) = &self.to_write {
            let _ = queue.try_send(frame);
        }
    }

    /// Returns a payload's buffer for reuse.
    pub fn give_back(&self, payload: Vec<u8>) {
        if let Some(queue) = &self.to_fill {
            let _ = queue.try_send(payload);
        }
    }

    /// Returns the next event within a time; `None` otherwise.
    pub fn wait(&self, limit: Duration) -> Option<Event> {
        // After both threads' last events, further waits are in vain.
        self.events.recv_timeout(limit).ok()
    }

    /// Ends both connections: neighbours notice at once, and the threads return from their sockets.
    pub fn sever(&self) {
        for socket in &self.sockets {
            // It fails only if the connection has ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.sever();
        (self.to_write, self.to_fill) = (None, None);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Enables the kernel's keepalives (tcp(7)).
fn ask_whether_it_is_there(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASK_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    Ok(sockopt::set_tcp_user_timeout(socket, SILENT_MAX.as_millis() as u32)?)
}

fn send(mut next: Secured<ClientConnection>, frames: &Receiver<Vec<u8>>, report: &SyncSender<Event>) {
    // Each frame is encrypted whole, and passed to the kernel whole.
    next.tls.set_buffer_limit(Some(2 * CHUNK_BYTES));
    for mut frame in frames {
        let mut stream = Stream::new(&mut next.tls, &mut next.socket);
        // The stream reports an error of the socket at the flush only.
        let event = match stream.write_all(&frame).and_then(|()| stream.flush()) {
            Ok(()) => {
                frame.clear();
                Event::Written(frame)
            }
            Err(error) => Event::SendFailed(error),
        };
        let failed = matches!(event, Event::SendFailed(_));
        if report.send(event).is_err() || failed {
            return;
        }
    }
}

fn receive(mut previous: Secured<ServerConnection>, empty: &Receiver<Vec<u8>>, report: &SyncSender<Event>) {
    let mut socket = Buffered(BufReader::with_capacity(CHUNK_BYTES, previous.socket));
    for mut payload in empty {
        let mut stream = Stream::new(&mut previous.tls, &mut socket);
        let event = match receive_frame(&mut stream, &mut payload) {
            Ok(header) => Event::Received { header, payload },
            Err(error) => Event::ReceiveFailed(error),
        };
        let failed = matches!(event, Event::ReceiveFailed(_));
        if report.send(event).is_err() || failed {
            return;
        }
    }
}

fn receive_frame(stream: &mut impl Read, payload: &mut Vec<u8>) -> io::Result<Header> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let header = Header::from_bytes(&header).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("a frame of more than {CHUNK_BYTES} bytes"))
    })?;
    payload.resize(header.payload as usize, 0);
    stream.read_exact(payload)?;
    Ok(header)
}

/// rustls reads 4 KiB at a time; the kernel is asked for more.
struct Buffered(BufReader<TcpStream>);

impl Read for Buffered {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}
