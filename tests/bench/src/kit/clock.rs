//! Clocks of benchmarks.

use std::time::{Duration, Instant};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current time.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the seconds since 1970, which certificates need.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub fn unix_s() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

/// Returns the seconds that a call takes.
pub fn seconds_of(something: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = now();
    something()?;
    Ok(began.elapsed().as_secs_f64())
}

/// Returns the CPU time of all threads of this process so far, in seconds.
pub fn process_s() -> f64 {
    processor_time(ClockId::ProcessCPUTime).as_secs_f64()
}

/// Returns the CPU time of the calling thread so far, which excludes other load.
#[cfg(feature = "torch")]
pub fn thread_time() -> Duration {
    processor_time(ClockId::ThreadCPUTime)
}

fn processor_time(clock: ClockId) -> Duration {
    let spent = clock_gettime(clock);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or_default())
}
