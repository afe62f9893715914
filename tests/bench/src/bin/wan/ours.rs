//! Runs of this project over the emulated link.

use anyhow::Result;
use longhaul_bench::gpt::{GPT, RUN_MAX, SPEED, step_s};
use longhaul_bench::training::{Copies, Training};
use longhaul_emulator::LinkConfig;
use serde_json::Value;

use super::Figure;

/// `[sync]` with its defaults once the warm-up is over: a round every fifteen steps.
pub const SPARSE_LOCAL: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0";
/// Gradients after each step.
pub const DENSE: &str = "preset = \"dense\"";

/// Seconds a step of two sites with one worker each, and what went over the link.
pub fn across(link: &LinkConfig, sync: &str, steps: u64) -> Result<(f64, Vec<Figure>)> {
    super::progress(sync);
    let training = Training {
        shape: GPT,
        sites: &[1, 1],
        sync,
        train: SPEED,
        copies: Copies::WHOLE,
        steps,
        link,
        seed: 1,
    };
    let mut cluster = training.start()?;
    let step_s = step_s(&mut cluster, steps)?;
    let status = cluster.wait_until_finished(RUN_MAX)?;
    let figure = |metric, pointer: &str, unit| {
        let value = status.pointer(pointer).and_then(Value::as_f64)?;
        Some(Figure { metric, value, unit })
    };
    let figures =
        [figure("bytes_ratio", "/bytes_ratio", "ratio"), figure("wan_bytes", "/wan_bytes", "bytes")];
    Ok((step_s, figures.into_iter().flatten().collect()))
}
