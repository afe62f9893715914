//! The description of a stored model, without its weights.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::{ADAPTER, MANIFEST};
use serde_json::Value;

use super::opening::newest;
use super::{Companions, MODEL_CONFIG, adapters, classes, hf_folder, model_config};

/// A stored model's description.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedModel {
    /// Path.
    pub path: PathBuf,
    /// Description of the whole model.
    pub spec: ModelSpec,
    /// Names of its classes, in order; none without a head for classes.
    pub labels: Vec<String>,
}

/// Describes the whole model that [`super::open_weights`] opens, and [`super::OpenedModel::merged`] merges.
///
/// # Errors
/// It is not there, or its `config.json` describes no supported model.
pub fn describe_stored(path: &Path, base: Option<&Path>) -> Result<DescribedModel> {
    check_folder(path)?;
    let path = if is_alone(path) { path.to_owned() } else { newest(path)?.swap_remove(0) };
    let is_adapted = path.join(ADAPTER).is_file();
    let described = match path.join(MODEL_CONFIG).is_file() || !is_adapted {
        true => path.clone(),
        // A folder that PEFT wrote.
        false => adapters::base_folder(&Companions::read(&path)?, base)?.0,
    };
    let json = config_of(&described)?;
    let config = || format!("{} does not describe a supported model", described.join(MODEL_CONFIG).display());
    let mut spec = model_config::from_json(&json).with_context(config)?;
    let model = model_config::read(&json).with_context(config)?;
    let mut labels = classes::names_of(&json, &model).with_context(config)?;
    if is_adapted {
        spec = hf_folder::with_head_of(&path, spec)?;
    }
    if let Some(count) = spec.classes().filter(|count| *count as usize != labels.len()) {
        labels = classes::numbered(count);
    }
    Ok(DescribedModel { path, spec, labels })
}

/// Refuses a path that is no folder.
pub(super) fn check_folder(path: &Path) -> Result<()> {
    ensure!(path.exists(), "there is no folder {}", path.display());
    ensure!(path.is_dir(), "{} is not a folder; a checkpoint is one", path.display());
    Ok(())
}

/// Whether a folder is a model that no run wrote.
fn is_alone(path: &Path) -> bool {
    (hf_folder::has_weights(path) || path.join(ADAPTER).is_file()) && !path.join(MANIFEST).is_file()
}

/// Reads the `config.json` of a folder.
///
/// # Errors
/// It is missing or no JSON, or of a classifier of images.
pub(super) fn config_of(folder: &Path) -> Result<Value> {
    let config = folder.join(MODEL_CONFIG);
    let text = std::fs::read_to_string(&config).with_context(|| format!("read {}", config.display()))?;
    let json: Option<Value> = serde_json::from_str(&text).ok();
    ensure!(
        !json.as_ref().is_some_and(model_config::is_of_images),
        "{} is of a classifier of images, which cannot continue text: give a checkpoint of a language model",
        folder.display()
    );
    json.with_context(|| format!("{} is no JSON", config.display()))
}
