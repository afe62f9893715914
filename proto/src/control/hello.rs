//! The first bytes of every stream to the coordinator: the protocol version. Their layout never changes.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::message::PROTOCOL_VERSION;

/// Timeout of the hello: many round trips of the longest link.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(10);

/// Maximum bytes of the software version.
pub const SOFTWARE_BYTES_MAX: usize = 32;

const MAGIC: [u8; 4] = *b"lngh";
/// Magic, protocol version, length of the software version.
const HEAD_BYTES: usize = 4 + 2 + 1;

/// Hello of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version, which must match.
    pub protocol: u16,
    /// Release, for display. Printable ASCII, at most [`SOFTWARE_BYTES_MAX`].
    pub software: String,
}

/// Reasons why the exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The peer uses another protocol.
    #[error("the peer does not speak longhaul's control protocol")]
    NotLonghaul,
    /// The hello is missing or incomplete.
    #[error("the peer did not say hello within {} s", HELLO_DEADLINE.as_secs())]
    Silent,
    /// The peer has another version.
    #[error(
        "this is {ours}, the peer is {theirs}: install the same release on both machines; {}",
        older(ours, theirs)
    )]
    Version {
        /// This side.
        ours: Hello,
        /// The peer.
        theirs: Hello,
    },
    /// The stream ended or failed.
    #[error("the stream ended before hello: {0}")]
    Stream(#[from] io::Error),
}

/// Describes the side that probably needs an upgrade.
fn older(ours: &Hello, theirs: &Hello) -> &'static str {
    if ours.protocol < theirs.protocol {
        "the older one is on this side"
    } else {
        "the older one is the peer's"
    }
}

impl Hello {
    /// Returns the hello of this build.
    #[must_use]
    pub fn ours() -> Self {
        let mut software = env!("CARGO_PKG_VERSION").to_owned();
        software.truncate(SOFTWARE_BYTES_MAX);
        Self { protocol: PROTOCOL_VERSION, software }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let software = &self.software.as_bytes()[..self.software.len().min(SOFTWARE_BYTES_MAX)];
        let length = software.len() as u8;
        [&MAGIC[..], &self.protocol.to_le_bytes(), &[length], software].concat()
    }

    async fn read(source: &mut (impl AsyncRead + Unpin)) -> Result<Self, HelloError> {
        let mut head = [0; HEAD_BYTES];
        source.read_exact(&mut head).await?;
        let [magic @ .., low, high, length] = head;
        if magic != MAGIC || usize::from(length) > SOFTWARE_BYTES_MAX {
            return Err(HelloError::NotLonghaul);
        }
        let mut software = vec![0; usize::from(length)];
        source.read_exact(&mut software).await?;
        // The text is displayed, perhaps on a terminal.
        if !software.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
            return Err(HelloError::NotLonghaul);
        }
        let software = String::from_utf8(software).map_err(|_| HelloError::NotLonghaul)?;
        Ok(Self { protocol: u16::from_le_bytes([low, high]), software })
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "longhaul {} (protocol {})", self.software, self.protocol)
    }
}

/// Sends the hello and receives the peer's. Both sides send at once.
///
/// # Errors
/// [`HelloError`]; by then this side's hello is on the stream, so the peer can learn of it too.
pub(super) async fn exchange(
    ours: Hello,
    sink: &mut (impl AsyncWrite + Unpin),
    source: &mut (impl AsyncRead + Unpin),
) -> Result<Hello, HelloError> {
    let conversation = async {
        sink.write_all(&ours.to_bytes()).await?;
        Hello::read(source).await
    };
    let theirs = timeout(HELLO_DEADLINE, conversation).await.map_err(|_| HelloError::Silent)??;
    if theirs.protocol == ours.protocol { Ok(theirs) } else { Err(HelloError::Version { ours, theirs }) }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn hello(protocol: u16, software: &str) -> Hello {
        Hello { protocol, software: software.to_owned() }
    }

    async fn hear(bytes: &[u8]) -> Result<Hello, HelloError> {
        Hello::read(&mut &*bytes).await
    }

    #[tokio::test]
    async fn hello_is_the_golden_bytes() {
        let bytes = hello(0x0102, "0.1.0").to_bytes();
        assert_eq!(bytes, b"lngh\x02\x01\x050.1.0");
        assert_eq!(hear(&bytes).await.unwrap(), hello(0x0102, "0.1.0"));
        assert_eq!(Hello::ours().to_bytes()[..6], *b"lngh\x26\x00");
    }

    #[tokio::test]
    async fn garbage_is_no_hello() {
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"lngh\x01\x00\x21",
            b"lngh\x01\x00\x021\x1b",
            b"lngh\x01\x00\x02\xc3\xa9",
        ] {
            assert!(matches!(hear(garbage).await, Err(HelloError::NotLonghaul)), "{garbage:?}");
        }
        for cut in [&b""[..], b"lngh", b"lngh\x01\x00\x050.1"] {
            assert!(matches!(hear(cut).await, Err(HelloError::Stream(_))), "{cut:?}");
        }
    }

    #[tokio::test]
    async fn both_sides_of_a_mismatch_learn_both_versions() {
        let (left, right) = duplex(256);
        let (mut left_source, mut left_sink) = tokio::io::split(left);
        let (mut right_source, mut right_sink) = tokio::io::split(right);
        let (left, right) = tokio::join!(
            exchange(hello(1, "0.1.0"), &mut left_sink, &mut left_source),
            exchange(hello(2, "0.9.3"), &mut right_sink, &mut right_source),
        );
        for (error, older) in [
            (left.unwrap_err(), "the older one is on this side"),
            (right.unwrap_err(), "the older one is the peer's"),
        ] {
            let text = error.to_string();
            assert!(text.ends_with(older), "{text}");
            for part in
                ["longhaul 0.1.0 (protocol 1)", "longhaul 0.9.3 (protocol 2)", "install the same release"]
            {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_only_half_a_hello_is_given_up() {
        let (ours, mut theirs) = duplex(256);
        let (mut source, mut sink) = tokio::io::split(ours);
        theirs.write_all(b"lngh\x01").await.unwrap();
        let heard = exchange(Hello::ours(), &mut sink, &mut source).await;
        assert!(matches!(heard, Err(HelloError::Silent)));
    }
}
