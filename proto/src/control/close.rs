use std::fmt;

use quinn::{Connection, ConnectionError, VarInt};

/// Reasons for closing a connection, as QUIC application error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CloseCode {
    /// Normal end.
    Done = 0,
    /// The peer does not accept messages.
    TooSlow = 1,
    /// The peer violates the protocol.
    Protocol = 2,
    /// The peer has another protocol version.
    Version = 3,
    /// The peer is not, or no longer, part of this run.
    Stranger = 4,
    /// Another coordinator of this run leads; [`NotLeader`] is the reason.
    NotLeader = 5,
    /// No capacity is left for the peer.
    Full = 6,
    /// Another connection with the peer's identity has replaced this one.
    Replaced = 7,
}

impl CloseCode {
    /// Closes a connection at once, with a readable reason; unsent data is lost.
    pub fn close(self, connection: &Connection, reason: &str) {
        connection.close(self.into(), reason.as_bytes());
    }

    /// Whether the peer closed a connection with this code.
    pub(super) fn closed(self, error: &ConnectionError) -> bool {
        matches!(error, ConnectionError::ApplicationClosed(close) if close.error_code == self.into())
    }
}

impl From<CloseCode> for VarInt {
    fn from(code: CloseCode) -> Self {
        Self::from_u32(code as u32)
    }
}

/// Close reason of a standby coordinator, readable by people and workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLeader {
    /// HOST:PORT of the leader, if known.
    pub leader: Option<String>,
}

/// The longest host name (RFC 1035), and a port.
const LEADER_BYTES_MAX: usize = 255 + 6;
const WAITS: &str = "this coordinator waits to take over";
const LEADS: &str = "; the one that leads is at ";

impl NotLeader {
    /// Closes a connection.
    pub fn close(&self, connection: &Connection) {
        CloseCode::NotLeader.close(connection, &self.to_string());
    }

    /// Parses the close reason of a connection, if it is this one.
    #[must_use]
    pub fn said_in(error: &ConnectionError) -> Option<Self> {
        match error {
            ConnectionError::ApplicationClosed(close) if CloseCode::NotLeader.closed(error) => {
                Some(Self::parse(&String::from_utf8_lossy(&close.reason)))
            }
            _ => None,
        }
    }

    fn parse(reason: &str) -> Self {
        let host_port = |text: &&str| {
            let (host, port) = text.rsplit_once(':').unwrap_or_default();
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
            text.len() <= LEADER_BYTES_MAX
                && !host.is_empty()
                && host.chars().all(allowed)
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        let leader = reason.split_once(LEADS).map(|(_, leader)| leader).filter(host_port);
        Self { leader: leader.map(str::to_owned) }
    }
}

impl fmt::Display for NotLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.leader {
            Some(leader) => write!(f, "{WAITS}{LEADS}{leader}"),
            None => f.write_str(WAITS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_says_where_the_leader_is() {
        for leader in [None, Some("head:4800"), Some("[::1]:4800"), Some("10.0.0.1:1")] {
            let said = NotLeader { leader: leader.map(str::to_owned) };
            assert_eq!(NotLeader::parse(&said.to_string()), said);
        }
    }

    #[test]
    fn an_address_that_is_none_is_not_dialled() {
        for leader in ["head", "head:0", ":4800", "a b:1", "head:1\u{7}", &format!("{}:1", "a".repeat(300))] {
            let said = NotLeader { leader: Some(leader.to_owned()) };
            assert_eq!(NotLeader::parse(&said.to_string()).leader, None, "{leader:?}");
        }
        assert_eq!(NotLeader::parse("").leader, None);
    }
}
