//! One question to an HTTP server on this machine (RFC 9112). No client library: nothing here is encrypted, redirected or kept
//! open, and the demo is compiled before a newcomer sees anything.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// An answer comes from this machine; one that takes longer is asked for again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest answer that is read, in bytes. A status of 128 workers has a tenth of it.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The body of an answer; none where nobody answers in time.
///
/// # Errors
/// The answer is not of status 200, or not HTTP.
pub fn get(server: SocketAddr, path: &str) -> Result<Option<Vec<u8>>> {
    // HTTP/1.0 asks for a body that ends with the connection, in one piece.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {server}\r\n\r\n");
    match exchange(server, &request) {
        Ok(answer) => body(answer).with_context(|| format!("ask http://{server}{path}")).map(Some),
        // It is being started, or started again.
        Err(_) => Ok(None),
    }
}

fn exchange(server: SocketAddr, request: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// What follows the empty line after the headers.
fn body(mut answer: Vec<u8>) -> Result<Vec<u8>> {
    const END_OF_HEADERS: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END_OF_HEADERS.len()).position(|bytes| bytes == END_OF_HEADERS);
    let end = end.context("the answer is not HTTP")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let first = head.lines().next().unwrap_or_default();
    let is_ok = first.starts_with("HTTP/1.") && first.split_whitespace().nth(1) == Some("200");
    ensure!(is_ok, "the answer is {first:?}");
    Ok(answer.split_off(end + END_OF_HEADERS.len()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn answered(answer: &'static str) -> Result<Option<Vec<u8>>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let got = get(server, "/api");
        assert!(serving.join().unwrap().starts_with("GET /api HTTP/1.0\r\nHost: "));
        got
    }

    #[test]
    fn the_body_of_an_answer_is_returned_and_any_other_answer_is_an_error() {
        let body = answered("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        assert_eq!(body.unwrap(), b"{}");
        let error = answered("HTTP/1.0 404 Not Found\r\n\r\n").unwrap_err();
        assert!(format!("{error:#}").contains("404"), "{error:#}");
        assert!(answered("SSH-2.0").is_err());
    }

    #[test]
    fn a_server_that_is_not_there_has_no_answer() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(get(free, "/").unwrap().is_none());
    }
}
