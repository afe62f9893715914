use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval of checks for a stop while waiting for a neighbour: short compared with a change of generation, long compared with a reduction.
pub(super) const STOP_CHECK: Duration = Duration::from_millis(50);

/// Ends a member's waiting from another thread: joining and calls fail with [`CollectiveError::Stopped`] soon after [`Self::stop`], and the neighbours
/// notice.
///
/// [`CollectiveError::Stopped`]: crate::CollectiveError::Stopped
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends all waiting from now on.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Reports whether it was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
