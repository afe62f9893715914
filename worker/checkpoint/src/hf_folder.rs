//! The weights of a folder that `save_pretrained` wrote, in one file or several, in f32, f16 or bf16.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use longhaul_common::model::{ModelSpec, ParameterSpec, Shard};
use longhaul_proto::checkpoint::folder::{ADAPTER, TRAINED};
use longhaul_proto::little_endian::extend_f32;
use memmap2::Mmap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::adapters::ADAPTER_CONFIG;
use super::experts;
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
    let maps = Maps::open(folder)?;
    let weights = maps.weights(folder, whole)?;
    weights.check()?;
    let mut flat = Vec::with_capacity(usize::try_from(part.parameter_count())?);
    // A member of a tensor group has a share of each of these.
    let layers = ModelSpec { shard: Shard::WHOLE, ..part.clone() }.parameters();
    let pieces = tensors::located(weights.stored(layers.clone()), &layers);
    for (pieces, own) in pieces.iter().zip(part.parameters()) {
        for place in own.places(part.shard) {
            weights.append(pieces, place, &mut flat)?;
        }
    }
    Ok(flat)
}

/// Returns the names of the tensors of a model that are not in a folder of the model `own`, which has another head.
///
/// # Errors
/// As [`read`]; or some of another part than the head are missing.
pub(super) fn missing(folder: &Path, own: &ModelSpec, whole: &ModelSpec) -> Result<BTreeSet<String>> {
    let maps = Maps::open(folder)?;
    let weights = maps.weights(folder, own)?;
    weights.check()?;
    let head = whole.part(std::iter::once(whole.head()..whole.head() + 1).collect()).parameters();
    let mut missing = BTreeSet::new();
    for parameter in whole.parameters() {
        match weights.find(&parameter) {
            // A pooler, which the model's own head does not use.
            Ok((name, tensor)) => check_shape(name, tensor, &parameter)?,
            Err(_) if head.iter().any(|of_head| of_head.name == parameter.name) => {
                missing.insert(parameter.name);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}

/// Calls `take` with each wanted tensor of a whole model and its values. The folder is of the model `own`, which may have another head.
///
/// # Errors
/// As [`read`], or that of `take`.
pub(super) fn for_each(
    folder: &Path,
    (own, whole): (&ModelSpec, &ModelSpec),
    wanted: impl Fn(&str) -> bool,
    mut take: impl FnMut(&ParameterSpec, Vec<f32>) -> Result<()>,
) -> Result<()> {
    let maps = Maps::open(folder)?;
    let weights = maps.weights(folder, own)?;
    weights.check()?;
    let parameters = whole.parameters();
    let pieces = tensors::located(weights.stored(parameters.clone()), &parameters);
    for (pieces, parameter) in pieces.iter().zip(&parameters) {
        if wanted(&parameter.name) {
            let count = parameter.count() as usize;
            let mut values = Vec::with_capacity(count);
            weights.append(pieces, 0..count, &mut values)?;
            take(parameter, values)?;
        }
    }
    Ok(())
}

/// Returns the values of adapters that PEFT wrote, in the order of their flat vector.
///
/// # Errors
/// Names the tensor that is missing, of another shape or type, or not described.
pub(super) fn read_adapters(folder: &Path, spec: &ModelSpec) -> Result<Vec<f32>> {
    let path = folder.join(ADAPTER);
    let map = map(&path)?;
    let file = SafeTensors::deserialize(&map);
    let file = file.with_context(|| format!("{} is damaged or cut off: fetch it again", path.display()))?;
    let parameters = tensors::stored_in(spec);
    let mut flat = Vec::with_capacity(spec.parameter_count().min(map.len() as u64) as usize);
    for parameter in &parameters {
        let name = parameter.name.as_str();
        let tensor = file.tensor(name).ok().with_context(|| {
            format!("{} has no tensor {name}, which {ADAPTER_CONFIG} describes", path.display())
        })?;
        check_shape(name, &tensor, parameter)?;
        append(name, &tensor, 0..parameter.count() as usize, &mut flat)?;
    }
    let known: BTreeSet<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    if let Some(other) = file.names().into_iter().find(|name| !known.contains(name)) {
        bail!("{} has the tensor {other}, which {ADAPTER_CONFIG} does not describe", path.display());
    }
    Ok(flat)
}

/// Checks names and shapes of all tensors, and reads no values.
///
/// # Errors
/// As [`read`].
pub(super) fn check(folder: &Path, spec: &ModelSpec) -> Result<StoredWeights> {
    let maps = Maps::open(folder)?;
    let weights = maps.weights(folder, spec)?;
    let types = weights.check()?;
    let left_out = weights.tensors.keys().filter(|name| weights.is_left_out(name)).cloned().collect();
    let bytes = maps.0.iter().map(|(_, map)| map.len() as u64).sum();
    Ok(StoredWeights { files: maps.0.len(), bytes, types, left_out })
}

/// The files of the weights, mapped.
struct Maps(Vec<(PathBuf, Mmap)>);

impl Maps {
    fn open(folder: &Path) -> Result<Self> {
        let maps = files(folder)?.into_iter().map(|path| map(&path).map(|map| (path, map)));
        Ok(Self(maps.collect::<Result<_>>()?))
    }

    fn weights<'a>(&'a self, folder: &'a Path, spec: &'a ModelSpec) -> Result<Weights<'a>> {
        let mut tensors = BTreeMap::new();
        for (path, map) in &self.0 {
            let file = SafeTensors::deserialize(map);
            let file =
                file.with_context(|| format!("{} is damaged or cut off: fetch it again", path.display()))?;
            for (name, tensor) in file.tensors() {
                ensure!(
                    tensors.insert(name.clone(), tensor).is_none(),
                    "{}: {name} is in another file as well: remove one of the two",
                    path.display()
                );
            }
        }
        Ok(Weights { folder, spec, tensors })
    }
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

#[allow(unsafe_code, reason = "maps a file")]
pub(super) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    // SAFETY: as with all maps, a file that is cut while it is read ends the process; values may be any bytes.
    unsafe { Mmap::map(&file) }.with_context(|| format!("map {}", path.display()))
}

struct Weights<'a> {
    folder: &'a Path,
    spec: &'a ModelSpec,
    tensors: BTreeMap<String, TensorView<'a>>,
}

impl Weights<'_> {
    /// Checks that the tensors are those of the model, in types that can be read, and returns the types.
    fn check(&self) -> Result<BTreeSet<String>> {
        let (mut read, mut types) = (BTreeSet::new(), BTreeSet::new());
        for parameter in self.stored(self.spec.parameters()) {
            let (name, tensor) = self.find(&parameter)?;
            check_shape(name, tensor, &parameter)?;
            width_of(name, tensor.dtype())?;
            types.insert(format!("{:?}", tensor.dtype()));
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

    /// Appends a stretch of the values of a parameter with these pieces.
    fn append(&self, pieces: &[Located], place: Range<usize>, into: &mut Vec<f32>) -> Result<()> {
        for Located { stored, start, own } in pieces {
            let (first, end) = (place.start.max(own.start), place.end.min(own.end));
            if first < end {
                let (name, tensor) = self.find(stored)?;
                append(name, tensor, start + first - own.start..start + end - own.start, into)?;
            }
        }
        Ok(())
    }

    /// Returns a parameter's tensor, and its name in the file.
    fn find(&self, parameter: &ParameterSpec) -> Result<(&str, &TensorView<'_>)> {
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

fn check_shape(name: &str, tensor: &TensorView<'_>, parameter: &ParameterSpec) -> Result<()> {
    let shape: Vec<u64> = tensor.shape().iter().map(|&n| n as u64).collect();
    ensure!(
        shape == parameter.shape,
        "{name} has the shape {shape:?}, and its description means {:?}",
        parameter.shape
    );
    Ok(())
}

/// Returns the bytes of a value.
fn width_of(name: &str, dtype: Dtype) -> Result<usize> {
    match dtype {
        Dtype::F32 => Ok(4),
        Dtype::BF16 | Dtype::F16 => Ok(2),
        other => bail!(
            "{name} has values of {other:?}; f32, bf16 and f16 are read: convert the model (`model.to(torch.bfloat16).save_pretrained(OUT)`)"
        ),
    }
}

/// Appends a stretch of a tensor's values.
fn append(name: &str, tensor: &TensorView<'_>, values: Range<usize>, into: &mut Vec<f32>) -> Result<()> {
    let (dtype, width) = (tensor.dtype(), width_of(name, tensor.dtype())?);
    let data = tensor.data().get(values.start * width..values.end * width);
    let data = data.with_context(|| format!("{name} has too few values"))?;
    match dtype {
        Dtype::BF16 => {
            into.extend(data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()))
        }
        Dtype::F16 => into.extend(data.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32())),
        _ => extend_f32(into, data),
    }
    Ok(())
}
