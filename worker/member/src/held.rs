//! Resuming from a checkpoint's parts written by other workers.

use anyhow::{Context, Result};
use longhaul_checkpoint::{CheckpointStore, LoadedModel, Recut, recut};
use longhaul_common::id::Round;
use longhaul_proto::control::message::HeldPart;

use super::replica::{Replica, hash_of};
use super::saved::{Saved, UnsentUpdates, average_in, momentum_in};
use super::synchroniser::{Outcome, Synchroniser};
use crate::message::Load;

impl Synchroniser {
    /// Fetches this worker's part of the model from these parts.
    pub(super) fn fetch_held(&self, parts: Vec<HeldPart>) {
        let Some(prepared) = &self.part.prepared else { return };
        tracing::info!(
            parts = parts.len(),
            "fetching this worker's part of the model from checkpoints of others"
        );
        self.outside.fetch_parts(self.recovery.wants, self.root_store(), parts, prepared.spec.clone());
    }

    pub(super) fn start_from_held(&mut self, parts: &[HeldPart]) -> Result<()> {
        let (next_round, recut) = match self.load_held(parts) {
            Ok(loaded) => loaded,
            Err(error) => {
                self.outcome = Some(Outcome::Rejoin(format!("{error:#}")));
                return Ok(());
            }
        };
        let Recut { parameters, shared, private } = recut;
        let momentum = momentum_in(&shared);
        let model = LoadedModel { next_step: 0, state_hash: hash_of(&parameters), parameters, shared };
        // The moments are their writer's. Its unsent values are not this worker's to send: the writer may still send them.
        let moments = private.as_ref().and_then(Saved::from_private).map(Saved::into_common);
        let load = match moments.or_else(|| self.frozen_state(&model)) {
            Some(Saved { mut state, .. }) => {
                state.parameters.clone_from(&model.parameters);
                Load::Private { state, synchronised: model.parameters.clone(), trained: Vec::new() }
            }
            None => {
                tracing::warn!(
                    next_round = next_round.0,
                    "the checkpoint's parts have no moments: the optimiser's start from zero"
                );
                Load::Parameters(model.parameters.clone())
            }
        };
        let average = self.average_from(average_in(&model.shared), &model.parameters, next_round);
        let replica = Replica::new(model.parameters, next_round);
        let replica = replica.with_momentum(momentum).with_average(average);
        self.start_from(replica, load, UnsentUpdates::default())
    }

    fn load_held(&self, parts: &[HeldPart]) -> Result<(Round, Recut)> {
        let prepared = self.part.prepared.as_ref().context("the model is not built")?;
        let next_round = parts.first().context("a checkpoint without parts")?.offer.next_round;
        let root = self.root_store();
        let is_here =
            |store: &CheckpointStore, part: &HeldPart| store.holds(next_round, part.offer.state_hash);
        let stores = parts.iter().filter_map(|part| {
            let store = root.clone().of_part(part.offer.rank, part.offer.parts);
            is_here(&store, part).then_some(store)
        });
        let stores: Vec<CheckpointStore> = stores.collect();
        Ok((next_round, recut(&stores, next_round, &prepared.spec, hash_of)?))
    }

    /// Returns this run's checkpoint store on this machine, for any part.
    pub(super) fn root_store(&self) -> CheckpointStore {
        let retention = self.config.retention(self.checkpoints.best.now());
        let store = CheckpointStore::new(&self.checkpoints.folder, self.run, self.worker, retention);
        match &self.part.prepared {
            Some(prepared) => store.beside(&prepared.companions),
            None => store,
        }
    }
}
