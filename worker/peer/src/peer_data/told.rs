//! Log lines about fetched data.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_data::BlockName;
use tokio::time::Instant;

/// Interval of log lines about progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Interval of log lines about failures.
const TROUBLE_EVERY: Duration = Duration::from_secs(30);

/// Fetched data, and the times of log lines.
#[derive(Debug, Default)]
pub struct Told(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    blocks: u64,
    wan_bytes: u64,
    lan_bytes: u64,
    progress_at: Option<Instant>,
    trouble_at: Option<Instant>,
}

impl Told {
    /// Logs a block without a source, with the workers' failures.
    pub fn trouble(&self, name: BlockName, failures: &[String]) {
        let (mut told, now) = (self.lock(), Instant::now());
        if told.trouble_at.is_some_and(|at| now < at + TROUBLE_EVERY) {
            return;
        }
        told.trouble_at = Some(now);
        let reason = match failures {
            [] => "no worker with the run's data is here".to_owned(),
            failures => failures.join("; "),
        };
        tracing::warn!(block = %name, reason, "no worker delivers training data: waiting, and retrying");
    }

    /// Counts a block's arrival.
    pub fn progress(&self, bytes: u64, is_wan: bool) {
        let (mut told, now) = (self.lock(), Instant::now());
        told.blocks += 1;
        *(if is_wan { &mut told.wan_bytes } else { &mut told.lan_bytes }) += bytes;
        if told.trouble_at.take().is_some() {
            tracing::info!("training data arrives again");
        } else if told.progress_at.is_some_and(|at| now < at + PROGRESS_EVERY) {
            return;
        }
        told.progress_at = Some(now);
        let (wan_mib, lan_mib) = (told.wan_bytes >> 20, told.lan_bytes >> 20);
        tracing::info!(
            blocks = told.blocks,
            wan_mib,
            lan_mib,
            "training data from other workers is in the cache"
        );
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
