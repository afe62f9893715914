//! The model of the benchmarks across a link, a byte-level GPT of 10.9 million parameters, trained by the real binaries.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use longhaul_tests::cluster::{Cluster, ClusterConfig};
use longhaul_tests::wan::LinkConfig;
use serde_json::Value;

/// No round within the measurement.
const ALONE: &str = "preset = \"sparse-local\"\nopening_share = 0.0\nevery = 100000";
/// Keys of `[train]` where only speed counts.
pub const SPEED: &str = "evaluate_batches = 1";
/// Steps before the clock starts.
const WARM_UP_STEPS: u64 = 3;
/// Between looks at a run that is far from its end.
const SELDOM: Duration = Duration::from_secs(1);
/// A step of this model takes about a second on a slow core, and ten seconds as dense over 100 Mbit/s.
pub const RUN_MAX: Duration = Duration::from_secs(900);

/// A run of this model.
pub struct Training<'a> {
    /// Workers in each site.
    pub sites: &'a [usize],
    /// Keys of `[sync]`.
    pub sync: &'a str,
    /// More keys of `[train]`.
    pub train: &'a str,
    pub steps: u64,
    pub link: &'a LinkConfig,
    pub seed: u64,
}

impl Training<'_> {
    /// Starts the run, in a folder that goes with it.
    pub fn start(&self) -> Result<(Cluster, tempfile::TempDir)> {
        let folder = tempfile::tempdir()?;
        let config = ClusterConfig {
            run_toml: self.run_toml(),
            sites: self.sites.to_vec(),
            link: self.link.clone(),
            seed: self.seed,
            folder: folder.path().to_owned(),
            threads: 1,
        };
        Ok((Cluster::start(config)?, folder))
    }

    fn run_toml(&self) -> String {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/bible.en.txt.zst");
        let Self { sites, sync, train, steps, seed, .. } = self;
        let workers: usize = sites.iter().sum();
        let batch = 8 * workers;
        format!(
            r#"
[run]
name = "bench"
workers = {workers}
steps = {steps}
seed = {seed}

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
# As in the PyTorch script beside it.
gradient_clip = 0.0
{train}

[sync]
{sync}

[checkpoint]
every_rounds = 0
"#
        )
    }
}

/// Seconds a step of two workers that train side by side and do not talk.
pub fn local(steps: u64) -> Result<f64> {
    let link = LinkConfig::default();
    let start = |seed| Training { sites: &[1], sync: ALONE, train: SPEED, steps, link: &link, seed }.start();
    let (mut first, mut second) = (start(1)?, start(2)?);
    let (a, b) = std::thread::scope(|scope| {
        let other = scope.spawn(|| step_s(&mut second.0, steps));
        (step_s(&mut first.0, steps), other.join())
    });
    let b = b.map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?;
    Ok(f64::midpoint(a?, b?))
}

/// Seconds a step between the warm-up and the last step, over all workers.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn step_s(cluster: &mut Cluster, steps: u64) -> Result<f64> {
    let first =
        cluster.wait_for("the first steps", RUN_MAX, |status| slowest_step(status) >= WARM_UP_STEPS)?;
    let began = Instant::now();
    // Looking takes time from the workers, so closely only where it matters.
    cluster.look_every(SELDOM, "most steps", RUN_MAX, |status| slowest_step(status) + 3 >= steps)?;
    let last = cluster.wait_for("the last steps", RUN_MAX, |status| slowest_step(status) >= steps - 1)?;
    let passed = began.elapsed().as_secs_f64();
    let made = slowest_step(&last).checked_sub(slowest_step(&first)).filter(|made| *made > 0);
    Ok(passed / made.context("the run made no steps")? as f64)
}

/// The step that the slowest worker computes.
pub fn slowest_step(status: &Value) -> u64 {
    let members = status["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    members.iter().map(|member| member["step"].as_u64().unwrap_or(0)).min().unwrap_or(0)
}
