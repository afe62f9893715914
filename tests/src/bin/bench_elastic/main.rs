//! Measures how long a run is without a coordinator when the one that leads is killed, with the real binaries and a real etcd. One JSON line per figure goes to
//! stdout, progress to stderr; `docs/benchmarks/elastic.md` says what they mean.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use longhaul_tests::cluster::{Pair, training};
use longhaul_tests::interrupt;
use serde_json::{Value, json};

/// The longest that anything waited for may take.
const WAIT_MAX: Duration = Duration::from_secs(180);

/// Coordinators that take over, with the real binaries
#[derive(Parser)]
struct Args {
    /// Once.
    #[arg(long)]
    quick: bool,
}

/// Of one death.
struct Measured {
    /// From the kill to the first answer of the other coordinator as the leader.
    failover_s: f64,
    /// From the kill until both workers are with it.
    workers_back_s: f64,
    /// Rounds that the workers had applied by then and not before the kill.
    rounds: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    interrupt::watch()?;
    let repeats = if args.quick { 1 } else { 5 };
    let mut all = Vec::new();
    for repeat in 0..repeats {
        eprintln!("elastic/leader killed: {} of {repeats}", repeat + 1);
        all.push(measure()?);
    }
    print("failover_s", "s", all.iter().map(|one| one.failover_s).collect());
    print("workers_back_s", "s", all.iter().map(|one| one.workers_back_s).collect());
    print("rounds_meanwhile", "rounds", all.iter().map(|one| one.rounds as f64).collect());
    Ok(())
}

/// Two coordinators, one of them killed as `kill -9` does while two workers train.
fn measure() -> Result<Measured> {
    let folder = tempfile::tempdir()?;
    let mut pair = Pair::start(folder.path(), &run_toml())?.context("this needs etcd in PATH")?;
    pair.start_worker()?;
    pair.start_worker()?;
    let before =
        pair.wait_for(0, "the run to begin", WAIT_MAX, |status| training(status) == 2 && round(status) >= 5)?;
    let killed = now();
    pair.kill_coordinator(0);
    pair.wait_for(1, "the other coordinator to lead", WAIT_MAX, |status| !status.is_null())?;
    let failover_s = killed.elapsed().as_secs_f64();
    let back = pair.wait_for(1, "the workers to be back", WAIT_MAX, |status| training(status) == 2)?;
    let workers_back_s = killed.elapsed().as_secs_f64();
    let caught_up = pair.wait_for(1, "their reports", WAIT_MAX, |status| round(status) > round(&back))?;
    anyhow::ensure!(caught_up["generation"] == before["generation"], "a worker was given up: {caught_up:#}");
    Ok(Measured { failover_s, workers_back_s, rounds: round(&caught_up).saturating_sub(round(&before)) })
}

fn run_toml() -> String {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/bible.en.txt.zst");
    format!(
        r#"
[run]
name = "elastic"
workers = 2
steps = 1000000
[model]
kind = "gpt2"
layers = 2
width = 64
heads = 2
context = 64
[data]
path = {text:?}
sequence_length = 64
[train]
batch = 16
[parallel]
plan = "fixed"
[sync]
preset = "sparse-local"
opening_share = 0.0
every = 4
overlap = 1
[checkpoint]
every_rounds = 1000
[faults]
reconnect_grace_ms = 60000
"#
    )
}

fn round(status: &Value) -> u64 {
    status["round"].as_u64().unwrap_or(0)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn print(metric: &str, unit: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let figures =
        [("least", values[0]), ("median", values[values.len() / 2]), ("most", values[values.len() - 1])];
    for (which, value) in figures {
        let case = format!("leader killed, {which} of {}", values.len());
        println!(
            "{}",
            json!({ "bench": "elastic", "case": case, "metric": metric, "value": value, "unit": unit })
        );
    }
}
