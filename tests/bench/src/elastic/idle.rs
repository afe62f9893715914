//! Resources of a coordinator of sixteen workers, and the duration of a status request.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_tests::cluster::training;
use longhaul_tests::hostile::memory_of;

use super::heartbeats::pause;
use super::{Session, WAIT_MAX, cluster};
use crate::kit::clock::now;
use crate::kit::cpu;
use crate::kit::figures::figure;

const SITES: [usize; 4] = [4; 4];
/// Time for connections to settle, and for workers to choose their reporter.
const SETTLED: Duration = Duration::from_secs(30);
const MEASURED: Duration = Duration::from_secs(60);
const STATUSES: u32 = 200;

/// A paused, thus idle, run, and the same run while it trains.
pub fn measure(session: &Session) -> Result<()> {
    let workers: usize = SITES.iter().sum();
    for _ in session.repeats("an idle coordinator", 1) {
        let mut cluster = cluster(SITES.to_vec())?;
        cluster.wait_for("all to train", WAIT_MAX, |status| training(status) == workers)?;
        let process = cluster.coordinator().context("the coordinator has no process")?.id();
        for case in ["training", "paused"] {
            if case == "paused" {
                pause(&cluster)?;
                cluster.wait_for("the pause", WAIT_MAX, |status| status["paused"] == true)?;
            }
            let case = format!("the coordinator of {workers} workers, {case}");
            std::thread::park_timeout(session.quick.choose(SETTLED / 6, SETTLED));
            let (cpu_before, began) = (cpu::seconds(process, None)?, now());
            std::thread::park_timeout(session.quick.choose(MEASURED / 6, MEASURED));
            let share = (cpu::seconds(process, None)? - cpu_before) / began.elapsed().as_secs_f64();
            let memory = memory_of(process)?;
            let figures = [
                figure("coordinator_cpu_share", share, "of a core"),
                figure("coordinator_resident", memory.resident as f64 / 1e6, "MB"),
                figure("coordinator_peak", memory.peak as f64 / 1e6, "MB"),
            ];
            session.recorder.print_all(&case, figures);
            let statuses = (0..STATUSES).map(|_| {
                let asked = now();
                let status = cluster.status();
                anyhow::ensure!(training(&status) == workers, "a status came to nothing: {status:#}");
                Ok(asked.elapsed().as_secs_f64() * 1e3)
            });
            session.print(&case, "status_ms", "ms", &statuses.collect::<Result<Vec<_>>>()?);
        }
    }
    Ok(())
}
