//! The model of the benchmarks across a link, a byte-level GPT of 10.9 million parameters, trained by the
//! real binaries.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;
use longhaul_tests::cluster::Cluster;
use serde_json::Value;

use super::training::{SPEED, Shape, Training};
use crate::kit::clock::now;
use crate::kit::memory;
use crate::kit::stats::mean;

/// Its shape.
pub const GPT: Shape = Shape { layers: 6, width: 384, heads: 6, context: 128, tied_embeddings: false };

/// No round within the measurement.
pub const ALONE: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 100000";
/// Steps before the clock starts.
const WARM_UP_STEPS: u64 = 3;
/// Interval of status requests far from the end of a run.
const SELDOM: Duration = Duration::from_secs(1);
/// A step takes about a second on a slow core, and ten seconds as dense over 100 Mbit/s.
pub const RUN_MAX: Duration = Duration::from_secs(900);

/// Workers that train without exchange, on average.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local {
    pub step_s: f64,
    /// Anonymous memory of a worker: beside the model's, one vector of synchronised parameters.
    pub bytes: f64,
}

/// Returns the seconds per step of two workers that train with AdamW in parallel without exchange.
pub fn local(steps: u64) -> Result<f64> {
    Ok(local_of(2, steps, "")?.step_s)
}

/// Measures any number of workers that train in parallel without exchange, with further keys of `[train]`.
pub fn local_of(workers: usize, steps: u64, train: &str) -> Result<Local> {
    let link = LinkConfig::default();
    let train = format!("{SPEED}\n{train}");
    let start =
        |seed| Training { seed, train: &train, ..Training::new(GPT, &[1], ALONE, steps, &link) }.start();
    let mut runs = (1..=workers as u64).map(start).collect::<Result<Vec<_>>>()?;
    let measured = std::thread::scope(|scope| {
        let threads: Vec<_> = runs.iter_mut().map(|run| scope.spawn(|| alone(run, steps))).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    let all = measured
        .into_iter()
        .map(|run| run.map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?)
        .collect::<Result<Vec<_>>>()?;
    let mean_of = |of: fn(&Local) -> f64| mean(&all.iter().map(of).collect::<Vec<_>>());
    let both = mean_of(|run| run.step_s).zip(mean_of(|run| run.bytes));
    let (step_s, bytes) = both.context("no worker was measured")?;
    Ok(Local { step_s, bytes })
}

fn alone(cluster: &mut Cluster, steps: u64) -> Result<Local> {
    cluster.wait_for("the first steps", RUN_MAX, |status| slowest_step(status) >= WARM_UP_STEPS)?;
    let worker = cluster.worker(0).context("the worker has ended")?.id();
    // Its last steps bring an evaluation and a checkpoint.
    let bytes = memory::bytes(worker, "RssAnon")?;
    Ok(Local { step_s: step_s(cluster, steps)?, bytes })
}

/// Returns the seconds per step between the warm-up and the last step, over all workers.
pub fn step_s(cluster: &mut Cluster, steps: u64) -> Result<f64> {
    let first =
        cluster.wait_for("the first steps", RUN_MAX, |status| slowest_step(status) >= WARM_UP_STEPS)?;
    let began = now();
    // Status requests slow the workers, so they are frequent only near the end.
    cluster.look_every(SELDOM, "most steps", RUN_MAX, |status| slowest_step(status) + 3 >= steps)?;
    let last = cluster.wait_for("the last steps", RUN_MAX, |status| slowest_step(status) >= steps - 1)?;
    let passed = began.elapsed().as_secs_f64();
    let made = slowest_step(&last).checked_sub(slowest_step(&first)).filter(|made| *made > 0);
    Ok(passed / made.context("the run made no steps")? as f64)
}

/// Returns the step of the slowest worker.
pub fn slowest_step(status: &Value) -> u64 {
    let members = status["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    members.iter().map(|member| member["step"].as_u64().unwrap_or(0)).min().unwrap_or(0)
}
