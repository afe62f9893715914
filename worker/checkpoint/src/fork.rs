//! A checkpoint as the beginning of another run: weights, moving average and moments.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_proto::checkpoint::folder::{Found, Manifest, PrivateRecord};
use longhaul_proto::checkpoint::{folder_name, part_name};

use super::store::{records, remove, sync, write_sealed};
use super::{
    AVERAGE, CheckpointStore, FIRST_MOMENTS, MANIFEST, PARAMETERS, PrivateState, SECOND_MOMENTS, SHARED,
    STEPS, UPDATES, listing, private_record_name, private_vectors_name, tensors,
};

/// The owner of the moments in a fork: no worker has this number, so none takes them for its own state.
const NOBODY: WorkerId = WorkerId(u32::MAX);

/// The beginning of the new run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkPoint {
    /// Its id.
    pub run: RunId,
    /// Its first round.
    pub next_round: Round,
    /// Its first step.
    pub next_step: u64,
}

/// Writes the parts of a checkpoint as one of another run into a folder of checkpoints. Unsent updates and the state of
/// the synchronisation stay behind. Returns whether all parts have moments.
///
/// # Errors
/// A part is missing or damaged, or the disk refuses. Nothing is left behind.
pub fn fork(parts: &[Found], dir: &Path, point: ForkPoint) -> Result<bool> {
    let count = parts.first().context("no such checkpoint is there")?.parts;
    for rank in 0..count {
        let is_there = parts.iter().any(|part| (part.rank, part.parts) == (rank, count));
        ensure!(is_there, "part {} of {count} is missing: copy its folder beside the others", rank + 1);
    }
    let generations = parts.iter().map(|part| Ok(part.manifest().map_err(anyhow::Error::msg)?.generation));
    let generations = generations.collect::<Result<BTreeSet<_>>>()?;
    let one =
        "the parts are of different pasts: name another --round, or remove the folders of abandoned ones";
    ensure!(generations.len() == 1, one);
    let root = dir.join(point.run.to_string());
    let written = parts.iter().map(|part| fork_part(part, &root, point));
    let written = written.collect::<Result<Vec<bool>>>();
    if written.is_err() {
        // The first error counts.
        let _ = remove(&root);
    }
    Ok(written?.into_iter().all(|has_moments| has_moments))
}

fn fork_part(from: &Found, root: &Path, point: ForkPoint) -> Result<bool> {
    let shown = from.path.display();
    let damaged = from.damaged();
    ensure!(damaged.is_empty(), "{shown} is damaged: {}", damaged.join(", "));
    let manifest = from.manifest().map_err(anyhow::Error::msg)?;
    let folder = if from.parts > 1 { root.join(part_name(from.rank, from.parts)) } else { root.to_owned() };
    let name = folder_name(point.next_round);
    let partial = folder.join(format!(".{name}.fork.partial"));
    std::fs::create_dir_all(&partial).with_context(|| format!("create {}", partial.display()))?;
    let mut files = copied(&from.path, &partial, &manifest)?;
    let moments = moments_of(from)?;
    let has_moments = moments.is_some();
    if let Some(moments) = moments {
        files.extend(write_moments(&partial, &moments, &manifest, point)?);
    }
    let model: Vec<String> = files.iter().filter(|name| !name.starts_with("private-")).cloned().collect();
    let forked = Manifest {
        run: point.run.to_string(),
        next_round: point.next_round,
        next_step: point.next_step,
        generation: Generation(0),
        software: env!("CARGO_PKG_VERSION").to_owned(),
        files: records(&partial, &model)?,
        ..manifest
    };
    write_sealed(&partial.join(MANIFEST), &forked)?;
    files.push(MANIFEST.to_owned());
    files.iter().try_for_each(|name| sync(&partial.join(name)))?;
    let path = folder.join(name);
    std::fs::rename(&partial, &path).with_context(|| format!("rename to {}", path.display()))?;
    sync(&folder)?;
    Ok(has_moments)
}

/// Copies the model's files and, of the vectors shared by all workers, the moving average. Returns their names.
fn copied(from: &Path, to: &Path, manifest: &Manifest) -> Result<Vec<String>> {
    let mut names: Vec<String> = manifest.files.keys().filter(|name| *name != SHARED).cloned().collect();
    for name in &names {
        let source: PathBuf = from.join(name);
        std::fs::copy(&source, to.join(name)).with_context(|| format!("copy {}", source.display()))?;
    }
    let mut shared = listing::read_shared(from, manifest)?;
    shared.retain(|name, _| name == AVERAGE);
    if !shared.is_empty() {
        tensors::write_vectors(&to.join(SHARED), &shared)?;
        names.push(SHARED.to_owned());
    }
    Ok(names)
}

/// Reads the moments of the lowest-numbered worker that has them. A fork that no worker has begun yet has them from its own beginning.
fn moments_of(from: &Found) -> Result<Option<PrivateState>> {
    let dir =
        from.path.ancestors().nth(if from.parts > 1 { 3 } else { 2 }).context("a folder without a run")?;
    let store = CheckpointStore::new(dir, from.run, NOBODY, 1).of_part(from.rank, from.parts);
    let of_worker = store.load_anothers(from.next_round)?;
    let Some(private) = of_worker.or_else(|| store.load_private(from.next_round).ok()) else {
        return Ok(None);
    };
    let mut state = private.state;
    state.vectors.retain(|name, _| [PARAMETERS, FIRST_MOMENTS, SECOND_MOMENTS].contains(&name.as_str()));
    state.counters.retain(|name, _| name == UPDATES);
    state.counters.insert(STEPS.to_owned(), 0);
    Ok((state.vectors.len() == 3).then_some(state))
}

fn write_moments(
    folder: &Path,
    moments: &PrivateState,
    manifest: &Manifest,
    point: ForkPoint,
) -> Result<[String; 2]> {
    let (vectors, name) = (private_vectors_name(NOBODY), private_record_name(NOBODY));
    tensors::write_vectors(&folder.join(&vectors), &moments.vectors)?;
    let record = PrivateRecord {
        worker: NOBODY,
        next_round: point.next_round,
        state_hash: manifest.state_hash.clone(),
        counters: moments.counters.clone(),
        files: records(folder, std::slice::from_ref(&vectors))?,
    };
    write_sealed(&folder.join(&name), &record)?;
    Ok([vectors, name])
}
