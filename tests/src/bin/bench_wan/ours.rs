//! Runs of this project: the real binaries over the emulated link.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use longhaul_tests::cluster::{Cluster, ClusterConfig};
use longhaul_tests::wan::LinkConfig;
use serde_json::Value;

use super::Figure;

/// `[sync]` with its defaults: a round every fifteen steps.
pub const SPARSE_LOCAL: &str = "preset = \"sparse-local\"";
/// Gradients after each step.
pub const DENSE: &str = "preset = \"dense\"";
/// No round within the measurement.
const ALONE: &str = "every = 100000";
/// Steps before the clock starts.
const WARM_UP_STEPS: u64 = 3;
/// Between looks at a run that is far from its end.
const SELDOM: Duration = Duration::from_secs(1);
/// A step of this model takes about a second on a slow core, and ten seconds as dense over 100 Mbit/s.
const RUN_MAX: Duration = Duration::from_secs(900);

/// Seconds a step of two workers that train side by side and do not talk.
pub fn local(steps: u64) -> Result<f64> {
    let start = |seed| start(&[1], ALONE, steps, &LinkConfig::default(), seed);
    let (mut first, mut second) = (start(1)?, start(2)?);
    let (a, b) = std::thread::scope(|scope| {
        let other = scope.spawn(|| step_s(&mut second.0, steps));
        (step_s(&mut first.0, steps), other.join())
    });
    let b = b.map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?;
    Ok(f64::midpoint(a?, b?))
}

/// Seconds a step of two sites with one worker each, and what went over the link.
pub fn across(link: &LinkConfig, sync: &str, steps: u64) -> Result<(f64, Vec<Figure>)> {
    super::progress(sync);
    let (mut cluster, _folder) = start(&[1, 1], sync, steps, link, 1)?;
    let step_s = step_s(&mut cluster, steps)?;
    let status = cluster.wait_until_finished(RUN_MAX)?;
    let figure = |metric, pointer: &str, unit| {
        let value = status.pointer(pointer).and_then(Value::as_f64)?;
        Some(Figure { metric, value, unit })
    };
    let figures =
        [figure("bytes_ratio", "/bytes_ratio", "ratio"), figure("wan_bytes", "/wan_bytes", "bytes")];
    Ok((step_s, figures.into_iter().flatten().collect()))
}

fn start(
    sites: &[usize],
    sync: &str,
    steps: u64,
    link: &LinkConfig,
    seed: u64,
) -> Result<(Cluster, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let config = ClusterConfig {
        run_toml: run_toml(sites.iter().sum(), sync, steps),
        sites: sites.to_vec(),
        link: link.clone(),
        seed,
        folder: folder.path().to_owned(),
        threads: 1,
    };
    Ok((Cluster::start(config)?, folder))
}

/// Seconds a step between the warm-up and the last step, over all workers.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn step_s(cluster: &mut Cluster, steps: u64) -> Result<f64> {
    let at = |status: &Value| {
        let members = status["members"].as_array().map(Vec::as_slice).unwrap_or_default();
        members.iter().map(|member| member["step"].as_u64().unwrap_or(0)).min().unwrap_or(0)
    };
    let first = cluster.wait_for("the first steps", RUN_MAX, |status| at(status) >= WARM_UP_STEPS)?;
    let began = Instant::now();
    // Looking takes time from the workers, so closely only where it matters.
    cluster.look_every(SELDOM, "most steps", RUN_MAX, |status| at(status) + 3 >= steps)?;
    let last = cluster.wait_for("the last steps", RUN_MAX, |status| at(status) >= steps - 1)?;
    let passed = began.elapsed().as_secs_f64();
    let made = at(&last).checked_sub(at(&first)).filter(|made| *made > 0);
    Ok(passed / made.context("the run made no steps")? as f64)
}

fn run_toml(workers: usize, sync: &str, steps: u64) -> String {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/bible.en.txt.zst");
    let batch = 8 * workers;
    format!(
        r#"
[run]
name = "bench"
workers = {workers}
steps = {steps}

[model]
kind = "gpt2"
layers = 6
width = 384
heads = 6
context = 128
tied_embeddings = false

[data]
path = {text:?}
sequence_length = 128

[train]
batch = {batch}
micro_batch = 8
evaluate_batches = 1
# As in the PyTorch script beside it.
gradient_clip = 0.0

[sync]
{sync}

[checkpoint]
every_rounds = 0
"#
    )
}
