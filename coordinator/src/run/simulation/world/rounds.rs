//! What the model workers do among themselves: contribute, publish, apply, pull.

use std::collections::BTreeSet;
use std::sync::Arc;

use longhaul_common::id::{Generation, Round, WorkerId};
use rand::Rng as _;

use super::super::node::{RoundResult, Share, first_open};
use super::{Happening, World};

impl World {
    /// Whatever a member can do now: apply, contribute, begin the next round, finish.
    pub(super) fn go_on(&mut self, worker: WorkerId) {
        let node = self.nodes.get_mut(&worker).unwrap();
        if !node.running || node.frozen {
            return;
        }
        let messages = node.apply();
        messages.into_iter().for_each(|message| self.say(worker, message));
        self.contribute(worker);
        let node = self.nodes.get_mut(&worker).unwrap();
        if let Some(round) = node.may_begin() {
            node.computing = Some(round);
            node.last_begun = Some(round);
            let incarnation = node.incarnation;
            let slow = self.rng.random_bool(0.1);
            let delay = self.draw(if slow { 200..800 } else { 20..120 });
            self.at_ms(delay, Happening::Computed(worker, incarnation, round));
        }
        let node = self.nodes.get_mut(&worker).unwrap();
        if node.has_all() && !node.finished {
            node.finished = true;
            node.write_checkpoint();
            let written = node.written().next_back().filter(|_| node.tells_last);
            written.into_iter().for_each(|message| self.say(worker, message));
            self.say_finished(worker);
        }
    }

    pub(super) fn computed(&mut self, worker: WorkerId, incarnation: u64, round: Round) {
        let node = self.nodes.get_mut(&worker).unwrap();
        if node.incarnation != incarnation || node.computing != Some(round) || !node.running {
            return;
        }
        if node.frozen {
            return self.at_ms(100, Happening::Computed(worker, incarnation, round));
        }
        node.computing = None;
        let share = node.share_of(round);
        node.trained.insert(round, vec![share]);
        self.go_on(worker);
    }

    pub(super) fn contribute(&mut self, worker: WorkerId) {
        let node = self.nodes.get_mut(&worker).unwrap();
        let (round, Some(start)) = (node.next_round(), node.generation.clone()) else { return };
        let sits_out = round < node.start_at && node.is_active(worker, round);
        let shares = match node.trained.get_mut(&round) {
            // All earlier rounds are decided: what was late of them goes along.
            Some(shares) => {
                shares.append(&mut node.carried);
                shares.clone()
            }
            None if sits_out => Vec::new(),
            None => return,
        };
        if node.settling || node.sent == Some(round) {
            return;
        }
        let (generation, owner) =
            (start.membership.generation, start.membership.owner(Default::default()).unwrap());
        node.sent = Some(round);
        let delay = self.draw(5..80);
        self.at_ms(delay, Happening::Contribution { to: owner, from: worker, generation, round, shares });
    }

    /// Frames wait for a worker that has not heard of the generation yet, or is stopped.
    pub(super) fn must_wait(&self, worker: WorkerId, generation: Generation) -> bool {
        let node = &self.nodes[&worker];
        let begun = node.generation.as_ref().map_or(Generation(0), |start| start.membership.generation);
        node.running && (node.frozen || begun < generation)
    }

    pub(super) fn accepts(&self, worker: WorkerId, generation: Generation) -> bool {
        let node = &self.nodes[&worker];
        let same = node.generation.as_ref().is_some_and(|start| start.membership.generation == generation);
        node.running && same && !node.settling
    }

    pub(super) fn contribution(
        &mut self,
        to: WorkerId,
        from: WorkerId,
        generation: Generation,
        round: Round,
        shares: Vec<Share>,
    ) {
        if self.must_wait(to, generation) {
            return self.at_ms(100, Happening::Contribution { to, from, generation, round, shares });
        }
        if !self.accepts(to, generation) || self.nodes[&to].first_made() > round {
            return;
        }
        let node = self.nodes.get_mut(&to).unwrap();
        let collected = node.collected.entry(round).or_default();
        collected.insert(from, shares);
        if collected.len() == 1 && self.lateness {
            self.at_ms(250, Happening::Deadline(to, generation, round));
        }
        self.close_round(to, generation, round, false);
    }

    /// Publishes a round's result if all sites have delivered, or at the deadline.
    pub(super) fn close_round(
        &mut self,
        owner: WorkerId,
        generation: Generation,
        round: Round,
        deadline: bool,
    ) {
        if !self.accepts(owner, generation) || self.nodes[&owner].first_made() > round {
            return;
        }
        let node = &self.nodes[&owner];
        if node.partial.contains_key(&round) {
            return;
        }
        let (Some(start), Some(collected)) = (&node.generation, node.collected.get(&round)) else { return };
        let sites: BTreeSet<_> = start.membership.sites().collect();
        let delivered = |site: &_| {
            let active: Vec<_> =
                start.membership.members_of(*site).filter(|m| node.is_active(m.worker, round)).collect();
            active.iter().all(|member| collected.contains_key(&member.worker))
        };
        let named: Vec<_> = sites.iter().copied().filter(delivered).collect();
        if named.is_empty() || (named.len() < sites.len() && !deadline) {
            return;
        }
        let in_named =
            |worker: &WorkerId| start.membership.member(*worker).is_some_and(|m| named.contains(&m.site));
        let shares = collected
            .iter()
            .filter(|(worker, _)| in_named(worker))
            .flat_map(|(_, shares)| shares.clone())
            .collect();
        let members: Vec<WorkerId> = start.membership.members().iter().map(|m| m.worker).collect();
        self.next_result += 1;
        let result = Arc::new(RoundResult { id: self.next_result, round, sites: named, shares });
        for to in members.into_iter().filter(|&to| to != owner) {
            let delay = self.draw(5..80);
            self.at_ms(delay, Happening::Result { to, generation, result: result.clone() });
        }
        self.receive(owner, result);
    }

    pub(super) fn receive(&mut self, worker: WorkerId, result: Arc<RoundResult>) {
        let node = self.nodes.get_mut(&worker).unwrap();
        if result.round >= node.next_round() {
            if node.in_parts && !node.results.contains_key(&result.round) {
                let (round, incarnation, loads) = (result.round, node.incarnation, node.loads);
                node.partial.entry(round).or_insert(result);
                let delay = self.draw(5..400);
                return self.at_ms(delay, Happening::Whole(worker, (incarnation, loads), round));
            }
            node.results.entry(result.round).or_insert(result);
        }
        self.go_on(worker);
    }

    /// The rest of a result has come: not after a generation has ended, which had no more of it sent.
    pub(super) fn whole(&mut self, worker: WorkerId, process: (u64, u64), round: Round) {
        let node = self.nodes.get_mut(&worker).unwrap();
        if (node.incarnation, node.loads) != process || !node.running || node.settling {
            return;
        }
        if node.frozen {
            return self.at_ms(100, Happening::Whole(worker, process, round));
        }
        if let Some(result) = node.partial.remove(&round) {
            node.results.entry(round).or_insert(result);
            self.go_on(worker);
        }
    }

    pub(super) fn pull_missing(&mut self, worker: WorkerId) {
        let node = &self.nodes[&worker];
        let Some(settlement) = node.generation.as_ref().and_then(|start| start.settlement.as_ref()) else {
            return;
        };
        let (incarnation, missing) = (node.incarnation, node.open_round().0..first_open(settlement).0);
        for round in missing {
            let delay = self.draw(10..100);
            self.at_ms(delay, Happening::Pull(worker, incarnation, Round(round)));
        }
    }

    /// Results of finished rounds are served by whoever has them.
    pub(super) fn pull(&mut self, worker: WorkerId, incarnation: u64, round: Round) {
        let node = &self.nodes[&worker];
        let Some(settlement) = node.generation.as_ref().and_then(|start| start.settlement.as_ref()) else {
            return;
        };
        if node.incarnation != incarnation
            || !node.running
            || node.open_round() > round
            || round >= first_open(settlement)
        {
            return;
        }
        let holders = match settlement.results.first() {
            Some(adopted) if round == settlement.open_round => &adopted.holders,
            _ => &settlement.complete_at,
        };
        let served = holders.iter().find_map(|donor| {
            let donor = self.nodes.get(donor).filter(|donor| donor.running && !donor.frozen)?;
            donor.applied.get(round.0 as usize).or_else(|| donor.results.get(&round)).cloned()
        });
        match served {
            // What it has answered to a settle holds until the next generation begins.
            Some(result) if !self.nodes[&worker].frozen && !self.nodes[&worker].settling => {
                self.receive(worker, result);
            }
            _ => self.at_ms(200, Happening::Pull(worker, incarnation, round)),
        }
    }
}
