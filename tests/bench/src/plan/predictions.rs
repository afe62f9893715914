//! The simulator's predictions for measured runs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_plan::{Topology, Workload};
use longhaul_run_toml::{Gpt2, RunToml};
use longhaul_sim::simulate::{Faults, Setup, simulate};

use crate::kit::checkout;
use crate::kit::figures::{self, figure};
use crate::kit::recorder::Recorder;

/// Seconds per step from `cargo xtask bench sync`: two sites of one worker each, 50 ms round trip.
const MEASURED: &str = "docs/benchmarks/sync.jsonl";
/// The same for two replicas, and for one in two parts, from `cargo xtask bench pipeline`.
const PIPELINES: &str = "docs/benchmarks/pipeline.jsonl";
/// Sequences of a reference step, whose time characterises a worker.
const SEQUENCES: u32 = 8;
/// Sequences per worker and step in the runs with parts.
const PARTS_SEQUENCES: u32 = 2 * SEQUENCES;
/// Each worker has the whole model.
const COPIES: &str = "plan = \"fixed\"";
/// The link, without its rate.
const ACROSS: Wan = Wan { mbit: 0.0, rtt_ms: 50.0, loss_percent: 0.1 };
/// Two processes of one machine.
const NEXT_DOOR: Wan = Wan { mbit: 10_000.0, rtt_ms: 0.1, loss_percent: 0.0 };

/// Figures of a file, by case and metric.
type Figures = BTreeMap<String, BTreeMap<String, f64>>;

/// A link between the two sites.
#[derive(Clone, Copy)]
struct Wan {
    mbit: f64,
    rtt_ms: f64,
    loss_percent: f64,
}

/// A run of two workers at two sites.
struct Case<'a> {
    preset: &'a str,
    /// Keys of `[parallel]`.
    parallel: &'a str,
    /// Sequences per worker and step.
    sequences: u32,
    /// Sequences per micro-batch.
    micro_batch: u32,
    wan: Wan,
    /// Seconds that a step of [`SEQUENCES`] takes a worker with the whole model, without exchange.
    local_s: f64,
}

/// Compares each of our cases with its prediction from the speed of workers without exchange.
pub fn compare() -> Result<()> {
    copies()?;
    plans()?;
    across_a_link()
}

/// Strategies over links, each worker with a replica.
fn copies() -> Result<()> {
    for (name, metrics) in measured(MEASURED, "sync/speed")? {
        let (Some((preset, mbit)), Some(&step_s), Some(&local_s)) =
            (parse(&name), metrics.get("step_s"), metrics.get("local_step_s"))
        else {
            continue;
        };
        let (wan, sequences) = (Wan { mbit, ..ACROSS }, SEQUENCES);
        let case = Case { preset, parallel: COPIES, sequences, micro_batch: sequences, wan, local_s };
        case.compare(&name, step_s)?;
    }
    Ok(())
}

/// Replicas and parts.
fn plans() -> Result<()> {
    let figures = measured(PIPELINES, "pipeline/plans")?;
    for (name, metrics) in &figures {
        let Some(&step_s) = metrics.get("step_s") else { continue };
        let (preset, mbit, plan) = plan_of(name).with_context(|| format!("read what {name} is"))?;
        let alone = figures.get(&format!("{preset}, {mbit} Mbit/s")).and_then(|of| of.get("local_step_s"));
        let local_s = *alone.with_context(|| format!("find how long a step of {name} takes alone"))?;
        let parallel = parallel_of(plan).with_context(|| format!("read the plan of {name}"))?;
        let (wan, sequences) = (Wan { mbit, ..ACROSS }, PARTS_SEQUENCES);
        let case = Case { preset, parallel: &parallel, sequences, micro_batch: 4, wan, local_s };
        case.compare(name, step_s)?;
    }
    Ok(())
}

/// Two parts in micro-batches of one sequence, with and without a link.
fn across_a_link() -> Result<()> {
    for (name, metrics) in measured(PIPELINES, "pipeline/link")? {
        let metric = |metric: &str| metrics.get(metric).copied().with_context(|| format!("{name}: {metric}"));
        let near_s = metric("last_step_without_link_s")?;
        // Workers with a replica each take proportionally longer or shorter for as many sequences.
        let local_s =
            metric("speed_over_whole_copies")? * near_s * f64::from(SEQUENCES) / f64::from(PARTS_SEQUENCES);
        let parallel = parallel_of(&name).with_context(|| format!("read the plan of {name}"))?;
        let over = |wan| Case {
            preset: "sparse-local",
            parallel: &parallel,
            sequences: PARTS_SEQUENCES,
            micro_batch: 1,
            wan,
            local_s,
        };
        let mbit = 100.0;
        over(Wan { mbit, ..ACROSS }).compare(&format!("{name}, {mbit} Mbit/s"), metric("last_step_s")?)?;
        over(NEXT_DOOR).compare(&format!("{name}, without a link"), near_s)?;
    }
    Ok(())
}

/// Reads the figures of one benchmark from a file.
fn measured(path: &str, bench: &str) -> Result<Figures> {
    let mut cases = Figures::new();
    for line in figures::read(&checkout::file(path))? {
        if line.bench == bench {
            cases.entry(line.case).or_default().insert(line.metric, line.value);
        }
    }
    Ok(cases)
}

/// Parses a preset and its link's rate; `None`: not one of ours.
fn parse(case: &str) -> Option<(&str, f64)> {
    let (preset, rate) = case.split_once(", ")?;
    let mbit = rate.strip_suffix(" Mbit/s")?.parse().ok()?;
    (!preset.contains(' ')).then_some((preset, mbit))
}

/// Parses a preset, its link's rate, and a plan.
fn plan_of(case: &str) -> Option<(&str, f64, &str)> {
    let (link, plan) = case.split_once(" Mbit/s, ")?;
    let (preset, mbit) = link.split_once(", ")?;
    Some((preset, mbit.parse().ok()?, plan))
}

/// Returns the keys of `[parallel]` for a plan's name in the benchmark: replicas, two parts with limits in
/// flight, or zero-bubble.
fn parallel_of(plan: &str) -> Option<String> {
    if plan == "2 copies" {
        return Some(COPIES.to_owned());
    }
    let schedule = plan.strip_prefix("2 parts, ").or_else(|| plan.strip_prefix("2 stages, "))?;
    if schedule == "zero-bubble" {
        return Some("stages = 2\nschedule = \"zero-bubble\"".to_owned());
    }
    let (_, in_flight) = schedule.split_once(", ")?;
    let (first, last) = in_flight.strip_suffix(" in flight")?.split_once(" and ")?;
    Some(format!("stages = 2\nin_flight = [{first}, {last}]"))
}

impl Case<'_> {
    fn compare(&self, name: &str, measured_s: f64) -> Result<()> {
        let predicted_s = self.predicted_s().with_context(|| format!("predict {name}"))?;
        let figures = [
            figure("measured_s", measured_s, "s"),
            figure("predicted_s", predicted_s, "s"),
            figure("prediction_error", predicted_s / measured_s - 1.0, "ratio"),
        ];
        Recorder::new("plan/prediction").print_all(name, figures);
        Ok(())
    }

    /// Returns the predicted seconds per step.
    fn predicted_s(&self) -> Result<f64> {
        let Self { preset, parallel, sequences, micro_batch, wan, local_s } = *self;
        let Wan { mbit, rtt_ms, loss_percent } = wan;
        // As it was measured: the steady pace alone.
        let early = if preset == "auto" { "early_share = 0.0" } else { "" };
        let run_toml = RunToml::new("measured")
            .workers(2)
            .steps(600)
            .gpt2(Gpt2 { layers: 6, width: 384, heads: 6, context: 128 })
            .set("model.tied_embeddings", false)
            .batch(2 * sequences)
            .set("train.micro_batch", micro_batch)
            .lines("parallel", parallel)
            .set("sync.preset", preset)
            .lines("sync", "warmup_share = 0.0\nwarmup_rounds = 2")
            .lines("sync", early)
            .set("checkpoint.every_rounds", 0);
        let config = RunConfig::parse(&run_toml.to_string())?;
        let spec = ModelSpec::resolve(&config.model, 256)?;
        let work = Workload::of(&config, &spec);
        let flops: u64 =
            work.blocks.iter().map(|b| b.forward_flops_per_token + b.backward_flops_per_token).sum();
        // The simulator slows workers by up to 5 %, as in reality; here the time already includes that.
        let tflops = flops as f64 * f64::from(SEQUENCES * 128) / local_s / 1e12 * JITTER;
        let site = |name: &str| {
            format!("[[site]]\nname = \"{name}\"\nworkers = 1\ntflops = {tflops}\nmemory_gib = 8\n")
        };
        let topology = format!(
            "{}{}[wan]\nmbit = {mbit}\nrtt_ms = {rtt_ms}\nloss_percent = {loss_percent}\n",
            site("a"),
            site("b")
        );
        let setup = Setup {
            config,
            spec,
            topology: Topology::parse(&topology)?,
            faults: Faults::default(),
            seed: 1,
            until: Duration::from_secs(30 * 86_400),
        };
        simulate(setup)?.training.step_s.context("it made no steps")
    }
}

/// The simulator's average slowdown of a worker.
const JITTER: f64 = 1.025;
