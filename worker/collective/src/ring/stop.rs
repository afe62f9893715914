use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often whoever waits for a neighbour looks whether it is still to wait: often beside what a change of generation takes, seldom
/// beside a reduction.
pub(super) const STOP_CHECK: Duration = Duration::from_millis(50);

/// Ends a member's waiting from another thread: joining and calls fail with [`CollectiveError::Stopped`] soon after
/// [`Self::stop`], and the neighbours notice.
///
/// [`CollectiveError::Stopped`]: crate::CollectiveError::Stopped
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on nothing is waited for.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
