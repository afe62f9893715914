use quinn::{Connection, ConnectionError, VarInt};

/// Why a connection was closed, as a QUIC application error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CloseCode {
    /// All is said.
    Done = 0,
    /// The peer does not take what it is sent.
    TooSlow = 1,
    /// The peer does not keep to the protocol.
    Protocol = 2,
    /// The peer speaks another version.
    Version = 3,
    /// The peer is not, or no longer, of this run.
    Stranger = 4,
}

impl CloseCode {
    /// Closes a connection at once, with a reason for people; what was not sent yet is lost.
    pub fn close(self, connection: &Connection, reason: &str) {
        connection.close(self.into(), reason.as_bytes());
    }

    /// Whether this is why the peer closed a connection.
    pub(super) fn closed(self, error: &ConnectionError) -> bool {
        matches!(error, ConnectionError::ApplicationClosed(close) if close.error_code == self.into())
    }
}

impl From<CloseCode> for VarInt {
    fn from(code: CloseCode) -> Self {
        Self::from_u32(code as u32)
    }
}
