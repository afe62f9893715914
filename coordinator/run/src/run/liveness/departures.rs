//! Departed workers, for display.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::{Core, shorten};
use crate::run::liveness::Liveness;
use crate::run::peer::Peer;

/// Departures that are remembered: more than a page shows.
const DEPARTURES_KEPT: usize = 1024;

/// A departed worker. Values that this coordinator has not seen itself are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoneStatus {
    /// Its number.
    pub id: String,
    /// The name of its site.
    pub site: String,
    /// Host and device.
    pub device: String,
    /// Whether it is out for good.
    pub revoked: bool,
    /// Whether it left in order: it asked to, or was asked to. One of which this coordinator has not seen that is taken for lost.
    #[serde(default)]
    pub left: bool,
    /// The step that it computed last.
    pub step: Option<u64>,
    /// Seconds since its last message.
    pub last_seen_s: Option<f64>,
    /// Why it is not here.
    pub why: Option<String>,
}

impl GoneStatus {
    /// `kicked`, `left` in order, or `gone`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self { revoked: true, .. } => "kicked",
            Self { left: true, .. } => "left",
            _ => "gone",
        }
    }
}

/// The newest departure of each absent worker, since this coordinator was started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Departures {
    by_worker: BTreeMap<WorkerId, Departure>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Departure {
    last_seen: Duration,
    step: u64,
    why: String,
    in_order: bool,
    left: Duration,
}

impl Departures {
    /// A worker that was here is not any more: in order, if that is nothing to be warned of.
    pub fn note(&mut self, now: Duration, worker: WorkerId, peer: &Peer, severity: Severity, why: &str) {
        let departure = Departure {
            last_seen: peer.silence.last(),
            step: peer.progress.meter.latest().map_or(0, |heartbeat| heartbeat.step),
            why: shorten(why),
            in_order: severity == Severity::Info,
            left: now,
        };
        self.by_worker.insert(worker, departure);
        if self.by_worker.len() > DEPARTURES_KEPT
            && let Some(oldest) = self.by_worker.iter().min_by_key(|(_, of)| of.left).map(|(&of, _)| of)
        {
            self.by_worker.remove(&oldest);
        }
    }
}

impl Liveness {
    /// Workers that have joined at some time, and are not here.
    pub(crate) fn gone_statuses(&self, core: &Core) -> Vec<GoneStatus> {
        // At the end, the page shows the workers that stayed to the end.
        let shown = core.state.end.last_snapshot.as_ref();
        let is_shown = |worker: &WorkerId| {
            let id = worker.to_string();
            shown.is_some_and(|snapshot| snapshot.members.iter().any(|member| member.place.id == id))
        };
        let gone = core.state.roster.workers.iter();
        let gone = gone.filter(|(worker, _)| !core.peers.contains_key(worker) && !is_shown(worker));
        let status = |(worker, known): (&WorkerId, &crate::run::state::Known)| {
            let departure = self.departures.by_worker.get(worker);
            GoneStatus {
                id: worker.to_string(),
                site: core.site_name(known.site),
                device: known.device.clone(),
                revoked: core.state.roster.revoked.contains(worker),
                left: departure.is_some_and(|departure| departure.in_order),
                step: departure.map(|departure| departure.step),
                last_seen_s: departure.map(|of| core.now.saturating_sub(of.last_seen).as_secs_f64()),
                why: departure.map(|departure| departure.why.clone()),
            }
        };
        gone.map(status).collect()
    }
}
