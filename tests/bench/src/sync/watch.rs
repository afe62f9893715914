//! Polls a run for a limited time.

use std::time::Duration;

use anyhow::Result;
use longhaul_tests::cluster::Cluster;
use serde_json::Value;

use crate::kit::clock::now;

/// Workers report progress twice a second, and each request costs them time.
const PAUSE: Duration = Duration::from_millis(500);
/// Grace after the limit, which normally ends the polling.
const GRACE: Duration = Duration::from_secs(60);

/// Polls the status until it satisfies a condition; `None`: timeout.
///
/// # Errors
/// A process of the run failed.
pub fn until(
    cluster: &mut Cluster,
    limit: Duration,
    condition: impl FnMut(&Value) -> bool,
) -> Result<Option<Value>> {
    until_every(cluster, PAUSE, limit, condition)
}

/// The same with another interval.
///
/// # Errors
/// As [`until`].
pub fn until_every(
    cluster: &mut Cluster,
    pause: Duration,
    limit: Duration,
    mut condition: impl FnMut(&Value) -> bool,
) -> Result<Option<Value>> {
    let began = now();
    let mut met = false;
    let status = cluster.look_every(pause, "the measurement", limit + GRACE, |status| {
        met = condition(status);
        met || began.elapsed() > limit
    })?;
    Ok(met.then_some(status))
}
