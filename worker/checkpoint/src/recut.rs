//! A part of the model from checkpoints of other parts, for a run that continues with another division.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use longhaul_common::id::Round;
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::folder::Manifest;

use super::listing::{self, LoadedPrivate};
use super::pieces::Pieces;
use super::{CheckpointStore, PrivateState, sealed};

/// The initial state of a worker whose part of the model others have written.
#[derive(Clone, Debug, PartialEq)]
pub struct Recut {
    /// In the order of [`ModelSpec::synchronised`].
    pub parameters: Vec<f32>,
    /// Further vectors shared by all workers, by name.
    pub shared: BTreeMap<String, Arc<[f32]>>,
    /// Vectors with a value per parameter and counters, from the writers' private states. `None`: one of the parts has no such state.
    pub private: Option<PrivateState>,
}

struct RecutPart {
    spec: ModelSpec,
    parameters: Vec<f32>,
    shared: BTreeMap<String, Arc<[f32]>>,
    private: Option<PrivateState>,
}

impl RecutPart {
    fn shared_vector(&self, name: &str) -> Option<&[f32]> {
        self.shared.get(name).map(AsRef::as_ref)
    }

    fn private_vector(&self, name: &str) -> Option<&[f32]> {
        self.private.as_ref()?.vectors.get(name).map(AsRef::as_ref)
    }
}

/// Assembles the `wanted` part of the model from parts of one checkpoint on this machine. Parameters must match their checkpoint's hash by `hash_of`.
///
/// # Errors
/// A checkpoint is damaged, or of another model; or a tensor is in none of them.
pub fn recut(
    stores: &[CheckpointStore],
    next_round: Round,
    wanted: &ModelSpec,
    hash_of: impl Fn(&[f32]) -> [u8; 32],
) -> Result<Recut> {
    let parts = stores.iter().map(|store| read(store, next_round, wanted, &hash_of));
    let parts: Vec<RecutPart> = parts.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let parameters = joined(wanted, &parts, |part| Some(&part.parameters))?
        .context("no part of the checkpoint has a block of this one")?;
    let mut shared = BTreeMap::new();
    for name in parts.first().into_iter().flat_map(|part| part.shared.keys()) {
        let of = |part| RecutPart::shared_vector(part, name);
        shared.extend(joined(wanted, &parts, of)?.map(|values| (name.clone(), values.into())));
    }
    Ok(Recut { parameters, shared, private: private_of(wanted, &parts)? })
}

/// Reports whether a manifest has anything of the wanted part.
pub(super) fn overlaps(manifest: &Path, wanted: &ModelSpec) -> Result<bool> {
    let manifest: Manifest = sealed::read(manifest)?;
    Ok(manifest.part_of(wanted).is_some_and(|part| overlap(&part, wanted)))
}

/// `None`: it has nothing of the wanted part.
fn read(
    store: &CheckpointStore,
    next_round: Round,
    wanted: &ModelSpec,
    hash_of: &impl Fn(&[f32]) -> [u8; 32],
) -> Result<Option<RecutPart>> {
    let manifest = listing::manifest(&store.folder_of(next_round), store.run())?;
    let Some(spec) = manifest.part_of(wanted).filter(|part| overlap(part, wanted)) else {
        return Ok(None);
    };
    let model = store.load_model(next_round, &spec)?;
    ensure!(hash_of(&model.parameters) == model.state_hash, "a part's parameters do not match its hash");
    let own = store.load_private(next_round).ok();
    let private = match own {
        None => store.load_anothers(next_round)?,
        own => own,
    };
    let private =
        private.filter(|of| of.state_hash == model.state_hash).map(|LoadedPrivate { state, .. }| state);
    Ok(Some(RecutPart { spec, parameters: model.parameters, shared: model.shared, private }))
}

/// Reports whether both share blocks. Different members of groups of one size share nothing.
pub(super) fn overlap(part: &ModelSpec, wanted: &ModelSpec) -> bool {
    let mut chunks = part.chunks.iter();
    let has_block =
        chunks.any(|chunk| wanted.chunks.iter().any(|own| chunk.start < own.end && own.start < chunk.end));
    has_block && (part.shard.ways() != wanted.shard.ways() || part.shard == wanted.shard)
}

fn private_of(wanted: &ModelSpec, parts: &[RecutPart]) -> Result<Option<PrivateState>> {
    let Some(states) = parts.iter().map(|part| part.private.as_ref()).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let mut private = PrivateState::default();
    if let Some(first) = states.first() {
        private.counters = first.counters.clone();
        for name in first.vectors.keys() {
            let of = |part| RecutPart::private_vector(part, name);
            private.vectors.extend(joined(wanted, parts, of)?.map(|values| (name.clone(), values.into())));
        }
    }
    Ok(Some(private))
}

/// Returns a vector with a value per parameter that the `wanted` part synchronises. `None`: it is not such a vector, or a part lacks it.
fn joined<'a>(
    wanted: &ModelSpec,
    parts: &'a [RecutPart],
    of: impl Fn(&'a RecutPart) -> Option<&'a [f32]>,
) -> Result<Option<Vec<f32>>> {
    let mut pieces = Pieces::default();
    for part in parts {
        let Some(values) = of(part).filter(|values| values.len() == part.parameters.len()) else {
            return Ok(None);
        };
        pieces.add(&part.spec, values)?;
    }
    if parts.is_empty() { Ok(None) } else { pieces.gather(wanted).map(Some) }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::ParallelConfig;
    use longhaul_common::id::{Generation, RunId, WorkerId};

    use super::*;
    use crate::{CheckpointData, CheckpointFile, ModelState};
    use longhaul_common::model::tiny::tiny_gpt2;

    const RUN: RunId = RunId([5; 16]);

    fn hash_of(values: &[f32]) -> [u8; 32] {
        *blake3::hash(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).as_bytes()
    }

    /// Writes each part like its own worker, with moments that differ from the parameters.
    fn write(dir: &Path, parts: &[ModelSpec], has_private: bool) -> Vec<CheckpointStore> {
        let count = parts.len() as u32;
        let write = |(rank, spec): (u32, &ModelSpec)| {
            let store = CheckpointStore::new(dir, RUN, WorkerId(rank), 2).of_part(rank, count);
            let vector =
                |factor: f32| -> Arc<[f32]> { of(spec).iter().map(|value| factor * value).collect() };
            let vectors = [("parameters", 1.0), ("first_moments", 2.0), ("second_moments", 3.0)];
            let mut vectors: BTreeMap<String, Arc<[f32]>> =
                vectors.map(|(name, factor)| (name.to_owned(), vector(factor))).into();
            vectors.insert("residual.0".to_owned(), [1.0].into());
            let counters = BTreeMap::from([("updates".to_owned(), 7)]);
            let data = CheckpointData {
                next_round: Round(4),
                next_step: 8,
                generation: Generation(1),
                state_hash: hash_of(&of(spec)),
                model: Some(ModelState {
                    spec: spec.clone(),
                    parameters: of(spec).into(),
                    companions: Default::default(),
                    shared: BTreeMap::from([("outer_momentum".to_owned(), vector(5.0))]),
                }),
                private: if has_private {
                    PrivateState { vectors, counters }
                } else {
                    PrivateState::default()
                },
            };
            store.write(&data).unwrap();
            store
        };
        (0..).zip(parts).map(write).collect()
    }

    /// Numbers for each tensor that follow from its name and the position within: those of a part or a share are those of the whole.
    fn of(spec: &ModelSpec) -> Vec<f32> {
        let seed =
            |name: &str| name.bytes().fold(1_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let values = |tensor: longhaul_common::model::ParameterSpec| {
            let first = (seed(&tensor.name) % 1000) as f32;
            tensor.places(spec.shard).flatten().map(move |place| first + place as f32)
        };
        spec.synchronised().into_iter().flat_map(values).collect()
    }

    fn cut(bounds: &[u32]) -> Vec<ModelSpec> {
        let spec = tiny_gpt2();
        let part = |pair: &[u32]| spec.part(std::iter::once(pair[0]..pair[1]).collect());
        bounds.windows(2).map(part).collect()
    }

    #[test]
    fn a_model_in_parts_goes_on_in_other_parts_with_its_moments() {
        let spec = tiny_gpt2();
        let end = spec.head() + 1;
        goes_on(&cut(&[0, 1, end - 1, end]), cut(&[0, 2, end]).into_iter().chain([spec]));
    }

    /// As a run moves from tensor groups to others, to parts of groups, and to whole layers, and back.
    #[test]
    fn a_model_whose_layers_are_shared_goes_on_with_other_shares_and_in_other_parts() {
        let cut = |(stages, tensor): (u32, u32)| {
            let parallel = ParallelConfig { stages, tensor, ..ParallelConfig::default() };
            tiny_gpt2().parts(&parallel, 16).unwrap()
        };
        let all = [(1, 1), (2, 1), (1, 2), (2, 2)];
        for (from, to) in all.into_iter().flat_map(|from| all.map(|to| (from, to))) {
            goes_on(&cut(from), cut(to).into_iter());
        }
    }

    fn goes_on(from: &[ModelSpec], to: impl Iterator<Item = ModelSpec>) {
        let dir = tempfile::tempdir().unwrap();
        let stores = write(dir.path(), from, true);
        for wanted in to {
            let recut = recut(&stores, Round(4), &wanted, hash_of).unwrap();
            let values = of(&wanted);
            let times = |factor: f32| values.iter().map(|value| factor * value).collect::<Arc<[f32]>>();
            assert_eq!(recut.parameters, values);
            assert_eq!(recut.shared, BTreeMap::from([("outer_momentum".to_owned(), times(5.0))]));
            let private = recut.private.unwrap();
            let expected = [("parameters", 1.0), ("first_moments", 2.0), ("second_moments", 3.0)];
            assert_eq!(
                private.vectors,
                expected.map(|(name, factor)| (name.to_owned(), times(factor))).into()
            );
            assert_eq!(private.counters["updates"], 7);
        }
    }

    #[test]
    fn what_is_not_there_or_not_what_it_says_is_refused() {
        let (dir, spec) = (tempfile::tempdir().unwrap(), tiny_gpt2());
        let end = spec.head() + 1;
        let stores = write(dir.path(), &cut(&[0, 1, end]), true);
        let missing = recut(&stores[1..], Round(4), &spec, hash_of).unwrap_err().to_string();
        assert!(missing.starts_with("no part of the checkpoint has"), "{missing}");
        let other = recut(&stores, Round(4), &spec, |_| [0; 32]).unwrap_err().to_string();
        assert!(other.contains("do not match its hash"), "{other}");
        let manifest = stores[0].path_of(Round(4), CheckpointFile::Manifest);
        assert!(overlaps(&manifest, &spec).unwrap() && !overlaps(&manifest, &cut(&[1, end])[0]).unwrap());
    }
}
