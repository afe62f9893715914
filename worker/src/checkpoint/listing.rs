//! What a checkpoint folder says it contains, and reading it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_common::id::{Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use serde::{Deserialize, Serialize};

use super::{CheckpointError, MANIFEST, MODEL, PrivateState, SHARED, private_record_name, sealed, tensors};

/// `manifest.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// In hexadecimal.
    pub run: String,
    pub next_round: Round,
    pub next_step: u64,
    /// In hexadecimal.
    pub state_hash: String,
    /// The version of the worker that wrote it.
    pub software: String,
    /// The blocks of the model that it is of, as starts and ends of chunks; none: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<(u32, u32)>>,
    /// Where it is of a member of a tensor group: how many there are, and which it is, from 0. None: all of each layer is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<(u32, u32)>,
    /// The model's files; none where only private states are.
    pub files: BTreeMap<String, FileRecord>,
}

/// `private-w7.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrivateRecord {
    pub worker: WorkerId,
    pub next_round: Round,
    /// In hexadecimal.
    pub state_hash: String,
    pub counters: BTreeMap<String, u64>,
    pub files: BTreeMap<String, FileRecord>,
}

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRecord {
    pub bytes: u64,
    /// In hexadecimal.
    pub blake3: String,
}

/// A checkpoint whose files are as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its folder.
    pub path: PathBuf,
    /// The round that follows the ones it contains.
    pub next_round: Round,
    /// The step that follows.
    pub next_step: u64,
    /// Hash of the synchronised state.
    pub state_hash: [u8; 32],
    /// Whether the model is there.
    pub model: bool,
    /// Whether the private state of the worker that asks is there.
    pub private: bool,
}

/// A model that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedModel {
    /// The step that follows.
    pub next_step: u64,
    /// Hash of the synchronised state, as it was written.
    pub state_hash: [u8; 32],
    /// In the order of [`ModelSpec::synchronised`].
    pub parameters: Vec<f32>,
    /// What else is the same on all workers, by name.
    pub shared: BTreeMap<String, Arc<[f32]>>,
}

/// A private state that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedPrivate {
    /// Hash of the synchronised state that it belongs to.
    pub state_hash: [u8; 32],
    /// The state.
    pub state: PrivateState,
}

impl Manifest {
    /// What of the whole model it is of; none: of nothing that there could be.
    pub(super) fn part_of(&self, model: &ModelSpec) -> Option<ModelSpec> {
        let whole = model.whole();
        let part = match &self.chunks {
            Some(chunks) => whole.part(chunks.iter().map(|&(start, end)| start..end).collect()),
            None => whole,
        };
        match self.share {
            Some((ways, index)) => part.shard_of(ways, index),
            None => Some(part),
        }
    }
}

impl FileRecord {
    pub(super) fn of(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |error| CheckpointError::io("read", path)(error);
        let mut file = std::fs::File::open(path).map_err(failed)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&mut file).map_err(failed)?;
        Ok(Self { bytes: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
    }

    fn check(&self, found: &Self, path: &Path) -> Result<(), CheckpointError> {
        if self.bytes != found.bytes {
            return Err(CheckpointError::damaged(path, format!("{} of {} bytes", found.bytes, self.bytes)));
        }
        if self.blake3 != found.blake3 {
            return Err(CheckpointError::damaged(path, "its hash is not the recorded one"));
        }
        Ok(())
    }
}

/// Reads the manifest and verifies every file that it names, and `worker`'s private state if there is one.
pub(super) fn inspect(folder: &Path, run: RunId, worker: WorkerId) -> Result<Listed, CheckpointError> {
    let manifest = manifest(folder, run)?;
    verify(folder, &manifest.files)?;
    let record = private_record(folder, worker, &manifest)?;
    if let Some(record) = &record {
        verify(folder, &record.files)?;
    }
    Ok(Listed {
        path: folder.to_owned(),
        next_round: manifest.next_round,
        next_step: manifest.next_step,
        state_hash: parse_hash(&folder.join(MANIFEST), &manifest.state_hash)?,
        model: manifest.files.contains_key(MODEL),
        private: record.is_some(),
    })
}

/// Whether the files of a folder are as they were written.
pub(super) fn verify(folder: &Path, files: &BTreeMap<String, FileRecord>) -> Result<(), CheckpointError> {
    files.iter().try_for_each(|(name, record)| {
        let path = folder.join(name);
        record.check(&FileRecord::of(&path).map_err(recorded)?, &path)
    })
}

/// Reads and verifies the model.
pub(super) fn load_model(
    folder: &Path,
    run: RunId,
    spec: &ModelSpec,
) -> Result<LoadedModel, CheckpointError> {
    let manifest = manifest(folder, run)?;
    let path = folder.join(MODEL);
    let bytes = read_verified(&path, manifest.files.get(MODEL))?;
    let shared = match manifest.files.get(SHARED) {
        None => BTreeMap::new(),
        record => {
            let path = folder.join(SHARED);
            tensors::read_vectors(&path, &read_verified(&path, record)?)?.collect()
        }
    };
    Ok(LoadedModel {
        shared,
        next_step: manifest.next_step,
        state_hash: parse_hash(&folder.join(MANIFEST), &manifest.state_hash)?,
        parameters: tensors::read_model(&path, &bytes, spec)?,
    })
}

/// Verifies what lies beside the weights in a folder of whatever run; with `weights` those too, in one pass.
pub(super) fn verify_alone(folder: &Path, weights: bool) -> Result<Manifest, CheckpointError> {
    let manifest: Manifest = sealed::read(&folder.join(MANIFEST))?;
    let mut files = manifest.files.clone();
    if !weights {
        files.remove(MODEL);
    }
    verify(folder, &files)?;
    Ok(manifest)
}

/// Reads and verifies the weights that a manifest names.
pub(super) fn read_weights(
    folder: &Path,
    manifest: &Manifest,
    spec: &ModelSpec,
) -> Result<Vec<f32>, CheckpointError> {
    let path = folder.join(MODEL);
    let bytes = read_verified(&path, manifest.files.get(MODEL))?;
    tensors::read_model(&path, &bytes, spec)
}

/// Reads and verifies a worker's private state.
pub(super) fn load_private(
    folder: &Path,
    run: RunId,
    worker: WorkerId,
) -> Result<LoadedPrivate, CheckpointError> {
    let manifest = manifest(folder, run)?;
    let record_path = folder.join(private_record_name(worker));
    let Some(record) = private_record(folder, worker, &manifest)? else {
        return Err(CheckpointError::io("read", &record_path)(std::io::ErrorKind::NotFound.into()));
    };
    let name = super::private_vectors_name(worker);
    let path = folder.join(&name);
    let bytes = read_verified(&path, record.files.get(&name))?;
    let vectors = tensors::read_vectors(&path, &bytes)?.collect();
    let state_hash = parse_hash(&record_path, &record.state_hash)?;
    Ok(LoadedPrivate { state_hash, state: PrivateState { vectors, counters: record.counters } })
}

pub(super) fn manifest(folder: &Path, run: RunId) -> Result<Manifest, CheckpointError> {
    let path = folder.join(MANIFEST);
    let manifest: Manifest =
        sealed::read(&path).map_err(|error| if folder.is_dir() { recorded(error) } else { error })?;
    if manifest.run != run.to_string() {
        return Err(CheckpointError::damaged(&path, format!("it is of run {}", manifest.run)));
    }
    if folder.file_name() != Some(super::store::folder_name(manifest.next_round).as_ref()) {
        return Err(CheckpointError::damaged(&path, format!("it is of {}", manifest.next_round)));
    }
    Ok(manifest)
}

/// A worker's record; none when it is not there, or is of another state than the manifest's.
pub(super) fn private_record(
    folder: &Path,
    worker: WorkerId,
    manifest: &Manifest,
) -> Result<Option<PrivateRecord>, CheckpointError> {
    match sealed::read::<PrivateRecord>(&folder.join(private_record_name(worker))) {
        Ok(record) => Ok((record.worker == worker
            && record.next_round == manifest.next_round
            && record.state_hash == manifest.state_hash)
            .then_some(record)),
        Err(CheckpointError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_verified(path: &Path, record: Option<&FileRecord>) -> Result<Vec<u8>, CheckpointError> {
    let Some(record) = record else {
        return Err(CheckpointError::io("read", path)(std::io::ErrorKind::NotFound.into()));
    };
    let failed = |error| recorded(CheckpointError::io("read", path)(error));
    // Before memory is taken for it.
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes != record.bytes {
        return Err(CheckpointError::damaged(path, format!("{bytes} of {} bytes", record.bytes)));
    }
    let content = std::fs::read(path).map_err(failed)?;
    let blake3 = blake3::hash(&content).to_hex().to_string();
    record.check(&FileRecord { bytes: content.len() as u64, blake3 }, path)?;
    Ok(content)
}

/// A file that ought to be there is damaged when it is not.
fn recorded(error: CheckpointError) -> CheckpointError {
    match error {
        CheckpointError::Io { source, path, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            CheckpointError::damaged(&path, "it is missing")
        }
        other => other,
    }
}

fn parse_hash(path: &Path, text: &str) -> Result<[u8; 32], CheckpointError> {
    let hash = blake3::Hash::from_hex(text).map_err(|error| CheckpointError::damaged(path, error))?;
    Ok(*hash.as_bytes())
}
