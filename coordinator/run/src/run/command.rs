//! Commands of a run.

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::ToWorker;
use serde::{Deserialize, Serialize};

use crate::run::accounting::progress::RoundSummary;
use crate::run::event::ConnectionId;
use crate::run::state::RunState;
use longhaul_plan::Question;

/// The output of [`super::Run::handle`]. Commands are executed in order; a [`Command::Persist`] of a [`Record::State`]
/// is durable before the next command starts, so that no worker acts on a decision that a crash could undo.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Command {
    /// Send a message. If the connection is closed or its queue is full, it is closed, which is an event.
    Send {
        /// Receiver.
        connection: ConnectionId,
        /// Content.
        message: ToWorker,
    },
    /// Close a connection, once its queue is sent.
    Close {
        /// The connection.
        connection: ConnectionId,
        /// For the log and the close frame.
        reason: String,
    },
    /// Write to the durable store.
    Persist(Record),
    /// Compute whether another plan pays, beside the run; the answer is [`super::Event::Planned`].
    Plan(Box<Question>),
    /// Show a notice.
    Report(Notice),
}

impl Command {
    /// Reason for closing a connection whose worker has opened another one,
    pub const REPLACED: &str = "the worker opened another connection";
    /// or has come back as another process.
    pub const RESTARTED: &str = "was restarted";
}

/// A record for the durable store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Record {
    /// All state that a restarted coordinator needs. Replaces the last one.
    State(Box<RunState>),
    /// The metrics of a round. The newest are kept; it need not be durable at once.
    Round(RoundSummary),
}

/// Importance of a [`Notice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Normal operation.
    Info,
    /// A fault that the run handles.
    Warning,
    /// A broken promise, or a fault that needs a person.
    Error,
}

/// An event of the run, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Milliseconds on the run's clock (that of `now`).
    pub at_ms: u64,
    /// Its importance.
    pub severity: Severity,
    /// The worker concerned, if it is one.
    pub worker: Option<WorkerId>,
    /// One sentence.
    pub text: String,
}
