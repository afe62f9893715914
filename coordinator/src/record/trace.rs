//! Trace of a decision: enough to tell it from another one.

use std::fmt;

use serde::{Deserialize, Serialize};

use longhaul_run::{Command, Record};

/// Kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A message to a worker.
    Send,
    /// The end of a connection.
    Close,
    /// The state, to be written down.
    State,
    /// A round, likewise.
    Round,
    /// A plan, to be worked out.
    Plan,
    /// A notice.
    Report,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send to a worker",
            Self::Close => "close a connection",
            Self::State => "persist the state",
            Self::Round => "persist a round",
            Self::Plan => "compute a plan",
            Self::Report => "notice",
        })
    }
}

/// A command, by its kind and a part of the hash of its bytes: one in four thousand million others has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Its kind.
    pub kind: Kind,
    /// The first bytes of SHA-256 over it in postcard.
    hash: [u8; 4],
}

impl Trace {
    /// Of a command.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        let (kind, bytes) = match command {
            Command::Send { .. } => (Kind::Send, postcard::to_stdvec(command)),
            Command::Close { .. } => (Kind::Close, postcard::to_stdvec(command)),
            Command::Persist(Record::State(state)) => (Kind::State, postcard::to_stdvec(state)),
            Command::Persist(Record::Round(round)) => (Kind::Round, postcard::to_stdvec(round)),
            Command::Plan(question) => (Kind::Plan, postcard::to_stdvec(question)),
            Command::Report(notice) => (Kind::Report, postcard::to_stdvec(notice)),
        };
        // All of these types serialise; one that did not would have no bytes, and differ by its kind alone.
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes.unwrap_or_default());
        let mut hash = [0; 4];
        hash.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        Self { kind, hash }
    }
}
