//! Slots: each worker's part of the model, and its copy. Where every worker has all of it, each is a copy by itself.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_proto::control::message::ToWorker;
use longhaul_proto::round::SMALL_RESULTS_KEPT_ROUNDS;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::liveness::Liveness;
use crate::run::machine::Run;
use crate::run::peer::{Peer, Standing};
use crate::run::placement::assign::{Candidate, Rows, placed, placed_in_groups};

/// A place in a copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplicaSlot {
    /// Which copy; its number is never used twice.
    pub replica: u64,
    /// Which part.
    pub rank: u32,
}

impl Core {
    /// Workers that share a copy of the model.
    pub(crate) fn ranks(&self) -> u32 {
        self.config.parallel.ranks_per_replica()
    }

    /// Whether copies may form while others train. Where members make common steps with clipped gradients, members that have missed some would have to repeat them
    /// together, from the same one on; members of a tensor group always, as one of them has the means of their shared parts.
    pub(crate) fn copies_may_join(&self) -> bool {
        let (sync, through) = (&self.config.sync, self.state.rounds.ledger.through());
        if sync.is_redundant_in(self.state.rounds.schedule.is_warmup(through)) {
            // No result has the gradients of the rounds that a joiner has missed.
            return false;
        }
        let makes_common_steps = sync.source.is_gradient() || self.state.rounds.schedule.is_warmup(through);
        let is_alone = self.config.train.gradient_clip == 0.0 && self.config.parallel.tensor == 1;
        self.ranks() == 1 || is_alone || !makes_common_steps
    }

    /// Whether a member belongs to a copy, and all other copies are incomplete.
    pub(crate) fn is_of_the_last_copy(&self, worker: WorkerId) -> bool {
        let is_member = self.peers.get(&worker).is_some_and(|peer| peer.standing == Standing::Member);
        if self.ranks() == 1 || !is_member {
            return false;
        }
        let whole = self.replicas_where(Peer::is_present_member);
        whole.iter().all(|workers| workers.contains(&worker))
    }

    /// The workers of each copy, by rank.
    fn placed(&self, candidates: Vec<Candidate>) -> Vec<Vec<WorkerId>> {
        let (rows, parallel) = (self.rows_of_sites(), &self.config.parallel);
        match parallel.is_shared() {
            true => placed_in_groups(candidates, parallel.stages, parallel.tensor, &rows),
            false => placed(candidates, parallel.stages, &rows),
        }
    }

    /// The planned copies that are complete, and the remaining workers. Once states exist, those decide.
    fn planned_copies(&self, mut candidates: Vec<Candidate>) -> (Vec<Vec<WorkerId>>, Vec<Candidate>) {
        let mut copies = Vec::new();
        if candidates.iter().any(|candidate| !candidate.has.is_empty()) {
            return (copies, candidates);
        }
        for copy in self.state.plans.decided.iter().flat_map(|plan| &plan.copies) {
            let is_here = |worker: &WorkerId| candidates.iter().any(|candidate| candidate.worker == *worker);
            if copy.len() == self.ranks() as usize && copy.iter().all(is_here) {
                candidates.retain(|candidate| !copy.contains(&candidate.worker));
                copies.push(copy.clone());
            }
        }
        (copies, candidates)
    }

    /// At which sites the stages of a copy are to be.
    fn rows_of_sites(&self) -> Rows {
        let number = |name: &String| {
            let at = self.state.roster.sites.iter().position(|known| known == name)?;
            Some(SiteId(u32::try_from(at).ok()?))
        };
        let sites = &self.config.parallel.sites;
        if !sites.is_empty() {
            return sites.iter().map(number).collect::<Option<_>>().map_or(Rows::Nowhere, Rows::Only);
        }
        let site = |worker: &WorkerId| Some(self.state.roster.workers.get(worker)?.site);
        // A tensor group is of one site, that of its first member.
        let members = self.config.parallel.tensor.max(1) as usize;
        let row =
            |copy: &Vec<WorkerId>| copy.iter().step_by(members).map(site).collect::<Option<Vec<SiteId>>>();
        let mut planned: BTreeMap<Vec<SiteId>, usize> = BTreeMap::new();
        for row in self.state.plans.decided.iter().flat_map(|plan| &plan.copies).filter_map(row) {
            *planned.entry(row).or_default() += 1;
        }
        if planned.is_empty() {
            return Rows::Near(planned);
        }
        // Those that are there already.
        for row in self.replicas_where(|_| true).iter().filter_map(row) {
            if let Some(wanted) = planned.get_mut(&row) {
                *wanted = wanted.saturating_sub(1);
            }
        }
        Rows::Near(planned)
    }

    /// The part that a worker holds, or is to hold.
    pub(crate) fn rank_of(&self, worker: WorkerId) -> Option<u32> {
        Some(self.peers.get(&worker)?.slot?.rank)
    }

    /// The workers of each copy, by rank, where all its workers satisfy this.
    pub(crate) fn replicas_where(&self, is_fit: impl Fn(&Peer) -> bool) -> Vec<Vec<WorkerId>> {
        let mut replicas: BTreeMap<u64, Vec<(u32, WorkerId)>> = BTreeMap::new();
        for (&worker, peer) in &self.peers {
            if let Some(slot) = peer.slot.filter(|_| is_fit(peer)) {
                replicas.entry(slot.replica).or_default().push((slot.rank, worker));
            }
        }
        let complete = replicas.into_values().filter(|ranks| ranks.len() == self.ranks() as usize);
        let mut sorted: Vec<Vec<WorkerId>> = complete
            .map(|mut ranks| {
                ranks.sort_unstable();
                ranks.into_iter().map(|(_, worker)| worker).collect()
            })
            .collect();
        sorted.sort_unstable();
        sorted
    }

    /// Copies whose workers all hold the state and wait for a generation, while copies may join.
    pub(crate) fn ready_replicas(&self) -> Vec<Vec<WorkerId>> {
        if !self.copies_may_join() {
            return Vec::new();
        }
        self.replicas_where(|peer| peer.standing == Standing::Ready)
    }
}

impl Run {
    /// Gives all workers new slots, by their states of parts.
    pub(crate) fn place_all(&mut self, has: &BTreeMap<WorkerId, BTreeSet<u32>>) {
        let had: Vec<WorkerId> = self
            .core
            .peers
            .iter()
            .filter(|(_, peer)| peer.slot.is_some())
            .map(|(&worker, _)| worker)
            .collect();
        self.core.peers.values_mut().for_each(|peer| peer.slot = None);
        self.place_waiting(has);
        for worker in had {
            if self.core.ranks() > 1 && self.core.rank_of(worker).is_none() {
                self.core.send_back_to_heal(worker);
                self.core.send(worker, ToWorker::Placed { rank: None });
            }
        }
    }

    /// Makes copies of the workers that have no slot, as many as there are enough for.
    pub(crate) fn place_waiting(&mut self, has: &BTreeMap<WorkerId, BTreeSet<u32>>) {
        for workers in self.liveness.copies_of_waiting(&self.core, has) {
            let replica = self.generations.next_replica();
            for (rank, worker) in (0..).zip(workers) {
                if let Some(peer) = self.core.peers.get_mut(&worker) {
                    peer.slot = Some(ReplicaSlot { replica, rank });
                }
                if self.core.ranks() > 1 {
                    // Its earlier orders are void.
                    self.core.send_back_to_heal(worker);
                    self.core.send(worker, ToWorker::Placed { rank: Some(rank) });
                }
            }
        }
    }

    /// A copy has lost a worker: the others have no part in the run until they are given another.
    pub(crate) fn dissolve(&mut self, slot: Option<ReplicaSlot>) {
        let Some(replica) = slot.map(|slot| slot.replica).filter(|_| self.core.ranks() > 1) else { return };
        let of_it = |peer: &Peer| peer.slot.is_some_and(|slot| slot.replica == replica);
        let others: Vec<WorkerId> =
            self.core.peers.iter().filter(|(_, peer)| of_it(peer)).map(|(&worker, _)| worker).collect();
        for worker in others {
            let Some(peer) = self.core.peers.get_mut(&worker) else { continue };
            peer.slot = None;
            let is_here = peer.connection.is_some();
            self.generations.departed(worker);
            if !is_here {
                // No slot waits for a worker of a broken copy.
                self.core.peers.remove(&worker);
            }
            self.generations.exclude(worker);
            self.accounting.distrust_hashes_of(worker);
            self.core.send_back_to_heal(worker);
            self.core.send(worker, ToWorker::Placed { rank: None });
            self.core.notice(
                Severity::Info,
                Some(worker),
                "waits for another slot: its copy of the model has lost a worker".to_owned(),
            );
        }
    }
}

impl Liveness {
    /// The copies that there are enough workers without a slot for: of each its workers, by rank.
    pub(crate) fn copies_of_waiting(
        &self,
        core: &Core,
        has: &BTreeMap<WorkerId, BTreeSet<u32>>,
    ) -> Vec<Vec<WorkerId>> {
        let candidate = |(&worker, peer): (&WorkerId, &Peer)| Candidate {
            worker,
            site: peer.known.site,
            has: has.get(&worker).cloned().unwrap_or_default(),
        };
        let unplaced = |(worker, peer): &(&WorkerId, &Peer)| {
            peer.slot.is_none() && peer.connection.is_some() && !self.is_kept_apart(core, **worker)
        };
        let candidates: Vec<Candidate> = core.peers.iter().filter(unplaced).map(candidate).collect();
        let (mut copies, rest) = core.planned_copies(candidates);
        copies.extend(core.placed(rest));
        copies
    }
}

impl Core {
    /// Takes the slots of workers that do not train yet: every worker of a copy has to catch up its present state, each from another round
    /// on.
    pub(crate) fn unplace_joiners(&mut self) {
        let joins = |peer: &Peer| peer.slot.is_some() && peer.standing != Standing::Member;
        let joiners: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| joins(peer)).map(|(&worker, _)| worker).collect();
        for worker in joiners {
            if let Some(peer) = self.peers.get_mut(&worker) {
                peer.slot = None;
            }
            self.send_back_to_heal(worker);
            self.send(worker, ToWorker::Placed { rank: None });
        }
    }

    /// Has a ready worker heal again if it waited for the others of its copy until no member has the rounds it lacks. If a member may have them it stays: while it heals,
    /// the others of its copy would age too.
    pub(crate) fn refresh_ready(&mut self) {
        if self.ranks() == 1 {
            return;
        }
        let through = self.state.rounds.ledger.through().0;
        let is_stale = |peer: &Peer| {
            peer.progress.next_round.is_some_and(|next| next.0 + SMALL_RESULTS_KEPT_ROUNDS < through)
        };
        let ready = self.ready_replicas();
        let stale: Vec<WorkerId> = ready
            .into_iter()
            .flatten()
            .filter(|worker| self.peers.get(worker).is_some_and(is_stale))
            .collect();
        stale.into_iter().for_each(|worker| self.send_back_to_heal(worker));
    }
}
