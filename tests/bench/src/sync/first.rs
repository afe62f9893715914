//! Time of the first thousand steps of a long run, its opening included, beside that of a machine alone.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;
use longhaul_tests::cluster;

use super::method::Method;
use super::session::Session;
use super::{small, speed, watch};
use crate::kit::clock::now;
use crate::kit::figures::{Figure, figure};
use crate::runs::gpt::{self, GPT, slowest_step};
use crate::runs::training::{SPEED, Training};

/// Name of the benchmark's lines.
pub const BENCH: &str = "sync/first";
/// Measured methods: `auto`, with each of its openings.
const METHODS: [&str; 3] = ["auto", "auto with muon", "auto with exchanged warm-up"];
/// Steps of the whole run, of which warm-ups are a share.
const PLANNED: u64 = 6000;
const SITES: f64 = 2.0;
/// A case may take so many times as long as a machine alone; the target is 1.2.
const LIMIT: f64 = 1.5;
/// Timeout from the start of processes to the first step.
const START_MAX: Duration = Duration::from_secs(120);
/// Time reserved for each step of a case.
const STEP_MAX: Duration = Duration::from_secs(2);

/// Measures the methods over these links.
pub fn measure(session: &mut Session, rates_mbit: &[f64]) -> Result<()> {
    let (steps, local_steps) = if session.quick { (60, 12) } else { (1000, 40) };
    for &rate in rates_mbit {
        let link = speed::link(rate)?;
        for method in session.methods() {
            if METHODS.contains(&method.name) {
                let case = format!("{}, {steps} steps", speed::case_name(&method.case_name(), rate));
                let reserved = START_MAX + STEP_MAX * steps as u32;
                session.case(BENCH, &case, reserved, |_| first(&method, &link, steps, local_steps))?;
            }
        }
    }
    Ok(())
}

fn first(method: &Method, link: &LinkConfig, steps: u64, local_steps: u64) -> Result<Vec<Figure>> {
    let local = || anyhow::Ok(gpt::local_of(2, local_steps, method.train)?.step_s);
    let before = local()?;
    let limit = Duration::try_from_secs_f64(LIMIT * before * steps as f64)?;
    let train = format!("{SPEED}\n{}", method.train);
    let training = Training::new(GPT, &[1, 1], &method.sync, PLANNED, link);
    let mut cluster = Training { train: &train, ..training }.start()?;
    watch::until(&mut cluster, START_MAX, |status| cluster::training(status) == 2)?
        .context("the run did not begin in time")?;
    let (began, mut made, mut bytes) = (now(), 0, 0.0);
    let reached = watch::until(&mut cluster, limit, |status| {
        made = slowest_step(status).saturating_sub(1);
        bytes = status["wan_bytes"].as_f64().unwrap_or_default();
        made >= steps
    })?;
    let seconds = began.elapsed().as_secs_f64();
    drop(cluster);
    let local_s = f64::midpoint(before, local()?);
    let steps_made = made.max(1) as f64;
    let mut figures = vec![
        figure("steps", made as f64, ""),
        figure("seconds", seconds, "s"),
        figure("local_step_s", local_s, "s"),
        figure("time_over_local", seconds / (steps_made * local_s), "ratio"),
        figure(
            "bits_sent",
            bytes * 8.0 / (SITES * steps_made * small::parameters(GPT) as f64),
            "bit/parameter/step/site",
        ),
    ];
    if reached.is_none() {
        figures.push(figure("over_the_limit_of", limit.as_secs_f64(), "s"));
    }
    Ok(figures)
}
