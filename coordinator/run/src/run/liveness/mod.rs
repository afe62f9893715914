//! Liveness of workers: their signs of life, and their addresses.

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
use crate::run::command::Severity;
use crate::run::peer::Peer;

/// The failure detector, with the reachability and addresses of workers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Liveness {
    /// Latest time of the next look at silent workers; `None`: no worker is connected.
    silence_at: Option<Duration>,
    reach: Reach,
    /// Workers that have left since this coordinator was started.
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

    /// Latest time of the next look at silent workers; `None`: no worker is connected.
    pub(super) fn is_looked_at(&self) -> Option<Duration> {
        self.silence_at
    }
}
