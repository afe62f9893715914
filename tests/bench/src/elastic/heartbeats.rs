//! Bandwidth of heartbeats on the link of a site of eight workers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use longhaul_emulator::Count;
use longhaul_tests::cluster::{Cluster, binary, training};

use super::{Session, WAIT_MAX, cluster_of, run_toml_for};
use crate::kit::clock::now;

const WORKERS: usize = 8;
/// Time for connections to settle, and for workers to choose their reporter.
const SETTLED: Duration = Duration::from_secs(30);
const MEASURED: Duration = Duration::from_secs(60);

/// All workers are at one site, and the coordinator at another. A paused run sends only heartbeats: from each
/// worker itself, as with short timeouts, and by site.
pub fn measure(session: &Session) -> Result<()> {
    for (case, faults) in [("each for itself", "suspect_after_ms = 1999"), ("by site", "")] {
        for _ in session.repeats(&format!("heartbeats, {case}"), 1) {
            let toml = run_toml_for(WORKERS).lines("faults", faults);
            let mut cluster =
                cluster_of(toml, &[0, WORKERS], &"rate_mbit=1,delay_ms=25,loss_percent=0".parse()?)?;
            cluster.wait_for("all to train", WAIT_MAX, |status| training(status) == WORKERS)?;
            pause(&cluster)?;
            cluster.wait_for("the pause", WAIT_MAX, |status| status["paused"] == true)?;
            std::thread::park_timeout(session.quick.choose(SETTLED / 3, SETTLED));
            let (before, began) = (counts(&cluster), now());
            std::thread::park_timeout(session.quick.choose(MEASURED / 4, MEASURED));
            let (after, seconds) = (counts(&cluster), began.elapsed().as_secs_f64());
            for (way, before, after) in [("out of", before[0], after[0]), ("into", before[1], after[1])] {
                let case = format!("heartbeats of {WORKERS} workers, {case}, {way} their site");
                let (bytes, packets) = (after.bytes - before.bytes, after.packets - before.packets);
                session.recorder.print(&case, "bytes_per_s", bytes as f64 / seconds, "B/s");
                session.recorder.print(&case, "packets_per_s", packets as f64 / seconds, "1/s");
            }
        }
    }
    Ok(())
}

/// Returns the bytes to and from the coordinator, including IP headers: the workers dial it over the link of
/// its own site.
fn counts(cluster: &Cluster) -> [Count; 2] {
    let wan = cluster.wan();
    [wan.into_site(0), wan.out_of_site(0)].map(|link| link.stats().offered)
}

/// Pauses training.
pub fn pause(cluster: &Cluster) -> Result<()> {
    let status = Command::new(binary("coordinator")?)
        .args(["pause", "--http", &cluster.http().to_string()])
        .args(["--state-dir".as_ref(), cluster.folder().join("state").as_path() as &Path])
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "pause: {status}");
    Ok(())
}
