//! Our own whole runs, and steps without exchange.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;
use longhaul_tests::cluster::{self, Cluster};
use serde_json::Value;

use super::scale::{COPIES, WHOLE};
use super::shares::steady_step_s;
use super::{Measured, SITES};
use crate::kit::clock::now;
use crate::runs::gpt::slowest_step;
use crate::runs::training::Training;
use crate::sync::pace::{Look, Pace};
use crate::sync::{small, watch};

/// No round within the measurement.
const ALONE: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 1000000";
/// More than a measurement makes.
const STEPS_MAX: u64 = 1_000_000;
/// Timeout from the start of processes to the first step, and for a measurement without exchange, on a busy
/// machine.
const START_MAX: Duration = Duration::from_secs(120);
/// Timeout of the evaluation on all held-out text, after the last step.
const EVALUATION_MAX: Duration = Duration::from_secs(300);
/// Polling interval where time counts.
const CLOSELY: Duration = Duration::from_millis(50);
/// The last part of a run, which is polled at short intervals: one in this many.
const LAST_PART: u64 = 24;

/// Returns a run of [`WHOLE`] over this link.
pub fn training<'a>(sync: &'a str, train: &'a str, steps: u64, link: &'a LinkConfig) -> Training<'a> {
    Training { train, copies: COPIES, ..Training::new(WHOLE, &SITES, sync, steps, link) }
}

/// Returns the seconds per step of two workers that train in parallel without exchange, with these keys of `[train]`.
pub fn local_step_s(enough_s: f64, train: &str) -> Result<f64> {
    let (link, train) = (LinkConfig::default(), format!("{}\n{train}", small::train(1e-3)));
    let mut cluster = training(ALONE, &train, STEPS_MAX, &link).start()?;
    let pace = Pace { round: 1, warm_up: 20, enough_s };
    let (began, mut looks) = (now(), Vec::new());
    watch::until(&mut cluster, START_MAX, |status| {
        looks.push(Look {
            at_s: began.elapsed().as_secs_f64(),
            steps: slowest_step(status),
            bytes: 0,
            beside_s: 0.0,
        });
        pace.is_enough(&looks)
    })?;
    let measured = pace.measured(&looks).context("workers that do not talk made no steps")?;
    Ok(measured.step_s)
}

/// Runs from the first step to the last, or to the limit.
pub fn run(training: &Training<'_>, limit: Duration) -> Result<Measured> {
    let mut cluster = training.start()?;
    let all = training.sites.iter().sum::<usize>();
    watch::until_every(&mut cluster, CLOSELY, START_MAX, |status| cluster::training(status) == all)?
        .context("the run did not begin in time")?;
    let (began, wire_before) = (now(), wire_bytes(&cluster));
    let (steps, mut looks) = (training.steps, Vec::new());
    let mut look = |status: &Value| {
        let made = made(status, steps);
        looks.push(Look { at_s: began.elapsed().as_secs_f64(), steps: made, bytes: 0, beside_s: 0.0 });
        made
    };
    watch::until(&mut cluster, limit, |status| look(status) >= steps - steps / LAST_PART)?;
    let left = limit.saturating_sub(began.elapsed());
    let ended = watch::until_every(&mut cluster, CLOSELY, left, |status| look(status) >= steps)?;
    let last = looks.last().copied().context("nobody looked at the run")?;
    let wire_bytes = wire_bytes(&cluster) - wire_before;
    let mut measured = Measured {
        made: last.steps,
        seconds: last.at_s,
        steady_step_s: steady_step_s(&looks, steps),
        loss: None,
        sent_bytes: None,
        wire_bytes,
    };
    if ended.is_some() {
        let finished = watch::until(&mut cluster, EVALUATION_MAX, |status| status["phase"] == "finished")?
            .context("the run did not evaluate in time")?;
        measured.loss = finished["validation_loss"].as_f64();
        measured.sent_bytes = finished["wan_bytes"].as_f64();
    }
    Ok(measured)
}

/// Returns the steps that all workers have made: all only if the last result is applied everywhere.
fn made(status: &Value, steps: u64) -> u64 {
    let applied = status["step"].as_u64().unwrap_or(0);
    if status["phase"] == "finished" {
        return steps;
    }
    slowest_step(status).min(steps.saturating_sub(1)).max(applied)
}

/// Returns the bytes received by both sites.
fn wire_bytes(cluster: &Cluster) -> f64 {
    (0..SITES.len()).map(|site| cluster.wan().into_site(site).stats().delivered.bytes as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_when_its_last_result_is_applied_everywhere() {
        let status = |phase: &str, applied: u64, steps: [u64; 2]| {
            let members = steps.map(|step| serde_json::json!({ "step": step }));
            made(&serde_json::json!({ "phase": phase, "step": applied, "members": members }), 100)
        };
        assert_eq!(status("training", 40, [47, 45]), 45, "the slower of the two");
        assert_eq!(status("training", 99, [100, 100]), 99);
        assert_eq!(status("training", 100, [99, 99]), 100);
        assert_eq!(status("finished", 100, [0, 0]), 100);
    }
}
