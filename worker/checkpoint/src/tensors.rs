//! f32 vectors as safetensors files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use longhaul_common::config::ModelKind;
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_proto::little_endian::{extend_f32, f32_of, of_f32};
use safetensors::{Dtype, SafeTensors, View};

use super::adapters::PREFIX;
use super::adapters::joined::{self, Form};
use super::{CheckpointError, experts};

/// A named tensor.
struct F32<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
}

impl View for F32<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        of_f32(self.values).into()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Writes a model's synchronised parameters under their names.
///
/// # Errors
/// Their number is wrong, or the file cannot be written.
pub(super) fn write_model(path: &Path, spec: &ModelSpec, flat: &[f32]) -> Result<(), CheckpointError> {
    if flat.len() as u64 != spec.synchronised_count() {
        return Err(CheckpointError::OtherModel {
            path: path.to_owned(),
            reason: format!("{} values for {} parameters", flat.len(), spec.synchronised_count()),
        });
    }
    let values = joined::to_file(spec, flat);
    let mut rest = &*values;
    let tensors: Vec<(String, F32<'_>)> = stored_in(spec)
        .into_iter()
        .map(|parameter| {
            let (values, after) = rest.split_at(parameter.count() as usize);
            rest = after;
            (parameter.name, F32 { shape: parameter.shape.iter().map(|&n| n as usize).collect(), values })
        })
        .collect();
    write(path, tensors)
}

/// Returns the tensors of a checkpoint's file. Names of adapters' files begin as PEFT's.
pub(super) fn stored_in(spec: &ModelSpec) -> Vec<ParameterSpec> {
    if spec.tuning.as_ref().is_none_or(|tuning| tuning.lora.is_none()) {
        return stored(spec.kind, spec.synchronised());
    }
    adapters_in(spec, Form::Blocks)
}

/// Returns the tensors of a file of adapters.
pub(super) fn adapters_in(spec: &ModelSpec, form: Form) -> Vec<ParameterSpec> {
    let mut tensors = joined::stored(spec, form);
    tensors.iter_mut().for_each(|tensor| tensor.name.insert_str(0, PREFIX));
    tensors
}

/// Returns the tensors of a file with these parameters, none of an adapter. In the flat vector, their values have the same order.
pub(super) fn stored(kind: ModelKind, parameters: Vec<ParameterSpec>) -> Vec<ParameterSpec> {
    match kind {
        _ if !kind.joined().is_empty() => joined_rows(kind, parameters),
        _ if kind.usual_experts().is_some() => {
            parameters.into_iter().flat_map(|parameter| experts::stored(kind, parameter)).collect()
        }
        _ => parameters,
    }
}

fn joined_rows(kind: ModelKind, parameters: Vec<ParameterSpec>) -> Vec<ParameterSpec> {
    let mut stored = Vec::<ParameterSpec>::with_capacity(parameters.len());
    for parameter in parameters {
        match (stored.last_mut(), kind.joined_name(&parameter.name)) {
            (Some(last), Some(name)) if last.name == name => last.shape[0] += parameter.shape[0],
            (_, name) => {
                stored.push(ParameterSpec { name: name.unwrap_or(parameter.name.clone()), ..parameter })
            }
        }
    }
    stored
}

/// A piece of a parameter in the files.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Located {
    /// The tensor that holds it.
    pub stored: ParameterSpec,
    /// Its first value in that tensor.
    pub start: usize,
    /// Its values in the parameter.
    pub own: Range<usize>,
}

/// Returns the pieces of each of these parameters, which are of whole layers, in the tensors of their file.
pub(super) fn located(stored: Vec<ParameterSpec>, parameters: &[ParameterSpec]) -> Vec<Vec<Located>> {
    let mut stored = stored.into_iter();
    let (mut current, mut read) = (stored.next(), 0);
    let pieces = |parameter: &ParameterSpec| {
        let (count, mut pieces, mut own) = (parameter.count() as usize, Vec::new(), 0);
        while let Some(tensor) = current.as_ref().filter(|_| own < count) {
            let len = (count - own).min(tensor.count() as usize - read);
            pieces.push(Located { stored: tensor.clone(), start: read, own: own..own + len });
            (own, read) = (own + len, read + len);
            if read == tensor.count() as usize {
                (current, read) = (stored.next(), 0);
            }
        }
        pieces
    };
    parameters.iter().map(pieces).collect()
}

/// Writes flat vectors under their names.
pub(super) fn write_vectors<'a>(
    path: &Path,
    vectors: impl IntoIterator<Item = (&'a String, &'a Arc<[f32]>)>,
) -> Result<(), CheckpointError> {
    let tensors =
        vectors.into_iter().map(|(name, values)| (name.clone(), F32 { shape: vec![values.len()], values }));
    write(path, tensors.collect())
}

/// Writes a file of tensors.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write<T: View>(path: &Path, tensors: Vec<(String, T)>) -> Result<(), CheckpointError> {
    let failed = |error| CheckpointError::io("write", path)(error);
    // The library makes a file that only its owner may read; others should be able to use the model, as the umask allows.
    let permissions =
        std::fs::File::create(path).and_then(|file| file.metadata()).map_err(failed)?.permissions();
    // `transformers` refuses a file that does not name its format.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(source) => failed(source),
        other => failed(std::io::Error::other(other)),
    })?;
    std::fs::set_permissions(path, permissions).map_err(failed)
}

/// Reads a model's synchronised parameters by name into one flat vector.
///
/// # Errors
/// The content is not of this model.
pub(super) fn read_model(path: &Path, bytes: &[u8], spec: &ModelSpec) -> Result<Vec<f32>, CheckpointError> {
    let other = |reason: String| CheckpointError::OtherModel { path: path.to_owned(), reason };
    let file = SafeTensors::deserialize(bytes).map_err(|error| CheckpointError::damaged(path, error))?;
    // Bounded by the file: the specification may be of another model of any size.
    let mut values = Vec::with_capacity(bytes.len() / size_of::<f32>());
    let parameters = stored_in(spec);
    for parameter in &parameters {
        let tensor =
            file.tensor(&parameter.name).map_err(|_| other(format!("{} is missing", parameter.name)))?;
        let shape: Vec<u64> = tensor.shape().iter().map(|&n| n as u64).collect();
        if tensor.dtype() != Dtype::F32 || shape != parameter.shape {
            let reason = format!(
                "{} is {:?} {:?} in place of F32 {:?}",
                parameter.name,
                tensor.dtype(),
                shape,
                parameter.shape
            );
            return Err(other(reason));
        }
        extend_f32(&mut values, tensor.data());
    }
    match file.len() - parameters.len() {
        0 => joined::from_file(spec, Form::Blocks, values).map_err(other),
        more => Err(other(format!("it has {more} additional tensors"))),
    }
}

pub(super) fn read_vectors(
    path: &Path,
    bytes: &[u8],
) -> Result<impl Iterator<Item = (String, Arc<[f32]>)>, CheckpointError> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| CheckpointError::damaged(path, error))?;
    let tensors = file.tensors();
    if let Some((name, tensor)) = tensors.iter().find(|(_, tensor)| tensor.dtype() != Dtype::F32) {
        return Err(CheckpointError::damaged(path, format!("{name} is {:?}, not F32", tensor.dtype())));
    }
    Ok(tensors.into_iter().map(|(name, tensor)| (name, f32_of(tensor.data()))))
}
