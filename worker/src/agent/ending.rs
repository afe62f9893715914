//! How a session ends.

use std::time::Duration;

use anyhow::Result;
use longhaul_member::Outcome;
use longhaul_proto::control::message::Join;
use longhaul_proto::identity::Identity;

use super::connection::Conversation;

/// How a session ended.
pub(super) enum Ending {
    /// For good.
    Over(String),
    /// This worker has lost the thread, and joins anew; with what the state took to come, where it has not taken part since, as results that it lacked were not to be had any more.
    Again(String, Option<Duration>),
    /// The coordinator does not know this session any more; it has welcomed the worker as a new one.
    Replaced(Join, Box<Conversation>),
    /// Another process has this worker's identity. This one is another worker from now on.
    Twin,
    /// The certificate has expired. This machine is another worker from now on, with another certificate.
    Renamed(Identity),
}

/// That of the synchroniser's.
pub(super) fn ending_of(outcome: Result<Outcome>) -> Result<Ending> {
    Ok(match outcome? {
        Outcome::Dismissed(reason) => Ending::Over(reason),
        Outcome::Rejoin(reason) => Ending::Again(reason, None),
        Outcome::TooLate(reason, took) => Ending::Again(reason, Some(took)),
    })
}
