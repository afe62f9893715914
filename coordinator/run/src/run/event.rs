//! Events of a run.

use std::fmt;
use std::net::IpAddr;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::ToCoordinator;
use serde::{Deserialize, Serialize};

use longhaul_plan::Answer;

/// One control connection. Numbered by the runtime, never reused while it lives: a worker that reconnects has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

/// The input of [`super::Run::handle`].
///
/// For one connection the order is: one `Opened`, any number of `Message`s, one `Closed`. Events of connections that
/// are not open are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A worker authenticated.
    Opened {
        /// The new connection.
        connection: ConnectionId,
        /// From its certificate.
        worker: WorkerId,
        /// Where it comes from, as the coordinator sees it.
        address: IpAddr,
    },
    /// A worker sent a message.
    Message {
        /// On which connection.
        connection: ConnectionId,
        /// Content.
        message: ToCoordinator,
    },
    /// The connection closed, for whatever reason.
    Closed {
        /// Which one.
        connection: ConnectionId,
    },
    /// A connection goes on from another address.
    Moved {
        /// Which one.
        connection: ConnectionId,
        /// The new one, as the coordinator sees it.
        address: IpAddr,
    },
    /// Answer to [`super::Command::Plan`].
    Planned(Box<Answer>),
    /// The time of [`super::Run::next_timeout`] has come. Coming early does no harm.
    Timer,
    /// Request for an orderly end.
    Drain,
    /// Request that all write a checkpoint and leave, so that the run can go on later.
    Suspend,
    /// Request that all write a checkpoint soon, and train on.
    Checkpoint,
    /// Request to pause training until [`Event::Resume`].
    Pause,
    /// Request to go on training.
    Resume,
    /// Request to let this worker leave in order, as if it had asked to.
    Dismiss {
        /// The worker.
        worker: WorkerId,
    },
    /// This worker's certificate was revoked: it is out of the run for good.
    Kick {
        /// The worker.
        worker: WorkerId,
    },
}
