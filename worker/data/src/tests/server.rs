//! A web server of files, with configurable faults.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Ends on drop.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    behaviour: Arc<Mutex<Behaviour>>,
    thread: Option<JoinHandle<()>>,
}

/// Its settings and its log.
#[derive(Debug, Default)]
pub(super) struct Behaviour {
    /// By path, with a leading slash.
    pub(super) files: HashMap<String, Vec<u8>>,
    /// The ETag of all files.
    pub(super) etag: Option<String>,
    pub(super) modified: Option<String>,
    /// Responses to this many requests for bytes end after this many bytes.
    pub(super) cuts: (usize, usize),
    pub(super) knows_no_ranges: bool,
    /// The response to all requests.
    pub(super) status: Option<&'static str>,
    /// The ETag after the first request for bytes.
    pub(super) next_etag: Option<String>,
    /// Offsets of requests for bytes.
    pub(super) begun_at: Vec<usize>,
    is_over: bool,
}

impl Server {
    pub(super) fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let files = files.iter().map(|(name, bytes)| (format!("/{name}"), bytes.clone())).collect();
        let behaviour = Behaviour { files, etag: Some("\"one\"".to_owned()), ..Behaviour::default() };
        let behaviour = Arc::new(Mutex::new(behaviour));
        let shared = Arc::clone(&behaviour);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.lock().unwrap().is_over {
                    return;
                }
                // Clients may close the connection early.
                let _ = answer(&stream.unwrap(), &shared);
            }
        });
        Self { address, behaviour, thread: Some(thread) }
    }

    pub(super) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    pub(super) fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.behaviour().is_over = true;
        drop(TcpStream::connect(self.address));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer(mut stream: &TcpStream, behaviour: &Mutex<Behaviour>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let (mut first, mut is_look) = (0, false);
    for line in lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let (from, to) = range.split_once('-').unwrap();
            (first, is_look) = (from.parse().unwrap(), !to.is_empty());
        }
    }
    let mut words = request.split(' ');
    let path = words.nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let (head, body) = behaviour.lock().unwrap().answer(is_look, path, first);
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
    stream.write_all(&body)
}

impl Behaviour {
    /// `is_look`: only the first byte is requested.
    fn answer(&mut self, is_look: bool, path: &str, first: usize) -> (String, Vec<u8>) {
        let empty = |status: &str| (format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n"), Vec::new());
        if let Some(status) = self.status {
            return empty(status);
        }
        let Some(bytes) = self.files.get(path) else { return empty("404 Not Found") };
        let (len, first) = (bytes.len(), if self.knows_no_ranges { 0 } else { first });
        let mut head = match first {
            0 if is_look && len == 0 => return empty("416 Range Not Satisfiable"),
            0 if is_look && !self.knows_no_ranges => format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/{len}\r\n"
            ),
            0 => format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n"),
            _ => format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{}/{len}\r\n",
                len - first,
                len - 1
            ),
        };
        for (name, value) in [("ETag", &self.etag), ("Last-Modified", &self.modified)] {
            head += &value.as_ref().map_or_else(String::new, |value| format!("{name}: {value}\r\n"));
        }
        let mut body = bytes[first..].to_vec();
        if is_look {
            body.truncate(if self.knows_no_ranges { len } else { 1 });
            return (head, body);
        }
        self.begun_at.push(first);
        if self.cuts.0 > 0 {
            self.cuts.0 -= 1;
            body.truncate(self.cuts.1);
        }
        self.etag = self.next_etag.take().or(self.etag.take());
        (head, body)
    }
}
