//! One request to an HTTP server on this machine (RFC 9112). There is no client library: nothing here is
//! encrypted, redirected or kept open, and the demo should compile fast.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Timeout of an answer, after which the request is repeated.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Start of every answer.
const PROTOCOL: &[u8] = b"HTTP/1.";

/// Maximum length of an answer, in bytes. A status of 128 workers has a tenth of it.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// The body of an answer; `None`: no answer in time, or an incomplete one.
///
/// # Errors
/// Returns an error if the answer is not of status 200, not HTTP, or too long.
pub fn get(server: SocketAddr, path: &str) -> Result<Option<Vec<u8>>> {
    // HTTP/1.0 requests a body that ends with the connection, in one piece.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {server}\r\n\r\n");
    match exchange(server, &request) {
        Ok(answer) => body(answer).with_context(|| format!("ask http://{server}{path}")),
        // The server is starting or restarting.
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

/// Returns the bytes after the headers; `None`: the answer was cut off, as by the death of the server.
fn body(mut answer: Vec<u8>) -> Result<Option<Vec<u8>>> {
    const END_OF_HEADERS: &[u8] = b"\r\n\r\n";
    ensure!((answer.len() as u64) < ANSWER_BYTES_MAX, "the answer has {ANSWER_BYTES_MAX} bytes or more");
    let protocol = answer.len().min(PROTOCOL.len());
    ensure!(answer[..protocol] == PROTOCOL[..protocol], "the answer is not HTTP");
    let end = answer.windows(END_OF_HEADERS.len()).position(|bytes| bytes == END_OF_HEADERS);
    let Some(end) = end else { return Ok(None) };
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let first = head.lines().next().unwrap_or_default();
    ensure!(first.split_whitespace().nth(1) == Some("200"), "the answer is {first:?}");
    let body = answer.split_off(end + END_OF_HEADERS.len());
    let is_whole = length(&head).is_none_or(|length| body.len() >= length);
    Ok(is_whole.then_some(body))
}

/// The length of the body in bytes, if the headers contain it.
fn length(head: &str) -> Option<usize> {
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    let (_, length) = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    length.trim().parse().ok()
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
    fn a_server_that_dies_while_it_answers_has_no_answer() {
        for cut_off in ["", "HTTP/1.0 200 OK\r\nconten", "HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\""]
        {
            assert_eq!(answered(cut_off).unwrap(), None, "{cut_off}");
        }
    }

    #[test]
    fn a_server_that_is_not_there_has_no_answer() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(get(free, "/").unwrap().is_none());
    }
}
