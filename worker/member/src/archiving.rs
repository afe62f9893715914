//! Uploads of checkpoints to the archive, beside training.

use std::sync::Arc;

use anyhow::{Context, Result};
use longhaul_checkpoint::CheckpointData;
use longhaul_proto::control::message::{CheckpointReport, ToCoordinator};

use super::event::SyncEvent;
use super::running::Running;
use super::synchroniser::Synchroniser;

impl Synchroniser {
    /// Reports whether this member uploads checkpoints: the first of those with the same part of the model.
    pub(super) fn is_archivist(&self, running: &Running) -> bool {
        let members = running.membership.as_ref().map_or(&[][..], |membership| membership.members());
        let first = members.iter().map(|member| member.worker).min();
        self.checkpoints.archive.is_some() && first.is_none_or(|first| first == self.worker)
    }

    /// Uploads a checkpoint in the background. During another upload it is skipped, unless it is the last one: that waits.
    pub(super) fn archive_checkpoint(&mut self, data: Arc<CheckpointData>) -> Result<()> {
        let Some(archive) = self.checkpoints.archive.clone() else { return Ok(()) };
        if self.checkpoints.archiving {
            if self.checkpoints.finishing.is_some() {
                self.checkpoints.last_to_archive = Some(data);
            } else {
                let reason = "the previous upload is still in progress: the link is too slow for checkpoint.every_rounds; raise it".to_owned();
                self.not_archived(&data, archive.place(), reason);
            }
            return Ok(());
        }
        self.checkpoints.archiving = true;
        let archive = archive.keeping(self.checkpoints.best.clone());
        let part = (self.part.rank.unwrap_or_default(), self.config.parallel.ranks_per_replica());
        let worker = self.worker;
        let upload = move || {
            let CheckpointData { next_round, generation, .. } = *data;
            let (path, outcome) = match archive.write(part, worker, &data) {
                Ok(path) => (path, Ok(data.state_hash)),
                Err(error) => (archive.place(), Err(format!("{error:#}"))),
            };
            SyncEvent::CheckpointArchived(CheckpointReport { next_round, generation, path, outcome })
        };
        self.outside.in_background("archive", Box::new(upload)).context("start a thread for the archive")
    }

    pub(super) fn checkpoint_archived(&mut self, report: CheckpointReport) -> Result<()> {
        self.checkpoints.archiving = false;
        match &report.outcome {
            Ok(_) => tracing::info!(path = report.path, "checkpoint archived"),
            Err(reason) => {
                tracing::error!(reason, "the archive has no new checkpoint; training goes on");
            }
        }
        self.report(ToCoordinator::Checkpoint(report));
        if let Some(data) = self.checkpoints.last_to_archive.take() {
            return self.archive_checkpoint(data);
        }
        self.finish_if_all_is_written();
        Ok(())
    }

    fn not_archived(&self, data: &CheckpointData, path: String, reason: String) {
        tracing::warn!(reason, "a checkpoint is on this machine but not in the archive");
        let CheckpointData { next_round, generation, .. } = *data;
        let outcome = Err(reason);
        self.report(ToCoordinator::Checkpoint(CheckpointReport { next_round, generation, path, outcome }));
    }
}
