//! A checkpoint as a folder for other programs: one type of values, shards of bounded size, and the files beside the weights.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use longhaul_common::config::ArchiveLocation;
use longhaul_common::id::{Round, RunId};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_proto::checkpoint::archive::{Archive, Archived};
use longhaul_proto::checkpoint::folder::{self, ADAPTER};
use longhaul_proto::little_endian::of_f32;
use safetensors::{Dtype, View};
use serde_json::{Value, json};

use super::adapters::{ADAPTER_CONFIG, joined, weights_file};
use super::archive::whole_of;
use super::merge::merge;
use super::store::remove;
use super::{Companions, MODEL_CONFIG, Weights, hf_folder, model_config, open_weights, tensors};

/// The type of the values that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportType {
    /// As trained.
    #[default]
    F32,
    /// Rounded to bfloat16.
    Bf16,
    /// Rounded to IEEE 754 binary16; larger values are infinite.
    F16,
}

impl ExportType {
    /// Returns its name in `config.json`.
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// Returns the bytes of a value.
    fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}

/// A whole model and the files beside it.
#[derive(Debug)]
pub struct WholeModel {
    /// Origin, for display.
    pub path: String,
    /// Description.
    pub spec: ModelSpec,
    /// In the order of [`ModelSpec::parameters`]: those of adapters alone, where they are trained.
    pub parameters: Vec<f32>,
    /// Files beside the weights.
    pub companions: Companions,
}

impl WholeModel {
    /// Merges adapters and other trained weights into their pretrained model: as [`OpenedModel::merged`](super::OpenedModel::merged).
    ///
    /// # Errors
    /// The pretrained model is not there, or is another one; or `base` is given for a whole model.
    pub fn merged(mut self, base: Option<&Path>) -> Result<Self> {
        if let Some(merged) = merge(&self.spec, &self.parameters, &self.companions, base)? {
            (self.spec, self.parameters, self.companions) =
                (merged.spec, merged.parameters, merged.companions);
        }
        Ok(self)
    }

    /// Whether these are adapters alone.
    #[must_use]
    pub fn is_adapters(&self) -> bool {
        weights_file(&self.spec) == ADAPTER
    }
}

/// The wanted checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedCheckpoint {
    /// Run; `None`: any.
    pub run: Option<RunId>,
    /// Round that follows; `None`: the newest.
    pub round: Option<Round>,
    /// Weights.
    pub weights: Weights,
}

/// Opens a checkpoint, verified: in a folder of a worker, in an archive, or a folder of `save_pretrained`.
///
/// # Errors
/// None is there, or it is damaged or incomplete.
pub async fn open_whole(
    location: &ArchiveLocation,
    endpoint: Option<&str>,
    wanted: WantedCheckpoint,
    base: Option<&Path>,
) -> Result<WholeModel> {
    if let ArchiveLocation::Folder(dir) = location {
        ensure!(dir.is_dir(), "there is no folder {}", dir.display());
        let found = folder::find(dir).with_context(|| format!("look through {}", dir.display()))?;
        let is_wanted = |found: &folder::Found| {
            wanted.run.is_none_or(|run| run == found.run)
                && wanted.round.is_none_or(|round| round == found.next_round)
        };
        let newest = found.iter().filter(|found| is_wanted(found)).max_by_key(|found| found.next_round);
        if let Some(newest) = newest {
            return of_folder(&newest.path, base, wanted.weights);
        }
        let is_any = wanted.run.is_none() && wanted.round.is_none();
        if found.is_empty()
            && is_any
            && [MODEL_CONFIG, ADAPTER_CONFIG].iter().any(|name| dir.join(name).is_file())
        {
            return of_folder(dir, base, wanted.weights);
        }
    }
    let archive = Archive::open(location, endpoint)?;
    let all = archive.list(wanted.run).await?;
    let rounds = all.iter().filter(|of| wanted.round.is_none_or(|round| round == of.next_round));
    let newest = rounds.max_by_key(|of| of.next_round).context("no such checkpoint is there")?;
    let is_of_it = |of: &&Archived| {
        (of.next_round, of.part.run, of.part.parts) == (newest.next_round, newest.part.run, newest.part.parts)
    };
    let parts: Vec<Archived> = all.iter().filter(is_of_it).copied().collect();
    whole_of(&archive, &parts, wanted.weights).await
}

fn of_folder(path: &Path, base: Option<&Path>, weights: Weights) -> Result<WholeModel> {
    let opened = open_weights(path, base, weights)?;
    Ok(WholeModel {
        path: opened.path.display().to_string(),
        spec: opened.spec,
        parameters: opened.parameters,
        companions: opened.companions,
    })
}

/// A written folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Files of weights.
    pub shards: usize,
    /// Bytes of values.
    pub bytes: u64,
}

/// Writes a folder that `from_pretrained` loads. It appears once it is complete. `told` is called with the bytes of values written so far, and those of all.
///
/// # Errors
/// transformers has no such model; the folder exists and is not empty; or the disk refuses a file.
pub fn export(
    model: &WholeModel,
    into: &Path,
    dtype: ExportType,
    shard_bytes_max: u64,
    told: impl Fn(u64, u64),
) -> Result<Exported> {
    model_config::check_is_of_transformers(&model.spec)?;
    let is_empty = std::fs::read_dir(into).map_or(true, |mut entries| entries.next().is_none());
    ensure!(is_empty, "{} is there and not empty: remove it, or name another folder", into.display());
    let partial = partial_of(into);
    remove(&partial)?;
    let written = write_all(model, &partial, dtype, shard_bytes_max, told).and_then(|written| {
        // An empty folder gives way to a rename.
        std::fs::rename(&partial, into).with_context(|| format!("rename to {}", into.display()))?;
        Ok(written)
    });
    if written.is_err() {
        // A failure of this as well adds nothing to the error.
        let _ = remove(&partial);
    }
    written
}

/// Returns the folder in which an export is written until it is complete.
#[must_use]
pub fn partial_of(into: &Path) -> PathBuf {
    let name = into.file_name().unwrap_or_default().to_string_lossy();
    into.with_file_name(format!(".{name}.partial"))
}

fn write_all(
    model: &WholeModel,
    folder: &Path,
    dtype: ExportType,
    shard_bytes_max: u64,
    told: impl Fn(u64, u64),
) -> Result<Exported> {
    std::fs::create_dir_all(folder).with_context(|| format!("create folder {}", folder.display()))?;
    let values = joined::to_file(&model.spec, &model.parameters);
    let tensors = tensors_of(&model.spec, &values, dtype);
    let all: u64 = tensors.iter().map(|(_, tensor)| tensor.data_len() as u64).sum();
    // PEFT reads one file.
    let shards = if model.is_adapters() { vec![tensors] } else { in_shards(tensors, shard_bytes_max) };
    let (count, mut done, mut map) = (shards.len(), 0, BTreeMap::new());
    for (number, shard) in (1..).zip(shards) {
        let name = match count {
            1 => weights_file(&model.spec).to_owned(),
            _ => format!("model-{number:05}-of-{count:05}.safetensors"),
        };
        map.extend(shard.iter().map(|(tensor, _)| (tensor.clone(), name.clone())));
        done += shard.iter().map(|(_, tensor)| tensor.data_len() as u64).sum::<u64>();
        tensors::write(&folder.join(name), shard)?;
        told(done, all);
    }
    if count > 1 {
        let index = json!({"metadata": {"total_size": all}, "weight_map": map});
        write(&folder.join(hf_folder::INDEX), format!("{index:#}\n").as_bytes())?;
    }
    for (name, content) in model.companions.iter().filter(|(name, _)| *name != MODEL_CONFIG) {
        write(&folder.join(name), content)?;
    }
    // PEFT's files have no names of classes.
    if model.is_adapters() && model.spec.classes().is_none() {
        return Ok(Exported { shards: count, bytes: all });
    }
    let mut config = model_config::carried(&model.spec, &model.companions);
    let key = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    config[key] = Value::from(dtype.name());
    write(&folder.join(MODEL_CONFIG), format!("{config:#}\n").as_bytes())?;
    Ok(Exported { shards: count, bytes: all })
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// A tensor whose values are converted when they are written.
struct Converted<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
    dtype: ExportType,
}

impl View for Converted<'_> {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            ExportType::F32 => Dtype::F32,
            ExportType::Bf16 => Dtype::BF16,
            ExportType::F16 => Dtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.dtype {
            ExportType::F32 => of_f32(self.values).into(),
            ExportType::Bf16 => self
                .values
                .iter()
                .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
                .collect::<Vec<u8>>()
                .into(),
            ExportType::F16 => {
                let mut halves = vec![f16::ZERO; self.values.len()];
                halves.convert_from_f32_slice(self.values);
                halves.into_iter().flat_map(f16::to_le_bytes).collect::<Vec<u8>>().into()
            }
        }
    }

    fn data_len(&self) -> usize {
        self.values.len() * self.dtype.bytes()
    }
}

fn tensors_of<'a>(spec: &ModelSpec, values: &'a [f32], dtype: ExportType) -> Vec<(String, Converted<'a>)> {
    let mut rest = values;
    let tensor = |ParameterSpec { name, shape, .. }: ParameterSpec| {
        let count = shape.iter().product::<u64>() as usize;
        let (values, after) = rest.split_at(count.min(rest.len()));
        rest = after;
        (name, Converted { shape: shape.iter().map(|&size| size as usize).collect(), values, dtype })
    };
    tensors::stored_in(spec).into_iter().map(tensor).collect()
}

/// Fills files in order, each up to the limit; a larger tensor has a file of its own.
fn in_shards<T: View>(tensors: Vec<(String, T)>, bytes_max: u64) -> Vec<Vec<(String, T)>> {
    let (mut shards, mut bytes) = (vec![Vec::new()], 0);
    for (name, tensor) in tensors {
        let own = tensor.data_len() as u64;
        if bytes > 0 && bytes + own > bytes_max {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += own;
        if let Some(shard) = shards.last_mut() {
            shard.push((name, tensor));
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BaseModel, ModelFiles};
    use longhaul_common::model::draw_parameters;
    use longhaul_common::model::tiny::{tiny_bottleneck, tiny_decoders, tiny_gpt2, tiny_subspace};

    fn model(spec: ModelSpec) -> WholeModel {
        let config = model_config::to_json(&spec);
        let mut original = config.clone();
        original["bos_token_id"] = json!(1);
        let files = [(MODEL_CONFIG, original.to_string()), ("tokenizer.json", "{}".to_owned())];
        let companions = files.map(|(name, text)| (name.to_owned(), text.into_bytes().into()));
        let parameters = draw_parameters(&spec, 3);
        WholeModel { path: String::new(), spec, parameters, companions: companions.into_iter().collect() }
    }

    #[test]
    fn a_model_that_transformers_does_not_have_is_refused() {
        for (spec, key) in [(tiny_subspace(true), "model.subspace"), (tiny_bottleneck(), "model.bottleneck")]
        {
            let folder = tempfile::tempdir().unwrap();
            let error = export(&model(spec), folder.path(), ExportType::F32, 4096, |_, _| {}).unwrap_err();
            assert!(error.to_string().contains(&format!("no GPT-2 with {key}, so this model")), "{error}");
            assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
        }
    }

    #[test]
    fn a_folder_of_any_type_and_number_of_shards_leads_back_to_the_model() {
        for spec in tiny_decoders().into_iter().chain([tiny_gpt2()]) {
            let whole = model(spec.clone());
            for (dtype, error) in
                [(ExportType::F32, 0.0), (ExportType::Bf16, 1.0 / 256.0), (ExportType::F16, 1.0 / 1024.0)]
            {
                for shard_bytes_max in [5 << 30, 4096] {
                    let folder = tempfile::tempdir().unwrap();
                    let written = export(&whole, folder.path(), dtype, shard_bytes_max, |_, _| {}).unwrap();
                    assert_eq!(written.bytes, whole.parameters.len() as u64 * dtype.bytes() as u64);
                    assert_eq!(written.shards > 1, shard_bytes_max == 4096, "{written:?}");
                    let base = BaseModel::open(folder.path(), |_, _| {}).unwrap();
                    let read = base.parameters(&spec, &spec).unwrap();
                    let near =
                        |(own, read): (&f32, &f32)| (own - read).abs() <= error * own.abs() + error * 1e-4;
                    assert!(whole.parameters.iter().zip(&read).all(near), "{dtype:?}");
                    let config = std::fs::read(folder.path().join(MODEL_CONFIG)).unwrap();
                    let config: Value = serde_json::from_slice(&config).unwrap();
                    assert_eq!(
                        (&config["torch_dtype"], &config["bos_token_id"]),
                        (&json!(dtype.name()), &json!(1))
                    );
                    let files: &ModelFiles = base.files();
                    assert!(files.iter().any(|file| file.name == "tokenizer.json"));
                }
            }
        }
    }

    #[test]
    fn a_folder_that_has_something_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("note"), "mine").unwrap();
        let error =
            export(&model(tiny_gpt2()), folder.path(), ExportType::F32, 1 << 30, |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("is there and not empty"), "{error}");
        assert!(!partial_of(folder.path()).exists());
    }
}
