//! Steps beside the reference's, in turns.

use std::path::Path;

use anyhow::{Context, Result};
use longhaul_checkpoint::{ExportType, WholeModel, export};
use longhaul_common::config::Precision;
use longhaul_common::model::draw_parameters;
use tempfile::TempDir;

use super::cases::Case;
use super::side::Side;
use crate::kit::recorder::Recorder;
use crate::kit::stats::median;

/// Steps before the measured ones: the first allocate.
const WARM_UP: u32 = 2;

pub(super) fn measure(case: &Case, python: &Path, steps: u32) -> Result<()> {
    let folder = written(case, ExportType::F32)?;
    let model = folder.path().join("model");
    let mut reference = Side::transformers(python, &model, case.work)?;
    let mut ours = Side::ours(&model, case.work)?;
    let recorder = Recorder::new("models").with("steps", steps);
    recorder.print(&case.name, "parameters", case.spec.parameter_count(), "");
    if case.work.rank == 0 && case.work.precision == Precision::F32 {
        let [own, expected] =
            [&mut ours, &mut reference].map(|side| side.logits(&folder.path().join("logits")));
        recorder.print(&case.name, "logits_error", apart(&own?, &expected?), "");
    }
    let (mut own, mut theirs, mut loss_error) = (Vec::new(), Vec::new(), 0.0_f64);
    let (mut own_peak, mut their_peak) = (0, 0);
    for step in 0..steps + WARM_UP {
        let (one, other) = (ours.step()?, reference.step()?);
        if step == 0 {
            loss_error = (one.loss - other.loss).abs() / other.loss;
        }
        if step >= WARM_UP {
            own.push(one.seconds);
            theirs.push(other.seconds);
        }
        (own_peak, their_peak) = (one.peak_bytes, other.peak_bytes);
    }
    recorder.print(&case.name, "step_s", median(&own), "s");
    recorder.print(&case.name, "step_transformers_s", median(&theirs), "s");
    recorder.print(&case.name, "time_over_transformers", median(&own) / median(&theirs), "");
    recorder.print(&case.name, "peak_bytes", own_peak, "bytes");
    recorder.print(&case.name, "peak_over_transformers", own_peak as f64 / their_peak as f64, "");
    recorder.print(&case.name, "loss_error", loss_error, "");
    Ok(())
}

/// Writes a model with drawn weights into the folder `model` of another.
pub(super) fn written(case: &Case, format: ExportType) -> Result<TempDir> {
    let folder = tempfile::tempdir().context("create a folder for the model")?;
    let (path, spec) = (case.name.clone(), case.spec.clone());
    let parameters = draw_parameters(&spec, 1);
    let whole = WholeModel { path, spec, parameters, companions: Default::default() };
    export(&whole, &folder.path().join("model"), format, u64::MAX, |_, _| {})?;
    Ok(folder)
}

/// Returns the norm of the difference over that of the expected values.
fn apart(given: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = given.iter().zip(expected).map(|(one, other)| f64::from(*one) - f64::from(*other));
    let same_length = given.len() == expected.len();
    let of_all = norm(&mut expected.iter().copied().map(f64::from));
    if same_length { norm(&mut { difference }) / of_all } else { f64::NAN }
}
