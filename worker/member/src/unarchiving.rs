//! Resuming from the archive, if this machine's disk has nothing.

use anyhow::{Context, Result};
use longhaul_checkpoint::{CheckpointStore, RunArchive};
use longhaul_proto::control::message::{CheckpointOffer, HeldPart, Start};

use super::event::SyncEvent;
use super::synchroniser::Synchroniser;

impl Synchroniser {
    /// Downloads this worker's start from the archive if it is there and not on disk; the answer is [`SyncEvent::Unarchived`]. Returns a start that needs no
    /// download.
    pub(super) fn unarchive(&self, start: Start) -> Result<Option<Start>> {
        let (Some(archive), Some(prepared)) = (self.checkpoints.archive.clone(), &self.part.prepared) else {
            return Ok(Some(start));
        };
        let root = self.root_store();
        let missing = missing_of(&root, &start);
        if missing.is_empty() {
            return Ok(Some(start));
        }
        tracing::info!(archive = archive.place(), parts = missing.len(), "fetching a checkpoint");
        let (wanted, attempt) = (prepared.spec.clone(), self.recovery.wants);
        let fetch = move || {
            let fetch = |offer: &CheckpointOffer| fetched(&archive, offer, &wanted, &root);
            let private = missing.iter().map(fetch).fold(false, |any, is_own| any | is_own);
            SyncEvent::Unarchived { attempt, start: as_fetched(start, private) }
        };
        self.outside.in_background("unarchive", Box::new(fetch)).context("start a thread for the archive")?;
        Ok(None)
    }

    /// Starts from the downloaded files on disk.
    pub(super) fn start_from_disk(&mut self, start: Start) -> Result<()> {
        match start {
            Start::Checkpoint(offer) => self.start_from_checkpoint(&offer),
            Start::Held(parts) => {
                self.fetch_held(parts);
                Ok(())
            }
            Start::Fresh => Ok(()),
        }
    }
}

/// Returns the parts that are not on disk.
fn missing_of(root: &CheckpointStore, start: &Start) -> Vec<CheckpointOffer> {
    let offers: Vec<&CheckpointOffer> = match start {
        Start::Fresh => Vec::new(),
        Start::Checkpoint(offer) => vec![offer],
        Start::Held(parts) => parts.iter().map(|part| &part.offer).collect(),
    };
    let is_here = |offer: &CheckpointOffer| {
        root.clone().of_part(offer.rank, offer.parts).holds(offer.next_round, offer.state_hash)
    };
    offers.into_iter().filter(|offer| !is_here(offer)).cloned().collect()
}

/// Downloads a part; reports whether it is this worker's own private state. A failure is logged, and surfaces where the part is needed.
fn fetched(
    archive: &RunArchive,
    offer: &CheckpointOffer,
    wanted: &longhaul_common::model::ModelSpec,
    root: &CheckpointStore,
) -> bool {
    match archive.fetch(offer, wanted, root) {
        Ok(writer) => writer == Some(root.worker()),
        Err(error) => {
            tracing::warn!(
                reason = format!("{error:#}"),
                "a checkpoint could not be downloaded from the archive"
            );
            false
        }
    }
}

/// Turns another worker's checkpoint into one from other workers' disks: with its moments, and without its unsent updates.
fn as_fetched(start: Start, private: bool) -> Start {
    match start {
        Start::Checkpoint(offer) if private => Start::Checkpoint(CheckpointOffer { private, ..offer }),
        Start::Checkpoint(offer) => Start::Held(vec![HeldPart { offer, holders: Vec::new() }]),
        other => other,
    }
}
