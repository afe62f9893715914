//! A pretrained model in a folder, from which a run starts: its files, its identity, and the values of any part.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::checks::BaseDescription;
use longhaul_common::config::{ConfigError, RunConfig};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_proto::stored_values::StoredValues;
use serde::{Deserialize, Serialize};

use super::companions::{COMPANION_BYTES_MAX, Companion, TOKENIZER};
use super::reading::{Chunk, read_chunks};
use super::{Companions, MODEL_CONFIG, classes, hf_folder, model_config};

/// Most files of a model.
const FILES_MAX: usize = 10_000;
/// Longest name of a file.
const NAME_BYTES_MAX: usize = 255;
/// The header of a file of weights may have this many bytes for each tensor, and as many for itself.
const TENSOR_LINE_BYTES_MAX: u64 = 1 << 12;

/// A file of a model. Peers name files by their place in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFile {
    /// Name, without a folder.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// BLAKE3 of its content.
    pub hash: [u8; 32],
}

/// The files of a model, sorted by name. Equal models have equal lists, wherever their folders are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFiles(Vec<ModelFile>);

impl ModelFiles {
    /// Returns the files.
    pub fn iter(&self) -> std::slice::Iter<'_, ModelFile> {
        self.0.iter()
    }

    /// Returns a file by its place.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&ModelFile> {
        self.0.get(index)
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|file| file.bytes).sum()
    }

    /// Encodes the list, for sending and hashing.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(self).context("write the list of a model's files")
    }

    /// Returns the identity of the folder: the BLAKE3 of its list.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn hash(&self) -> Result<[u8; 32]> {
        Ok(*blake3::hash(&self.to_bytes()?).as_bytes())
    }

    /// Returns the identity of the weights and their `config.json`, in hexadecimal: the BLAKE3 of their part of the list. Another licence, tokenizer or chat
    /// template changes nothing.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn weights_hash(&self) -> Result<String> {
        let is_part = |file: &&ModelFile| is_of_weights(&file.name) || file.name == MODEL_CONFIG;
        let part = Self(self.0.iter().filter(is_part).cloned().collect());
        Ok(blake3::Hash::from_bytes(part.hash()?).to_hex().to_string())
    }

    /// Decodes a peer's list for a model of this size.
    ///
    /// # Errors
    /// It is no list, or has a file that no model of this size has.
    pub fn from_bytes(bytes: &[u8], model: &ModelSpec) -> Result<Self> {
        let (list, rest): (Self, _) =
            postcard::take_from_bytes(bytes).context("read the list of a model's files")?;
        ensure!(rest.is_empty(), "extra bytes follow the list of a model's files");
        ensure!(list.0.len() <= FILES_MAX, "a model of more than {FILES_MAX} files");
        ensure!(list.0.is_sorted_by(|one, next| one.name < next.name), "a list of files that is not sorted");
        // A run that trains a part of it fetches all of it.
        let whole = model.untuned().whole();
        let lines = (whole.parameters().len() as u64 + 1).saturating_mul(TENSOR_LINE_BYTES_MAX);
        let others = whole.encoder.as_ref().map_or(0, |encoder| encoder.other_heads(&whole));
        let values = whole.parameter_count().saturating_add(others);
        let most = values.saturating_mul(size_of::<f32>() as u64).saturating_add(lines);
        let mut weights = 0_u64;
        for ModelFile { name, bytes, .. } in &list.0 {
            ensure!(name.len() <= NAME_BYTES_MAX, "a file with a name of {} bytes", name.len());
            if is_of_weights(name) {
                weights = weights.saturating_add(*bytes);
            } else {
                ensure!(is_companion(name), "{name:?} is no file of a model");
                ensure!(*bytes <= COMPANION_BYTES_MAX, "{name} has {bytes} bytes");
            }
        }
        ensure!(weights <= most, "weights of {weights} bytes, where the run's model has {most} at most");
        Ok(list)
    }
}

/// Whether a name is one that `save_pretrained` gives to weights.
fn is_of_weights(name: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    !name.starts_with('.')
        && name.chars().all(is_plain)
        && (name.ends_with(".safetensors") || name == hf_folder::INDEX)
}

fn is_companion(name: &str) -> bool {
    name == MODEL_CONFIG || Companion::all_of_model().any(|companion| companion.name() == name)
}

/// Parses a user's `run.toml`; the description of a pretrained model comes from its folder on this machine.
///
/// # Errors
/// [`ConfigError`] names the key and the remedy.
pub fn read_run(text: &str) -> Result<RunConfig, ConfigError> {
    RunConfig::parse_with_base(text, |folder| {
        describe_model(Path::new(folder)).map_err(|error| format!("{error:#}"))
    })
}

/// Reads the `config.json` of a folder, and nothing else.
///
/// # Errors
/// Names the key that is missing or cannot be honoured.
pub fn describe_model(folder: &Path) -> Result<BaseDescription> {
    ensure!(
        folder.is_dir(),
        "there is no folder {} on this machine: copy its config.json into one of that name, or give the path of a copy",
        folder.display()
    );
    let path = folder.join(MODEL_CONFIG);
    ensure!(
        path.is_file(),
        "{} has no config.json: give a folder that `model.save_pretrained(FOLDER)` wrote, or that of one checkpoint",
        folder.display()
    );
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let json = serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?;
    let read = model_config::read(&json)
        .and_then(|model| {
            let labels = classes::names_of(&json, &model)?;
            Ok((model, model_config::dropout_of(&json)?, labels))
        })
        .with_context(|| format!("{} describes a model that is not supported", path.display()));
    let (model, dropout, labels) = read?;
    Ok(BaseDescription { model, has_tokenizer: folder.join(TOKENIZER).is_file(), dropout, labels })
}

/// A pretrained model on this machine.
#[derive(Clone, Debug)]
pub struct BaseModel {
    folder: PathBuf,
    files: ModelFiles,
    /// Files of weights, and when they were written: before they were hashed.
    weights: Vec<(PathBuf, SystemTime)>,
    /// As its own `config.json` describes it.
    spec: ModelSpec,
}

impl BaseModel {
    /// Opens a folder as `save_pretrained` writes it, or a checkpoint of a whole model: reads and hashes its files. `told` is called with the bytes
    /// read so far, and those of all.
    ///
    /// # Errors
    /// Names the file, the tensor or the key of `config.json` that is missing or cannot be honoured.
    pub fn open(folder: &Path, told: impl Fn(u64, u64)) -> Result<Self> {
        let described = describe_model(folder)?;
        let spec = ModelSpec::resolve(&described.model, 0)?;
        hf_folder::check(folder, &spec)?;
        let weights = hf_folder::files(folder)?.into_iter().map(|path| Ok((path.clone(), written(&path)?)));
        let weights = weights.collect::<Result<_>>()?;
        let paths = paths_of(folder)?;
        let sizes = paths.iter().map(|path| size_of_file(path));
        let all: u64 = sizes.sum::<Result<u64>>()?;
        let (mut files, mut done) = (Vec::with_capacity(paths.len()), 0);
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.with_context(|| format!("{} has no name in UTF-8", path.display()))?.to_owned();
            let bytes = size_of_file(&path)?;
            let hash = hash_of(&path, bytes, |read| told(done + read, all))?;
            done += bytes;
            files.push(ModelFile { name, bytes, hash });
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { folder: folder.to_owned(), files: ModelFiles(files), weights, spec })
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the files.
    #[must_use]
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// Returns the `tokenizer.json`, if the model has one.
    #[must_use]
    pub fn tokenizer(&self) -> Option<PathBuf> {
        self.files.iter().any(|file| file.name == TOKENIZER).then(|| self.folder.join(TOKENIZER))
    }

    /// Checks that this is the run's model, but for a new head for classes.
    ///
    /// # Errors
    /// Its `config.json` describes another one.
    pub fn check(&self, whole: &ModelSpec) -> Result<()> {
        let spec = &self.spec;
        if spec.with_classes_of(whole) != whole.untuned() {
            bail!(
                "{} describes another model than the run's [model]: {spec:?}, where the run has {whole:?}",
                self.folder.join(MODEL_CONFIG).display()
            );
        }
        Ok(())
    }

    /// Returns the values of a part of the `whole` model, in the order of [`ModelSpec::parameters`].
    ///
    /// # Errors
    /// The weights are not of this model, or have changed.
    pub fn parameters(&self, whole: &ModelSpec, part: &ModelSpec) -> Result<Vec<f32>> {
        let values = hf_folder::read(&self.folder, whole, part)?;
        self.check_unchanged()?;
        Ok(values)
    }

    /// Checks that the values are those that were hashed.
    fn check_unchanged(&self) -> Result<()> {
        for (path, before) in &self.weights {
            ensure!(
                written(path)? == *before,
                "{} has changed since its hash was taken: start again, with a folder that nothing writes to",
                path.display()
            );
        }
        Ok(())
    }

    /// Returns the names of the tensors of the `whole` model that the files lack: those of a new head.
    ///
    /// # Errors
    /// The weights are not of this model, or have changed.
    pub fn missing(&self, whole: &ModelSpec) -> Result<BTreeSet<String>> {
        match self.spec == whole.untuned() {
            true => Ok(BTreeSet::new()),
            false => hf_folder::missing(&self.folder, &self.spec, &whole.untuned()),
        }
    }

    /// Calls `take` with all values of each wanted tensor of the `whole` model, by name, in pieces: the tensor, the place of the first value in it, and values.
    /// Those of a matrix come in their order, those of all experts of a layer may not.
    ///
    /// # Errors
    /// The weights are not of this model, or have changed; or the error of `take`.
    pub fn for_each(
        &self,
        whole: &ModelSpec,
        wanted: impl Fn(&str) -> bool,
        take: impl FnMut(&ParameterSpec, usize, StoredValues<'_>) -> Result<()>,
    ) -> Result<()> {
        hf_folder::for_each(&self.folder, (&self.spec, &whole.untuned()), wanted, take)?;
        self.check_unchanged()
    }

    /// Returns the content of the files that a checkpoint carries on, with the original `config.json`.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn companions(&self) -> Result<Companions> {
        let names = self.files.iter().map(|file| &file.name).filter(|name| is_companion(name));
        let read = |name: &String| {
            let path = self.folder.join(name);
            let content = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            Ok((name.clone(), content.into()))
        };
        names.map(read).collect()
    }

    /// Returns the names of entries in the folder that are no part of the model, sorted.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn passed_over(&self) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.folder)
            .with_context(|| format!("read folder {}", self.folder.display()))?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut others: Vec<String> =
            names.filter(|name| !self.files.iter().any(|file| file.name == *name)).collect();
        others.sort();
        Ok(others)
    }
}

/// Returns the files of a model.
fn paths_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let further = folder.join("additional_chat_templates");
    ensure!(
        !further.is_dir(),
        "{} is not carried with a model: write its templates into tokenizer_config.json (`tokenizer.save_pretrained(FOLDER, save_jinja_files=False)`), or remove it",
        further.display()
    );
    let mut paths = hf_folder::files(folder)?;
    let index = folder.join(hf_folder::INDEX);
    let beside = Companion::all_of_model().map(|file| folder.join(file.name())).filter(|path| path.is_file());
    for path in beside {
        let bytes = size_of_file(&path)?;
        ensure!(
            bytes <= COMPANION_BYTES_MAX,
            "{} has {bytes} bytes, which is none of a model: remove it",
            path.display()
        );
        paths.push(path);
    }
    paths.push(folder.join(MODEL_CONFIG));
    paths.extend(index.is_file().then_some(index));
    Ok(paths)
}

/// Returns when a file was last written.
fn written(path: &Path) -> Result<SystemTime> {
    let time = std::fs::metadata(path).and_then(|file| file.modified());
    time.with_context(|| format!("read {}", path.display()))
}

fn size_of_file(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).with_context(|| format!("read {}", path.display()))?.len())
}

/// Returns a file's hash.
fn hash_of(path: &PathBuf, bytes: u64, told: impl Fn(u64)) -> Result<[u8; 32]> {
    let chunks: Vec<Chunk> = Chunk::all_of(0, bytes).collect();
    let mut hasher = blake3::Hasher::new();
    read_chunks(std::slice::from_ref(path), &chunks, |_, content| {
        hasher.update(content);
        told(hasher.count());
        Ok(())
    })?;
    Ok(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests;
