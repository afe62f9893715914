//! Cost of a killed and restarted coordinator for training.

use std::time::Duration;

use anyhow::{Result, ensure};
use longhaul_tests::cluster::{Cluster, training};
use serde_json::Value;

use super::{Session, WAIT_MAX, cluster, rounds_lost};
use crate::kit::clock::now;

/// Duration of each speed measurement.
const WATCHED: Duration = Duration::from_secs(30);
/// Downtime: a restarted machine, or a rescheduled pod.
const AWAY: Duration = Duration::from_secs(5);

/// Five deaths in one run.
pub fn measure(session: &Session) -> Result<()> {
    let mut cluster = cluster(vec![2, 2])?;
    let (mut steady, mut kept, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for _ in session.repeats("coordinator killed", 5) {
        let all = cluster.wait_for("all to train", WAIT_MAX, |status| training(status) == 4)?;
        let calm = speed(&mut cluster, |_| Ok(()))?;
        let with_it = speed(&mut cluster, |cluster| {
            let killed = now();
            cluster.kill_coordinator();
            // Fixed downtime.
            std::thread::park_timeout(AWAY);
            cluster.start_coordinator()?;
            let back = cluster.wait_for("all to be back", WAIT_MAX, |status| training(status) == 4)?;
            steady.push(killed.elapsed().as_secs_f64());
            // Every round of a surviving generation is applied.
            ensure!(back["generation"] == all["generation"], "a worker was given up: {back:#}");
            Ok(())
        })?;
        kept.push(with_it / calm);
        lost.push(rounds_lost(&cluster.status(), 4) - rounds_lost(&all, 4));
    }
    session.print("coordinator killed", "steady_s", "s", &steady);
    session.print("coordinator killed", "throughput_kept", "ratio", &kept);
    session.print("coordinator killed", "rounds_lost", "rounds", &lost);
    Ok(())
}

/// Returns the steps per second applied everywhere during an event.
fn speed(cluster: &mut Cluster, happens: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<f64> {
    let step = |status: &Value| status["step"].as_f64().unwrap_or(0.0);
    // From the time at which a round is applied to another such.
    let first = step(&cluster.status());
    let first = step(&cluster.wait_for("a round", WAIT_MAX, |status| step(status) > first)?);
    let began = now();
    happens(cluster)?;
    let mut last = first;
    cluster.wait_for("the time to pass", WAIT_MAX, |status| {
        let is_new = step(status) > last;
        last = last.max(step(status));
        is_new && began.elapsed() >= WATCHED
    })?;
    Ok((last - first) / began.elapsed().as_secs_f64())
}
