//! A checkpoint as somebody finds it who knows no run: for drawing samples.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::config::DataConfig;
use longhaul_common::model::ModelSpec;

use super::listing::{read_weights, verify_alone};
use super::store::parse_folder_name;
use super::{CheckpointError, MANIFEST, MODEL, MODEL_CONFIG, TOKENIZER, model_config};
use crate::data::Tokenizer;

/// A model with all that is needed to use it.
#[derive(Debug)]
pub struct OpenedModel {
    /// Where it was found.
    pub path: PathBuf,
    /// What it is.
    pub spec: ModelSpec,
    /// In the order of [`ModelSpec::parameters`].
    pub parameters: Vec<f32>,
    /// What turns text into its tokens.
    pub tokenizer: Tokenizer,
}

/// Opens a checkpoint, verified: the folder itself, or the newest in a folder of checkpoints or of runs.
///
/// # Errors
/// There is none, or it is damaged: then the error names the newest whole one before it.
pub fn open_model(path: &Path) -> Result<OpenedModel> {
    ensure!(path.exists(), "there is no folder {}", path.display());
    ensure!(path.is_dir(), "{} is not a folder; a checkpoint is one", path.display());
    let folder = newest(path)?;
    let damaged = |error: CheckpointError| error.with_instead(|| whole_before(&folder));
    let manifest = verify_alone(&folder, false).map_err(damaged)?;
    let config = folder.join(MODEL_CONFIG);
    let text = std::fs::read_to_string(&config).with_context(|| format!("read {}", config.display()))?;
    let spec = serde_json::from_str(&text).ok().and_then(|json| model_config::from_json(&json));
    let spec = spec.with_context(|| format!("{} does not describe a model known here", config.display()))?;
    let parameters = read_weights(&folder, &manifest, &spec).map_err(damaged)?;
    let tokenizer = folder.join(TOKENIZER);
    let tokenizer = match tokenizer.to_str().filter(|_| tokenizer.is_file()) {
        Some(file) => Tokenizer::load(file)?,
        None => Tokenizer::load(DataConfig::BYTES)?,
    };
    ensure!(
        tokenizer.vocabulary() <= spec.vocabulary,
        "the model knows {} tokens, its tokenizer {}: {TOKENIZER} is missing from {}",
        spec.vocabulary,
        tokenizer.vocabulary(),
        folder.display()
    );
    Ok(OpenedModel { path: folder, spec, parameters, tokenizer })
}

/// The newest whole checkpoint of the same run that is older than the one in `folder`.
fn whole_before(folder: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(folder).ok()?;
    let round = parse_folder_name(folder.file_name()?.to_str()?)?;
    let round_of = |path: &PathBuf| parse_folder_name(path.file_name()?.to_str()?);
    let siblings = std::fs::read_dir(folder.parent()?).ok()?.flatten().map(|entry| entry.path());
    let mut older: Vec<_> =
        siblings.filter(|path| round_of(path).is_some_and(|other| other < round)).collect();
    older.sort_unstable_by_key(|path| std::cmp::Reverse(round_of(path)));
    let whole = |path: &PathBuf| verify_alone(path, true).is_ok_and(|m| m.files.contains_key(MODEL));
    older.into_iter().find(whole)
}

/// The folder itself, or the one within, at most two levels down, that was written last.
fn newest(path: &Path) -> Result<PathBuf> {
    let mut found = Vec::new();
    collect(path, 2, &mut found).with_context(|| format!("look through {}", path.display()))?;
    match found.into_iter().max() {
        Some((_, folder)) => Ok(folder),
        None => bail!(
            "{} holds no checkpoint: no folder in it, down to two levels, has a {MANIFEST}",
            path.display()
        ),
    }
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

    use longhaul_common::id::{Round, RunId, WorkerId};
    use serde_json::{Value, json};

    use super::*;
    use crate::checkpoint::listing::{FileRecord, Manifest};
    use crate::checkpoint::sealed;
    use crate::checkpoint::{CheckpointData, CheckpointStore, ModelState, PrivateState};
    use crate::models::draw_parameters;
    use crate::models::tests::tiny_gpt2;

    fn spec() -> ModelSpec {
        ModelSpec { vocabulary: 256, ..tiny_gpt2() }
    }

    fn write(dir: &Path, round: u64) -> PathBuf {
        let parameters: Arc<[f32]> = draw_parameters(&spec(), round).into();
        let data = CheckpointData {
            next_round: Round(round),
            next_step: round,
            state_hash: [1; 32],
            model: Some(ModelState { spec: spec(), parameters, tokenizer: None, shared: Default::default() }),
            private: PrivateState::default(),
        };
        CheckpointStore::new(dir, RunId([7; 16]), WorkerId(1), 3).write(&data).unwrap()
    }

    #[test]
    fn a_checkpoint_is_opened_by_its_folder_its_runs_and_that_of_all_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), 4);
        for given in [path.as_path(), path.parent().unwrap(), dir.path()] {
            let model = open_model(given).unwrap();
            assert_eq!((&model.path, model.spec), (&path, spec()));
            assert_eq!(model.parameters, draw_parameters(&spec(), 4));
        }
    }

    #[test]
    fn what_is_no_checkpoint_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let message = |path: &Path| open_model(path).unwrap_err().to_string();
        assert!(message(dir.path()).contains("holds no checkpoint"));
        assert!(message(&dir.path().join("nowhere")).starts_with("there is no folder"));
        let file = write(dir.path(), 1).join(MODEL_CONFIG);
        assert!(message(&file).ends_with("is not a folder; a checkpoint is one"));
    }

    /// As somebody would who makes up a checkpoint: the manifest fits.
    fn describe(folder: &Path, description: &Value) {
        let (file, record) = (folder.join(MODEL_CONFIG), folder.join(MANIFEST));
        std::fs::write(&file, description.to_string()).unwrap();
        let mut manifest: Manifest = sealed::read(&record).unwrap();
        manifest.files.insert(MODEL_CONFIG.to_owned(), FileRecord::of(&file).unwrap());
        std::fs::write(record, sealed::to_text(&manifest).unwrap()).unwrap();
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
                assert!(open_model(&path).is_err(), "{key} = {value}");
            }
        }
        let mut largest = original.clone();
        for (key, value) in [("n_embd", 1 << 20), ("n_inner", 1 << 20), ("n_layer", 1 << 12)] {
            largest[key] = json!(value);
        }
        describe(&path, &largest);
        let message = open_model(&path).unwrap_err().to_string();
        assert!(message.contains("holds another model"), "{message}");
        describe(&path, &original);
        assert!(open_model(&path).is_ok());
    }
}
