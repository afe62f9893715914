//! What the simulator says of runs that were measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_coordinator::plan::{Topology, Workload};
use longhaul_coordinator::simulate::{Faults, Setup, simulate};
use serde_json::Value;

use super::figure;

/// Where `cargo xtask bench sync` has written seconds a step: two sites of one worker each, 50 ms round trip.
const MEASURED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks/sync.jsonl");
/// Sequences of a worker in a step, there.
const SEQUENCES: u32 = 8;

/// Compares each case of ours with what is predicted for it from the speed of the workers when they do not talk.
pub fn compare() -> Result<()> {
    for (case, metrics) in measured(Path::new(MEASURED))? {
        let (Some((preset, mbit)), Some(&step_s), Some(&local_s)) =
            (parse(&case), metrics.get("step_s"), metrics.get("local_step_s"))
        else {
            continue;
        };
        let predicted = predicted(preset, mbit, local_s).with_context(|| format!("predict {case}"))?;
        for (metric, value, unit) in [
            ("measured_s", step_s, "s"),
            ("predicted_s", predicted, "s"),
            ("prediction_error", predicted / step_s - 1.0, "ratio"),
        ] {
            figure("plan/prediction", &case, metric, value, unit);
        }
    }
    Ok(())
}

/// By case: its figures.
fn measured(path: &Path) -> Result<BTreeMap<String, BTreeMap<String, f64>>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut cases: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).context("read a figure")?;
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        if let (Some("sync/speed"), Some(case), Some(metric), Some(value)) =
            (line["bench"].as_str(), text("case"), text("metric"), line["value"].as_f64())
        {
            cases.entry(case).or_default().insert(metric, value);
        }
    }
    Ok(cases)
}

/// A preset and its link's rate; none: it is none of ours.
fn parse(case: &str) -> Option<(&str, f64)> {
    let (preset, rate) = case.split_once(", ")?;
    let mbit = rate.strip_suffix(" Mbit/s")?.parse().ok()?;
    (!preset.contains(' ')).then_some((preset, mbit))
}

/// Seconds a step, on workers that take `local_s` for one by themselves.
fn predicted(preset: &str, mbit: f64, local_s: f64) -> Result<f64> {
    let text = format!(
        "[run]\nname = \"measured\"\nworkers = 2\nsteps = 600\n[model]\nkind = \"gpt2\"\nlayers = 6\nwidth = 384\nheads = 6\n\
         context = 128\ntied_embeddings = false\n[data]\npath = \"text\"\nsequence_length = 128\n\
         [train]\nbatch = {}\nmicro_batch = {SEQUENCES}\n[parallel]\nplan = \"fixed\"\n\
         [sync]\npreset = \"{preset}\"\nopening_share = 0.0\nopening_rounds = 2\n[checkpoint]\nevery_rounds = 0\n",
        2 * SEQUENCES
    );
    let config = RunConfig::parse(&text)?;
    let spec = ModelSpec::resolve(&config.model, 256)?;
    let work = Workload::of(&config, &spec);
    let flops: u64 = work.blocks.iter().map(|b| b.forward_flops_per_token + b.backward_flops_per_token).sum();
    // The simulator's workers are up to 5 % slower than they should be, as real ones are; here that is in the time already.
    let tflops = flops as f64 * f64::from(SEQUENCES * 128) / local_s / 1e12 * JITTER;
    let site =
        |name: &str| format!("[[site]]\nname = \"{name}\"\nworkers = 1\ntflops = {tflops}\nmemory_gib = 8\n");
    let topology = format!("{}{}[wan]\nmbit = {mbit}\nrtt_ms = 50\n", site("a"), site("b"));
    let setup = Setup {
        config,
        spec,
        topology: Topology::parse(&topology)?,
        faults: Faults::default(),
        seed: 1,
        until: Duration::from_secs(30 * 86_400),
    };
    simulate(setup)?.step_s.context("it made no steps")
}

/// What a worker of the simulator takes over what it should, on average.
const JITTER: f64 = 1.025;
