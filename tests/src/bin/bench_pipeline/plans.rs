//! The plan that the planner chooses, beside what that plan and others take.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_tests::cluster::binary;
use longhaul_tests::interrupt;
use longhaul_tests::wan::LinkConfig;
use serde_json::Value;

use super::gpt::{GPT, SPEED, local, step_s};
use super::training::{Copies, Training};
use super::{SITES, WHOLE_BATCH, print};

/// What the two workers may do, as `[parallel]` has it.
const PLANS: [(&str, &str); 3] = [
    ("2 copies", "plan = \"fixed\""),
    ("2 parts, 1f1b", "stages = 2"),
    ("2 parts, zero-bubble", "stages = 2\nschedule = \"zero-bubble\""),
];
/// What they exchange, and over how many Mbit/s. Dense copies over 10 Mbit/s take a minute a step, and nobody doubts them.
const TOPOLOGIES: [(&str, u32); 5] =
    [("dense", 1000), ("dense", 100), ("sparse-local", 1000), ("sparse-local", 100), ("sparse-local", 10)];
const ROUND_TRIP_MS: u32 = 50;
/// Sequences of a step, for each worker, and those that go through the model at once: a pipeline has eight micro-batches.
const BATCH: usize = 16;
const MICRO_BATCH: usize = 4;

/// Measures each plan on each topology, asks the planner, and says how much slower its choice is than the best.
pub fn compare(wants: impl Fn(&str) -> bool, steps: u64) -> Result<()> {
    for (preset, mbit) in TOPOLOGIES {
        let case = format!("{preset}, {mbit} Mbit/s");
        if !wants(&case) {
            continue;
        }
        let link = format!("rate_mbit={mbit},delay_ms={},loss_percent=0.1", ROUND_TRIP_MS / 2).parse()?;
        let sync = format!("preset = \"{preset}\"\nopening_share = 0.0");
        let mut seconds = Vec::new();
        for (plan, parallel) in PLANS {
            interrupt::check()?;
            eprintln!("pipeline/plans: {case}, {plan}");
            let took = measured(parallel, &sync, &link, steps)?;
            print("pipeline/plans", &format!("{case}, {plan}"), "step_s", took, "s");
            seconds.push(took);
        }
        let (chosen, predicted) = asked(&sync, mbit, local(steps)?, steps)?;
        let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        print("pipeline/plans", &case, "chosen", chosen as f64, "");
        print("pipeline/plans", &case, "chosen_over_best", seconds[chosen] / best, "ratio");
        print("pipeline/plans", &case, "predicted_s", predicted, "s");
        print("pipeline/plans", &case, "prediction_error", predicted / seconds[chosen] - 1.0, "ratio");
    }
    Ok(())
}

fn training<'a>(parallel: &'a str, sync: &'a str, link: &'a LinkConfig, steps: u64) -> Training<'a> {
    let copies = Copies { parallel, batch: BATCH, micro_batch: MICRO_BATCH };
    Training { shape: GPT, sites: SITES, sync, train: SPEED, copies, steps, link, seed: 1 }
}

fn measured(parallel: &str, sync: &str, link: &LinkConfig, steps: u64) -> Result<f64> {
    let (mut cluster, _folder) = training(parallel, sync, link, steps).start()?;
    step_s(&mut cluster, steps)
}

/// Which of [`PLANS`] `coordinator plan` chooses for workers that take `local_s` for a step by themselves, and the seconds a step that it predicts.
fn asked(sync: &str, mbit: u32, local_s: f64, steps: u64) -> Result<(usize, f64)> {
    let folder = tempfile::tempdir()?;
    let (run, machines) = (folder.path().join("run.toml"), folder.path().join("machines.toml"));
    let text = training("plan = \"auto\"", sync, &LinkConfig::default(), steps).run_toml();
    let config = RunConfig::parse(&text)?;
    let spec = ModelSpec::resolve(&config.model, config.vocabulary().context("a vocabulary of bytes")?)?;
    let length = config.data.sequence_length;
    let tokens = (WHOLE_BATCH as u64 * u64::from(length)) as f64;
    let tflops = spec.train_flops_per_token(length) as f64 * tokens / local_s / 1e12;
    let site =
        |name| format!("[[site]]\nname = \"{name}\"\nworkers = 1\ntflops = {tflops}\nmemory_gib = 8\n");
    let wan = format!("[wan]\nmbit = {mbit}\nrtt_ms = {ROUND_TRIP_MS}\n");
    std::fs::write(&run, text)?;
    std::fs::write(&machines, format!("{}{}{wan}", site("a"), site("b")))?;
    let best = best_of(&run, &machines)?;
    let ranks = best["replicas"][0].as_array().context("a plan without replicas")?.len();
    let chosen = match (ranks, best["schedule"].as_str()) {
        (1, _) => 0,
        (2, Some("1f1b")) => 1,
        (2, Some("zero-bubble")) => 2,
        _ => bail!("a plan that is not among those that were measured: {best}"),
    };
    Ok((chosen, best["step_s"].as_f64().context("a plan without a time")?))
}

fn best_of(run: &Path, machines: &Path) -> Result<Value> {
    let mut command = Command::new(binary("coordinator")?);
    command.args(["plan", "--json", "--config"]).arg(run).arg("--topology").arg(machines);
    let output = command.output().context("start coordinator plan")?;
    ensure!(output.status.success(), "coordinator plan: {}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).context("read the plan")?;
    Ok(plan["best"].clone())
}
