//! The disks of all machines, and checkpoints that are copied from one to another.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use longhaul_checkpoint::CheckpointStore;
use longhaul_common::id::{RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::control::message::HeldPart;
use tempfile::TempDir;

/// Checkpoints that a store keeps.
pub const KEPT: u32 = 2;

/// The disks of machines with a running process. Clones share them.
#[derive(Clone, Default)]
pub struct Disks(Arc<Mutex<BTreeMap<WorkerId, PathBuf>>>);

impl Disks {
    pub fn insert(&self, worker: WorkerId, path: PathBuf) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, path);
    }

    pub fn remove(&self, worker: WorkerId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
    }

    fn of(&self, worker: WorkerId) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&worker).cloned()
    }

    /// Copies a part of a checkpoint from its first holder that has it. With `wanted`, only a part with a block of that.
    pub fn copy(
        &self,
        run: RunId,
        to: &CheckpointStore,
        part: &HeldPart,
        wanted: Option<&ModelSpec>,
    ) -> Result<()> {
        let mut last = None;
        for holder in &part.holders {
            match self.copy_from(holder.worker, run, to, part, wanted) {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no holder is named")?)
    }

    fn copy_from(
        &self,
        holder: WorkerId,
        run: RunId,
        to: &CheckpointStore,
        HeldPart { offer, .. }: &HeldPart,
        wanted: Option<&ModelSpec>,
    ) -> Result<()> {
        let to = to.clone().of_part(offer.rank, offer.parts);
        if to.holds(offer.next_round, offer.state_hash) {
            return Ok(());
        }
        let disk = self.of(holder).context("the holder does not run")?;
        let from = CheckpointStore::new(&disk, run, holder, KEPT).of_part(offer.rank, offer.parts);
        let files = from.files_to_copy(offer.next_round, offer.state_hash)?;
        let incoming = to.receive(offer.next_round)?;
        for wanted in &files {
            std::fs::copy(from.path_of(offer.next_round, wanted.file), incoming.path_of(wanted.file))?;
            ensure!(incoming.check(wanted)?, "a copied file is damaged");
        }
        if let Some(wanted) = wanted
            && !incoming.overlaps(wanted)?
        {
            return Ok(());
        }
        incoming.publish(&files, offer.state_hash)
    }
}

/// In memory where the system has such a folder: simulated disks need not outlive their process, and simulations write many checkpoints.
pub fn temporary_folder() -> io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    match tempfile::Builder::new().prefix("longhaul-sim-").tempdir_in(memory) {
        Ok(folder) => Ok(folder),
        Err(_) => tempfile::tempdir(),
    }
}
