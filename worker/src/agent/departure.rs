//! How a worker leaves a run.

use std::time::Duration;

use longhaul_proto::control::message::HANDOVER_MAX;
use tokio::time::Instant;

/// How long a leaving worker waits to be dismissed: a settlement takes a round trip or two.
pub(super) const FAREWELL_MAX: Duration = Duration::from_secs(30);

/// A worker's way out of the run.
#[derive(Debug, Default)]
pub(super) struct Departure {
    /// Since when it has been asked to stop, and waits to be dismissed.
    pub(super) asked: Option<Instant>,
    /// Whether it waits for longer, as others have yet to get what it alone has.
    pub(super) hands_over: bool,
    /// It has been let go.
    pub(super) dismissed: bool,
}

impl Departure {
    /// Until when it waits to be dismissed.
    pub(super) fn farewell(&self) -> Option<Instant> {
        let most = if self.hands_over { HANDOVER_MAX.saturating_add(FAREWELL_MAX) } else { FAREWELL_MAX };
        self.asked.map(|since| since + most)
    }
}
