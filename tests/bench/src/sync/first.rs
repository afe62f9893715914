//! Time of the first thousand steps of a long run, beside that of a machine alone: all that a user waits for, the opening included.

use std::time::Duration;

use anyhow::Result;
use longhaul_emulator::LinkConfig;

use super::method::{self, Method};
use super::session::Session;
use super::{small, speed, watch};
use crate::kit::clock::now;
use crate::kit::figures::{Figure, figure};
use crate::runs::gpt::{self, GPT, slowest_step};
use crate::runs::training::{SPEED, Training};

/// Name of the benchmark's lines.
pub const BENCH: &str = "sync/first";
/// Measured methods: those with which runs begin by default.
const METHODS: [&str; 2] = ["auto", "auto with muon"];
/// Steps of the whole run, of which warm-ups are a share.
const PLANNED: u64 = 6000;
const SITES: f64 = 2.0;
/// Longest time of a case.
const LIMIT_MAX: Duration = Duration::from_secs(3 * 3600);
/// A case may take so many times as long as a machine alone.
const LIMIT: f64 = 4.0;

/// Measures the methods over these links.
pub fn measure(session: &mut Session, rates_mbit: &[f64]) -> Result<()> {
    let (steps, local_steps) = if session.quick { (60, 12) } else { (1000, 40) };
    for &rate in rates_mbit {
        let link = speed::link(rate)?;
        for method in method::presets() {
            if METHODS.contains(&method.name) && session.wants(method.name) {
                let case = format!("{}, {steps} steps", speed::case_name(method.name, rate));
                session.case(BENCH, &case, LIMIT_MAX, |_| first(&method, &link, steps, local_steps))?;
            }
        }
    }
    Ok(())
}

fn first(method: &Method, link: &LinkConfig, steps: u64, local_steps: u64) -> Result<Vec<Figure>> {
    let local = || gpt::local_of(2, local_steps, method.train);
    let before = local()?;
    let limit = Duration::try_from_secs_f64(LIMIT * before * steps as f64)?;
    let train = format!("{SPEED}\n{}", method.train);
    let training = Training::new(GPT, &[1, 1], &method.sync, PLANNED, link);
    let mut cluster = Training { train: &train, ..training }.start()?;
    watch::until(&mut cluster, limit, |status| slowest_step(status) > 0)?;
    let began = now();
    let last = watch::until(&mut cluster, limit, |status| slowest_step(status) > steps)?;
    let seconds = began.elapsed().as_secs_f64();
    drop(cluster);
    let local_s = f64::midpoint(before, local()?);
    let Some(last) = last else { return Ok(vec![figure("over_the_limit_of", limit.as_secs_f64(), "s")]) };
    let made = slowest_step(&last).saturating_sub(1) as f64;
    let bits = last["wan_bytes"].as_f64().unwrap_or_default() * 8.0;
    Ok(vec![
        figure("seconds", seconds, "s"),
        figure("local_step_s", local_s, "s"),
        figure("time_over_local", seconds / (made * local_s), "ratio"),
        figure("bits_sent", bits / (SITES * made * small::parameters(GPT) as f64), "bit/parameter/step/site"),
    ])
}
