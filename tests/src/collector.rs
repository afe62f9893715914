//! A telemetry collector that stores its requests.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Maximum request, in bytes.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// A received request.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Path.
    pub path: String,
    /// Content type.
    pub content_type: String,
    /// Body.
    pub body: Vec<u8>,
}

/// An HTTP server that replies 200 to all requests, until the process ends.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    posted: Arc<Mutex<Vec<Posted>>>,
}

impl Collector {
    /// Listens on a local port.
    ///
    /// # Errors
    /// The system provides none.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, posted) = (listener.local_addr()?, Arc::default());
        let kept = Arc::clone(&posted);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                // Ends with an incomplete request.
                thread::spawn(move || while let Ok(true) = serve(&connection, &kept) {});
            }
        });
        Ok(Self { address, posted })
    }

    /// Returns the value for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the protocol buffer bodies received at this path.
    #[must_use]
    pub fn posted(&self, path: &str) -> Vec<Vec<u8>> {
        let posted = lock(&self.posted);
        let wanted = posted
            .iter()
            .filter(|posted| posted.path == path && posted.content_type == "application/x-protobuf");
        wanted.map(|posted| posted.body.clone()).collect()
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.posted).len()
    }
}

fn lock(posted: &Mutex<Vec<Posted>>) -> MutexGuard<'_, Vec<Posted>> {
    posted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one request; returns whether another may follow.
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
