//! A worker's departure from a run.

use std::time::Duration;

use longhaul_proto::control::message::HANDOVER_MAX;
use tokio::time::Instant;

/// How long a leaving worker waits for its dismissal: a settlement takes a round trip or two.
pub(super) const FAREWELL_MAX: Duration = Duration::from_secs(30);

/// The progress of a worker's departure.
#[derive(Debug, Default)]
pub(super) struct Departure {
    /// Time of the stop request; the worker then waits for its dismissal.
    pub(super) asked: Option<Instant>,
    /// Whether the worker waits longer, to hand over state that only it has.
    pub(super) hands_over: bool,
    /// Whether the coordinator has dismissed the worker.
    pub(super) dismissed: bool,
}

impl Departure {
    /// The deadline of the wait for a dismissal.
    pub(super) fn farewell(&self) -> Option<Instant> {
        let most = if self.hands_over { HANDOVER_MAX.saturating_add(FAREWELL_MAX) } else { FAREWELL_MAX };
        self.asked.map(|since| since + most)
    }
}
