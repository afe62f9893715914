//! The pretrained model that a run starts from, on this machine: `docs/base-model.md`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use indicatif::BinaryBytes;
use longhaul_checkpoint::{BaseModel, CHAT_TEMPLATE, Companions, beside_base};
use longhaul_common::config::{DataConfig, RunConfig};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_data::Tokenizer;
use longhaul_peer::{ModelProgress, Network};
use longhaul_proto::control::message::Hash;

use crate::data_progress::{self, Far};

/// Value of `--model`: other workers have the model.
const REMOTE: &str = "remote";
/// Folder of fetched models in the cache, and of unfinished ones in the identity slot.
const FOLDER: &str = "models";
/// Most names in a message.
const NAMED_MAX: usize = 5;

/// The model once opened: a later session of this process does not read it again.
#[derive(Debug, Default)]
pub(super) struct OpenedOnce(Mutex<Option<(Hash, Arc<BaseModel>)>>);

impl OpenedOnce {
    fn get(&self) -> Option<(Hash, Arc<BaseModel>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, model: Hash, base: &Arc<BaseModel>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((model, Arc::clone(base)));
    }
}

/// The places of models on this machine.
pub(super) struct ModelPlaces<'a> {
    /// `--model`.
    pub given: Option<&'a Path>,
    pub cache_dir: &'a Path,
    pub slot: &'a Path,
}

impl ModelPlaces<'_> {
    /// Returns the folder that this machine has; `None`: it has none, or is not to use it.
    fn own(&self, from: &str) -> Result<Option<PathBuf>> {
        match self.given {
            Some(given) if given.as_os_str() == REMOTE => Ok(None),
            Some(given) => {
                ensure!(given.is_dir(), "there is no folder {}, which --model names", given.display());
                Ok(Some(given.to_owned()))
            }
            None => Ok(Some(PathBuf::from(from)).filter(|folder| folder.is_dir())),
        }
    }
}

/// Opens the run's model: from a folder of this machine, from its cache, or from other workers. Lends it to others. `None`: the run starts from random weights.
/// Blocks the thread.
///
/// # Errors
/// The folder has no such model, the disk refuses a file, or the session has ended.
pub(super) fn open(
    config: &RunConfig,
    places: &ModelPlaces<'_>,
    once: &OpenedOnce,
    network: &Network,
) -> Result<Option<Arc<BaseModel>>> {
    let Some(from) = &config.model.from else { return Ok(None) };
    let whole = ModelSpec::of(config, 0)?;
    let own = match once.get() {
        Some((_, base)) => Some(base),
        None => places.own(from)?.map(|folder| opened(&folder, &whole)).transpose()?,
    };
    if let Some(base) = &own {
        network.lend_model(base)?;
    }
    let model = network.find_model()?;
    let base = match own {
        Some(base) if base.files().hash()? == model => base,
        own => {
            if let Some(other) = own {
                tracing::warn!(
                    folder = %other.folder().display(),
                    "the run starts from another model than the one in this folder, and this worker takes the run's"
                );
            }
            cached_or_fetched(model, places, &whole, network)?
        }
    };
    once.set(model, &base);
    network.lend_model(&base)?;
    Ok(Some(base))
}

fn cached_or_fetched(
    model: Hash,
    places: &ModelPlaces<'_>,
    whole: &ModelSpec,
    network: &Network,
) -> Result<Arc<BaseModel>> {
    let name = blake3::Hash::from_bytes(model).to_hex();
    let cached = places.cache_dir.join(FOLDER).join(name.as_str());
    let is_it = |base: &Arc<BaseModel>| base.files().hash().is_ok_and(|hash| hash == model);
    if cached.is_dir() {
        match opened(&cached, whole) {
            Ok(base) if is_it(&base) => return Ok(base),
            _ => {
                tracing::warn!(folder = %cached.display(), "this copy of the model is damaged, and is fetched again");
                std::fs::remove_dir_all(&cached).with_context(|| format!("remove {}", cached.display()))?;
            }
        }
    }
    let partial = places.slot.join(FOLDER).join(name.as_str());
    let progress = ModelProgress::default();
    let far = || {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Far {
            done: read(&progress.done),
            all: read(&progress.all),
            found: 0,
            more: "from other workers".to_owned(),
        }
    };
    let fetch = || network.fetch_model(model, whole, &partial, &progress);
    data_progress::watch("fetching the model", far, fetch)??;
    std::fs::create_dir_all(places.cache_dir.join(FOLDER)).context("create the cache's folder of models")?;
    // Another worker of this machine may have been faster.
    if let Err(error) = std::fs::rename(&partial, &cached)
        && !cached.is_dir()
    {
        return Err(error).with_context(|| format!("rename to {}", cached.display()));
    }
    let base = opened(&cached, whole)?;
    ensure!(is_it(&base), "{} changed while it was fetched", cached.display());
    Ok(base)
}

/// Reads a folder's model.
fn opened(folder: &Path, whole: &ModelSpec) -> Result<Arc<BaseModel>> {
    let (done, all) = (AtomicU64::new(0), AtomicU64::new(0));
    let told = |read: u64, of: u64| {
        done.store(read, Ordering::Relaxed);
        all.store(of, Ordering::Relaxed);
    };
    let far = || Far {
        done: done.load(Ordering::Relaxed),
        all: all.load(Ordering::Relaxed),
        found: 0,
        more: folder.display().to_string(),
    };
    let base = data_progress::watch("reading the model", far, || BaseModel::open(folder, told))??;
    base.check(whole)?;
    let passed_over = base.passed_over()?;
    let named = passed_over[..passed_over.len().min(NAMED_MAX)].join(", ");
    tracing::info!(
        folder = %folder.display(),
        bytes = %BinaryBytes(base.files().bytes()),
        files = base.files().iter().len(),
        passed_over = passed_over.len(),
        named,
        trained = whole.parameter_count(),
        frozen = whole.frozen().iter().map(ParameterSpec::count).sum::<u64>(),
        "the run starts from this model"
    );
    Ok(Arc::new(base))
}

/// Returns the files that checkpoints carry on from the model that the run starts from, and those that name it where a part of it is trained. Their
/// `config.json` names the run's classes.
///
/// # Errors
/// One cannot be read.
pub(super) fn companions(
    config: &RunConfig,
    whole: &ModelSpec,
    base: Option<&BaseModel>,
) -> Result<Companions> {
    let of_base = match base.zip(config.model.from.as_deref()) {
        Some((base, from)) => beside_base(whole, from, base)?.or(base.companions()?),
        None => Companions::default(),
    };
    match &config.data.classification {
        Some(classification) => of_base.with_classes(whole, &classification.labels),
        None => Ok(of_base),
    }
}

/// Returns the chat template that the run names in place of the model's: checkpoints carry it on. A machine that trains on others' data cannot know theirs.
///
/// # Errors
/// It cannot be read.
pub(super) fn of_template(config: &RunConfig, data_is_remote: bool) -> Result<Companions> {
    let named = config.data.conversations.as_ref().and_then(|settings| settings.chat_template.as_deref());
    let Some(path) = named else { return Ok(Companions::default()) };
    if data_is_remote {
        tracing::warn!(
            path,
            "checkpoints of this machine have the model's chat template, or none, and not that of data.conversations.chat_template, as it trains on the data of others"
        );
        return Ok(Companions::default());
    }
    let template = std::fs::read(path);
    let template = template.with_context(|| format!("read data.conversations.chat_template = {path:?}"))?;
    Ok([(CHAT_TEMPLATE.to_owned(), template.into())].into_iter().collect())
}

/// Loads the tokenizer of the data: the model's, where it is to be that.
///
/// # Errors
/// The model has none, or it is no tokenizer.
pub(super) fn tokenizer_of(config: &DataConfig, base: Option<&BaseModel>) -> Result<Tokenizer> {
    if config.tokenizer != DataConfig::OF_MODEL {
        return Ok(Tokenizer::load(&config.tokenizer)?);
    }
    let base = base.context("data.tokenizer = \"model\" in a run without model.from")?;
    let path = base.tokenizer().with_context(|| {
        format!("{} has no tokenizer.json, which data.tokenizer = \"model\" names", base.folder().display())
    })?;
    Ok(Tokenizer::load(path.to_str().context("the path of the model's tokenizer is not UTF-8")?)?)
}
