use std::fmt;

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
    /// Another coordinator of this run leads; [`NotLeader`] is the reason.
    NotLeader = 5,
    /// There is no room for the peer.
    Full = 6,
    /// Another connection with the peer's identity has taken this one's place.
    Replaced = 7,
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

/// Why a coordinator that waits for its turn hangs up. The reason of its close frame, for people and for workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLeader {
    /// HOST:PORT of the one that leads, where it is known.
    pub leader: Option<String>,
}

/// The longest name of a host (RFC 1035), and a port.
const LEADER_BYTES_MAX: usize = 255 + 6;
const WAITS: &str = "this coordinator waits to take over";
const LEADS: &str = "; the one that leads is at ";

impl NotLeader {
    /// Hangs up.
    pub fn close(&self, connection: &Connection) {
        CloseCode::NotLeader.close(connection, &self.to_string());
    }

    /// What a coordinator said by hanging up, if it was this.
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
