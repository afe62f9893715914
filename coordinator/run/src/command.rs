//! What a run wants done.

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::ToWorker;
use serde::{Deserialize, Serialize};

use crate::accounting::progress::RoundSummary;
use crate::event::ConnectionId;
use crate::state::State;
use longhaul_plan::Question;

/// The output of [`super::Run::handle`]. Commands are executed in order; a [`Command::Persist`] of a
/// [`Record::State`] is durable before the next command starts, so that no worker acts on what a crash could undo.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Command {
    /// Send a message. When the connection is gone or its queue is full, it is closed, and that is an event.
    Send {
        /// To whom.
        connection: ConnectionId,
        /// What.
        message: ToWorker,
    },
    /// Close a connection, after what was sent on it has left.
    Close {
        /// Which one.
        connection: ConnectionId,
        /// For people, and the close frame.
        reason: String,
    },
    /// Write to the durable store.
    Persist(Record),
    /// Work out whether another plan pays, beside the run; the answer is [`super::Event::Planned`].
    Plan(Box<Question>),
    /// Tell people.
    Report(Notice),
}

impl Command {
    /// Why a connection is closed whose worker has opened another one,
    pub const REPLACED: &str = "the worker opened another connection";
    /// or has come as another process.
    pub const RESTARTED: &str = "was restarted";
}

/// Something for the durable store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Record {
    /// All that a restarted coordinator must know. Replaces the one before.
    State(Box<State>),
    /// The metrics of a round. The newest are kept; it need not be durable at once.
    Round(RoundSummary),
}

/// How much a [`Notice`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run goes its way.
    Info,
    /// Something went wrong, and the run copes.
    Warning,
    /// A promise is broken, or a person must act.
    Error,
}

/// An event of the run, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Milliseconds on the run's clock (that of `now`).
    pub at_ms: u64,
    /// How much it matters.
    pub severity: Severity,
    /// Whom it concerns, when it is one worker.
    pub worker: Option<WorkerId>,
    /// One sentence.
    pub text: String,
}
