//! Runs of this project over the emulated link.

use anyhow::Result;
use longhaul_emulator::LinkConfig;
use serde_json::Value;

use crate::kit::figures::{Figure, figure};
use crate::kit::progress;
use crate::runs::gpt::{GPT, RUN_MAX, step_s};
use crate::runs::training::Training;

/// `[sync]` with its defaults after the warm-up: a round every fifteen steps.
pub const SPARSE_LOCAL: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0";
/// Gradients after each step.
pub const DENSE: &str = "preset = \"dense\"";

/// Returns the seconds per step of two sites with one worker each, and the traffic over the link.
pub fn across(link: &LinkConfig, sync: &str, steps: u64) -> Result<(f64, Vec<Figure>)> {
    progress(format!("{sync} ..."));
    let mut cluster = Training::new(GPT, &[1, 1], sync, steps, link).start()?;
    let step_s = step_s(&mut cluster, steps)?;
    let status = cluster.wait_until_finished(RUN_MAX)?;
    let told = |metric, unit| Some(figure(metric, status.get(metric).and_then(Value::as_f64)?, unit));
    let figures = [told("bytes_ratio", "ratio"), told("wan_bytes", "bytes")];
    Ok((step_s, figures.into_iter().flatten().collect()))
}
