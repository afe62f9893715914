//! The weights of a folder that `save_pretrained` wrote, in one file or several, in f32, f16 or bf16.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use longhaul_common::model::{ModelSpec, ParameterSpec, Shard};
use longhaul_proto::checkpoint::folder::{ADAPTER, TRAINED};
use longhaul_proto::stored_values::StoredValues;
use serde::Deserialize;

use super::adapters::joined::{self, Form};
use super::adapters::{ADAPTER_CONFIG, PREFIX};
use super::experts;
use super::reading::{Stretch, read_values};
use super::stored_file::{Stored, StoredFile};
use super::tensors::{self, Located};

/// The weights, where there is one file.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// The files of the weights, where there are several.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Weights as Python's pickles, which may run code.
const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
/// Most bytes of the index: a hundred times that of the largest models.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Most files.
const FILES_MAX: usize = 10_000;
/// Ends of the names of buffers that follow from the configuration.
const BUFFERS: [&str; 4] =
    [".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", "embeddings.position_ids"];
/// Copies of a tied output projection, and of its bias.
const TIED: [&str; 6] = [
    "lm_head.weight",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
    "generator_lm_head.weight",
];
/// Tensors named in a message.
const NAMED_MAX: usize = 3;

/// Whether a folder has weights as `save_pretrained` writes them.
pub(super) fn has_weights(folder: &Path) -> bool {
    [WEIGHTS, INDEX].iter().chain(&PICKLES).any(|name| folder.join(name).is_file())
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The weights of a folder, as its files describe them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredWeights {
    /// Files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Types of the values, such as `BF16`.
    pub types: BTreeSet<String>,
    /// Tensors that the model does not use.
    pub left_out: Vec<String>,
}

/// Returns the parameters of a part of the `whole` model, in the order of its flat vector.
///
/// # Errors
/// Names the file or the tensor that is missing, of another shape or type, or not known.
pub(super) fn read(folder: &Path, whole: &ModelSpec, part: &ModelSpec) -> Result<Vec<f32>> {
    let weights = Weights::open(folder, whole)?;
    weights.check()?;
    // A member of a tensor group has a share of each of these.
    let layers = ModelSpec { shard: Shard::WHOLE, ..part.clone() }.parameters();
    let pieces = tensors::located(weights.stored(layers.clone()), &layers);
    let (mut stretches, mut starts, mut count) = (Vec::new(), Vec::new(), 0);
    for (parameter, (pieces, own)) in pieces.iter().zip(part.parameters()).enumerate() {
        starts.push(count);
        let mut first = 0;
        for place in own.places(part.shard) {
            let values = place.len();
            weights.locate(pieces, place, (parameter, first), &mut stretches)?;
            first += values;
        }
        count += first;
    }
    read_flat(&weights.files, stretches, &starts, count)
}

/// Reads stretches into one vector of `count` values, in which the parameters begin at these places.
fn read_flat(files: &[PathBuf], stretches: Vec<Stretch>, starts: &[usize], count: usize) -> Result<Vec<f32>> {
    let mut flat = vec![0.0; count];
    read_values(files, stretches, |parameter, first, values| {
        let start = starts[parameter] + first;
        values.write_f32(&mut flat[start..start + values.len()]);
        Ok(())
    })?;
    Ok(flat)
}

/// Returns the names of the tensors of a model that are not in a folder of the model `own`, which has another head.
///
/// # Errors
/// As [`read`]; or some of another part than the head are missing.
pub(super) fn missing(folder: &Path, own: &ModelSpec, whole: &ModelSpec) -> Result<BTreeSet<String>> {
    let weights = Weights::open(folder, own)?;
    weights.check()?;
    let head = whole.part(std::iter::once(whole.head()..whole.head() + 1).collect()).parameters();
    let mut missing = BTreeSet::new();
    for parameter in whole.parameters() {
        match weights.find(&parameter) {
            // A pooler, which the model's own head does not use.
            Ok((name, tensor)) => tensor.check_shape(name, &parameter)?,
            Err(_) if head.iter().any(|of_head| of_head.name == parameter.name) => {
                missing.insert(parameter.name);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}

/// Returns the values of a `whole` model in the order of its flat vector, and the names of those that are missing in a folder of the model `own`, which has
/// another head: they are zero.
///
/// # Errors
/// As [`missing`].
pub(super) fn read_but_head(
    folder: &Path,
    own: &ModelSpec,
    whole: &ModelSpec,
) -> Result<(Vec<f32>, BTreeSet<String>)> {
    if own == whole {
        return Ok((read(folder, whole, whole)?, BTreeSet::new()));
    }
    let missing = missing(folder, own, whole)?;
    let (mut starts, mut count) = (BTreeMap::new(), 0);
    for parameter in whole.parameters() {
        let values = parameter.count() as usize;
        starts.insert(parameter.name, count);
        count += values;
    }
    let mut flat = vec![0.0; count];
    for_each(
        folder,
        (own, whole),
        |name| !missing.contains(name),
        |parameter, first, values| {
            let start = starts[&parameter.name] + first;
            values.write_f32(&mut flat[start..start + values.len()]);
            Ok(())
        },
    )?;
    Ok((flat, missing))
}

/// Calls `take` with all values of each wanted tensor of a whole model, in pieces: the tensor, the place of the first value in it, and values. They come in the
/// order of the files; those of a tensor that is one in its file in their order. The folder is of the model `own`, which may have another head.
///
/// # Errors
/// As [`read`], or that of `take`.
pub(super) fn for_each(
    folder: &Path,
    (own, whole): (&ModelSpec, &ModelSpec),
    wanted: impl Fn(&str) -> bool,
    mut take: impl FnMut(&ParameterSpec, usize, StoredValues<'_>) -> Result<()>,
) -> Result<()> {
    let weights = Weights::open(folder, own)?;
    weights.check()?;
    let parameters = whole.parameters();
    let pieces = tensors::located(weights.stored(parameters.clone()), &parameters);
    let mut stretches = Vec::new();
    for (parameter, (pieces, own)) in pieces.iter().zip(&parameters).enumerate() {
        if wanted(&own.name) {
            weights.locate(pieces, 0..own.count() as usize, (parameter, 0), &mut stretches)?;
        }
    }
    read_values(&weights.files, stretches, |parameter, first, values| {
        take(&parameters[parameter], first, values)
    })
}

/// Returns the pretrained model with the head for classes that PEFT saved beside adapters of another one.
///
/// # Errors
/// The file is damaged.
pub(super) fn with_head_of(folder: &Path, base: ModelSpec) -> Result<ModelSpec> {
    let Some(encoder) = base.encoder.as_ref().filter(|_| base.classes().is_none()) else { return Ok(base) };
    let [_, outer] = encoder.class_names();
    let stored = StoredFile::open(&folder.join(ADAPTER))?;
    let rows = stored.tensors.get(&format!("{PREFIX}{outer}.weight")).and_then(Stored::rows);
    let classes = rows.and_then(|rows| u32::try_from(rows).ok());
    Ok(classes.map_or(base.clone(), |classes| base.with_classes(classes)))
}

/// Returns the values of adapters that PEFT wrote, in the order of their flat vector.
///
/// # Errors
/// Names the tensor that is missing, of another shape or type, or not described.
pub(super) fn read_adapters(folder: &Path, spec: &ModelSpec, form: Form) -> Result<Vec<f32>> {
    let path = folder.join(ADAPTER);
    let file = StoredFile::open(&path)?;
    let parameters = tensors::adapters_in(spec, form);
    let (mut stretches, mut starts, mut count) = (Vec::new(), Vec::new(), 0);
    for (at, parameter) in parameters.iter().enumerate() {
        let name = parameter.name.as_str();
        let tensor = file.tensors.get(name).with_context(|| {
            format!("{} has no tensor {name}, which {ADAPTER_CONFIG} describes", path.display())
        })?;
        tensor.check_shape(name, parameter)?;
        let values = parameter.count() as usize;
        stretches.push(tensor.stretch(name, 0..values, (at, 0))?);
        starts.push(count);
        count += values;
    }
    let known: BTreeSet<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    if let Some(other) = file.tensors.keys().find(|name| !known.contains(name.as_str())) {
        bail!("{} has the tensor {other}, which {ADAPTER_CONFIG} does not describe", path.display());
    }
    let values = read_flat(std::slice::from_ref(&path), stretches, &starts, count)?;
    joined::from_file(spec, form, values).map_err(|reason| anyhow!("{}: {reason}", path.display()))
}

/// Checks names and shapes of all tensors, and reads no values.
///
/// # Errors
/// As [`read`].
pub(super) fn check(folder: &Path, spec: &ModelSpec) -> Result<StoredWeights> {
    let weights = Weights::open(folder, spec)?;
    let types = weights.check()?;
    let left_out = weights.tensors.keys().filter(|name| weights.is_left_out(name)).cloned().collect();
    Ok(StoredWeights { files: weights.files.len(), bytes: weights.bytes, types, left_out })
}

/// Returns the files of the weights, in the order of their names.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (single, index) = (folder.join(WEIGHTS), folder.join(INDEX));
    if !index.is_file() {
        if !single.is_file() && PICKLES.iter().any(|name| folder.join(name).is_file()) {
            bail!(
                "{} has weights as pickles only, which may run code: load it in Python where you trust it, and write it with `model.save_pretrained(OUT)`",
                folder.display()
            );
        }
        if let Some(name) = [ADAPTER, TRAINED].into_iter().find(|name| folder.join(name).is_file())
            && !single.is_file()
        {
            bail!(
                "{} has {name}, weights beside a pretrained model and no whole model: merge them (`coordinator checkpoints export OUT --dir {} --merge`)",
                folder.display(),
                folder.display()
            );
        }
        return Ok(vec![single]);
    }
    let bytes = std::fs::metadata(&index)?.len();
    ensure!(bytes <= INDEX_BYTES_MAX, "{} has {bytes} bytes, which is no index of weights", index.display());
    let text = std::fs::read_to_string(&index).with_context(|| format!("read {}", index.display()))?;
    let Index { weight_map } =
        serde_json::from_str(&text).with_context(|| format!("read {}", index.display()))?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    ensure!(names.len() <= FILES_MAX, "{} names more than {FILES_MAX} files", index.display());
    let path = |name: String| {
        ensure!(
            Path::new(&name).components().count() == 1 && !name.starts_with('.'),
            "{} names {name}, which is not a file beside it",
            index.display()
        );
        let path = folder.join(name);
        ensure!(path.is_file(), "{} is missing, and {} names it: fetch it", path.display(), index.display());
        Ok(path)
    };
    names.into_iter().map(path).collect()
}

/// The tensors of a folder, for a model.
struct Weights<'a> {
    folder: &'a Path,
    spec: &'a ModelSpec,
    files: Vec<PathBuf>,
    /// Bytes of all files.
    bytes: u64,
    tensors: BTreeMap<String, Stored>,
}

impl<'a> Weights<'a> {
    fn open(folder: &'a Path, spec: &'a ModelSpec) -> Result<Self> {
        let (files, mut bytes, mut tensors) = (files(folder)?, 0, BTreeMap::new());
        for (file, path) in files.iter().enumerate() {
            let stored = StoredFile::open(path)?;
            bytes += stored.bytes;
            for (name, mut tensor) in stored.tensors {
                tensor.file = file;
                ensure!(
                    tensors.insert(name.clone(), tensor).is_none(),
                    "{}: {name} is in another file as well: remove one of the two",
                    path.display()
                );
            }
        }
        Ok(Self { folder, spec, files, bytes, tensors })
    }

    /// Checks that the tensors are those of the model, in types that can be read, and returns the types.
    fn check(&self) -> Result<BTreeSet<String>> {
        let (mut read, mut types) = (BTreeSet::new(), BTreeSet::new());
        for parameter in self.stored(self.spec.parameters()) {
            let (name, tensor) = self.find(&parameter)?;
            tensor.check_shape(name, &parameter)?;
            tensor.format(name)?;
            types.insert(format!("{:?}", tensor.dtype));
            read.insert(name.to_owned());
        }
        self.check_rest(&read)?;
        Ok(types)
    }

    /// Returns the tensors of the files with these parameters. Matrices of experts may be there one by one, or as one.
    fn stored(&self, parameters: Vec<ParameterSpec>) -> Vec<ParameterSpec> {
        let are_stacked = self.tensors.keys().any(|name| experts::is_stacked(name));
        if are_stacked { parameters } else { tensors::stored(self.spec.kind, parameters) }
    }

    /// Appends the stretches of a place of a parameter with these pieces; its first value is to be at `first` of `parameter`.
    fn locate(
        &self,
        pieces: &[Located],
        place: Range<usize>,
        (parameter, first): (usize, usize),
        into: &mut Vec<Stretch>,
    ) -> Result<()> {
        for Located { stored, start, own } in pieces {
            let (from, end) = (place.start.max(own.start), place.end.min(own.end));
            if from < end {
                let (name, tensor) = self.find(stored)?;
                let values = start + from - own.start..start + end - own.start;
                into.push(tensor.stretch(name, values, (parameter, first + from - place.start))?);
            }
        }
        Ok(())
    }

    /// Returns a parameter's tensor, and its name in the file.
    fn find(&self, parameter: &ParameterSpec) -> Result<(&str, &Stored)> {
        let name = parameter.name.as_str();
        // Models saved without their head have no prefix.
        let base = self
            .spec
            .encoder
            .as_ref()
            .and_then(|encoder| name.strip_prefix(encoder.names.base)?.strip_prefix('.'));
        let bare = name.strip_prefix("model.").or_else(|| name.strip_prefix("transformer.")).or(base);
        let names = [name, bare.unwrap_or(name)];
        let found = names.into_iter().find_map(|name| self.tensors.get_key_value(name));
        let found =
            found.or_else(|| names.into_iter().find_map(|name| self.tensors.get_key_value(&old_name(name)?)));
        let (name, tensor) = found.with_context(|| {
            format!(
                "{} has no tensor {name}: its config.json is of another model, or a file of its weights is missing",
                self.folder.display()
            )
        })?;
        Ok((name, tensor))
    }

    /// Whether a tensor belongs to a part of an encoder that masked language modelling does not use.
    fn is_left_out(&self, name: &str) -> bool {
        let parts = ["pooler.", "cls.seq_relationship."];
        let has = |part: &str| name.starts_with(part) || name.contains(&format!(".{part}"));
        self.spec.encoder.is_some() && parts.into_iter().any(has)
    }

    /// Refuses tensors that the model does not have.
    fn check_rest(&self, read: &BTreeSet<String>) -> Result<()> {
        let is_buffer = |name: &str| BUFFERS.iter().any(|end| name.ends_with(end));
        // A tied output projection, which some writers store as well.
        let is_tied = |name: &str| self.spec.tied_embeddings && TIED.contains(&name);
        let left = self.tensors.keys().filter(|name| !read.contains(*name));
        let left: Vec<&str> = left
            .map(String::as_str)
            .filter(|name| !is_buffer(name) && !is_tied(name) && !self.is_left_out(name))
            .collect();
        ensure!(
            left.is_empty(),
            "{} has {} tensors that its config.json does not describe, such as {}",
            self.folder.display(),
            left.len(),
            left[..left.len().min(NAMED_MAX)].join(", ")
        );
        Ok(())
    }
}

/// Returns the name of an encoder's norm in files of the first versions.
fn old_name(name: &str) -> Option<String> {
    let old = |new: &str, old: &str| {
        Some(format!("{}LayerNorm.{old}", name.strip_suffix(&format!("LayerNorm.{new}"))?))
    };
    old("weight", "gamma").or_else(|| old("bias", "beta"))
}
