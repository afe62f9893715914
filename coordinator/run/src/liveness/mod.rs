//! Which workers can be heard, by whom, and at which address.

pub(super) mod addresses;
pub(super) mod departures;
pub(super) mod failure_detector;
pub(super) mod reach;
pub(super) mod silence;

use std::time::Duration;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use self::addresses::Moves;
use self::departures::Departures;
use self::reach::Reach;
use crate::command::Severity;
use crate::peer::Peer;

/// The failure detector: who can be heard, by whom, and at which address.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Liveness {
    /// When to look for those that have been silent for too long, at the latest; none: nobody is connected.
    silence_at: Option<Duration>,
    reach: Reach,
    /// Those who were here since this coordinator was started, and are not any more.
    departures: Departures,
    moves: Moves,
}

impl Liveness {
    /// A worker is not here any more.
    pub(super) fn departed(
        &mut self,
        now: Duration,
        worker: WorkerId,
        peer: &Peer,
        severity: Severity,
        what: &str,
    ) {
        self.departures.note(now, worker, peer, severity, what);
        self.reach.forget(worker);
        self.moves.forget(worker);
    }

    /// When it is looked at who is silent, at the latest; none: nobody is connected.
    pub(super) fn is_looked_at(&self) -> Option<Duration> {
        self.silence_at
    }
}
