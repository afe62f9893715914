//! Time until each preset has the loss that PyTorch's DDP has after ten minutes at 100 Mbit/s.

use std::time::Duration;

use anyhow::Result;
use longhaul_emulator::LinkConfig;
use longhaul_tests::cluster::Cluster;
use serde_json::Value;

use super::method::{self, Method};
use super::session::Session;
use super::{speed, watch};
use crate::kit::clock::now;
use crate::kit::figures::{Figure, figure};
use crate::kit::progress;
use crate::runs::gpt::{GPT, slowest_step};
use crate::runs::training::Training;

/// Name of the benchmark's lines.
pub const BENCH: &str = "sync/reach";
const RATE_MBIT: f64 = 100.0;
/// Name of DDP's case.
const DDP: &str = "PyTorch DDP f32";
/// The case of the target loss.
const TARGET: &str = "dense, as many steps as PyTorch DDP f32";
/// The dense run of as many steps has no link to wait for.
const TARGET_LIMIT: Duration = Duration::from_secs(900);
/// Approximate steps between validations; each takes about a second.
const STEPS_BETWEEN: u64 = 20;

/// The rate stays constant after its warm-up, so the loss at a step does not depend on the planned length of
/// the run.
fn train(evaluate_every_rounds: u64) -> String {
    format!(
        "gradient_clip = 0.0\nlearning_rate = 1e-3\nfinal_learning_rate_share = 1.0\nevaluate_batches = 4\n\
         evaluate_every_rounds = {evaluate_every_rounds}"
    )
}

/// Measures DDP's pace first, if missing.
pub fn measure(session: &mut Session) -> Result<()> {
    let ddp = speed::case_name(DDP, RATE_MBIT);
    let link = speed::link(RATE_MBIT)?;
    speed::pytorch(session, &link, RATE_MBIT, |name| name == DDP)?;
    let value = |metric| session.book.value(speed::BENCH, &ddp, metric);
    let Some((step_s, local_s)) = value("step_s").zip(value("local_step_s")) else {
        progress("sync/reach needs the pace of PyTorch's DDP, which is not known");
        return Ok(());
    };
    let time = Duration::from_secs(if session.quick { 120 } else { 600 });
    let steps = ((time.as_secs_f64() / step_s) as u64).max(1);
    session.case(BENCH, TARGET, TARGET_LIMIT, |_| target(steps))?;
    let Some(loss) = session.book.value(BENCH, TARGET, "loss") else { return Ok(()) };
    // The number of steps at local speed, of which warm-ups are a share.
    let planned = (time.as_secs_f64() / local_s) as u64;
    for method in method::presets() {
        if session.wants(method.name) {
            let evaluate = (STEPS_BETWEEN / method.round).max(1);
            session
                .case(BENCH, method.name, time, |_| reach(&method, &link, planned, evaluate, loss, time))?;
        }
    }
    Ok(())
}

/// Returns the loss after as many steps of DDP's batch, with gradients exchanged in f32.
fn target(steps: u64) -> Result<Vec<Figure>> {
    let link = LinkConfig::default();
    let train = train(steps);
    let mut cluster = start("preset = \"dense\"", &train, steps, &link)?;
    let finished = watch::until(&mut cluster, TARGET_LIMIT, |status| status["phase"] == "finished")?;
    let loss = finished.as_ref().and_then(loss_of);
    let reached = match loss {
        Some(value) => figure("loss", value, "nats"),
        None => figure("over_the_limit_of", TARGET_LIMIT.as_secs_f64(), "s"),
    };
    Ok(vec![reached, figure("steps", steps as f64, "")])
}

/// Returns the seconds from the first step to the first validation at or below `loss`.
fn reach(
    method: &Method,
    link: &LinkConfig,
    steps: u64,
    evaluate_every_rounds: u64,
    loss: f64,
    limit: Duration,
) -> Result<Vec<Figure>> {
    let train = format!("{}\n{}", train(evaluate_every_rounds), method.train);
    let mut cluster = start(&method.sync, &train, steps, link)?;
    watch::until(&mut cluster, limit, |status| slowest_step(status) > 0)?;
    let began = now();
    let (mut lowest, mut step) = (f64::INFINITY, 0);
    let reached = watch::until(&mut cluster, limit, |status| {
        step = slowest_step(status).max(step);
        lowest = loss_of(status).map_or(lowest, |loss| lowest.min(loss));
        lowest <= loss || status["phase"] == "finished"
    })?;
    let passed = began.elapsed().as_secs_f64();
    let mut figures = vec![figure("steps", step as f64, "")];
    if reached.is_some() && lowest <= loss {
        figures.push(figure("reached_after", passed, "s"));
    } else {
        figures.push(figure("not_reached_within", passed, "s"));
    }
    if lowest.is_finite() {
        figures.push(figure("loss", lowest, "nats"));
    }
    Ok(figures)
}

fn start(sync: &str, train: &str, steps: u64, link: &LinkConfig) -> Result<Cluster> {
    Training { train, ..Training::new(GPT, &[1, 1], sync, steps, link) }.start()
}

fn loss_of(status: &Value) -> Option<f64> {
    status["validation_loss"].as_f64()
}
