//! Cost of planning and simulation.

mod predictions;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_plan::{Divisions, Topology, choose_with_groups};
use longhaul_run_toml::{Gpt2, RunToml};
use longhaul_sim::simulate::{self, Churn, Faults, Setup};

use crate::kit::args::Quick;
use crate::kit::clock::now;
use crate::kit::figures::figure;
use crate::kit::recorder::Recorder;

/// Cost of planning, and accuracy of predictions
#[derive(clap::Args)]
pub struct Args {
    // Takes only seconds.
    #[command(flatten)]
    _quick: Quick,
}

/// Cost of simulating thousands of workers
#[derive(clap::Args)]
pub struct SimulateArgs {
    #[command(flatten)]
    quick: Quick,
}

/// Plans each case, and compares measured runs with their predictions.
pub fn run(_: &Args) -> Result<()> {
    for (preset, memory_gib) in [("auto", 80.0), ("dense", 80.0), ("auto", 12.0)] {
        plan(preset, memory_gib, "")?;
        // With known links within sites, the planner considers tensor groups, in one part and in several.
        plan(preset, memory_gib, "lan_mbit = 2400000\nlan_rtt_ms = 0.01\n")?;
    }
    predictions::compare()
}

/// Simulates runs of several sizes.
pub fn simulate(args: &SimulateArgs) -> Result<()> {
    simulated((10, 10), &SMALL)?;
    simulated((50, 20), &SMALL)?;
    simulated((50, 20), &LARGE)?;
    if !args.quick.quick {
        simulated((100, 100), &LARGE)?;
    }
    Ok(())
}

/// A model of simulated runs. The larger it is, the fewer rounds are there in ten minutes.
struct Model {
    name: &'static str,
    layers: u64,
    width: u64,
}

const SMALL: Model = Model { name: "124 million parameters", layers: 12, width: 768 };
const LARGE: Model = Model { name: "1.5 billion parameters", layers: 48, width: 1600 };

/// Returns sites of equal workers, with the given links within sites, and links of 200 Mbit/s and 60 ms.
fn topology(sites: usize, workers: usize, tflops: f64, memory_gib: f64, lan: &str) -> Result<Topology> {
    let site = |number| {
        format!(
            "[[site]]\nname = \"site {number}\"\nworkers = {workers}\ntflops = {tflops}\nmemory_gib = {memory_gib}\n{lan}"
        )
    };
    let sites: String = (0..sites).map(site).collect();
    Topology::parse(&format!("{sites}[wan]\nmbit = 200\nrtt_ms = 60\n")).context("make a topology")
}

fn run_toml(workers: usize, layers: u64, width: u64) -> RunToml {
    RunToml::new("bench")
        .workers(workers)
        .gpt2(Gpt2 { layers, width, heads: 16, context: 1024 })
        .set("model.vocabulary", 50_257)
        .batch(8 * workers)
        .set("train.micro_batch", 1)
}

/// 64 workers on 8 sites, a model of 1.5 billion parameters in 48 layers: 50 blocks.
fn plan(preset: &str, memory_gib: f64, lan: &str) -> Result<()> {
    let run_toml = run_toml(64, 48, 1600).steps(1000).set("sync.preset", preset);
    let config = RunConfig::parse(&run_toml.to_string())?;
    let spec = ModelSpec::resolve(&config.model, 50_257)?;
    let topology = topology(8, 8, 40.0, memory_gib, lan)?;
    let began = now();
    let divisions = Divisions::of(&config, &spec).in_any_parts(config.model.kind);
    let (_, choice) = choose_with_groups(topology, &divisions, false).context("plan")?;
    let took = began.elapsed();
    let groups = if lan.is_empty() { "" } else { ", groups" };
    let case = format!("64 workers, 8 sites, 50 blocks, {memory_gib} GiB, {preset}{groups}");
    let figures = [
        figure("plan_s", took.as_secs_f64(), "s"),
        figure("considered", choice.considered as f64, ""),
        figure("ranks", f64::from(choice.best.0.pipeline.ranks), ""),
        figure("tensor", f64::from(choice.tensor), ""),
    ];
    Recorder::new("plan").print_all(&case, figures);
    Ok(())
}

/// A run with churn: each worker lives for ten hours on average, and is away for five minutes.
fn simulated((sites, workers): (usize, usize), model: &Model) -> Result<()> {
    let all = sites * workers;
    // Some are always away: the run begins with the others.
    let run_toml = run_toml(all * 9 / 10, model.layers, model.width)
        .steps(1500)
        .lines("sync", "preset = \"sparse-local\"\nwarmup_share = 0.0")
        .set("parallel.plan", "fixed");
    let config = RunConfig::parse(&run_toml.to_string())?;
    let spec = ModelSpec::resolve(&config.model, 50_257)?;
    let setup = Setup {
        config,
        spec,
        topology: topology(sites, workers, 40.0, 80.0, "")?,
        faults: Faults { churn: Some(Churn { life_s: 36_000.0, absence_s: 300.0 }), outage: Vec::new() },
        seed: 1,
        until: Duration::from_secs(600),
    };
    let report = simulate::simulate(setup)?;
    // Where workers come and go faster than an exchange takes, no round ends.
    ensure!(report.churn.generations > 0, "no generation began: {report:#?}");
    let case = format!("{all} workers, {sites} sites, {}, 10 min", model.name);
    let figures = [
        figure("simulate_s", report.cost.wall_s, "s"),
        figure("coordinator_share", report.cost.coordinator_share, "ratio"),
        figure("messages", report.messages.iter().sum::<u64>() as f64, ""),
        figure("steps", report.training.steps as f64, ""),
        figure("generations", report.churn.generations as f64, ""),
        figure("killed", report.churn.killed as f64, ""),
        figure("utilisation", report.training.utilisation, "ratio"),
    ];
    Recorder::new("simulate").print_all(&case, figures);
    Ok(())
}
