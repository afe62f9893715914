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
    let weights = (2 * case.spec.parameter_count()) as f64;
    let (mut own, mut theirs) = (Begin::default(), Begin::default());
    for turn in 0..if quick { 1 } else { 3 } {
        progress(format!("{}, turn {} ...", case.name, turn + 1));
        forget()?;
        own.add(Side::ours(&model, case.work)?)?;
        forget()?;
        theirs.add(Side::transformers(python, &model, case.work)?)?;
    }
    recorder.print(&case.name, "parameters", case.spec.parameter_count(), "");
    for (begin, of) in [(&own, ""), (&theirs, "_transformers")] {
        for (metric, seconds) in [
            ("loading_s", &begin.loading_s),
            ("first_step_s", &begin.first_step_s),
            ("second_step_s", &begin.second_step_s),
        ] {
            recorder.print(&case.name, &format!("{metric}{of}"), median(seconds), "s");
        }
        recorder.print(
            &case.name,
            &format!("loading_peak_over_weights{of}"),
            begin.loading_peak / weights,
            "",
        );
        recorder.print(&case.name, &format!("peak_over_weights{of}"), begin.peak / weights, "");
    }
    let ratio = median(&own.first_step_s) / median(&theirs.first_step_s);
    recorder.print(&case.name, "first_step_ratio", ratio, "");
    Ok(())
}

/// Beginnings of one side.
#[derive(Default)]
struct Begin {
    loading_s: Vec<f64>,
    /// From the start of loading to the end of the first step.
    first_step_s: Vec<f64>,
    /// The second step alone, which reads no pages.
    second_step_s: Vec<f64>,
    /// Largest memory until the model is loaded, in bytes,
    loading_peak: f64,
    /// and until the first step has ended, by which all mapped pages are read.
    peak: f64,
}

impl Begin {
    fn add(&mut self, mut side: Side) -> Result<()> {
        let (loaded, step) = (side.loaded, side.step()?);
        self.loading_s.push(loaded.seconds);
        self.first_step_s.push(loaded.seconds + step.seconds);
        self.loading_peak = self.loading_peak.max(loaded.peak_bytes as f64);
        self.peak = self.peak.max(step.peak_bytes as f64);
        self.second_step_s.push(side.step()?.seconds);
        Ok(())
    }
}

fn forget() -> Result<()> {
    // Only clean pages can go.
    std::process::Command::new("sync").status().context("write all files to the disk")?;
    std::fs::write(DROP_CACHES, "1").context("empty the cache of files, which needs root")
}
