//! The planner's choice compared with other plans.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_emulator::LinkConfig;
use longhaul_tests::cluster::binary;
use longhaul_tests::interrupt;
use serde_json::Value;

use super::{SITES, WHOLE_BATCH};
use crate::kit::args::Only;
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::kit::stats::{in_turns, median};
use crate::runs::gpt::{GPT, local, step_s};
use crate::runs::training::{Copies, Training};

/// Possible plans of the two workers, as in `[parallel]`.
const PLANS: [(&str, &str); 4] = [
    ("2 copies", "plan = \"fixed\""),
    ("2 parts, 1f1b, 2 and 1 in flight", "stages = 2"),
    ("2 parts, 1f1b, 5 and 1 in flight", "stages = 2\nin_flight = [5, 1]"),
    ("2 parts, zero-bubble", "stages = 2\nschedule = \"zero-bubble\""),
];
/// Presets and link rates in Mbit/s. Dense replicas over 10 Mbit/s take a minute per step, with an obvious
/// result.
const TOPOLOGIES: [(&str, u32); 5] =
    [("dense", 1000), ("dense", 100), ("sparse-local", 1000), ("sparse-local", 100), ("sparse-local", 10)];
const ROUND_TRIP_MS: u32 = 50;
/// Sequences per step for each worker, and per micro-batch: a pipeline has eight micro-batches.
const BATCH: usize = 16;
const MICRO_BATCH: usize = 4;

/// Asks the planner for each topology, measures its choice and each plan, and reports how much slower the
/// choice is than the best.
pub fn compare(only: &Only, repeats: i64, steps: u64) -> Result<()> {
    let recorder = Recorder::new("pipeline/plans");
    for (preset, mbit) in TOPOLOGIES {
        let case = format!("{preset}, {mbit} Mbit/s");
        if !only.wants(&case) {
            continue;
        }
        let link = format!("rate_mbit={mbit},delay_ms={},loss_percent=0.1", ROUND_TRIP_MS / 2).parse()?;
        let sync = format!("preset = \"{preset}\"\nwarmup_share = 0.0");
        let local_s = local(steps)?;
        recorder.print(&case, "local_step_s", local_s, "s");
        let chosen = asked(&sync, mbit, local_s, steps)?;
        let mut plans = vec![(format!("chosen: {}", chosen.name), chosen.parallel.as_str())];
        let others = PLANS.iter().filter(|(_, parallel)| *parallel != chosen.parallel);
        plans.extend(others.map(|&(name, parallel)| (name.to_owned(), parallel)));
        let took = in_turns(&plans, 0..repeats, |(plan, parallel), turn| {
            interrupt::check()?;
            progress(format!("pipeline/plans: {plan}, {} of {repeats}", turn + 1));
            let mut cluster = training(parallel, &sync, &link, steps).start()?;
            let took = step_s(&mut cluster, steps)?;
            progress(format!("    {took:.3} s a step"));
            Ok(took)
        })?;
        let took: Vec<f64> = took.iter().map(|seconds| median(seconds)).collect();
        for ((plan, _), took) in plans.iter().zip(&took) {
            recorder.print(&format!("{case}, {plan}"), "step_s", *took, "s");
        }
        let best = took.iter().copied().fold(f64::INFINITY, f64::min);
        let took = took[0];
        recorder.print(&case, "chosen_over_best", took / best, "ratio");
        recorder.print(&case, "predicted_s", chosen.predicted_s, "s");
        recorder.print(&case, "prediction_error", chosen.predicted_s / took - 1.0, "ratio");
    }
    Ok(())
}

fn training<'a>(parallel: &'a str, sync: &'a str, link: &'a LinkConfig, steps: u64) -> Training<'a> {
    let copies = Copies { parallel, batch: BATCH, micro_batch: MICRO_BATCH };
    Training { copies, ..Training::new(GPT, SITES, sync, steps, link) }
}

/// The planner's choice for two workers.
struct Choice {
    name: String,
    /// As in `[parallel]`.
    parallel: String,
    predicted_s: f64,
}

/// Returns the choice of `coordinator plan` for workers that take `local_s` per step alone.
fn asked(sync: &str, mbit: u32, local_s: f64, steps: u64) -> Result<Choice> {
    let folder = tempfile::tempdir()?;
    let (run, machines) = (folder.path().join("run.toml"), folder.path().join("machines.toml"));
    let run_toml = training("plan = \"auto\"", sync, &LinkConfig::default(), steps).run_toml();
    let config = RunConfig::parse(&run_toml.to_string())?;
    let spec = ModelSpec::of(&config, config.vocabulary().context("a vocabulary of bytes")?)?;
    let length = config.data.sequence_length;
    let tokens = (WHOLE_BATCH as u64 * u64::from(length)) as f64;
    let tflops = spec.train_flops_per_token(length) as f64 * tokens / local_s / 1e12;
    let site =
        |name| format!("[[site]]\nname = \"{name}\"\nworkers = 1\ntflops = {tflops}\nmemory_gib = 8\n");
    let wan = format!("[wan]\nmbit = {mbit}\nrtt_ms = {ROUND_TRIP_MS}\n");
    run_toml.write(&run)?;
    std::fs::write(&machines, format!("{}{}{wan}", site("a"), site("b")))?;
    let best = best_of(&run, &machines)?;
    let ranks = best["replicas"][0].as_array().context("a plan without replicas")?.len();
    let (name, parallel) = if ranks == 1 {
        let (name, parallel) = PLANS[0];
        (name.to_owned(), parallel.to_owned())
    } else {
        let (schedule, in_flight) = (&best["schedule"], &best["in_flight"]);
        let name = format!("{ranks} parts, {schedule}, {in_flight} in flight");
        (name, format!("stages = {ranks}\nschedule = {schedule}\nin_flight = {in_flight}"))
    };
    Ok(Choice { name, parallel, predicted_s: best["step_s"].as_f64().context("a plan without a time")? })
}

fn best_of(run: &Path, machines: &Path) -> Result<Value> {
    let mut command = Command::new(binary("coordinator")?);
    command.args(["plan", "--json", "--config"]).arg(run).arg("--topology").arg(machines);
    let output = command.output().context("start coordinator plan")?;
    ensure!(output.status.success(), "coordinator plan: {}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).context("read the plan")?;
    Ok(plan["best"].clone())
}
