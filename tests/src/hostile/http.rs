//! Attacks on the HTTP API.

use anyhow::{Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha12Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::arms::Arms;

/// Requests of one connection.
const CALLS: usize = 16;

/// An immediately refused connection is not a breach.
async fn connect(arms: &Arms, mut random: ChaCha12Rng) -> Option<TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4().ok()?;
    socket.bind(arms.source(&mut random)).ok()?;
    socket.connect(arms.target.http).await.ok()
}

/// Sends bytes and waits until the peer closes; returns its response.
async fn until_hung_up(stream: &mut TcpStream, words: &[u8]) -> String {
    let mut told = Vec::new();
    // The connection may be closed before either.
    let _ = stream.write_all(words).await;
    let _ = stream.read_to_end(&mut told).await;
    String::from_utf8_lossy(&told).into_owned()
}

pub(super) async fn slow_headers(arms: &Arms, random: ChaCha12Rng) -> Result<()> {
    let Some(mut stream) = connect(arms, random).await else { return Ok(()) };
    let told = until_hung_up(&mut stream, b"GET /api/v1/status HTTP/1.1\r\nhost: x\r\nx: ").await;
    ensure!(!told.contains("200 OK"), "it was answered");
    Ok(())
}

pub(super) async fn no_http(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let bytes: Vec<u8> = (0..random.random_range(1..4000)).map(|_| random.random()).collect();
    let Some(mut stream) = connect(arms, random).await else { return Ok(()) };
    let told = until_hung_up(&mut stream, &bytes).await;
    ensure!(!told.contains("200 OK"), "it was answered");
    Ok(())
}

/// All may succeed, as readers may read often.
pub(super) async fn many_calls(arms: &Arms) -> Result<()> {
    let Ok(mut stream) = TcpStream::connect(arms.target.http).await else { return Ok(()) };
    let mut words = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n".repeat(CALLS - 1);
    words.extend_from_slice(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    until_hung_up(&mut stream, &words).await;
    Ok(())
}

pub(super) async fn guessed_token(arms: &Arms, mut random: ChaCha12Rng) -> Result<()> {
    let guess: String = (0..arms.target.api_token.len()).map(|_| random.random_range('a'..='z')).collect();
    let Some(mut stream) = connect(arms, random).await else { return Ok(()) };
    let call = format!(
        "POST /api/v1/stop HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {guess}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    let told = until_hung_up(&mut stream, call.as_bytes()).await;
    ensure!(!told.contains("200 OK"), "a guess was taken for the token");
    Ok(())
}
