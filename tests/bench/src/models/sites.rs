//! Adapters trained by two sites across a slow link, beside one site alone: whole runs of the real programs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;
use longhaul_run_toml::RunToml;
use longhaul_tests::cluster::{self, Cluster};
use serde_json::Value;

use crate::kit::checkout;
use crate::kit::clock::now;
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::runs::training::cluster_config;

/// Tokens of a sequence: bytes.
const LENGTH: u32 = 128;
/// Sequences of a step.
const BATCH: u32 = 16;
/// More than a run takes.
const RUN_MAX: Duration = Duration::from_secs(1200);

/// A finished run.
struct Ran {
    seconds: f64,
    loss: f64,
    wan_bytes: f64,
}

/// Trains a model on an English text, and adapters of it on a Spanish one.
pub(super) fn run(link: &LinkConfig, quick: bool) -> Result<()> {
    let (base_steps, steps) = if quick { (20, 40) } else { (300, 200) };
    let folder = tempfile::tempdir().context("create a folder for the model")?;
    progress("a model to start from ...");
    let base = pretrained(folder.path(), base_steps)?;
    let tune = |sites: &[usize]| {
        progress(format!("{} sites ...", sites.len()));
        tuned(&base, sites, link, steps)
    };
    let (one, two) = (tune(&[1])?, tune(&[1, 1])?);
    let recorder = Recorder::new("models/sites").with("steps", steps);
    let case = "llama 10M lora 16, two sites";
    let speed = |ran: &Ran| f64::from(BATCH) * steps as f64 / ran.seconds;
    recorder.print(case, "samples_s", speed(&two), "1/s");
    recorder.print(case, "samples_s_one_site", speed(&one), "1/s");
    recorder.print(case, "samples_ratio", speed(&two) / speed(&one), "");
    recorder.print(case, "loss", two.loss, "nats");
    recorder.print(case, "loss_one_site", one.loss, "nats");
    recorder.print(case, "loss_over_one_site", two.loss / one.loss, "");
    recorder.print(case, "wan_bytes", two.wan_bytes, "bytes");
    Ok(())
}

/// Trains a model of some ten million parameters, and returns its folder.
fn pretrained(folder: &Path, steps: u64) -> Result<std::path::PathBuf> {
    let checkpoints = folder.join("base");
    let run = RunToml::new("base")
        .workers(2)
        .steps(steps)
        .table("model", "kind = \"llama\"\nlayers = 6\nwidth = 384\nheads = 6\ncontext = 128")
        .set("data.path", checkout::text())
        .set("data.sequence_length", LENGTH)
        .batch(BATCH)
        .set("train.micro_batch", BATCH / 2)
        .set("train.evaluate_batches", 1)
        .set("sync.preset", "dense")
        .set("checkpoint.dir", &checkpoints);
    let (mut cluster, running_in) = start(run, &[2], &LinkConfig::default())?;
    cluster.wait_until_finished(RUN_MAX)?;
    drop((cluster, running_in));
    Ok(longhaul_checkpoint::open_model(&checkpoints, None).context("open the trained model")?.path)
}

/// Trains adapters from the first step to the last.
fn tuned(base: &Path, sites: &[usize], link: &LinkConfig, steps: u64) -> Result<Ran> {
    let workers: usize = sites.iter().sum();
    let run = RunToml::new("tune")
        .workers(workers)
        .steps(steps)
        .without("model")
        .set("model.from", base)
        .set("data.path", checkout::file("examples/data/bible.es.parquet"))
        .set("data.sequence_length", LENGTH)
        .set("data.tokenizer", "bytes")
        .batch(BATCH)
        .set("train.micro_batch", 8)
        .set("train.learning_rate", 2e-3)
        .set("train.evaluate_batches", 64)
        .set("train.lora.rank", 16)
        .set("checkpoint.every_rounds", 0);
    let (mut cluster, folder) = start(run, sites, link)?;
    cluster.wait_for("the first steps", RUN_MAX, |status| cluster::training(status) == workers)?;
    let began = now();
    cluster.wait_for("the last steps", RUN_MAX, |status| {
        status["step"].as_u64() >= Some(steps) || status["phase"] == "finished"
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let status = cluster.wait_until_finished(RUN_MAX)?;
    drop((cluster, folder));
    let figure = |name: &str| status.get(name).and_then(Value::as_f64);
    let loss = figure("validation_loss").context("the run evaluated nothing")?;
    Ok(Ran { seconds, loss, wan_bytes: figure("wan_bytes").unwrap_or_default() })
}

fn start(run: RunToml, sites: &[usize], link: &LinkConfig) -> Result<(Cluster, tempfile::TempDir)> {
    let folder = tempfile::tempdir().context("create a folder for the run")?;
    let mut config = cluster_config(run, sites, link, &folder);
    config.own_checkpoints = false;
    Ok((Cluster::start(config)?, folder))
}
