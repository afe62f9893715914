//! Fine-tuning by two sites: adapters across a slow link, beside one site alone; and all weights in bf16, with visible changes beside all in eight bits. Whole runs of
//! the real programs.

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
/// Keys of `[train]` for adapters, and for all weights.
const ADAPTERS: &str = "learning_rate = 2e-3\nlora.rank = 16";
const ALL_WEIGHTS: &str = "learning_rate = 1e-5\nprecision = \"bf16\"\nwarmup_steps = 10";
/// Keys of `[sync]` for changes of a step that are applied after the next one.
const DELTAS: &str =
    "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 1\noverlap = 1\nerror_decay = 1.0";
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
        tuned(&base, sites, link, steps, ADAPTERS, "")
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

/// Trains all weights with `train.precision = "bf16"`, at a rate of fine-tuning.
pub(super) fn run_visible(quick: bool) -> Result<()> {
    let (base_steps, steps) = if quick { (20, 40) } else { (300, 200) };
    let folder = tempfile::tempdir().context("create a folder for the model")?;
    progress("a model to start from ...");
    let base = pretrained(folder.path(), base_steps)?;
    let recorder = Recorder::new("models/visible").with("steps", steps);
    let tune = |name, own: &str| -> Result<Ran> {
        progress(format!("{name} ..."));
        let sync = format!("{DELTAS}\n{own}");
        let ran = tuned(&base, &[1, 1], &LinkConfig::default(), steps, ALL_WEIGHTS, &sync)?;
        recorder.print(name, "loss", ran.loss, "nats");
        recorder.print(name, "wan_bytes", ran.wan_bytes, "bytes");
        Ok(ran)
    };
    let int8 = tune("all changes in int8", "selection = \"all\"\nvalues = \"int8\"")?;
    let visible = tune("visible changes in bf16", "selection = \"visible\"\nvalues = \"bf16\"")?;
    let case = "visible changes beside int8";
    recorder.print(case, "bytes_ratio", int8.wan_bytes / visible.wan_bytes, "");
    recorder.print(case, "loss_ratio", visible.loss / int8.loss, "");
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

/// Trains from a model, from the first step to the last, with these lines of `[train]` and `[sync]`.
fn tuned(
    base: &Path,
    sites: &[usize],
    link: &LinkConfig,
    steps: u64,
    train: &str,
    sync: &str,
) -> Result<Ran> {
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
        .set("train.evaluate_batches", 64)
        .lines("train", train)
        .lines("sync", sync)
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
