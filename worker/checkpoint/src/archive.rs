//! The run's checkpoints in the archive shared by all workers: this worker's uploads, and its source if its disk has nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use longhaul_common::config::{Retention, RunConfig};
use longhaul_common::id::{RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::archive::{
    self, Archive, ArchiveError, Archived, Content, Manifest, ModelPart, Private,
};
use longhaul_proto::control::message::CheckpointOffer;
use longhaul_proto::little_endian::f32_of;
use tokio::runtime::Handle;

use super::adapters::tuned_as;
use super::companions::{COMPANION_BYTES_MAX, Companion, TOKENIZER};
use super::export::WholeModel;
use super::known_best::KnownBest;
use super::opening::without_average;
use super::pieces::Pieces;
use super::recut::overlap;
use super::store::{chunks_of, share_of};
use super::{
    AVERAGE, CheckpointData, CheckpointStore, Companions, MODEL_CONFIG, ModelState, PrivateState, Weights,
    model_config,
};

/// Rounds with offered checkpoints: more than are damaged at once.
const ROUNDS_OFFERED: usize = 4;
/// Longest vector, in multiples of the parameters: a part's error feedback is a few such vectors.
const VECTOR_MODELS_MAX: u64 = 4;
/// Approximate least values of a piece: a megabyte.
const PIECE_VALUES_MIN: u32 = 1 << 18;

/// Checkpoints in the archive that were found damaged, and are not offered again by this process.
pub type Unusable = Arc<Mutex<BTreeSet<Archived>>>;

/// The archive of a run's configuration, as seen by one worker.
#[derive(Clone, Debug)]
pub struct RunArchive {
    config: Arc<RunConfig>,
    run: RunId,
    unusable: Unusable,
    runtime: Handle,
    best: KnownBest,
}

impl RunArchive {
    /// Refuses a configuration with an archive that this build lacks.
    ///
    /// # Errors
    /// [`ArchiveError::NotBuilt`]
    pub fn check(config: &RunConfig) -> Result<(), ArchiveError> {
        config.checkpoint.to.as_ref().map_or(Ok(()), archive::require)
    }

    /// `None`: the configuration has no archive. It is not contacted yet.
    #[must_use]
    pub fn of(config: Arc<RunConfig>, run: RunId, unusable: Unusable, runtime: Handle) -> Option<Self> {
        config.checkpoint.to.is_some().then_some(Self {
            config,
            run,
            unusable,
            runtime,
            best: KnownBest::default(),
        })
    }

    /// The same, with these checkpoints kept for their held-out loss.
    #[must_use]
    pub fn keeping(self, best: KnownBest) -> Self {
        Self { best, ..self }
    }

    /// Returns its displayed name.
    #[must_use]
    pub fn place(&self) -> String {
        self.config.checkpoint.to.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// Returns the newest checkpoints in it, from their manifests alone.
    ///
    /// # Errors
    /// It is unreachable. Damaged manifests are logged and left out.
    pub async fn offers(&self) -> Result<Vec<CheckpointOffer>> {
        let archive = self.open()?;
        let archived = archive.list(Some(self.run)).await?;
        let rounds: BTreeSet<_> = archived.iter().map(|of| of.next_round).collect();
        let oldest = rounds.into_iter().rev().take(ROUNDS_OFFERED).next_back();
        let mut offers = Vec::new();
        for of in archived.into_iter().filter(|of| oldest.is_some_and(|oldest| of.next_round >= oldest)) {
            if self.unusable.lock().unwrap_or_else(PoisonError::into_inner).contains(&of) {
                continue;
            }
            match archive.manifest(of).await {
                Ok(manifest) => offers.push(offer_of(of, &manifest)?),
                Err(error) if error.is_damage() => {
                    tracing::warn!(%error, "a checkpoint in the archive is unusable; older ones are offered");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(offers)
    }

    /// Uploads a part's checkpoint, and prunes old ones. Returns its name. Blocks during the upload.
    ///
    /// # Errors
    /// The storage refuses it; the archive is then unchanged.
    pub fn write(
        &self,
        (rank, parts): (u32, u32),
        writer: WorkerId,
        data: &CheckpointData,
    ) -> Result<String> {
        let archive = self.open()?;
        let part = ModelPart { run: self.run, parts, rank };
        self.runtime.block_on(async {
            let of = self.upload(&archive, part, writer, data).await?;
            let pruned = match self.retention(&archive, parts).await {
                Ok(retention) => archive.prune(part, retention, of.next_round).await,
                Err(error) => Err(error),
            };
            if let Err(error) = pruned {
                tracing::warn!(%error, "old checkpoints stay in the archive for now");
            }
            Ok(archive.name_of(of))
        })
    }

    async fn retention(&self, archive: &Archive, parts: u32) -> Result<Retention, ArchiveError> {
        Ok(self.best.retention(&self.config, parts, &archive.list(Some(self.run)).await?))
    }

    async fn upload(
        &self,
        archive: &Archive,
        part: ModelPart,
        writer: WorkerId,
        data: &CheckpointData,
    ) -> Result<Archived> {
        let model = data.model.as_ref().context("a checkpoint without a model")?;
        let mut upload = archive.upload(part, piece_values(self.config.sync.fragment_values));
        let mut companions = BTreeMap::new();
        for (name, content) in model.companions.iter() {
            companions.insert(name.to_owned(), upload.bytes(content).await?);
        }
        let tokenizer = companions.remove(TOKENIZER);
        let parameters = upload.values(&model.parameters).await?;
        let mut shared = BTreeMap::new();
        for (name, values) in &model.shared {
            shared.insert(name.clone(), upload.values(values).await?);
        }
        let mut vectors = BTreeMap::new();
        for (name, values) in data.private.vectors.iter().filter(|_| self.may_tell_private()) {
            vectors.insert(name.clone(), upload.values(values).await?);
        }
        let private = self.may_tell_private().then(|| Private {
            worker: writer,
            counters: data.private.counters.clone(),
            vectors,
        });
        let manifest = Manifest {
            run: self.run.to_string(),
            next_round: data.next_round,
            next_step: data.next_step,
            generation: data.generation,
            state_hash: blake3::Hash::from_bytes(data.state_hash).to_hex().to_string(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            rank: part.rank,
            parts: part.parts,
            chunks: chunks_of(&model.spec),
            share: share_of(&model.spec),
            model: model_config::carried(&model.spec, &model.companions).to_string(),
            tokenizer,
            companions,
            parameters,
            shared,
            private,
        };
        tracing::debug!(bytes = upload.sent_bytes(), "all pieces of a checkpoint are in the archive");
        Ok(upload.finish(&manifest).await?)
    }

    /// Downloads a part of a checkpoint to this machine's disk, in the form of a local one, unless it has nothing of the `wanted` part. Returns the owner of
    /// its private state. Blocks.
    ///
    /// # Errors
    /// It is damaged, and then not offered again; or of another model or state, or the storage or the disk refuses.
    pub fn fetch(
        &self,
        offer: &CheckpointOffer,
        wanted: &ModelSpec,
        root: &CheckpointStore,
    ) -> Result<Option<WorkerId>> {
        let archive = self.open()?;
        let part = ModelPart { run: self.run, parts: offer.parts, rank: offer.rank };
        let of = Archived { part, next_round: offer.next_round };
        let fetched = self.runtime.block_on(download(&archive, of, offer, wanted));
        if let Err(error) = &fetched
            && error.downcast_ref().is_some_and(ArchiveError::is_damage)
        {
            self.unusable.lock().unwrap_or_else(PoisonError::into_inner).insert(of);
        }
        let Some((writer, data)) = fetched.with_context(|| format!("fetch {}", archive.name_of(of)))? else {
            return Ok(None);
        };
        let store = root.clone().of_worker(writer.unwrap_or(root.worker()));
        store.of_part(part.rank, part.parts).write(&data)?;
        tracing::info!(checkpoint = archive.name_of(of), "a checkpoint's part is here from the archive");
        Ok(writer)
    }

    /// Reports whether others may see a worker's private state.
    fn may_tell_private(&self) -> bool {
        self.config.may_be_shared()
    }

    fn open(&self) -> Result<Archive> {
        let checkpoint = &self.config.checkpoint;
        let location = checkpoint.to.as_ref().context("the run has no archive")?;
        Ok(Archive::create(location, checkpoint.endpoint.as_deref())?)
    }
}

/// Returns the values of a piece: those of a fragment, or of enough fragments for an efficient request.
fn piece_values(fragment_values: u32) -> u32 {
    let fragment = fragment_values.max(1);
    fragment.saturating_mul((PIECE_VALUES_MIN / fragment).max(1))
}

fn offer_of(of: Archived, manifest: &Manifest) -> Result<CheckpointOffer> {
    let hash = blake3::Hash::from_hex(&manifest.state_hash).context("read a hash of a checkpoint")?;
    let Archived { part, next_round } = of;
    let (rank, parts) = (part.rank, part.parts);
    let (state_hash, generation) = (*hash.as_bytes(), manifest.generation);
    Ok(CheckpointOffer { next_round, state_hash, private: false, rank, parts, generation })
}

/// `None`: it has nothing of the wanted part.
async fn download(
    archive: &Archive,
    of: Archived,
    offer: &CheckpointOffer,
    wanted: &ModelSpec,
) -> Result<Option<(Option<WorkerId>, CheckpointData)>> {
    let manifest = archive.manifest(of).await?;
    ensure!(
        offer_of(of, &manifest)?.state_hash == offer.state_hash,
        "its state differs from the offered one"
    );
    let spec = manifest.part_of(wanted).context("it fits no part of this model")?;
    if !overlap(&spec, wanted) {
        return Ok(None);
    }
    let bytes = spec.synchronised_count() * size_of::<f32>() as u64;
    let parameters = f32_of(&archive.read(of.part, &manifest.parameters, bytes).await?);
    let companions = read_companions(archive, of.part, &manifest).await?;
    let shared = read_vectors(archive, of.part, &manifest.shared, bytes).await?;
    let (writer, private) = match &manifest.private {
        Some(Private { worker, counters, vectors }) => {
            let vectors = read_vectors(archive, of.part, vectors, bytes).await?;
            (Some(*worker), PrivateState { vectors, counters: counters.clone() })
        }
        None => (None, PrivateState::default()),
    };
    let model = ModelState { spec, parameters, companions, shared };
    let data = CheckpointData {
        next_round: of.next_round,
        next_step: manifest.next_step,
        generation: manifest.generation,
        state_hash: offer.state_hash,
        model: Some(model),
        private,
    };
    Ok(Some((writer, data)))
}

/// Downloads the files beside the weights.
async fn read_companions(archive: &Archive, part: ModelPart, manifest: &Manifest) -> Result<Companions> {
    let mut companions = Vec::new();
    let tokenizer = manifest.tokenizer.iter().map(|content| (TOKENIZER, content));
    let others = manifest.companions.iter().map(|(name, content)| (name.as_str(), content));
    for (name, content) in tokenizer.chain(others.filter(|(name, _)| is_carried(name))) {
        ensure!(content.bytes <= COMPANION_BYTES_MAX, "its {name} has {} bytes", content.bytes);
        companions.push((name.to_owned(), archive.read(part, content, content.bytes).await?.into()));
    }
    Ok(companions.into_iter().collect())
}

/// Downloads and assembles a whole model from its parts, which are of one round.
///
/// # Errors
/// A part is missing or damaged, or the storage cannot be reached.
pub(super) async fn whole_of(archive: &Archive, parts: &[Archived], weights: Weights) -> Result<WholeModel> {
    let first = parts.first().context("no such checkpoint is there")?;
    let manifest = archive.manifest(*first).await?;
    let json = serde_json::from_str(&manifest.model).context("read the description of its model")?;
    let spec = model_config::from_json(&json).context("it does not describe a supported language model")?;
    let companions = read_companions(archive, first.part, &manifest).await?;
    let spec = tuned_as(spec, &companions)?;
    let mut read = Vec::with_capacity(parts.len());
    for of in parts {
        let manifest = archive.manifest(*of).await?;
        let part = manifest
            .part_of(&spec)
            .with_context(|| format!("{} fits no part of this model", archive.name_of(*of)))?;
        let bytes = part.synchronised_count() * size_of::<f32>() as u64;
        let content = match weights {
            Weights::Trained => &manifest.parameters,
            Weights::Averaged => {
                manifest.shared.get(AVERAGE).with_context(|| without_average(&archive.name_of(*of)))?
            }
        };
        read.push((part, f32_of(&archive.read(of.part, content, bytes).await?)));
    }
    let mut pieces = Pieces::default();
    read.iter().try_for_each(|(part, values)| pieces.add(part, values))?;
    let parameters = pieces.gather(&spec)?;
    Ok(WholeModel { path: archive.name_of(*first), spec, parameters, companions })
}

/// Whether a file that a manifest names is one that checkpoints carry.
fn is_carried(name: &str) -> bool {
    name == MODEL_CONFIG || Companion::of(name).is_some()
}

async fn read_vectors(
    archive: &Archive,
    part: ModelPart,
    vectors: &BTreeMap<String, Content>,
    model_bytes: u64,
) -> Result<BTreeMap<String, Arc<[f32]>>> {
    let mut read = BTreeMap::new();
    for (name, content) in vectors {
        let most = model_bytes.saturating_mul(VECTOR_MODELS_MAX);
        ensure!(content.bytes <= most, "{name} has {} bytes, more than the {most} possible", content.bytes);
        let bytes = archive.read(part, content, content.bytes).await?;
        read.insert(name.clone(), f32_of(&bytes));
    }
    Ok(read)
}

#[cfg(test)]
#[cfg(feature = "object-storage")]
mod tests;
