//! Listing and reading of checkpoint folders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::{ADAPTER, FileRecord, MODEL, Manifest, PrivateRecord, TRAINED};
use longhaul_proto::checkpoint::folder_name;

use super::adapters::{weights_file, weights_in};
use super::{CheckpointError, MANIFEST, PrivateState, SHARED, private_record_name, sealed, tensors};

/// A checkpoint with intact files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Folder.
    pub path: PathBuf,
    /// First round not contained.
    pub next_round: Round,
    /// First step not contained.
    pub next_step: u64,
    /// Generation in which it was written.
    pub generation: Generation,
    /// Hash of the synchronised state.
    pub state_hash: [u8; 32],
    /// Whether it has the model.
    pub model: bool,
    /// Whether it has the caller's private state.
    pub private: bool,
}

/// A loaded model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedModel {
    /// First step not contained.
    pub next_step: u64,
    /// Hash of the synchronised state, as written.
    pub state_hash: [u8; 32],
    /// In the order of [`ModelSpec::synchronised`].
    pub parameters: Vec<f32>,
    /// Further vectors shared by all workers, by name.
    pub shared: BTreeMap<String, Arc<[f32]>>,
}

/// A loaded private state.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedPrivate {
    /// Hash of its synchronised state.
    pub state_hash: [u8; 32],
    /// State.
    pub state: PrivateState,
}

/// Returns a file's length and hash.
pub(super) fn record_of(path: &Path) -> Result<FileRecord, CheckpointError> {
    FileRecord::of(path).map_err(CheckpointError::io("read", path))
}

fn check(record: &FileRecord, found: &FileRecord, path: &Path) -> Result<(), CheckpointError> {
    record.difference(found).map_or(Ok(()), |reason| Err(CheckpointError::damaged(path, reason)))
}

/// Reads the manifest and verifies every file that it names, and `worker`'s private state if present.
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
        generation: manifest.generation,
        state_hash: parse_hash(&folder.join(MANIFEST), &manifest.state_hash)?,
        model: weights_in(&manifest.files).is_some(),
        private: record.is_some(),
    })
}

/// Verifies the files of a folder.
pub(super) fn verify(folder: &Path, files: &BTreeMap<String, FileRecord>) -> Result<(), CheckpointError> {
    files.iter().try_for_each(|(name, record)| {
        let path = folder.join(name);
        check(record, &record_of(&path).map_err(recorded)?, &path)
    })
}

/// Reads and verifies the model.
pub(super) fn load_model(
    folder: &Path,
    run: RunId,
    spec: &ModelSpec,
) -> Result<LoadedModel, CheckpointError> {
    let manifest = manifest(folder, run)?;
    let name = weights_file(spec);
    let path = folder.join(name);
    let bytes = read_verified(&path, manifest.files.get(name))?;
    Ok(LoadedModel {
        shared: read_shared(folder, &manifest)?,
        next_step: manifest.next_step,
        state_hash: parse_hash(&folder.join(MANIFEST), &manifest.state_hash)?,
        parameters: tensors::read_model(&path, &bytes, spec)?,
    })
}

/// Reads and verifies the vectors shared by all workers.
pub(super) fn read_shared(
    folder: &Path,
    manifest: &Manifest,
) -> Result<BTreeMap<String, Arc<[f32]>>, CheckpointError> {
    let Some(record) = manifest.files.get(SHARED) else { return Ok(BTreeMap::new()) };
    let path = folder.join(SHARED);
    Ok(tensors::read_vectors(&path, &read_verified(&path, Some(record))?)?.collect())
}

/// Verifies the files beside the weights in a folder of any run; with `weights` those too, in one pass.
pub(super) fn verify_alone(folder: &Path, weights: bool) -> Result<Manifest, CheckpointError> {
    let manifest: Manifest = sealed::read(&folder.join(MANIFEST))?;
    let mut files = manifest.files.clone();
    if !weights {
        files.retain(|name, _| ![MODEL, ADAPTER, TRAINED].contains(&name.as_str()));
    }
    verify(folder, &files)?;
    Ok(manifest)
}

/// Reads and verifies the weights named by a manifest.
pub(super) fn read_weights(
    folder: &Path,
    manifest: &Manifest,
    spec: &ModelSpec,
) -> Result<Vec<f32>, CheckpointError> {
    let name = weights_file(spec);
    let path = folder.join(name);
    let bytes = read_verified(&path, manifest.files.get(name))?;
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
    if folder.file_name() != Some(folder_name(manifest.next_round).as_ref()) {
        return Err(CheckpointError::damaged(&path, format!("it is of {}", manifest.next_round)));
    }
    Ok(manifest)
}

/// Returns a worker's record; `None` if it is absent, or of another state than the manifest's.
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
    // Before memory is allocated for it.
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes != record.bytes {
        return Err(CheckpointError::damaged(path, format!("{bytes} of {} bytes", record.bytes)));
    }
    let content = std::fs::read(path).map_err(failed)?;
    let blake3 = blake3::hash(&content).to_hex().to_string();
    check(record, &FileRecord { bytes: content.len() as u64, blake3 }, path)?;
    Ok(content)
}

/// Turns a missing but listed file into damage.
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
