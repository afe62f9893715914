//! Copies of checkpoints from one machine to another: their files, and their assembly.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::{ADAPTER, FileRecord, MODEL, TRAINED};
use longhaul_proto::checkpoint::folder_name;
use serde::{Deserialize, Serialize};

use super::companions::{COMPANION_BYTES_MAX, Companion};
use super::listing;
use super::recut::overlaps;
use super::store::{CheckpointStore, remove, sync};
use super::{
    CheckpointError, MANIFEST, MODEL_CONFIG, SHARED, TOKENIZER, private_record_name, private_record_of,
    private_vectors_name,
};

/// Longest header of a safetensors file, by the format. A private state has vectors for each fragment.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// A tensor's line in the header of the model's file, with its name and shape.
const TENSOR_LINE_BYTES_MAX: u64 = 1 << 10;
/// Values per parameter shared by all workers: momentum, second moments and moving average.
const SHARED_VALUES_MAX: u64 = 3;
/// Values per parameter in a private state: local parameter, two moments, factors and residual of low rank, carry, residual and velocity of the sender,
/// residual of the owner.
const PRIVATE_VALUES_MAX: u64 = 10;
/// It lists each sequence trained on since the last round.
const RECORD_BYTES_MAX: u64 = 1 << 26;
/// Lists of files, and the model's description.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// A file of a checkpoint. Peers name files in this form, and so cannot name others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CheckpointFile {
    /// Parameters.
    Model,
    /// Description of the model.
    ModelConfig,
    /// Tokenizer.
    Tokenizer,
    /// Further state shared by all workers.
    Shared,
    /// A worker's private vectors.
    PrivateVectors(WorkerId),
    /// A worker's record of them.
    PrivateRecord(WorkerId),
    /// List of all files: it comes last, because it completes a checkpoint.
    Manifest,
    /// Another file beside the weights.
    Companion(Companion),
    /// Adapters, in place of all parameters.
    Adapter,
    /// Trained parameters, in place of all.
    Trained,
}

/// The expected properties of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileToCopy {
    /// File.
    pub file: CheckpointFile,
    /// Length.
    pub bytes: u64,
    /// BLAKE3 of its content.
    pub hash: [u8; 32],
}

impl CheckpointFile {
    fn name(self) -> String {
        match self {
            Self::Model => MODEL.to_owned(),
            Self::Adapter => ADAPTER.to_owned(),
            Self::Trained => TRAINED.to_owned(),
            Self::ModelConfig => MODEL_CONFIG.to_owned(),
            Self::Tokenizer => TOKENIZER.to_owned(),
            Self::Shared => SHARED.to_owned(),
            Self::PrivateVectors(worker) => private_vectors_name(worker),
            Self::PrivateRecord(worker) => private_record_name(worker),
            Self::Manifest => MANIFEST.to_owned(),
            Self::Companion(file) => file.name().to_owned(),
        }
    }

    /// Returns its maximum length in bytes in a checkpoint of this model, or of any part of it.
    #[must_use]
    pub fn bytes_max(self, model: &ModelSpec) -> u64 {
        let whole = model.whole();
        let vectors = |count: u64| whole.parameter_count().saturating_mul(count * size_of::<f32>() as u64);
        let with_header = |bytes: u64| bytes.saturating_add(HEADER_BYTES_MAX);
        match self {
            // A line for each tensor, and the format's own metadata.
            Self::Model | Self::Adapter | Self::Trained => {
                let lines = whole.parameters().len() as u64 + 1;
                vectors(1).saturating_add(lines.saturating_mul(TENSOR_LINE_BYTES_MAX))
            }
            Self::Shared => with_header(vectors(SHARED_VALUES_MAX)),
            Self::PrivateVectors(_) => with_header(vectors(PRIVATE_VALUES_MAX)),
            Self::Tokenizer | Self::Companion(_) => COMPANION_BYTES_MAX,
            Self::PrivateRecord(_) => RECORD_BYTES_MAX,
            Self::ModelConfig | Self::Manifest => LIST_BYTES_MAX,
        }
    }
}

/// A checkpoint whose files arrive from another machine, in a folder that is not yet a checkpoint.
#[derive(Clone, Debug)]
pub struct Incoming {
    store: CheckpointStore,
    next_round: Round,
    partial: PathBuf,
}

impl CheckpointStore {
    /// Returns the files of a checkpoint with a model, for another worker: with one private state, the lowest-numbered worker's, because any moments are
    /// better than none.
    ///
    /// # Errors
    /// It is absent, or of another state.
    pub fn files_to_copy(&self, next_round: Round, state_hash: [u8; 32]) -> Result<Vec<FileToCopy>> {
        ensure!(self.holds(next_round, state_hash), "this checkpoint is not here");
        let folder = self.folder_of(next_round);
        let manifest = listing::manifest(&folder, self.run())?;
        let mut files = Vec::new();
        let named = [
            CheckpointFile::Model,
            CheckpointFile::Adapter,
            CheckpointFile::Trained,
            CheckpointFile::ModelConfig,
            CheckpointFile::Tokenizer,
            CheckpointFile::Shared,
        ];
        let others = Companion::all().filter(|file| file.name() != TOKENIZER);
        for file in named.into_iter().chain(others.map(CheckpointFile::Companion)) {
            if let Some(record) = manifest.files.get(&file.name()) {
                files.push(to_copy(file, record)?);
            }
        }
        for worker in self.private_states(next_round)? {
            let Ok(Some(record)) = listing::private_record(&folder, worker, &manifest) else { continue };
            let Some(vectors) = record.files.get(&private_vectors_name(worker)) else { continue };
            files.push(to_copy(CheckpointFile::PrivateVectors(worker), vectors)?);
            let of_record = listing::record_of(&folder.join(private_record_name(worker)))?;
            files.push(to_copy(CheckpointFile::PrivateRecord(worker), &of_record)?);
            break;
        }
        files.push(to_copy(CheckpointFile::Manifest, &listing::record_of(&folder.join(MANIFEST))?)?);
        Ok(files)
    }

    /// Returns the path of a checkpoint's file.
    #[must_use]
    pub fn path_of(&self, next_round: Round, file: CheckpointFile) -> PathBuf {
        self.folder_of(next_round).join(file.name())
    }

    /// Prepares a folder for a checkpoint from elsewhere. Partial files of an earlier attempt stay, and are continued.
    ///
    /// # Errors
    /// The disk refuses it.
    pub fn receive(&self, next_round: Round) -> Result<Incoming, CheckpointError> {
        let ending = format!(".{}.incoming", self.worker());
        let partial = self.run_folder().join(format!(".{}{ending}", folder_name(next_round)));
        // Abandoned copies of other rounds are useless.
        let entries = std::fs::read_dir(self.run_folder()).into_iter().flatten().flatten();
        let given_up = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(&ending));
        let mut others = given_up.map(|entry| entry.path()).filter(|path| *path != partial);
        others.try_for_each(|path| remove(&path))?;
        std::fs::create_dir_all(&partial).map_err(CheckpointError::io("create folder", &partial))?;
        Ok(Incoming { store: self.clone(), next_round, partial })
    }

    /// Returns the workers with a private state in a checkpoint.
    fn private_states(&self, next_round: Round) -> Result<Vec<WorkerId>> {
        let folder = self.folder_of(next_round);
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("read folder {}", folder.display()))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut workers: Vec<WorkerId> = names.filter_map(|name| private_record_of(&name)).collect();
        workers.sort_unstable();
        Ok(workers)
    }
}

impl Incoming {
    /// Returns the path for a file.
    #[must_use]
    pub fn path_of(&self, file: CheckpointFile) -> PathBuf {
        self.partial.join(file.name())
    }

    /// Reports whether a file is complete and correct. A complete but wrong one is removed.
    ///
    /// # Errors
    /// The disk refuses it.
    pub fn check(&self, wanted: &FileToCopy) -> Result<bool, CheckpointError> {
        let path = self.path_of(wanted.file);
        let length = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if length < wanted.bytes {
            return Ok(false);
        }
        let is_it =
            listing::record_of(&path)?.blake3 == blake3::Hash::from_bytes(wanted.hash).to_hex().as_str();
        if !is_it {
            std::fs::remove_file(&path).map_err(CheckpointError::io("remove", &path))?;
        }
        Ok(is_it)
    }

    /// Reports whether the received manifest names one of these blocks.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn overlaps(&self, wanted: &ModelSpec) -> Result<bool> {
        overlaps(&self.path_of(CheckpointFile::Manifest), wanted)
    }

    /// Makes the checkpoint visible, with all `files` received.
    ///
    /// # Errors
    /// It is not the wanted one, and is then removed. Or the disk refuses it.
    pub fn publish(self, files: &[FileToCopy], state_hash: [u8; 32]) -> Result<()> {
        files.iter().try_for_each(|file| sync(&self.path_of(file.file)))?;
        let adopted = self.store.adopt(&self.partial, self.next_round, files, state_hash);
        if adopted.is_err() {
            // An invalid copy is useless to the next attempt.
            remove(&self.partial)?;
        }
        adopted
    }
}

fn to_copy(file: CheckpointFile, record: &FileRecord) -> Result<FileToCopy> {
    let hash = blake3::Hash::from_hex(&record.blake3).context("read a hash of a checkpoint")?;
    Ok(FileToCopy { file, bytes: record.bytes, hash: *hash.as_bytes() })
}

impl FileToCopy {
    /// Returns its name on disk.
    #[must_use]
    pub fn name(&self) -> String {
        self.file.name()
    }
}
