//! Boundaries of low rank: loss by step without a link, seconds and bytes of a step over links, and the time to a loss that follows.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;
use longhaul_tests::interrupt;

use crate::kit::args::Only;
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::runs::gpt::{RUN_MAX, step_s};
use crate::runs::training::{Copies, DEMO, Shape, Training};

/// The demo's model with an output projection of its own, so that boundaries are all that is sent.
const SHAPE: Shape = Shape { tied_embeddings: false, ..DEMO };
/// Sequences of a step, and of a micro-batch: eight of them, all of which may be on their way.
const BATCH: usize = 32;
const MICRO_BATCH: usize = 4;
const SYNC: &str = "preset = \"dense\"";
/// The rate stays constant after its warm-up, so the loss at a step does not depend on the planned length.
const TRAIN: &str =
    "learning_rate = 3e-3\nfinal_learning_rate_share = 1.0\nwarmup_steps = 40\nevaluate_batches = 64";
const STEPS_BETWEEN: u64 = 40;
const RATES_MBIT: [u32; 2] = [10, 80];
const ROUND_TRIP_MS: u32 = 50;
/// Loss of a run.
const LOSS_RUN_MAX: Duration = Duration::from_secs(3600);

/// A way to cross boundaries: of the model, and of `[parallel]`.
struct Way {
    name: &'static str,
    model: fn(stages: usize) -> String,
    boundary: &'static str,
}

const WAYS: [Way; 6] = [
    Way { name: "int8", model: |_| String::new(), boundary: "int8" },
    Way { name: "int4", model: |_| String::new(), boundary: "int4" },
    Way { name: "subspace 32, int8", model: |_| "subspace = 32".to_owned(), boundary: "int8" },
    Way { name: "subspace 16, int8", model: |_| "subspace = 16".to_owned(), boundary: "int8" },
    Way { name: "bottleneck 32, int8", model: |stages| bottleneck(32, stages), boundary: "int8" },
    Way { name: "bottleneck 16, int8", model: |stages| bottleneck(16, stages), boundary: "int8" },
];

/// A bottleneck at each cut of the four layers.
fn bottleneck(width: u32, stages: usize) -> String {
    let behind = if stages == 2 { "[2]" } else { "[1, 2, 3]" };
    format!("bottleneck = {{ width = {width}, behind = {behind} }}")
}

/// Measures two and four stages, each on a site of its own.
pub fn compare(only: &Only, speed_steps: u64, loss_steps: u64) -> Result<()> {
    let wanted: Vec<(&Way, &[usize])> = [&[1; 2][..], &[1; 4]]
        .into_iter()
        .flat_map(|sites| WAYS.iter().map(move |way| (way, sites)))
        .filter(|(way, sites)| only.wants(&case(way, sites)))
        .collect();
    let mut curves = Vec::new();
    for (way, sites) in &wanted {
        curves.push(losses(way, sites, loss_steps)?);
    }
    // All of one number of stages reach the largest of their last losses.
    let target = |stages: usize| {
        let own = wanted.iter().zip(&curves).filter(|((_, sites), _)| sites.len() == stages);
        own.filter_map(|(_, curve)| curve.last().copied()).fold(0.0, f64::max)
    };
    for ((way, sites), curve) in wanted.iter().zip(&curves) {
        for mbit in RATES_MBIT {
            speed(way, sites, mbit, speed_steps, (curve, target(sites.len())))?;
        }
    }
    Ok(())
}

fn case(way: &Way, sites: &[usize]) -> String {
    format!("{}, {} stages", way.name, sites.len())
}

fn start<'a>(parallel: &'a str, model: &'a str, sites: &'a [usize], link: &'a LinkConfig) -> Training<'a> {
    let copies = Copies { parallel, batch: BATCH / sites.len(), micro_batch: MICRO_BATCH };
    Training { model, copies, ..Training::new(SHAPE, sites, SYNC, 0, link) }
}

fn parallel(way: &Way, sites: &[usize]) -> String {
    let blocks = if sites.len() == 2 { "[3, 3]" } else { "[2, 1, 1, 2]" };
    format!(
        "stages = {}\nblocks = {blocks}\nschedule = \"gpipe\"\nboundary = \"{}\"",
        sites.len(),
        way.boundary
    )
}

/// Returns the validation losses, one each [`STEPS_BETWEEN`] steps.
fn losses(way: &Way, sites: &[usize], steps: u64) -> Result<Vec<f64>> {
    interrupt::check()?;
    let case = case(way, sites);
    progress(format!("pipeline/low-rank: loss of {case}"));
    let (parallel, model, link) = (parallel(way, sites), (way.model)(sites.len()), LinkConfig::default());
    let train = format!("{TRAIN}\nevaluate_every_rounds = {STEPS_BETWEEN}");
    let training = Training { train: &train, steps, ..start(&parallel, &model, sites, &link) };
    let mut curve: Vec<f64> = Vec::new();
    let mut cluster = training.start()?;
    cluster.wait_for("the run to finish", LOSS_RUN_MAX, |status| {
        // Two validations are several seconds apart, and differ.
        let loss = status["validation_loss"].as_f64();
        curve.extend(loss.filter(|loss| curve.last() != Some(loss)));
        status["phase"] == "finished"
    })?;
    let recorder = Recorder::new("pipeline/low-rank");
    for (number, loss) in (1..).zip(&curve) {
        recorder.print(&case, &format!("loss_at_{}", number * STEPS_BETWEEN), *loss, "nat/token");
    }
    Ok(curve)
}

/// Measures a step over a link, and tells when a loss is reached by as many steps.
fn speed(way: &Way, sites: &[usize], mbit: u32, steps: u64, (curve, loss): (&[f64], f64)) -> Result<()> {
    interrupt::check()?;
    let case = format!("{}, {mbit} Mbit/s", case(way, sites));
    progress(format!("pipeline/low-rank: speed of {case}"));
    let link = format!("rate_mbit={mbit},delay_ms={}", ROUND_TRIP_MS / 2).parse()?;
    let (parallel, model) = (parallel(way, sites), (way.model)(sites.len()));
    let train = "evaluate_batches = 1";
    let training = Training { train, steps, ..start(&parallel, &model, sites, &link) };
    let mut cluster = training.start()?;
    let step_s = step_s(&mut cluster, steps)?;
    let status = cluster.wait_until_finished(RUN_MAX)?;
    let bytes = status["wan_bytes"].as_f64().context("the run has sent nothing")?;
    let recorder = Recorder::new("pipeline/low-rank");
    recorder.print(&case, "step_s", step_s, "s");
    let boundaries = (sites.len() - 1) as f64;
    recorder.print(&case, "boundary_bytes_per_step", bytes / steps as f64 / boundaries, "B");
    if let Some(at) = steps_to(curve, loss) {
        recorder.print(&case, "target_loss", loss, "nat/token");
        recorder.print(&case, "target_after", at * step_s, "s");
    }
    Ok(())
}

/// Returns the steps until a loss, by straight lines between validations.
fn steps_to(curve: &[f64], loss: f64) -> Option<f64> {
    let between = STEPS_BETWEEN as f64;
    let after = curve.iter().position(|value| *value <= loss)?;
    let Some(before) = after.checked_sub(1) else { return Some(between) };
    let part = (curve[before] - loss) / (curve[before] - curve[after]);
    Some((after as f64 + part) * between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_reached_between_the_validations_around_it() {
        let curve = [4.0, 3.0, 3.5, 2.0];
        for (loss, expected) in
            [(4.5, Some(40.0)), (4.0, Some(40.0)), (3.25, Some(70.0)), (2.75, Some(140.0)), (1.0, None)]
        {
            assert_eq!(steps_to(&curve, loss), expected, "{loss}");
        }
    }
}
