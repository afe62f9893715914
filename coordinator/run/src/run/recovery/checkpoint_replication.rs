//! Copies of unique state: where one worker alone holds a part of the model, another one keeps a copy of its checkpoints, so that the part is not lost with it.

use std::collections::BTreeSet;

use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{
    CHECKPOINT_OFFERS_MAX, CheckpointOffer, CheckpointReport, HeldPart, ToWorker,
};

use crate::run::command::Severity;
use crate::run::core::{Core, shorten};
use crate::run::peer::Peer;
use crate::run::recovery::Recovery;
use crate::run::state::Checkpoint;

/// Whether there is such a part. Of no parts at all, a checkpoint would be complete without anybody's.
pub(crate) fn names_a_part(offer: &CheckpointOffer) -> bool {
    offer.rank < offer.parts
}

impl Peer {
    /// It has this checkpoint on its disk from now on.
    pub fn add_offer(&mut self, offer: CheckpointOffer) {
        let name = |of: &CheckpointOffer| (of.next_round, of.rank, of.parts);
        self.checkpoints.offers.retain(|old| name(old) != name(&offer));
        self.checkpoints.offers.insert(0, offer);
        self.checkpoints.offers.truncate(CHECKPOINT_OFFERS_MAX);
    }
}

/// Checkpoints kept for the status page, besides the newest of each worker that is here.
const CHECKPOINTS_KEPT: usize = 32;

impl Recovery {
    pub(crate) fn handle_checkpoint(&mut self, core: &mut Core, worker: WorkerId, report: CheckpointReport) {
        match &report.outcome {
            Ok(state_hash) => {
                core.tell_checkpoint(worker, report.next_round);
                let (next_round, rank) = (report.next_round, core.rank_of(worker).unwrap_or_default());
                // At most the present generation: rewinds concern earlier ones.
                let (parts, generation) =
                    (core.ranks(), report.generation.min(core.state.generations.announced));
                let state_hash = *state_hash;
                let offer =
                    CheckpointOffer { next_round, state_hash, private: true, rank, parts, generation };
                if let Some(peer) = core.peers.get_mut(&worker) {
                    peer.add_offer(offer.clone());
                }
                self.have_kept(core, worker, offer);
                if core.note_best_written(worker, &report) {
                    core.tell_best();
                }
            }
            Err(reason) => {
                let text = format!("could not write a checkpoint at {}: {}", report.path, shorten(reason));
                core.notice(Severity::Error, Some(worker), text);
            }
        }
        core.state.checkpoints.newest.insert(0, Checkpoint { worker, report });
        let (mut seen, mut place) = (BTreeSet::new(), 0);
        core.state.checkpoints.newest.retain(|checkpoint| {
            place += 1;
            let is_newest = seen.insert(checkpoint.worker);
            place <= CHECKPOINTS_KEPT || is_newest && core.peers.contains_key(&checkpoint.worker)
        });
        core.persist();
    }

    /// Handles a worker's new checkpoint. Where no other worker holds that part of the model, asks one to keep a copy: preferably at the same site, and one that waits
    /// for a slot before others. A worker with an open request is not asked again, so that one copy at a time takes bandwidth.
    pub(crate) fn have_kept(&mut self, core: &mut Core, writer: WorkerId, offer: CheckpointOffer) {
        if !core.config.checkpoint.copies || !core.is_alone_with(offer.rank) {
            return;
        }
        if let Some(keeper) = core.keeper_for(writer, |other| !self.handovers.has(other)) {
            core.ask_to_keep(keeper, writer, offer);
        }
    }

    /// A worker that was asked to keep a copy has one, or could not have it.
    pub(crate) fn handle_kept(&mut self, core: &mut Core, worker: WorkerId, offer: Option<CheckpointOffer>) {
        let Some(peer) = core.peers.get_mut(&worker) else { return };
        if !std::mem::take(&mut peer.checkpoints.is_keeping) {
            return;
        }
        match offer {
            Some(offer) if !names_a_part(&offer) => {}
            Some(offer) => peer.add_offer(CheckpointOffer { private: false, ..offer }),
            None if std::mem::replace(&mut self.copy_failed, true) => {}
            None => {
                let text = "could not copy a checkpoint that only one other worker has: it was deleted during the transfer, or the disk is full. To leave more time, \
                            keep more checkpoints (checkpoint.keep) or write them less often (checkpoint.every_rounds)";
                core.notice(Severity::Warning, Some(worker), text.to_owned());
            }
        }
    }
}

impl Core {
    /// The nearest permitted worker.
    pub(crate) fn keeper_for(&self, writer: WorkerId, may: impl Fn(WorkerId) -> bool) -> Option<WorkerId> {
        let site = self.peers.get(&writer)?.known.site;
        let may_keep = |peer: &Peer| peer.connection.is_some() && !peer.checkpoints.is_keeping;
        let others =
            self.peers.iter().filter(|(other, peer)| **other != writer && may_keep(peer) && may(**other));
        let nearest =
            others.min_by_key(|(worker, peer)| (peer.known.site != site, peer.slot.is_some(), **worker));
        nearest.map(|(&keeper, _)| keeper)
    }

    pub(crate) fn ask_to_keep(&mut self, keeper: WorkerId, writer: WorkerId, offer: CheckpointOffer) {
        let Some(holder) = self.peers.get(&writer).map(|peer| peer.member(writer)) else { return };
        if let Some(peer) = self.peers.get_mut(&keeper) {
            peer.checkpoints.is_keeping = true;
        }
        self.send(keeper, ToWorker::Keep(HeldPart { offer, holders: vec![holder] }));
    }

    /// Reports the first checkpoint written at a round: the others follow at about the same time.
    pub(crate) fn tell_checkpoint(&mut self, writer: WorkerId, next_round: Round) {
        let is_known =
            |known: &Checkpoint| known.report.next_round == next_round && known.report.outcome.is_ok();
        if !self.state.checkpoints.newest.iter().any(is_known) {
            let text = format!("is the first to have written the checkpoint before {next_round}");
            self.notice(Severity::Info, Some(writer), text);
        }
    }

    /// Whether one worker alone has this part of the model.
    fn is_alone_with(&self, rank: u32) -> bool {
        let group =
            self.state.generations.present.as_ref().and_then(|lineup| lineup.groups.get(rank as usize));
        self.ranks() > 1 && group.is_some_and(|group| group.membership.members().len() == 1)
    }
}
