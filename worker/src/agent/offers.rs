//! The checkpoints that this worker can offer.

use longhaul_proto::control::message::{
    CHECKPOINT_OFFERS_MAX, CheckpointOffer, CheckpointReport, ToCoordinator,
};
use tokio::sync::mpsc;

use longhaul_checkpoint::{CheckpointError, CheckpointStore, Listed, RunArchive};

/// The run's checkpoints on this machine. Verified when a session is prepared and tracked from there: a worker that reconnects during training has no time to
/// read them all again.
#[derive(Debug)]
pub(super) struct Offers {
    /// The store, for all parts.
    store: CheckpointStore,
    /// Newest first.
    known: Vec<CheckpointOffer>,
    /// Checkpoints in the run's archive, from which a restoring worker fetches first.
    archived: Vec<CheckpointOffer>,
}

impl Offers {
    /// Scans a folder for complete, sound checkpoints with a model or a part of one.
    pub fn verified(store: CheckpointStore) -> Self {
        let mut known: Vec<CheckpointOffer> =
            store.all_parts().flat_map(|(name, part)| sound_in(&part, name)).collect();
        known.sort_by_key(|offer| (std::cmp::Reverse(offer.next_round), offer.rank));
        known.truncate(CHECKPOINT_OFFERS_MAX);
        Self { store, known, archived: Vec::new() }
    }

    /// Continues from checkpoints verified earlier.
    pub fn resume(store: CheckpointStore, known: Vec<CheckpointOffer>) -> Self {
        Self { store, known, archived: Vec::new() }
    }

    /// Updates the offers from a report of this worker, which has this part of the model.
    pub fn note_report(&mut self, part: (u32, u32), report: &ToCoordinator) {
        match report {
            ToCoordinator::Checkpoint(report) => self.note(part, report),
            ToCoordinator::Kept(Some(offer)) => self.add(offer.clone()),
            ToCoordinator::Archived(archived) => self.note_archived(archived),
            _ => {}
        }
    }

    /// Sets the checkpoints in the archive.
    fn note_archived(&mut self, archived: &[CheckpointOffer]) {
        self.archived = archived.to_vec();
    }

    /// Records a checkpoint that this worker, with the part of `rank`, has written; ignores a failed attempt.
    fn note(&mut self, (rank, parts): (u32, u32), report: &CheckpointReport) {
        let Ok(state_hash) = report.outcome else { return };
        let CheckpointReport { next_round, generation, .. } = *report;
        self.add(CheckpointOffer { next_round, state_hash, private: true, rank, parts, generation });
    }

    /// Adds a checkpoint that this worker has written or copied.
    fn add(&mut self, offer: CheckpointOffer) {
        // An older one of the same round belongs to a discarded past and has been replaced.
        let name = |of: &CheckpointOffer| (of.next_round, of.rank, of.parts);
        self.known.retain(|old| name(old) != name(&offer));
        let at = self.known.partition_point(|old| old.next_round > offer.next_round);
        self.known.insert(at, offer);
        self.known.truncate(CHECKPOINT_OFFERS_MAX);
    }

    /// Returns the checkpoints that exist now.
    pub fn current(&self) -> Vec<CheckpointOffer> {
        let stores: Vec<_> = self.store.all_parts().collect();
        let is_here = |offer: &&CheckpointOffer| {
            let mut of_part = stores.iter().filter(|(name, _)| *name == (offer.rank, offer.parts));
            of_part.any(|(_, store)| store.holds(offer.next_round, offer.state_hash))
        };
        let mut current: Vec<CheckpointOffer> = self.known.iter().filter(is_here).cloned().collect();
        let here = current.len();
        let name = |of: &CheckpointOffer| (of.next_round, of.rank, of.parts);
        for archived in &self.archived {
            if !current[..here].iter().any(|offer| name(offer) == name(archived)) {
                current.push(archived.clone());
            }
        }
        current.truncate(CHECKPOINT_OFFERS_MAX);
        current
    }
}

/// Reports the archive's checkpoints to the coordinator in the background; none if the archive is unreachable.
pub(super) fn tell_archived(archive: RunArchive, reports: mpsc::Sender<ToCoordinator>) {
    tokio::spawn(async move {
        let offers = archive.offers().await.unwrap_or_else(|error| {
            tracing::warn!(
                reason = format!("{error:#}"),
                archive = archive.place(),
                "the archive of checkpoints cannot be read"
            );
            Vec::new()
        });
        // The session may be over.
        let _ = reports.send(ToCoordinator::Archived(offers)).await;
    });
}

fn sound_in(store: &CheckpointStore, (rank, parts): (u32, u32)) -> Vec<CheckpointOffer> {
    let examined = store.examine().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the checkpoints");
        Vec::new()
    });
    let offer = |listed: Listed| CheckpointOffer {
        next_round: listed.next_round,
        state_hash: listed.state_hash,
        private: listed.private,
        rank,
        parts,
        generation: listed.generation,
    };
    let sound = examined.into_iter().filter_map(|examined| {
        let warn = |error: &CheckpointError| {
            tracing::warn!(%error, "a checkpoint is of no use; older ones are offered");
        };
        examined.inspect_err(warn).ok()
    });
    sound.filter(|listed| listed.model).map(offer).collect()
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::{Generation, Round, RunId, WorkerId};

    use super::*;
    use longhaul_checkpoint::{CheckpointData, ModelState, PrivateState};

    #[test]
    fn a_worker_offers_what_it_has_written_since_it_joined_and_not_what_was_pruned_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let store = || CheckpointStore::new(folder.path(), RunId([5; 16]), WorkerId(3), 2);
        let spec = longhaul_common::model::tiny::tiny_gpt2();
        let parameters = vec![0.5; spec.parameter_count() as usize];
        let write = |round: u64, state: u8| {
            let data = CheckpointData {
                next_round: Round(round),
                next_step: round,
                generation: Generation(1),
                state_hash: [state; 32],
                model: Some(ModelState {
                    shared: Default::default(),
                    spec: spec.clone(),
                    parameters: parameters.as_slice().into(),
                    companions: Default::default(),
                }),
                private: PrivateState::default(),
            };
            let path = store().write(&data).unwrap().display().to_string();
            let outcome = Ok([state; 32]);
            CheckpointReport { next_round: Round(round), generation: Generation(1), path, outcome }
        };
        let rounds = |offers: &Offers| {
            let current = offers.current();
            current.iter().map(|offer| (offer.next_round.0, offer.state_hash[0])).collect::<Vec<_>>()
        };
        write(10, 1);
        let mut offers = Offers::verified(store());
        assert_eq!(rounds(&offers), [(10, 1)]);

        let mut join = offers.current();
        for (round, state) in [(20, 2), (30, 3)] {
            offers.note((0, 1), &write(round, state));
        }
        assert_eq!(rounds(&offers), [(30, 3), (20, 2)], "two are kept");
        offers.note(
            (0, 1),
            &CheckpointReport {
                next_round: Round(40),
                generation: Generation(1),
                path: String::new(),
                outcome: Err("the disk is full".into()),
            },
        );
        // The run returned to a checkpoint before round 30 and reached it again with another state.
        offers.note((0, 1), &write(30, 4));
        assert_eq!(rounds(&offers), [(30, 4), (20, 2)]);

        // The next session continues from the last message.
        join = Offers::resume(store(), join).current();
        assert!(join.is_empty(), "{join:?}");
        assert_eq!(Offers::verified(store()).current(), offers.current());
    }
}
