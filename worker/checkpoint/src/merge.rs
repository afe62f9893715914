//! A pretrained model with trained weights in their places, and adapters added to its matrices.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::config::ModelKind;
use longhaul_common::model::{ModelSpec, ParameterSpec, adapter_names, magnitude_name};

use super::adapters::find_base;
use super::opening::described;
use super::{Companions, classes, hf_folder, model_config};

/// A whole model from trained weights and the pretrained model beside which they were trained.
pub(super) struct Merged {
    /// Folder of the pretrained model.
    pub folder: PathBuf,
    pub spec: ModelSpec,
    pub parameters: Vec<f32>,
    pub companions: Companions,
}

/// Merges trained weights into their pretrained model, which is in `base`, or where training found it. `None`: the model is whole.
///
/// # Errors
/// The pretrained model is not there, or is another one; or `base` is given for a whole model.
pub(super) fn merge(
    spec: &ModelSpec,
    trained: &[f32],
    companions: &Companions,
    base: Option<&Path>,
) -> Result<Option<Merged>> {
    if spec.tuning.is_none() {
        ensure!(base.is_none(), "this model is whole, and needs no pretrained one: leave out --base");
        return Ok(None);
    }
    let folder = find_base(companions, base)?;
    let (own, whole) = (described(&folder)?, spec.untuned());
    ensure!(
        own.with_classes_of(&whole) == whole,
        "{} is another model than the one beside which these weights were trained",
        folder.display()
    );
    let parameters = merged(spec, trained, (&folder, &own))?;
    let mut companions = companions.of_model().or(Companions::read(&folder)?.of_model());
    // A folder that PEFT wrote names no classes.
    if let Some(classes) = whole.classes()
        && model_config::original(&whole, &companions).is_none()
    {
        companions = companions.with_classes(&whole, &classes::numbered(classes))?;
    }
    Ok(Some(Merged { folder, spec: whole, parameters, companions }))
}

/// Returns all values of a pretrained model with these trained ones, in the order of the untuned model's [`ModelSpec::parameters`]:
/// W + scale·B·A for an adapted matrix, in f32 as PEFT's `merge_and_unload`. The folder is of the model `own`, which may lack a trained head.
///
/// # Errors
/// The folder's weights are of another model.
fn merged(spec: &ModelSpec, trained: &[f32], (base, own): (&Path, &ModelSpec)) -> Result<Vec<f32>> {
    let tensors = spec.parameters();
    let counts = tensors.iter().map(ParameterSpec::count).sum::<u64>();
    ensure!(counts == trained.len() as u64, "{} values for {counts} trained parameters", trained.len());
    let (mut rest, mut by_name) = (trained, HashMap::new());
    for tensor in &tensors {
        let (own, others) = rest.split_at(tensor.count() as usize);
        by_name.insert(tensor.name.as_str(), own);
        rest = others;
    }
    let untuned = spec.untuned();
    let (mut flat, missing) = hf_folder::read_but_head(base, own, &untuned)?;
    if let Some(name) = missing.iter().find(|name| !by_name.contains_key(name.as_str())) {
        bail!(
            "neither {} nor these trained weights have {name}, which was drawn when training began",
            base.display()
        );
    }
    let mut rest = flat.as_mut_slice();
    for tensor in untuned.parameters() {
        let values = rest.split_off_mut(..tensor.count() as usize).context("a model has all its values")?;
        if let Some(own) = by_name.get(tensor.name.as_str()) {
            values.copy_from_slice(own);
        }
        if let Some(scale) = spec.adapter_scale(&tensor.name) {
            let [a, b] = adapter_names(&tensor.name).map(|name| by_name.get(name.as_str()).copied());
            let (a, b) = a.zip(b).with_context(|| format!("{} has no adapter", tensor.name))?;
            let is_transposed = spec.kind == ModelKind::Gpt2;
            let columns = tensor.shape[1] as usize;
            add(values, columns, (a, b), scale as f32, is_transposed);
            if let Some(lengths) = by_name.get(magnitude_name(&tensor.name).as_str()) {
                rescale(values, columns, lengths, is_transposed);
            }
        }
    }
    Ok(flat)
}

/// Adds scale·B·A, or its transpose, to a matrix with rows of `columns` values; A is [rank, in], B [out, rank].
fn add(matrix: &mut [f32], columns: usize, (a, b): (&[f32], &[f32]), scale: f32, is_transposed: bool) {
    let rows = matrix.len() / columns;
    let rank = if is_transposed { a.len() / rows } else { a.len() / columns };
    let mut sum = vec![0.0; columns];
    for (at, row) in matrix.chunks_exact_mut(columns).enumerate() {
        sum.fill(0.0);
        if is_transposed {
            for (column, sum) in sum.iter_mut().enumerate() {
                *sum = (0..rank).map(|r| b[column * rank + r] * a[r * rows + at]).sum();
            }
        } else {
            for (r, a) in a.chunks_exact(columns).enumerate() {
                let factor = b[at * rank + r];
                sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * a);
            }
        }
        row.iter_mut().zip(&sum).for_each(|(value, sum)| *value += scale * sum);
    }
}

/// Gives each row of a matrix with rows of `columns` values, or each column of a transposed one, this length.
fn rescale(matrix: &mut [f32], columns: usize, lengths: &[f32], is_transposed: bool) {
    let mut squares = vec![0.0_f64; lengths.len()];
    let place = |at: usize| if is_transposed { at % columns } else { at / columns };
    for (at, value) in matrix.iter().enumerate() {
        squares[place(at)] += f64::from(*value) * f64::from(*value);
    }
    for (at, value) in matrix.iter_mut().enumerate() {
        let own = squares[place(at)].sqrt() as f32;
        // A row of zeros has no direction.
        if own > 0.0 {
            *value *= lengths[place(at)] / own;
        }
    }
}
