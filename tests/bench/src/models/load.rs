//! From a large checkpoint that no cache holds to the first step of adapters.

use std::path::Path;

use anyhow::{Context, Result};
use longhaul_checkpoint::ExportType;

use super::cases;
use super::side::Side;
use super::steps::written;
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::kit::stats::median;

/// Linux forgets clean pages of files when 1 is written here.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

pub(super) fn run(python: &Path, quick: bool) -> Result<()> {
    let case = cases::large(quick).context("describe the model")?;
    progress(format!("writing {} ...", case.name));
    let folder = written(&case, ExportType::Bf16)?;
    let model = folder.path().join("model");
    let recorder = Recorder::new("models/load");
    let weights = 2 * case.spec.parameter_count();
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    let (mut own_peak, mut their_peak) = (0, 0);
    for turn in 0..if quick { 1 } else { 3 } {
        progress(format!("{}, turn {} ...", case.name, turn + 1));
        forget()?;
        let mut side = Side::ours(&model, case.work)?;
        own.push(side.loaded.seconds + side.step()?.seconds);
        own_peak = own_peak.max(side.loaded.peak_bytes);
        drop(side);
        forget()?;
        let mut side = Side::transformers(python, &model, case.work)?;
        theirs.push(side.loaded.seconds + side.step()?.seconds);
        their_peak = their_peak.max(side.loaded.peak_bytes);
    }
    recorder.print(&case.name, "parameters", case.spec.parameter_count(), "");
    recorder.print(&case.name, "first_step_s", median(&own), "s");
    recorder.print(&case.name, "first_step_transformers_s", median(&theirs), "s");
    recorder.print(&case.name, "load_ratio", median(&own) / median(&theirs), "");
    recorder.print(&case.name, "peak_over_weights", own_peak as f64 / weights as f64, "");
    recorder.print(&case.name, "peak_over_weights_transformers", their_peak as f64 / weights as f64, "");
    Ok(())
}

fn forget() -> Result<()> {
    // Only clean pages can go.
    std::process::Command::new("sync").status().context("write all files to the disk")?;
    std::fs::write(DROP_CACHES, "1").context("empty the cache of files, which needs root")
}
