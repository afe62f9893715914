//! Whole runs of PyTorch's methods.

use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;

use super::Measured;
use super::scale::{COPIES, RATE_SCALE, WHOLE};
use super::shares::steady_step_s;
use crate::runs::pytorch::{self, Mode, Python};
use crate::sync::speed;

/// Python and torch take time to start, and to evaluate held-out text.
const AROUND: Duration = Duration::from_secs(180);
/// Clipping as in our own runs.
const CLIP: &str = "1.0";

/// Returns the learning rate of a mode: that of our most similar method.
pub fn learning_rate(mode: Mode<'_>) -> f64 {
    let best = match mode {
        ["diloco", ..] => 2.5e-3,
        _ if mode.contains(&"powersgd") => 1e-2,
        _ => 5e-3,
    };
    best * RATE_SCALE
}

/// Returns the seconds per step of two processes without exchange.
pub fn local_step_s(python: &Python, steps: usize) -> Result<f64> {
    python.local(&shape(), steps)
}

/// Runs from the first step to the last, or to the limit. The time is that of the steps alone.
pub fn run(
    python: &Python,
    mode: Mode<'_>,
    (steps, seed): (u64, u64),
    link: &LinkConfig,
    limit: Duration,
) -> Result<Measured> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.json");
    let path = report.to_str().context("the temporary folder's name is not UTF-8")?;
    let (count, rate, seed) = (steps.to_string(), learning_rate(mode).to_string(), seed.to_string());
    let more = ["--steps", &count, "--warmup", "0", "--learning-rate", &rate, "--gradient-clip", CLIP];
    let more = more.into_iter().chain(["--seed", &seed, "--report", path]).map(str::to_owned);
    let options: Vec<String> = shape().into_iter().chain(more).collect();
    let links = pytorch::links(link)?;
    let is_over = |times: &[f64]| times.iter().sum::<f64>() > limit.as_secs_f64();
    let is_whole = |times: &[f64]| times.len() as u64 >= steps;
    let enough = |times: &[f64]| if is_whole(times) { report.exists() } else { is_over(times) };
    let times = python.across(&links, &options, mode, limit + AROUND, enough)?;
    let times = times.context("no root or no TUN device for PyTorch over the link")?;
    let loss = if report.exists() { Some(read_loss(&std::fs::read(&report)?)?) } else { None };
    // A hung collective completes no step: it counts with its whole limit.
    let seconds = if is_whole(&times) { times.iter().sum() } else { limit.as_secs_f64() };
    Ok(Measured {
        made: times.len() as u64,
        seconds,
        steady_step_s: steady_step_s(&speed::looks(&times), steps),
        loss,
        sent_bytes: None,
        wire_bytes: links.iter().map(|link| link.stats().delivered.bytes as f64).sum(),
    })
}

fn read_loss(report: &[u8]) -> Result<f64> {
    let report: serde_json::Value = serde_json::from_slice(report).context("read the script's report")?;
    report["loss"].as_f64().context("the script's report has no loss")
}

/// Returns the model and its batch as options of the script.
fn shape() -> Vec<String> {
    let sizes = [
        ("--layers", WHOLE.layers),
        ("--width", WHOLE.width),
        ("--heads", WHOLE.heads),
        ("--sequence", WHOLE.context),
        ("--batch", COPIES.batch as u64),
    ];
    let sizes = sizes.into_iter().flat_map(|(name, size)| [name.to_owned(), size.to_string()]);
    sizes.chain(WHOLE.tied_embeddings.then(|| "--tied".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::method::PYTORCH;

    #[test]
    fn each_peer_has_the_learning_rate_of_what_it_is_most_like() {
        let rates: Vec<_> = PYTORCH.iter().map(|(_, mode, _)| learning_rate(mode)).collect();
        assert_eq!(rates, [2.5e-3, 2.5e-3, 5e-3, 1.25e-3]);
    }

    #[test]
    fn a_report_without_a_loss_is_refused() {
        assert_eq!(read_loss(br#"{"loss": 1.5}"#).unwrap(), 1.5);
        // Python's form of NaN.
        assert!(read_loss(br#"{"loss": NaN}"#).is_err() && read_loss(b"{}").is_err());
    }
}
