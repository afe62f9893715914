//! Where the state comes from that a run begins with, or goes on from.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{Round, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{CheckpointOffer, Hash, HeldPart, Start};

use crate::run::core::Core;
use crate::run::generations::prepare::DONORS_MAX;
use crate::run::peer::{Peer, Standing};

/// Where the state comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Fresh,
    /// Workers hold it in memory: they were about to join when the last member was lost.
    Memory(Round, Hash),
    /// On disks.
    Checkpoint(Found),
}

/// A checkpoint whose parts are all on disks of present workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The round that follows.
    pub round: Round,
    /// Of each part of the model as it was cut then, by rank.
    pub hashes: Vec<Hash>,
}

/// How many workers have a state, by its hash.
type Holders = BTreeMap<Hash, usize>;

/// By round, whether in memory, and number of parts: the holders of each part, by rank.
type States = BTreeMap<(Round, bool, u32), BTreeMap<u32, Holders>>;

impl Source {
    /// Its name for display.
    pub fn name(&self) -> String {
        self.round().map_or("the beginning".to_owned(), |round| round.to_string())
    }

    /// The round that follows; none: nothing was done yet.
    pub fn round(&self) -> Option<Round> {
        match self {
            Self::Fresh => None,
            Self::Memory(round, _) => Some(*round),
            Self::Checkpoint(found) => Some(found.round),
        }
    }
}

impl Found {
    /// Parts that the model was in.
    fn parts(&self) -> u32 {
        u32::try_from(self.hashes.len()).unwrap_or(u32::MAX)
    }
}

impl Core {
    /// Whether a start would be one from the beginning.
    pub(crate) fn nobody_holds_a_state(&self) -> bool {
        self.choose_source() == Source::Fresh
    }

    /// Returns the newest state whose parts all have a holder and whose rounds were not repeated since: of differing ones the one that the run was in, or, where unknown,
    /// that of most workers.
    pub(crate) fn choose_source(&self) -> Source {
        self.choose_source_of(|_| true)
    }

    /// The same for the state of these workers.
    pub(crate) fn choose_source_of(&self, has: impl Fn(WorkerId) -> bool) -> Source {
        let not_undone = self.states_held(&has, |offer| !self.state.lineage.rewinds.have_undone(offer));
        let newest = |is_strict| self.newest_of(&not_undone, is_strict);
        // A state of another past is better than none.
        let any_past = || self.newest_of(&self.states_held(&has, |_| true), false);
        newest(true).or_else(|| newest(false)).or_else(any_past).unwrap_or(Source::Fresh)
    }

    /// States in the memory of these workers, and their checkpoints that count.
    fn states_held(
        &self,
        has: impl Fn(WorkerId) -> bool,
        counts: impl Fn(&CheckpointOffer) -> bool,
    ) -> States {
        let mut states = States::new();
        let mut count = |state, rank, hash| {
            let parts = states.entry(state).or_default();
            *parts.entry(rank).or_default().entry(hash).or_default() += 1;
        };
        for (_, peer) in self.peers.iter().filter(|(worker, _)| has(**worker)) {
            let ready = peer
                .start
                .ready
                .as_ref()
                .filter(|ready| peer.standing == Standing::Ready && ready.next_round > Round(0));
            // With parts, a state in memory belongs to the earlier slots.
            let ready = ready.filter(|ready| self.ranks() == 1 && self.is_usable(ready.next_round));
            if let Some(ready) = ready {
                count((ready.next_round, true, 1), 0, ready.state_hash);
            }
            let name =
                |offer: &CheckpointOffer| (offer.next_round, offer.parts, offer.rank, offer.state_hash);
            let offers: BTreeSet<_> =
                peer.checkpoints.offers.iter().filter(|offer| counts(offer)).map(name).collect();
            for (round, parts, rank, hash) in offers.into_iter().filter(|(round, ..)| self.is_usable(*round))
            {
                count((round, false, parts), rank, hash);
            }
        }
        states
    }

    /// The newest of them that is whole; `is_strict`: of those that differ only the one that the run was in.
    fn newest_of(&self, states: &States, is_strict: bool) -> Option<Source> {
        let whole =
            |(round, _, parts): (Round, bool, u32), held: &BTreeMap<u32, Holders>| -> Option<Vec<Hash>> {
                let known = |rank| self.state.lineage.milestones.get(&round)?.get(&rank).copied();
                let of_part = |rank: u32| {
                    let held = held.get(&rank)?;
                    match known(rank) {
                        Some(hash) if is_strict => held.contains_key(&hash).then_some(hash),
                        _ => held.iter().map(|(hash, workers)| (*workers, *hash)).max().map(|most| most.1),
                    }
                };
                (0..parts).map(of_part).collect()
            };
        states.iter().rev().find_map(|(&state, held)| match (state, whole(state, held)?) {
            ((round, true, _), hashes) => Some(Source::Memory(round, *hashes.first()?)),
            ((round, false, _), hashes) => Some(Source::Checkpoint(Found { round, hashes })),
        })
    }

    /// Whether a checkpoint is of the parts that the model is in now.
    pub(crate) fn is_same_cut(&self, found: &Found) -> bool {
        found.parts() == self.ranks() && self.state.cut_at.is_none_or(|at| found.round > at)
    }

    /// Which parts of a state each worker may be given, as it has a checkpoint of them: one that it has written, if there is one, as it has its own state besides.
    pub(crate) fn holders_of(&self, source: &Source) -> BTreeMap<WorkerId, BTreeSet<u32>> {
        let Source::Checkpoint(found) = source else { return BTreeMap::new() };
        if !self.is_same_cut(found) {
            return BTreeMap::new();
        }
        let parts_of = |peer: &Peer| -> BTreeSet<u32> {
            let offers: Vec<CheckpointOffer> = (0..)
                .zip(&found.hashes)
                .filter_map(|(rank, hash)| offer_of(peer, found.round, (rank, found.parts()), *hash))
                .collect();
            let of = |is_fit: &dyn Fn(&CheckpointOffer) -> bool| -> BTreeSet<u32> {
                offers.iter().filter(|offer| is_fit(offer)).map(|offer| offer.rank).collect()
            };
            let own = of(&|offer| offer.private);
            if own.is_empty() { of(&|_| true) } else { own }
        };
        self.peers.iter().map(|(&worker, peer)| (worker, parts_of(peer))).collect()
    }

    /// The state that a worker loads by itself; `None`: it heals from others with the same part.
    pub(crate) fn start_of(
        &self,
        source: &Source,
        worker: WorkerId,
        participants: &BTreeSet<WorkerId>,
    ) -> Option<Start> {
        let found = match source {
            Source::Fresh => return Some(Start::Fresh),
            Source::Memory(..) => return None,
            Source::Checkpoint(found) => found,
        };
        if !self.is_same_cut(found) {
            let parts = (0..found.parts()).map(|rank| self.held_part(found, rank, worker));
            return Some(Start::Held(parts.collect()));
        }
        let rank = self.rank_of(worker).unwrap_or_default();
        let has_it = |worker: &WorkerId| {
            let hash = found.hashes.get(rank as usize)?;
            offer_of(self.peers.get(worker)?, found.round, (rank, found.parts()), *hash)
        };
        if let Some(offer) = has_it(&worker) {
            return Some(Start::Checkpoint(offer));
        }
        let mut alike = participants.iter().filter(|other| self.rank_of(**other) == Some(rank));
        let somebody_has_it = alike.any(|other| has_it(other).is_some());
        // Who heals has no moments, which a fork may bring.
        let is_of_fork = self.state.lineage.fork.is_some_and(|fork| fork.first_round == found.round);
        (!somebody_has_it || is_of_fork && self.config.may_be_shared())
            .then(|| Start::Held(vec![self.held_part(found, rank, worker)]))
    }

    /// A part of a checkpoint, and the workers that `worker` may fetch it from.
    fn held_part(&self, found: &Found, rank: u32, worker: WorkerId) -> HeldPart {
        let (parts, next_round) = (found.parts(), found.round);
        let state_hash = found.hashes.get(rank as usize).copied().unwrap_or_default();
        let site = self.peers.get(&worker).map(|peer| peer.known.site);
        let has_it = |peer: &Peer| {
            peer.connection.is_some() && offer_of(peer, next_round, (rank, parts), state_hash).is_some()
        };
        let others = self.peers.iter().filter(|(other, peer)| **other != worker && has_it(peer));
        let mut holders: Vec<Member> = others.map(|(&other, peer)| peer.member(other)).collect();
        holders.sort_by_key(|holder| (Some(holder.site) != site, holder.worker));
        holders.truncate(DONORS_MAX);
        let offers = self.peers.values();
        let mut offers = offers.filter_map(|peer| offer_of(peer, next_round, (rank, parts), state_hash));
        let generation = offers.next().map(|offer| offer.generation).unwrap_or_default();
        HeldPart {
            offer: CheckpointOffer { next_round, state_hash, private: false, rank, parts, generation },
            holders,
        }
    }

    fn is_usable(&self, round: Round) -> bool {
        round.0 <= self.state.rounds.schedule.rounds() && self.state.rounds.ledger.reaches(round)
    }
}

/// The checkpoint of a part, if the worker has it.
pub(crate) fn offer_of(
    peer: &Peer,
    round: Round,
    (rank, parts): (u32, u32),
    hash: Hash,
) -> Option<CheckpointOffer> {
    let is_it = |offer: &&CheckpointOffer| {
        (offer.next_round, offer.rank, offer.parts, offer.state_hash) == (round, rank, parts, hash)
    };
    peer.checkpoints.offers.iter().find(is_it).cloned()
}
