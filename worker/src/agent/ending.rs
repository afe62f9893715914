//! The end of a session.

use std::time::Duration;

use anyhow::Result;
use longhaul_member::Outcome;
use longhaul_proto::control::message::Join;
use longhaul_proto::identity::Identity;

use super::connection::Conversation;

/// The reason for the end of a session.
pub(super) enum Ending {
    /// The worker's part is over.
    Over(String),
    /// The worker fell behind and rejoins. The duration is the time that the state took to arrive, if the worker has not taken part since because missing
    /// results were no longer available.
    Again(String, Option<Duration>),
    /// The coordinator no longer knows this session; it has welcomed the worker as a new one.
    Replaced(Join, Box<Conversation>),
    /// Another process has this worker's identity; this process becomes another worker.
    Twin,
    /// The certificate has expired; this machine becomes another worker with this certificate.
    Renamed(Identity),
}

/// Converts the synchroniser's outcome.
pub(super) fn ending_of(outcome: Result<Outcome>) -> Result<Ending> {
    Ok(match outcome? {
        Outcome::Dismissed(reason) => Ending::Over(reason),
        Outcome::Rejoin(reason) => Ending::Again(reason, None),
        Outcome::TooLate(reason, took) => Ending::Again(reason, Some(took)),
    })
}
