//! Measures pipelines with the real binaries: schedules; the speed across an emulated WAN relative to no
//! link; bytes and loss relative to boundaries in f32, and of boundaries of low rank; and the planner's choice relative to other plans. One
//! JSON line per figure goes to stdout, progress to stderr; `docs/benchmarks/pipeline.md` explains them.

mod low_rank;
mod plans;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use longhaul_emulator::LinkConfig;
use longhaul_tests::interrupt;

use crate::kit::args::{Only, Quick};
use crate::kit::figures::figure;
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::kit::stats::{Spread, in_turns, median};
use crate::runs::gpt::{ALONE, GPT, local, step_s};
use crate::runs::training::{Copies, DEMO, SPEED, Training};

/// Each direction: 50 ms round trip, one packet in a thousand lost.
const LINK: &str = "rate_mbit=100,delay_ms=25,loss_percent=0.1";
/// One worker each, with half of the model.
const SITES: &[usize] = &[1, 1];
/// Sequences per step for each worker, in micro-batches of one, so that a step has 32 of them.
const BATCH: usize = 16;
/// The same for workers with the whole model.
const WHOLE_BATCH: usize = Copies::WHOLE.batch;
/// Training of quality runs; the final loss covers all held-out text.
const QUALITY: &str = "learning_rate = 5e-3\nwarmup_steps = 40\nevaluate_batches = 1000000";
const QUALITY_RUN_MAX: Duration = Duration::from_secs(3600);

/// Pipelines, with the real binaries
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_values = ["schedule", "link", "boundary", "plans", "low-rank"])]
    part: Vec<Section>,
    // Does not apply to schedules; the reference boundary is always measured.
    #[command(flatten)]
    only: Only,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Seconds per step by schedule, without a link
    Schedule,
    /// Speed across a link, relative to no link
    Link,
    /// Loss and bytes by boundary format
    Boundary,
    /// Seconds per step of several plans, and of the planner's choice
    Plans,
    /// Loss, bytes and seconds per step of boundaries of low rank
    LowRank,
}

/// Measures the requested parts.
pub fn run(args: &Args) -> Result<()> {
    interrupt::watch()?;
    let (repeats, steps, quality_steps) = args.quick.choose((1, 8, 60), (3, 24, 1000));
    if args.part.contains(&Section::Schedule) {
        schedules(repeats, steps)?;
    }
    if args.part.contains(&Section::Link) {
        speed(args, repeats, steps)?;
    }
    if args.part.contains(&Section::Boundary) {
        boundaries(args, quality_steps)?;
    }
    if args.part.contains(&Section::Plans) {
        plans::compare(&args.only, repeats, steps)?;
    }
    if args.part.contains(&Section::LowRank) {
        low_rank::compare(&args.only, steps, args.quick.choose(80, 480))?;
    }
    Ok(())
}

/// Two stages and four micro-batches without a link; 1F1B's bubble is a fifth of a step. Cases alternate, as
/// the machine's speed drifts.
fn schedules(repeats: i64, steps: u64) -> Result<()> {
    let cases = [
        ("1f1b", "stages = 2", SPEED.to_owned()),
        ("zero-bubble", "stages = 2\nschedule = \"zero-bubble\"", SPEED.to_owned()),
        ("1f1b, recomputed", "stages = 2", format!("{SPEED}\nrecompute = true")),
    ];
    let seconds = in_turns(&cases, 0..repeats, |(case, parallel, train), repeat| {
        interrupt::check()?;
        progress(format!("pipeline/schedule: {case}, {} of {repeats}", repeat + 1));
        let copies = Copies { parallel, batch: BATCH, micro_batch: BATCH / 2 };
        paced(copies, train, &LinkConfig::default(), steps)
    })?;
    let medians: Vec<f64> = seconds.iter().map(|seconds| median(seconds)).collect();
    let recorder = Recorder::new("pipeline/schedule");
    for ((case, ..), median) in cases.iter().zip(&medians) {
        recorder.print(case, "step_s", *median, "s");
        recorder.print(case, "speed_over_1f1b", medians[0] / median, "ratio");
    }
    Ok(())
}

/// Runs with and without the link alternate, as the machine's speed drifts.
fn speed(args: &Args, repeats: i64, steps: u64) -> Result<()> {
    for (case, parallel, batch) in [
        ("2 stages, int8, 5 and 1 in flight", "stages = 2\nin_flight = [5, 1]", BATCH),
        ("2 stages, int8, 9 and 1 in flight", "stages = 2\nin_flight = [9, 1]", BATCH),
        ("2 stages, int8, 64 micro-batches, 9 and 1 in flight", "stages = 2\nin_flight = [9, 1]", 2 * BATCH),
        ("2 stages, int8, 2 and 1 in flight", "stages = 2", BATCH),
        ("2 stages, f32, 5 and 1 in flight", "stages = 2\nin_flight = [5, 1]\nboundary = \"f32\"", BATCH),
    ] {
        if !args.only.wants(case) {
            continue;
        }
        let mut shares = Vec::new();
        let (mut far, mut near) = (0.0, 0.0);
        for repeat in 0..repeats {
            interrupt::check()?;
            progress(format!("pipeline/link: {case}, {} of {repeats}", repeat + 1));
            let copies = Copies { parallel, batch, micro_batch: 1 };
            near = paced(copies, SPEED, &LinkConfig::default(), steps)?;
            far = paced(copies, SPEED, &LINK.parse()?, steps)?;
            shares.push(near / far);
        }
        let whole = local(steps)? * batch as f64 / WHOLE_BATCH as f64;
        let share = Spread::of(&shares).context("nothing was repeated")?;
        let figures = [
            figure("share_of_local_speed", share.median, "ratio"),
            figure("share_least", share.least, "ratio"),
            figure("share_most", share.most, "ratio"),
            figure("last_step_s", far, "s"),
            figure("last_step_without_link_s", near, "s"),
            // The same samples in the same time by two workers with the whole model.
            figure("speed_over_whole_copies", whole / near, "ratio"),
        ];
        Recorder::new("pipeline/link").print_all(case, figures);
    }
    Ok(())
}

/// Returns seconds per step without a round in the measurement: only the pipeline uses the link.
fn paced(copies: Copies<'_>, train: &str, link: &LinkConfig, steps: u64) -> Result<f64> {
    let training = Training { train, copies, ..Training::new(GPT, SITES, ALONE, steps, link) };
    let mut cluster = training.start()?;
    step_s(&mut cluster, steps)
}

/// Measures the same run with other boundaries.
fn boundaries(args: &Args, steps: u64) -> Result<()> {
    let (mut exact, link) = (None, LinkConfig::default());
    for (case, boundary) in [
        ("f32", "boundary = \"f32\""),
        ("int8", "boundary = \"int8\""),
        ("int4", "boundary = \"int4\""),
        ("int8, of gradients one value in two", "boundary = \"int8\"\nboundary_keep = 2048"),
        ("int8, of gradients one value in eight", "boundary = \"int8\"\nboundary_keep = 512"),
        ("int4, of gradients one value in eight", "boundary = \"int4\"\nboundary_keep = 512"),
    ] {
        if exact.is_some() && !args.only.wants(case) {
            continue;
        }
        interrupt::check()?;
        progress(format!("pipeline/boundary: {case}"));
        let parallel = format!("stages = 2\n{boundary}");
        let copies = Copies { parallel: &parallel, batch: 16, micro_batch: 4 };
        let dense = Training::new(DEMO, SITES, "preset = \"dense\"", steps, &link);
        let training = Training { train: QUALITY, copies, ..dense };
        let mut cluster = training.start()?;
        let status = cluster.wait_until_finished(QUALITY_RUN_MAX)?;
        let loss = status["validation_loss"].as_f64().context("the run has no loss at its end")?;
        let bytes = status["wan_bytes"].as_f64().context("the run has sent nothing")? / steps as f64;
        let (exact_loss, exact_bytes) = *exact.get_or_insert((loss, bytes));
        let figures = [
            figure("validation_loss", loss, "nat/token"),
            figure("loss_over_f32", loss / exact_loss - 1.0, "ratio"),
            figure("bytes_per_step", bytes, "B"),
            figure("bytes_ratio", bytes / exact_bytes, "ratio"),
        ];
        Recorder::new("pipeline/boundary").print_all(case, figures);
    }
    Ok(())
}
