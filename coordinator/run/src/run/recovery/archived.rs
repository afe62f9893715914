//! Checkpoints in the archive that all workers reach (`checkpoint.to`): workers offer them, as they can fetch them.

use longhaul_proto::control::message::{CHECKPOINT_OFFERS_MAX, CheckpointOffer};

use crate::run::core::Core;
use crate::run::peer::Peer;

impl Peer {
    /// Records the archive's checkpoints that a worker can fetch. It offers those on its own disk itself.
    pub fn note_archived(&mut self, archived: Vec<CheckpointOffer>) {
        self.checkpoints.has_told_archive = true;
        let name = |of: &CheckpointOffer| (of.next_round, of.rank, of.parts, of.state_hash);
        for offer in archived {
            if let Some(own) = self.checkpoints.offers.iter_mut().find(|own| name(own) == name(&offer)) {
                // The same state, that was written again later: nothing in it was undone until then.
                own.generation = own.generation.max(offer.generation);
            } else if self.checkpoints.offers.len() < CHECKPOINT_OFFERS_MAX {
                self.checkpoints.offers.push(CheckpointOffer { private: false, ..offer });
            }
        }
    }
}

impl Core {
    /// Whether a present worker still has to report the archive's checkpoints. Before that, the absence of a checkpoint is not certain. A run that never
    /// began has none there.
    pub(crate) fn waits_for_archive(&self) -> bool {
        let owes_it = |peer: &Peer| peer.connection.is_some() && !peer.checkpoints.has_told_archive;
        self.config.checkpoint.to.is_some()
            && self.state.lineage.facts.is_some()
            && self.peers.values().any(owes_it)
    }
}
