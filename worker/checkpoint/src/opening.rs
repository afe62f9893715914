//! Opening of a checkpoint without knowledge of its run: for drawing samples.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::{ADAPTER, Manifest};
use longhaul_proto::checkpoint::{parse_folder_name, parse_part_name, part_name};
use serde_json::Value;

use super::adapters::joined::Form;
use super::adapters::{ADAPTER_CONFIG, BASE};
use super::hf_folder::StoredWeights;
use super::listing::{read_shared, read_weights, verify_alone};
use super::pieces::Pieces;
use super::stored_description::{check_folder, config_of};
use super::{
    AVERAGE, CHAT_TEMPLATE, CheckpointError, Companions, MANIFEST, MODEL_CONFIG, TOKENIZER, adapters,
    hf_folder, merge, model_config,
};

/// A model with everything needed to use it.
#[derive(Debug)]
pub struct OpenedModel {
    /// Path.
    pub path: PathBuf,
    /// Description.
    pub spec: ModelSpec,
    /// In the order of [`ModelSpec::parameters`].
    pub parameters: Vec<f32>,
    /// File of its tokenizer; `None`: tokens are bytes.
    pub tokenizer: Option<PathBuf>,
    /// Files beside the weights.
    pub companions: Companions,
}

impl OpenedModel {
    /// Returns the whole model: trained weights in their places in the pretrained model, which is in `base`, or where training found it.
    ///
    /// # Errors
    /// The pretrained model is not there, or is another one; or `base` is given for a whole model.
    pub fn merged(mut self, base: Option<&Path>) -> Result<Self> {
        if let Some(merged) = merge::merge(&self.spec, &self.parameters, &self.companions, base)? {
            self.tokenizer =
                self.tokenizer.or(Some(merged.folder.join(TOKENIZER)).filter(|file| file.is_file()));
            (self.spec, self.parameters, self.companions) =
                (merged.spec, merged.parameters, merged.companions);
        }
        Ok(self)
    }
}

/// Opens a checkpoint, verified: the folder itself, or the newest in a folder of checkpoints or of runs. For a model in parts, all parts must be there, side
/// by side. Of adapters and other trained weights it has those alone. A folder that PEFT wrote needs its pretrained model, in `base` or where it says.
///
/// # Errors
/// None exists, or it is damaged: then the error names the newest intact one before it.
pub fn open_model(path: &Path, base: Option<&Path>) -> Result<OpenedModel> {
    open_weights(path, base, Weights::Trained)
}

/// The weights of a checkpoint to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// Those at the checkpoint.
    #[default]
    Trained,
    /// Their moving average (`train.ema_decay`).
    Averaged,
}

impl Weights {
    /// Returns the averaged ones if this is set.
    #[must_use]
    pub fn averaged_if(is_averaged: bool) -> Self {
        if is_averaged { Self::Averaged } else { Self::Trained }
    }
}

/// Opens a checkpoint with these weights, as [`open_model`].
///
/// # Errors
/// As there; or it has no moving average.
pub fn open_weights(path: &Path, base: Option<&Path>, weights: Weights) -> Result<OpenedModel> {
    check_folder(path)?;
    if hf_folder::has_weights(path) && !path.join(MANIFEST).is_file() {
        ensure!(weights == Weights::Trained, without_average(&path.display().to_string()));
        return open_hf(path);
    }
    if path.join(ADAPTER).is_file() && !path.join(MANIFEST).is_file() {
        ensure!(weights == Weights::Trained, without_average(&path.display().to_string()));
        return open_peft(path, base);
    }
    let folders = newest(path)?;
    let folder = &folders[0];
    let config = folder.join(MODEL_CONFIG);
    let damaged = |error: CheckpointError| error.with_instead(|| whole_before(folder));
    let manifests = folders.iter().map(|folder| verify_alone(folder, false));
    let manifests = manifests.collect::<Result<Vec<_>, _>>().map_err(damaged)?;
    let parts: Vec<_> = folders.iter().zip(manifests).collect();
    let json = config_of(folder)?;
    let spec = model_config::from_json(&json)
        .with_context(|| format!("{} does not describe a supported model", config.display()))?;
    let companions = Companions::read(folder)?;
    let spec = adapters::tuned_as(spec, &companions)?;
    let parameters = assemble(&spec, &parts, weights).map_err(|error| match error.downcast() {
        Ok(error) => damaged(error).into(),
        Err(error) => error,
    })?;
    let tokenizer = folder.join(TOKENIZER);
    let tokenizer = Some(tokenizer).filter(|file| file.is_file());
    Ok(OpenedModel { path: folder.clone(), spec, parameters, tokenizer, companions })
}

/// A folder of `save_pretrained`, without its values.
#[derive(Debug)]
pub struct InspectedModel {
    /// Description.
    pub spec: ModelSpec,
    /// Weights.
    pub weights: StoredWeights,
    /// File of its tokenizer, if there is one.
    pub tokenizer: Option<PathBuf>,
    /// File with its chat template, if there is one.
    pub chat_template: Option<PathBuf>,
}

/// Inspects a folder that `save_pretrained` wrote: its description, and names and shapes of its weights.
///
/// # Errors
/// Names the key of `config.json`, the file or the tensor that is missing or cannot be honoured.
pub fn inspect_model(folder: &Path) -> Result<InspectedModel> {
    ensure!(folder.is_dir(), "{} is not a folder", folder.display());
    let spec = described(folder)?;
    let weights = hf_folder::check(folder, &spec)?;
    let there = |name: &str| Some(folder.join(name)).filter(|file| file.is_file());
    let has_template = |file: &PathBuf| {
        let json = std::fs::read(file).ok().and_then(|json| serde_json::from_slice::<Value>(&json).ok());
        json.is_some_and(|json| json.get("chat_template").is_some_and(|template| !template.is_null()))
    };
    let chat_template = there(CHAT_TEMPLATE).or_else(|| there("tokenizer_config.json").filter(has_template));
    Ok(InspectedModel { spec, weights, tokenizer: there(TOKENIZER), chat_template })
}

/// Returns the folder of the pretrained model of trained weights, adapters mostly: the given one, or the one they were trained from. `None`: this is a whole
/// model.
///
/// # Errors
/// It is not on this machine, or has changed since.
pub fn base_of(folder: &Path, given: Option<&Path>) -> Result<Option<PathBuf>> {
    let is_beside = [ADAPTER_CONFIG, BASE].iter().any(|name| folder.join(name).is_file());
    if !is_beside || hf_folder::has_weights(folder) {
        ensure!(given.is_none(), "{} is a whole model: leave out --base", folder.display());
        return Ok(None);
    }
    adapters::find_base(&Companions::read(folder)?, given).map(Some)
}

/// Reads `config.json`.
pub(super) fn described(folder: &Path) -> Result<ModelSpec> {
    let config = folder.join(MODEL_CONFIG);
    let text = std::fs::read_to_string(&config).with_context(|| format!("read {}", config.display()))?;
    let json = serde_json::from_str(&text).with_context(|| format!("read {}", config.display()))?;
    let spec = model_config::from_json(&json);
    spec.with_context(|| format!("{} describes a model that is not supported", config.display()))
}

/// Opens a folder that `save_pretrained` wrote.
fn open_hf(folder: &Path) -> Result<OpenedModel> {
    let spec = described(folder)?;
    let parameters = hf_folder::read(folder, &spec, &spec)?;
    let tokenizer = Some(folder.join(TOKENIZER)).filter(|file| file.is_file());
    let companions = Companions::read(folder)?;
    Ok(OpenedModel { path: folder.to_owned(), spec, parameters, tokenizer, companions })
}

/// Opens adapters that PEFT wrote.
fn open_peft(folder: &Path, base: Option<&Path>) -> Result<OpenedModel> {
    let companions = Companions::read(folder)?;
    let config = companions.get(ADAPTER_CONFIG).with_context(|| {
        format!("{} has {ADAPTER} and no {ADAPTER_CONFIG}: copy that too", folder.display())
    })?;
    let form = Form::of(config);
    let base = described(&adapters::find_base(&companions, base)?)?;
    let spec = adapters::tuned_as(hf_folder::with_head_of(folder, base)?, &companions)?;
    let parameters = hf_folder::read_adapters(folder, &spec, form)?;
    let tokenizer = Some(folder.join(TOKENIZER)).filter(|file| file.is_file());
    Ok(OpenedModel { path: folder.to_owned(), spec, parameters, tokenizer, companions })
}

/// Assembles the parameters of the whole model, in its order, from its parts and the shares of its layers.
fn assemble(spec: &ModelSpec, parts: &[(&PathBuf, Manifest)], weights: Weights) -> Result<Vec<f32>> {
    let read = |(folder, manifest): &(&PathBuf, Manifest)| {
        let part = manifest.part_of(spec);
        let part = part.with_context(|| format!("{} fits no part of this model", folder.display()))?;
        let values = match weights {
            Weights::Trained => read_weights(folder, manifest, &part)?,
            Weights::Averaged => {
                let average = read_shared(folder, manifest)?.remove(AVERAGE);
                average.with_context(|| without_average(&folder.display().to_string()))?.to_vec()
            }
        };
        Ok((part, values))
    };
    let parts: Vec<(ModelSpec, Vec<f32>)> = parts.iter().map(read).collect::<Result<_>>()?;
    if let [(part, _)] = &*parts
        && part == spec
    {
        return Ok(parts.into_iter().flat_map(|(_, values)| values).collect());
    }
    let mut pieces = Pieces::default();
    parts.iter().try_for_each(|(part, values)| pieces.add(part, values))?;
    pieces.gather(spec)
}

/// The error of a checkpoint that has only trained weights.
pub(super) fn without_average(name: &str) -> String {
    format!("{name} has no moving average of the weights, as its run has no train.ema_decay: leave out --ema")
}

/// Returns the newest intact checkpoint of the same run that is older than the one in `folder`.
fn whole_before(folder: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(folder).ok()?;
    let round = parse_folder_name(folder.file_name()?.to_str()?)?;
    let round_of = |path: &PathBuf| parse_folder_name(path.file_name()?.to_str()?);
    let siblings = std::fs::read_dir(folder.parent()?).ok()?.flatten().map(|entry| entry.path());
    let mut older: Vec<_> =
        siblings.filter(|path| round_of(path).is_some_and(|other| other < round)).collect();
    older.sort_unstable_by_key(|path| std::cmp::Reverse(round_of(path)));
    let whole =
        |path: &PathBuf| verify_alone(path, true).is_ok_and(|m| adapters::weights_in(&m.files).is_some());
    older.into_iter().find(whole)
}

/// Returns the folder itself, or the last written complete one within, at most three levels down; for one part of a model, with the other parts' folders.
pub(super) fn newest(path: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(path, 3, &mut found).with_context(|| format!("look through {}", path.display()))?;
    found.sort_unstable_by(|one, other| other.cmp(one));
    let mut missing = None;
    for (_, folder) in found {
        match with_other_parts(folder) {
            Ok(folders) => return Ok(folders),
            Err(absent) => missing = missing.or(Some(absent)),
        }
    }
    match missing {
        Some(absent) => bail!(
            "a part of the model is missing: {} is on the machine of a worker that has it; copy its folder beside the others",
            absent.display()
        ),
        None => bail!(
            "{} holds no checkpoint: no folder in it, down to three levels, has a {MANIFEST}",
            path.display()
        ),
    }
}

/// Returns the checkpoints of the same round of all parts of a model, in order; or the first missing one.
fn with_other_parts(folder: PathBuf) -> std::result::Result<Vec<PathBuf>, PathBuf> {
    let absolute = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
    let within = absolute.parent().and_then(|part| Some((part.file_name()?.to_str()?, part.parent()?)));
    let parts = within.and_then(|(name, run)| Some((parse_part_name(name)?.1, run)));
    let (Some((count, run)), Some(round)) = (parts, absolute.file_name()) else { return Ok(vec![folder]) };
    let all = (0..count).map(|rank| run.join(part_name(rank, count)).join(round));
    all.map(|part| if part.join(MANIFEST).is_file() { Ok(part) } else { Err(part) }).collect()
}

fn collect(
    path: &Path,
    levels: u32,
    found: &mut Vec<(std::time::SystemTime, PathBuf)>,
) -> std::io::Result<()> {
    let manifest = path.join(MANIFEST);
    if manifest.is_file() {
        found.push((manifest.metadata()?.modified()?, path.to_owned()));
        return Ok(());
    }
    if levels == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if entry.file_type()?.is_dir() && !hidden {
            collect(&entry.path(), levels - 1, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longhaul_common::config::ParallelConfig;
    use longhaul_common::id::{Generation, Round, RunId, WorkerId};
    use longhaul_proto::checkpoint::folder::FileRecord;
    use longhaul_proto::checkpoint::sealed::to_text;
    use serde_json::{Value, json};

    use super::*;
    use crate::sealed;
    use crate::{CheckpointData, CheckpointStore, Companions, ModelState, PrivateState};
    use longhaul_common::model::SynchronisedLayout;
    use longhaul_common::model::draw_parameters;
    use longhaul_common::model::tiny::tiny_gpt2;

    fn spec() -> ModelSpec {
        ModelSpec { vocabulary: 256, ..tiny_gpt2() }
    }

    fn write(dir: &Path, round: u64) -> PathBuf {
        let parameters: Arc<[f32]> = draw_parameters(&spec(), round).into();
        let data = CheckpointData {
            next_round: Round(round),
            next_step: round,
            generation: Generation(1),
            state_hash: [1; 32],
            model: Some(ModelState {
                spec: spec(),
                parameters,
                companions: Companions::default(),
                shared: Default::default(),
            }),
            private: PrivateState::default(),
        };
        CheckpointStore::new(dir, RunId([7; 16]), WorkerId(1), 3).write(&data).unwrap()
    }

    #[test]
    fn a_checkpoint_is_opened_by_its_folder_its_runs_and_that_of_all_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), 4);
        let message = open_weights(&path, None, Weights::Averaged).unwrap_err().to_string();
        assert!(message.contains("no moving average") && message.contains("leave out --ema"), "{message}");
        for given in [path.as_path(), path.parent().unwrap(), dir.path()] {
            let model = open_model(given, None).unwrap();
            assert_eq!((&model.path, model.spec), (&path, spec()));
            assert_eq!(model.parameters, draw_parameters(&spec(), 4));
        }
    }

    /// Writes each of these parts like its worker, into its own folder.
    fn write_parts(dir: &Path, parts: Vec<ModelSpec>) -> Vec<PathBuf> {
        let count = parts.len() as u32;
        let mut folders = Vec::new();
        for (rank, share) in (0..).zip(parts) {
            let parameters = SynchronisedLayout::new(&share).synchronised(draw_parameters(&share, 4));
            let store = CheckpointStore::new(dir, RunId([7; 16]), WorkerId(1), 3).of_part(rank, count);
            let average: Arc<[f32]> = parameters.iter().map(|value| value * 0.5).collect();
            let model = ModelState {
                spec: share.clone(),
                parameters: parameters.as_slice().into(),
                companions: Companions::default(),
                shared: [(AVERAGE.to_owned(), average)].into(),
            };
            let data = CheckpointData {
                next_round: Round(4),
                next_step: 4,
                generation: Generation(1),
                state_hash: [1; 32],
                model: Some(model),
                private: PrivateState::default(),
            };
            folders.push(store.write(&data).unwrap());
            assert_eq!(store.load_model(Round(4), &share).unwrap().parameters, parameters);
        }
        folders
    }

    #[test]
    fn a_model_whose_parts_are_shared_is_put_together() {
        let dir = tempfile::tempdir().unwrap();
        let parallel = ParallelConfig { stages: 2, tensor: 2, ..ParallelConfig::default() };
        write_parts(dir.path(), spec().parts(&parallel, 16).unwrap());
        let opened = open_model(dir.path(), None).unwrap();
        assert_eq!((opened.spec, opened.parameters), (spec(), draw_parameters(&spec(), 4)));
        let averaged = open_weights(dir.path(), None, Weights::Averaged).unwrap().parameters;
        assert!(
            averaged.iter().zip(draw_parameters(&spec(), 4)).all(|(average, value)| *average == value * 0.5)
        );
    }

    /// As written by the members of a tensor group, each into its own folder.
    #[test]
    fn a_model_whose_layers_are_shared_is_put_together_and_each_share_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let folders = write_parts(dir.path(), spec().shards(2).unwrap());
        let opened = open_model(dir.path(), None).unwrap();
        assert_eq!((opened.spec, opened.parameters), (spec(), draw_parameters(&spec(), 4)));

        // Twice the same share is not all of the model.
        std::fs::remove_dir_all(&folders[1]).unwrap();
        let message = open_model(dir.path(), None).unwrap_err().to_string();
        assert!(message.contains("part-2-of-2") && message.contains("missing"), "{message}");
        std::fs::create_dir(&folders[1]).unwrap();
        for file in std::fs::read_dir(&folders[0]).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), folders[1].join(file.file_name())).unwrap();
        }
        let message = open_model(dir.path(), None).unwrap_err().to_string();
        assert!(message.contains("no part of the checkpoint has all of"), "{message}");
    }

    #[test]
    fn what_is_no_checkpoint_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let message = |path: &Path| open_model(path, None).unwrap_err().to_string();
        assert!(message(dir.path()).contains("holds no checkpoint"));
        assert!(message(&dir.path().join("nowhere")).starts_with("there is no folder"));
        let file = write(dir.path(), 1).join(MODEL_CONFIG);
        assert!(message(&file).ends_with("is not a folder; a checkpoint is one"));
    }

    /// Forges a checkpoint with a matching manifest.
    fn describe(folder: &Path, description: &Value) {
        let (file, record) = (folder.join(MODEL_CONFIG), folder.join(MANIFEST));
        std::fs::write(&file, description.to_string()).unwrap();
        let mut manifest: Manifest = sealed::read(&record).unwrap();
        manifest.files.insert(MODEL_CONFIG.to_owned(), FileRecord::of(&file).unwrap());
        std::fs::write(record, to_text(&manifest).unwrap()).unwrap();
    }

    #[test]
    fn a_classifier_of_images_is_named_as_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), 1);
        describe(&path, &model_config::to_json(&longhaul_common::model::tiny::tiny_cnn()));
        let message = open_model(&path, None).unwrap_err().to_string();
        assert!(message.contains("of a classifier of images, which cannot continue text"), "{message}");
    }

    #[test]
    fn a_description_of_another_model_is_refused_whatever_its_sizes() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), 1);
        let file = path.join(MODEL_CONFIG);
        let original: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for key in ["n_embd", "n_inner", "n_layer", "n_positions", "vocab_size"] {
            for value in [0, 1, 3, 1 << 12, 1 << 20, 1 << 24, u64::from(u32::MAX), 1 << 32, u64::MAX] {
                let mut description = original.clone();
                description[key] = json!(value);
                describe(&path, &description);
                assert!(open_model(&path, None).is_err(), "{key} = {value}");
            }
        }
        let mut largest = original.clone();
        for (key, value) in [("n_embd", 1 << 20), ("n_inner", 1 << 20), ("n_layer", 1 << 12)] {
            largest[key] = json!(value);
        }
        describe(&path, &largest);
        let message = open_model(&path, None).unwrap_err().to_string();
        assert!(message.contains("holds another model"), "{message}");
        describe(&path, &original);
        assert!(open_model(&path, None).is_ok());
    }
}
