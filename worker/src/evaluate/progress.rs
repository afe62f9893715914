//! Progress on standard error: a status line on a terminal, log lines elsewhere.

use std::path::Path;
use std::time::Duration;

use indicatif::{HumanCount, HumanDuration};
use longhaul_common::terminal::{foot, gauge};
use tokio::time::Instant;

/// Interval between log lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress on a file. Dropping it clears the status line.
pub(super) struct Progress {
    name: String,
    unit: &'static str,
    all: usize,
    start: Instant,
    next_line: Instant,
}

impl Progress {
    pub(super) fn new(path: &Path, unit: &'static str, all: usize) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let start = Instant::now();
        Self { name, unit, all, start, next_line: start + LINE_INTERVAL }
    }

    /// Shows that so many are done.
    pub(super) fn show(&mut self, done: usize) {
        let now = Instant::now();
        if foot().is_there() {
            let gauge = gauge(done as u64, self.all as u64);
            foot().show(&format!("{} {gauge} {}", self.name, self.far(done, now)));
        } else if now >= self.next_line {
            self.next_line = now + LINE_INTERVAL;
            tracing::info!("{}: {}", self.name, self.far(done, now));
        }
    }

    fn far(&self, done: usize, now: Instant) -> String {
        let (shown, all, unit) = (HumanCount(done as u64), HumanCount(self.all as u64), self.unit);
        let left = (self.all - done.min(self.all)) as f64 / done.max(1) as f64;
        let left = Duration::try_from_secs_f64((now - self.start).as_secs_f64() * left).unwrap_or_default();
        format!("{shown} of {all} {unit}, {} left", HumanDuration(left))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        foot().show("");
    }
}
