//! Writing checkpoints so that a crash at any point leaves earlier ones intact.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use longhaul_common::config::Retention;
use longhaul_common::id::{Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::{FileRecord, Manifest, PrivateRecord};
use longhaul_proto::checkpoint::sealed::to_text;
use longhaul_proto::checkpoint::{folder_name, parse_folder_name, parse_part_name, part_name};
use serde::Serialize;

use super::adapters::{BaseIdentity, check_base, weights_file, weights_in};
use super::listing;
use super::{
    CheckpointData, CheckpointError, Companions, FileToCopy, Listed, LoadedModel, LoadedPrivate, MANIFEST,
    MODEL_CONFIG, ModelState, SHARED, model_config, private_record_name, private_record_of,
    private_vectors_name, sealed, tensors,
};

/// The checkpoints of one run on one machine, or in a folder shared by several workers. All calls block.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    folder: PathBuf,
    run: RunId,
    worker: WorkerId,
    retention: Retention,
    /// The pretrained model beside which weights are trained.
    base: Option<BaseIdentity>,
}

/// A complete and synced checkpoint in its own folder, not yet visible.
#[derive(Debug)]
pub(super) struct Staged {
    partial: PathBuf,
    /// File names, in an order in which they may become visible one by one: a list of files comes after them.
    names: Vec<String>,
    manifest: Manifest,
}

impl CheckpointStore {
    /// Creates the store of a run under `checkpoint.dir`, as seen by `worker`. Nothing is written yet.
    #[must_use]
    pub fn new(dir: &Path, run: RunId, worker: WorkerId, retention: impl Into<Retention>) -> Self {
        Self { folder: dir.join(run.to_string()), run, worker, retention: retention.into(), base: None }
    }

    /// The same for weights that are trained beside the pretrained model which these files name.
    #[must_use]
    pub fn beside(self, companions: &Companions) -> Self {
        Self { base: BaseIdentity::in_companions(companions), ..self }
    }

    /// The same for another worker.
    #[must_use]
    pub fn of_worker(self, worker: WorkerId) -> Self {
        Self { worker, ..self }
    }

    /// The same for a part of a model that spans several workers: each part has its own folder.
    #[must_use]
    pub fn of_part(self, rank: u32, parts: u32) -> Self {
        let folder = if parts > 1 { self.folder.join(part_name(rank, parts)) } else { self.folder };
        Self { folder, ..self }
    }

    /// Returns the stores of all parts with folders, by rank and number of parts; the whole model counts as the first part of one.
    pub fn all_parts(&self) -> impl Iterator<Item = ((u32, u32), Self)> + use<> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut parts: Vec<(u32, u32)> = names.filter_map(|name| parse_part_name(&name)).collect();
        parts.push((0, 1));
        parts.sort_unstable();
        let root = self.clone();
        parts.into_iter().map(move |(rank, parts)| ((rank, parts), root.clone().of_part(rank, parts)))
    }

    /// Writes a checkpoint and prunes old ones. Returns its folder, once it is complete and synced.
    ///
    /// # Errors
    /// [`CheckpointError`]; older checkpoints are unchanged.
    pub fn write(&self, data: &CheckpointData) -> Result<PathBuf, CheckpointError> {
        let path = match self.stage(data).and_then(|staged| self.publish(staged)) {
            Ok(path) => path,
            Err(error) => {
                // Frees space for the next attempt. A failure of this as well adds nothing to the error.
                let _ = remove(&self.partial(data.next_round));
                return Err(error);
            }
        };
        self.prune(data.next_round)?;
        Ok(path)
    }

    /// Returns the verified checkpoints, newest first. Damaged ones are left out.
    ///
    /// # Errors
    /// The folder exists and cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        Ok(self.examine()?.into_iter().filter_map(Result::ok).collect())
    }

    /// Returns every checkpoint, newest first: verified, or its error.
    ///
    /// # Errors
    /// The folder exists and cannot be read.
    pub fn examine(&self) -> Result<Vec<Result<Listed, CheckpointError>>, CheckpointError> {
        let rounds = self.rounds()?.into_iter();
        let inspect = |round| listing::inspect(&self.folder_of(round), self.run, self.worker);
        Ok(rounds.map(inspect).collect())
    }

    /// Reports whether a checkpoint of this state with a model exists, by its manifest alone.
    #[must_use]
    pub fn holds(&self, next_round: Round, state_hash: [u8; 32]) -> bool {
        let manifest = listing::manifest(&self.folder.join(folder_name(next_round)), self.run);
        let hash = blake3::Hash::from_bytes(state_hash).to_hex();
        manifest.is_ok_and(|manifest| {
            manifest.state_hash == hash.as_str() && weights_in(&manifest.files).is_some()
        })
    }

    /// Reads the model of a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError`]; for a damaged checkpoint, it names the newest intact one before it.
    pub fn load_model(&self, next_round: Round, spec: &ModelSpec) -> Result<LoadedModel, CheckpointError> {
        let folder = self.folder.join(folder_name(next_round));
        if spec.tuning.is_some() {
            check_base(&folder, self.base.as_ref())?;
        }
        let loaded = listing::load_model(&folder, self.run, spec);
        loaded.map_err(|error| self.offer_before(next_round, error))
    }

    /// Reads this worker's private state of a checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError`]; for a damaged checkpoint, it names the newest intact one before it.
    pub fn load_private(&self, next_round: Round) -> Result<LoadedPrivate, CheckpointError> {
        let loaded = listing::load_private(&self.folder.join(folder_name(next_round)), self.run, self.worker);
        loaded.map_err(|error| self.offer_before(next_round, error))
    }

    /// Reads another worker's private state of a checkpoint: the lowest-numbered intact one. For state that is the same on all workers and kept by each.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn load_anothers(&self, next_round: Round) -> Result<Option<LoadedPrivate>, CheckpointError> {
        let folder = self.folder.join(folder_name(next_round));
        let failed = |error| CheckpointError::io("read folder", &folder)(error);
        let mut others = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            others.extend(name.to_str().and_then(private_record_of).filter(|other| *other != self.worker));
        }
        others.sort_unstable();
        Ok(others.into_iter().find_map(|other| listing::load_private(&folder, self.run, other).ok()))
    }

    /// Makes a received checkpoint visible, with these synced files.
    pub(super) fn adopt(
        &self,
        partial: &Path,
        next_round: Round,
        files: &[FileToCopy],
        state_hash: [u8; 32],
    ) -> anyhow::Result<()> {
        let manifest: Manifest = sealed::read(&partial.join(MANIFEST))?;
        let hash = blake3::Hash::from_bytes(state_hash).to_hex();
        anyhow::ensure!(
            (manifest.run.as_str(), manifest.next_round) == (self.run.to_string().as_str(), next_round)
                && manifest.state_hash == hash.as_str(),
            "the copy's state differs from the requested one"
        );
        listing::verify(partial, &manifest.files)?;
        sync(partial)?;
        let names = files.iter().map(FileToCopy::name).collect();
        self.publish(Staged { partial: partial.to_owned(), names, manifest })?;
        Ok(self.prune(next_round)?)
    }

    /// Returns the folder of the checkpoint before a round.
    pub(super) fn folder_of(&self, next_round: Round) -> PathBuf {
        self.folder.join(folder_name(next_round))
    }

    pub(super) fn run_folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn run(&self) -> RunId {
        self.run
    }

    /// Returns the writing worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    fn offer_before(&self, next_round: Round, error: CheckpointError) -> CheckpointError {
        error.with_instead(|| {
            let listed = self.list().unwrap_or_default();
            listed
                .into_iter()
                .find(|other| other.next_round < next_round && other.model)
                .map(|other| other.path)
        })
    }

    /// Writes and syncs everything into a folder that is not a checkpoint yet.
    pub(super) fn stage(&self, data: &CheckpointData) -> Result<Staged, CheckpointError> {
        let partial = self.partial(data.next_round);
        remove(&partial)?;
        std::fs::create_dir_all(&partial).map_err(CheckpointError::io("create folder", &partial))?;
        let state_hash = blake3::Hash::from_bytes(data.state_hash).to_hex().to_string();

        let private = private_vectors_name(self.worker);
        tensors::write_vectors(&partial.join(&private), &data.private.vectors)?;
        let record = PrivateRecord {
            worker: self.worker,
            next_round: data.next_round,
            state_hash: state_hash.clone(),
            counters: data.private.counters.clone(),
            files: records(&partial, std::slice::from_ref(&private))?,
        };
        let private_record = private_record_name(self.worker);
        write_sealed(&partial.join(&private_record), &record)?;

        let model =
            data.model.as_ref().map(|model| write_model(&partial, model)).transpose()?.unwrap_or_default();
        let manifest = Manifest {
            run: self.run.to_string(),
            next_round: data.next_round,
            next_step: data.next_step,
            generation: data.generation,
            state_hash,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            chunks: data.model.as_ref().map(|model| &model.spec).and_then(chunks_of),
            share: data.model.as_ref().map(|model| &model.spec).and_then(share_of),
            files: records(&partial, &model)?,
        };
        write_sealed(&partial.join(MANIFEST), &manifest)?;

        let mut names = vec![private, private_record];
        names.extend(model);
        names.push(MANIFEST.to_owned());
        names.iter().try_for_each(|name| sync(&partial.join(name)))?;
        sync(&partial)?;
        Ok(Staged { partial, names, manifest })
    }

    /// Makes a staged checkpoint visible.
    fn publish(&self, staged: Staged) -> Result<PathBuf, CheckpointError> {
        let path = self.folder.join(folder_name(staged.manifest.next_round));
        // Renaming a folder onto a non-empty one fails, for the slower of two writers.
        if std::fs::rename(&staged.partial, &path).is_err() {
            self.join_or_replace(&staged, &path)?;
        }
        sync(&self.folder)?;
        Ok(path)
    }

    /// Adds the staged files to another worker's folder of the same state, or replaces a folder of another state, from an abandoned past.
    fn join_or_replace(&self, staged: &Staged, path: &Path) -> Result<(), CheckpointError> {
        let is_same = |there: &Manifest| there.state_hash == staged.manifest.state_hash;
        if let Some(there) = listing::manifest(path, self.run).ok().filter(is_same) {
            return self.join(staged, path, &there);
        }
        self.discard(path)?;
        std::fs::rename(&staged.partial, path).map_err(CheckpointError::io("rename to", path))
    }

    /// Adds the staged files to a folder of the same state, with the manifest `there`. A damaged model in it, from before a resume, is replaced.
    fn join(&self, staged: &Staged, path: &Path, there: &Manifest) -> Result<(), CheckpointError> {
        let has_model = weights_in(&there.files).is_some() && listing::verify(path, &there.files).is_ok();
        let mine = staged.names.iter().filter(|name| !has_model || name.starts_with("private-"));
        for name in mine.filter(|name| *name != MANIFEST) {
            rename(&staged.partial, path, name)?;
        }
        // Without its own model, this worker's manifest would contain less than the present one.
        let brings_model = !has_model && weights_in(&staged.manifest.files).is_some();
        let names = if brings_model { &staged.manifest } else { there };
        // A writer that reaches a state in a later generation vouches that none of it was undone until then.
        let generation = there.generation.max(staged.manifest.generation);
        let manifest = Manifest { generation, ..names.clone() };
        // A manifest without a model is left to the model's writer, which may be about to replace it.
        if manifest != *there && weights_in(&manifest.files).is_some() {
            let staged_manifest = staged.partial.join(MANIFEST);
            write_sealed(&staged_manifest, &manifest)?;
            sync(&staged_manifest)?;
            rename(&staged.partial, path, MANIFEST)?;
        }
        sync(path)?;
        remove(&staged.partial)
    }

    /// Removes surplus checkpoints now that `written` is complete, but never the newest one with a model.
    fn prune(&self, written: Round) -> Result<(), CheckpointError> {
        let rounds = self.rounds()?;
        let has_model = |round: &&Round| {
            let manifest = listing::manifest(&self.folder_of(**round), self.run);
            manifest.is_ok_and(|manifest| weights_in(&manifest.files).is_some())
        };
        let newest_with_model = rounds.iter().find(has_model);
        let surplus = self.retention.surplus(&rounds, written);
        let mut old = surplus.filter(|round| Some(round) != newest_with_model);
        old.try_for_each(|round| self.discard(&self.folder_of(round)))
    }

    /// Renames a folder away before its removal: a folder with a checkpoint's name is never half removed.
    fn discard(&self, path: &Path) -> Result<(), CheckpointError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let away = self.folder.join(format!(".{name}.{}.removed", self.worker));
        remove(&away)?;
        match std::fs::rename(path, &away) {
            // Another worker that shares the folder was faster.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(CheckpointError::io("rename", path)(error)),
            Ok(()) => remove(&away),
        }
    }

    /// Returns rounds whose folders have a checkpoint's name, newest first.
    fn rounds(&self) -> Result<Vec<Round>, CheckpointError> {
        let failed = |error| CheckpointError::io("read folder", &self.folder)(error);
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut rounds = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            rounds.extend(name.to_str().and_then(parse_folder_name));
        }
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        Ok(rounds)
    }

    fn partial(&self, next_round: Round) -> PathBuf {
        self.folder.join(format!(".{}.{}.partial", folder_name(next_round), self.worker))
    }
}

/// Returns the blocks, if not all.
pub(super) fn chunks_of(spec: &ModelSpec) -> Option<Vec<(u32, u32)>> {
    let chunks = spec.chunks.iter().map(|chunk| (chunk.start, chunk.end)).collect();
    (spec.chunks != spec.whole().chunks).then_some(chunks)
}

/// Returns the share of each layer, if not whole.
pub(super) fn share_of(spec: &ModelSpec) -> Option<(u32, u32)> {
    (!spec.shard.is_whole()).then(|| (spec.shard.ways(), spec.shard.index()))
}

/// Writes the model's files and returns their names.
fn write_model(folder: &Path, model: &ModelState) -> Result<Vec<String>, CheckpointError> {
    let weights = weights_file(&model.spec);
    tensors::write_model(&folder.join(weights), &model.spec, &model.parameters)?;
    let config = format!("{:#}\n", model_config::carried(&model.spec, &model.companions));
    write(&folder.join(MODEL_CONFIG), config.as_bytes())?;
    let mut names = vec![weights.to_owned(), MODEL_CONFIG.to_owned()];
    for (name, content) in model.companions.iter().filter(|(name, _)| *name != MODEL_CONFIG) {
        write(&folder.join(name), content)?;
        names.push(name.to_owned());
    }
    if !model.shared.is_empty() {
        tensors::write_vectors(&folder.join(SHARED), &model.shared)?;
        names.push(SHARED.to_owned());
    }
    Ok(names)
}

/// Moves a file from one folder to another.
fn rename(from: &Path, to: &Path, name: &str) -> Result<(), CheckpointError> {
    let to = to.join(name);
    std::fs::rename(from.join(name), &to).map_err(CheckpointError::io("rename to", &to))
}

pub(super) fn write_sealed<T: Serialize>(path: &Path, content: &T) -> Result<(), CheckpointError> {
    let text = to_text(content).map_err(|error| CheckpointError::io("write", path)(error.into()))?;
    write(path, text.as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    std::fs::write(path, bytes).map_err(CheckpointError::io("write", path))
}

pub(super) fn records(
    folder: &Path,
    names: &[String],
) -> Result<BTreeMap<String, FileRecord>, CheckpointError> {
    names.iter().map(|name| Ok((name.clone(), listing::record_of(&folder.join(name))?))).collect()
}

/// Waits until a file's content, or a folder's entries, are on disk.
pub(super) fn sync(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(CheckpointError::io("sync", path))
}

pub(super) fn remove(folder: &Path) -> Result<(), CheckpointError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CheckpointError::io("remove", folder)(error))
        }
        _ => Ok(()),
    }
}
