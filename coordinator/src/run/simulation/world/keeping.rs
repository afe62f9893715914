//! Workers that copy a checkpoint of another one.

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{CheckpointOffer, HeldPart, ToCoordinator};

use super::super::node::SavedState;
use super::{Happening, World};

impl World {
    /// Has the copy after a while.
    pub(super) fn keep(&mut self, keeper: WorkerId, part: HeldPart) {
        let delay = self.draw(50..800);
        self.at_ms(delay, Happening::Kept(keeper, self.nodes[&keeper].incarnation, part));
    }

    /// Answers with the copy, or that it could not have one; a process that has gone says nothing.
    pub(super) fn kept(&mut self, keeper: WorkerId, incarnation: u64, part: HeldPart) {
        let node = &self.nodes[&keeper];
        if node.incarnation != incarnation || !node.running {
            return;
        }
        if node.frozen {
            return self.stopped.entry(keeper).or_default().push(Happening::Kept(keeper, incarnation, part));
        }
        let copy = self.copy_of(&part).filter(|_| node.has_disk);
        let offer = copy.map(|copy| {
            let node = self.nodes.get_mut(&keeper).unwrap();
            let offer = copy.offer.clone();
            node.save(copy);
            offer
        });
        self.say(keeper, ToCoordinator::Kept(offer));
    }

    /// Of the model alone: what a worker had yet to send stays with it.
    fn copy_of(&self, part: &HeldPart) -> Option<SavedState> {
        let able = |node: &&super::Node| node.running && !node.frozen;
        let mut holders =
            part.holders.iter().filter_map(|holder| self.nodes.get(&holder.worker)).filter(able);
        let name = |offer: &CheckpointOffer| (offer.next_round, offer.state_hash, offer.rank, offer.parts);
        let is_it = |saved: &&SavedState| name(&saved.offer) == name(&part.offer);
        let saved = holders.find_map(|node| node.disk.iter().find(is_it))?;
        let offer = CheckpointOffer { private: false, ..saved.offer.clone() };
        Some(SavedState { offer, carried: Vec::new(), ..saved.clone() })
    }
}
