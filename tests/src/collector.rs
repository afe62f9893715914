//! A collector of telemetry that keeps what it is sent.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// No request is longer, in bytes.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// A request that came.
#[derive(Clone, Debug)]
pub struct Posted {
    /// To which path.
    pub path: String,
    /// What it is said to be.
    pub content_type: String,
    /// What it is.
    pub body: Vec<u8>,
}

/// An HTTP server that answers 200 to everything, for as long as the process lives.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    posted: Arc<Mutex<Vec<Posted>>>,
}

impl Collector {
    /// Listens on a port of this machine.
    ///
    /// # Errors
    /// The system gives none.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, posted) = (listener.local_addr()?, Arc::default());
        let kept = Arc::clone(&posted);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                // Who sends half a request is no longer heard.
                thread::spawn(move || while let Ok(true) = serve(&connection, &kept) {});
            }
        });
        Ok(Self { address, posted })
    }

    /// What `OTEL_EXPORTER_OTLP_ENDPOINT` must be.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The bodies of all that came to this path as protocol buffers.
    #[must_use]
    pub fn posted(&self, path: &str) -> Vec<Vec<u8>> {
        let posted = lock(&self.posted);
        let wanted = posted
            .iter()
            .filter(|posted| posted.path == path && posted.content_type == "application/x-protobuf");
        wanted.map(|posted| posted.body.clone()).collect()
    }

    /// How many requests came.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.posted).len()
    }
}

fn lock(posted: &Mutex<Vec<Posted>>) -> MutexGuard<'_, Vec<Posted>> {
    posted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request; whether another may follow.
fn serve(mut connection: &TcpStream, posted: &Mutex<Vec<Posted>>) -> io::Result<bool> {
    let mut from = BufReader::new(connection);
    let mut first = String::new();
    if from.read_line(&mut first)? == 0 {
        return Ok(false);
    }
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut content_type) = (0, String::new());
    for line in from.by_ref().lines() {
        let line = line?;
        match line.split_once(':') {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            Some((name, value)) if name.eq_ignore_ascii_case("content-type") => {
                value.trim().clone_into(&mut content_type)
            }
            Some(_) => {}
        }
    }
    if length > BODY_BYTES_MAX {
        return Err(io::Error::other("the request is too long"));
    }
    let mut body = Vec::new();
    from.take(length).read_to_end(&mut body)?;
    lock(posted).push(Posted { path, content_type, body });
    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    Ok(true)
}
