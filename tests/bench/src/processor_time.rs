//! The clock of benchmarks that compute on one thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Of the calling thread, so that what else the machine does is not counted.
pub fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}
