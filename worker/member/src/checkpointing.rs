//! Checkpoints, and the end of the run.

use std::sync::Arc;

use anyhow::{Context, Result};
use longhaul_checkpoint::{CheckpointData, CheckpointStore, ModelState};
use longhaul_common::id::Round;
use longhaul_common::model::Evaluation;
use longhaul_proto::control::message::{CheckpointReport, ToCoordinator};

use super::event::SyncEvent;
use super::replica::{Replica, hash_of};
use super::running::Stage;
use super::saved::{Saved, UnsentUpdates, shared_of};
use super::synchroniser::Synchroniser;
use crate::message::DeviceState;

impl Synchroniser {
    /// Writes a checkpoint in the background. If the disk cannot keep up, the checkpoint is skipped with a report, and training goes on.
    pub(super) fn write_checkpoint(
        &mut self,
        next_round: Round,
        state: DeviceState,
        trained: Vec<Vec<u64>>,
    ) -> Result<()> {
        let Stage::Running(running) = &self.stage else { return Ok(()) };
        let generation = running.generation;
        if std::mem::replace(&mut self.checkpoints.writing, true) {
            self.report(ToCoordinator::Checkpoint(CheckpointReport {
                next_round,
                generation,
                path: self.checkpoints.folder.display().to_string(),
                outcome: Err("the previous checkpoint is still being written: the disk is too slow for checkpoint.every_rounds".into()),
            }));
            return Ok(());
        }
        let Some(prepared) = &self.part.prepared else { return Ok(()) };
        let kept = UnsentUpdates {
            memories: running.codec.compressor.memories().clone(),
            owner_residuals: running.codec.reducer.residuals_at(next_round),
            carry: running.contributions.carry.clone(),
            columns: running.codec.compressor.columns().clone(),
            carried_columns: running.contributions.columns.carried().clone(),
        };
        let momentum = Arc::clone(running.replica.momentum());
        let average = running.replica.average().map(|average| Arc::clone(average.values()));
        let is_frozen =
            self.config.sync.parts_after_the_warmup() && !running.rounds.schedule.is_warmup(next_round);
        let (spec, companions) = (prepared.spec.clone(), prepared.companions.clone());
        let parameters = Arc::clone(running.replica.parameters());
        let next_step = running.rounds.schedule.steps_of(next_round).start;
        let store = self.store();
        let is_archivist = self.is_archivist(running);
        let folder = self.checkpoints.folder.clone();
        let write = move || {
            let state_hash = hash_of(&parameters);
            let data = CheckpointData {
                next_round,
                next_step,
                generation,
                state_hash,
                model: Some(ModelState {
                    spec,
                    parameters: parameters.as_slice().into(),
                    companions,
                    shared: shared_of(
                        &momentum,
                        if is_frozen { &state.second_moments } else { &[] },
                        average.as_deref().map_or(&[], Vec::as_slice),
                    ),
                }),
                private: Saved { state, kept, trained }.into_private(),
            };
            let (path, outcome) = match store.write(&data) {
                Ok(path) => (path, Ok(state_hash)),
                Err(error) => (folder, Err(error.to_string())),
            };
            let path = path.display().to_string();
            let report = CheckpointReport { next_round, generation, path, outcome };
            let to_archive = is_archivist.then(|| Arc::new(data));
            SyncEvent::CheckpointWritten(report, to_archive)
        };
        self.outside.in_background("checkpoint", Box::new(write)).context("start a thread for the checkpoint")
    }

    /// Returns this run's checkpoint store on this machine.
    pub(super) fn store(&self) -> CheckpointStore {
        let (rank, parts) = (self.part.rank.unwrap_or_default(), self.config.parallel.ranks_per_replica());
        self.root_store().of_part(rank, parts)
    }

    pub(super) fn checkpoint_written(
        &mut self,
        report: CheckpointReport,
        to_archive: Option<Arc<CheckpointData>>,
    ) -> Result<()> {
        self.checkpoints.writing = false;
        match &report.outcome {
            Ok(_) => tracing::info!(path = report.path, "checkpoint written"),
            Err(reason) => tracing::error!(reason, "no checkpoint; training goes on"),
        }
        self.report(ToCoordinator::Checkpoint(report));
        if let Some(data) = to_archive {
            self.archive_checkpoint(data)?;
        }
        if let Some((next_round, state)) = self.checkpoints.last.take() {
            return self.write_checkpoint(next_round, state, Vec::new());
        }
        self.finish_if_all_is_written();
        Ok(())
    }

    /// Reports the end to the coordinator, once no write to disk or archive is in flight.
    pub(super) fn finish_if_all_is_written(&mut self) {
        if self.checkpoints.writing || self.checkpoints.archiving {
            return;
        }
        if let Some((next_round, validation)) = self.checkpoints.finishing.take() {
            // The coordinator sums heartbeats: the last one precedes the end.
            self.report(ToCoordinator::Heartbeat(self.outside.heartbeat()));
            let validation_loss = validation.map(|validation| validation.loss);
            let validation_accuracy = validation.and_then(|validation| validation.accuracy);
            self.report(ToCoordinator::Finished { next_round, validation_loss, validation_accuracy });
        }
    }

    /// Handles the end on the device, of the run or before a drain.
    pub(super) fn ended(
        &mut self,
        next_round: Round,
        mut state: DeviceState,
        validation: Option<Evaluation>,
    ) -> Result<()> {
        match validation {
            Some(Evaluation { loss, accuracy: Some(accuracy) }) => {
                tracing::info!(loss, accuracy, "loss and accuracy on the held-out images");
            }
            Some(Evaluation { loss, accuracy: None }) => tracing::info!(loss, "loss on the held-out text"),
            None => {}
        }
        let dense = next_round.0.checked_sub(1).is_some_and(|last| self.shares_everything_in(Round(last)));
        if let Stage::Running(running) = &mut self.stage {
            running.contributions.unsent.put_back(&mut state.parameters);
            if dense {
                let average = running.replica.average().cloned();
                running.replica = Replica::new(state.parameters.clone(), next_round).with_average(average);
            }
        }
        self.checkpoints.finishing = Some((next_round, self.disclosed(validation)));
        // A checkpoint in flight is of an earlier round: the last one must follow it.
        if self.checkpoints.writing {
            self.checkpoints.last = Some((next_round, state));
            return Ok(());
        }
        self.write_checkpoint(next_round, state, Vec::new())
    }
}
