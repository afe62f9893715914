//! From the first worker to the first generation: gathering, and preparing one state on all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{CheckpointOffer, Hash, Ready, Start, ToWorker};

use super::admit::difference;
use super::command::Severity;
use super::machine::Run;
use super::peer::{Peer, Standing};
use super::state::{Facts, Phase};

/// Donors named to a worker that heals: enough to outlive a few of them, few enough for one message.
const DONORS_MAX: usize = 16;

/// The phase between gathering and training.
#[derive(Clone, Debug)]
pub(super) struct Preparing {
    participants: BTreeSet<WorkerId>,
    /// What is loaded: the round that follows, and the hash of each part of the model where it is known.
    expected: (Round, BTreeMap<u32, Hash>),
    /// Those who load the state by themselves; the others heal from them.
    sources: BTreeSet<WorkerId>,
    /// Those of them that have not said yet that they have.
    unheard: BTreeSet<WorkerId>,
    /// By rank, what the lowest-numbered source holds: all must.
    reference: Option<Vec<Ready>>,
    /// A participant left: it starts over.
    broken: bool,
}

impl Preparing {
    pub fn lost(&mut self, worker: WorkerId) {
        self.broken |= self.participants.contains(&worker);
    }

    /// A worker says that it is ready.
    pub fn heard(&mut self, worker: WorkerId) {
        self.unheard.remove(&worker);
    }

    /// Whether all who load the state by themselves have said that they have. Before that nothing can go on.
    pub fn has_heard_all(&self) -> bool {
        self.unheard.is_empty()
    }

    /// Whether this answers what was asked last, and not something before.
    pub fn asked_for(&self, ready: &Ready) -> bool {
        let (round, hashes) = &self.expected;
        ready.next_round == *round && hashes.get(&ready.rank).is_none_or(|hash| *hash == ready.state_hash)
    }
}

/// Where the state comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Fresh,
    /// Workers hold it in memory: they were about to join when the last member was lost.
    Memory(Round, Hash),
    /// On disks: the hash of each part of the model, by rank.
    Checkpoint(Round, Vec<Hash>),
}

/// How many workers have a state, by its hash.
type Holders = BTreeMap<Hash, usize>;

impl Run {
    pub(super) fn advance_gathering(&mut self) {
        if self.state.drain {
            return self.finish("stopped before training began");
        }
        if !self.has_plan() {
            return;
        }
        let enough = self.peers.len() >= self.config.run.workers as usize;
        if enough || self.gathering_ends().is_some_and(|at| at <= self.now) {
            let source = self.choose_source();
            self.seat_all(&self.holders_of(&source));
            // Where no copy has all its workers, more must come.
            if !self.replicas_where(|_| true).is_empty() {
                self.start_preparing(source);
            }
        }
    }

    /// When a run that had begun goes on with fewer workers than it wants: nobody has joined for a while, and somebody
    /// holds its state.
    pub(super) fn gathering_ends(&self) -> Option<Duration> {
        let begun = self.state.phase == Phase::Gathering && self.state.facts.is_some();
        let held = begun && self.choose_source() != Source::Fresh;
        held.then(|| self.last_join + Duration::from_millis(self.config.faults.reconnect_grace_ms))
    }

    /// Whether a start would be one from the beginning.
    pub(super) fn nobody_holds_a_state(&self) -> bool {
        self.choose_source() == Source::Fresh
    }

    /// The newest state all of whose parts somebody has: of those that differ the one that the run was in, or, where that is not known, the one that more workers have.
    fn choose_source(&self) -> Source {
        let mut states: BTreeMap<(Round, bool), BTreeMap<u32, Holders>> = BTreeMap::new();
        let mut count = |round, is_memory, rank, hash| {
            let parts = states.entry((round, is_memory)).or_default();
            *parts.entry(rank).or_default().entry(hash).or_default() += 1;
        };
        for peer in self.peers.values() {
            let ready = peer
                .ready
                .as_ref()
                .filter(|ready| peer.standing == Standing::Ready && ready.next_round > Round(0));
            // In parts, what is in memory is of the seats that were.
            let ready = ready.filter(|ready| self.stages() == 1 && self.is_usable(ready.next_round));
            if let Some(ready) = ready {
                count(ready.next_round, true, 0, ready.state_hash);
            }
            let offers: BTreeSet<_> =
                peer.offers.iter().map(|offer| (offer.next_round, offer.rank, offer.state_hash)).collect();
            for (round, rank, hash) in offers.into_iter().filter(|(round, ..)| self.is_usable(*round)) {
                count(round, false, rank, hash);
            }
        }
        let whole = |round: Round, parts: &BTreeMap<u32, Holders>, is_strict: bool| -> Option<Vec<Hash>> {
            let known = |rank| self.state.milestones.get(&round)?.get(&rank).copied();
            let of_part = |rank: u32| {
                let held = parts.get(&rank)?;
                match known(rank) {
                    Some(hash) if is_strict => held.contains_key(&hash).then_some(hash),
                    _ => held.iter().map(|(hash, workers)| (*workers, *hash)).max().map(|most| most.1),
                }
            };
            (0..self.stages()).map(of_part).collect()
        };
        let newest = |is_strict| {
            states.iter().rev().find_map(|(&(round, is_memory), parts)| {
                whole(round, parts, is_strict).map(|hashes| (round, is_memory, hashes))
            })
        };
        // What is of another past is better than nothing.
        match newest(true).or_else(|| newest(false)) {
            Some((round, true, hashes)) => {
                hashes.first().map_or(Source::Fresh, |h| Source::Memory(round, *h))
            }
            Some((round, false, hashes)) => Source::Checkpoint(round, hashes),
            None => Source::Fresh,
        }
    }

    /// Of which parts of a state each worker has a checkpoint.
    fn holders_of(&self, source: &Source) -> BTreeMap<WorkerId, BTreeSet<u32>> {
        let Source::Checkpoint(round, hashes) = source else { return BTreeMap::new() };
        let parts_of = |peer: &Peer| -> BTreeSet<u32> {
            let has = |rank: &u32| {
                let hash = hashes.get(*rank as usize);
                hash.is_some_and(|hash| offer_of(peer, *round, *rank, *hash).is_some())
            };
            (0..self.stages()).filter(has).collect()
        };
        self.peers.iter().map(|(&worker, peer)| (worker, parts_of(peer))).collect()
    }

    fn is_usable(&self, round: Round) -> bool {
        round.0 <= self.state.schedule.rounds() && self.state.ledger.reaches(round)
    }

    fn start_preparing(&mut self, source: Source) {
        let seated = self.peers.iter().filter(|(_, peer)| peer.seat.is_some());
        let participants: BTreeSet<WorkerId> = seated.map(|(&worker, _)| worker).collect();
        let (mut sources, mut unheard) = (BTreeSet::new(), BTreeSet::new());
        for &worker in &participants {
            let Some(peer) = self.peers.get_mut(&worker) else { continue };
            if matches!(source, Source::Memory(round, hash) if holds(peer, round, hash)) {
                sources.insert(worker);
                continue;
            }
            let rank = peer.seat.map_or(0, |seat| seat.rank);
            let start = match &source {
                Source::Fresh => Some(Start::Fresh),
                Source::Memory(..) => None,
                Source::Checkpoint(round, hashes) => {
                    let offer =
                        hashes.get(rank as usize).and_then(|hash| offer_of(peer, *round, rank, *hash));
                    offer.map(Start::Checkpoint)
                }
            };
            peer.ready = None;
            peer.standing = if start.is_some() { Standing::Preparing } else { Standing::Waiting };
            if let Some(start) = start {
                sources.insert(worker);
                unheard.insert(worker);
                self.send(worker, ToWorker::Prepare(start));
            }
        }
        let text = match &source {
            Source::Fresh if self.state.facts.is_some() => {
                let text = "nobody holds the run's state and nobody has a checkpoint of it: it starts from the beginning";
                self.notice(Severity::Error, None, text.to_owned());
                "preparing from the beginning".to_owned()
            }
            Source::Fresh => format!("{} workers prepare", participants.len()),
            Source::Memory(round, _) => {
                format!("goes on from the state before {round} in the memory of {sources:?}")
            }
            Source::Checkpoint(round, _) => {
                format!("goes on from the checkpoint before {round} of {} workers", sources.len())
            }
        };
        self.notice(Severity::Info, None, text);
        let expected = match source {
            Source::Fresh => (Round(0), BTreeMap::new()),
            Source::Memory(round, hash) => (round, BTreeMap::from([(0, hash)])),
            Source::Checkpoint(round, hashes) => (round, (0..).zip(hashes).collect()),
        };
        self.preparing =
            Some(Preparing { participants, expected, sources, unheard, reference: None, broken: false });
        self.state.phase = Phase::Preparing;
        self.persist();
    }

    pub(super) fn advance_preparing(&mut self) {
        if self.state.drain {
            return self.finish("stopped before training began");
        }
        let Some(preparing) = self.preparing.clone() else { return };
        if preparing.broken {
            self.preparing = None;
            self.state.phase = Phase::Gathering;
            return;
        }
        let reference = match preparing.reference {
            Some(reference) => reference,
            None => match self.choose_reference(&preparing) {
                Some(reference) => reference,
                None => return,
            },
        };
        // Those who came meanwhile, and whose copies lost somebody.
        self.seat_waiting(&BTreeMap::new());
        let agrees = |peer: &Peer| {
            let of_part = peer.seat.and_then(|seat| reference.get(seat.rank as usize));
            of_part.is_some_and(|part| holds(peer, part.next_round, part.state_hash))
        };
        for &worker in &preparing.participants {
            let Some(peer) = self.peers.get(&worker) else { continue };
            if peer.standing == Standing::Ready && !agrees(peer) {
                let text = "has another state than the lowest-numbered worker, and heals".to_owned();
                self.notice(Severity::Warning, Some(worker), text);
                self.heal_again(worker);
            }
        }
        self.heal_waiting(agrees);
        let all_agree =
            preparing.participants.iter().all(|worker| self.peers.get(worker).is_some_and(agrees));
        if all_agree {
            // With those who came meanwhile and have healed already.
            let replicas = self.replicas_where(agrees);
            self.begin_first(&reference, replicas, &preparing.sources);
        }
    }

    /// When all sources are ready: what the lowest-numbered one of each part holds counts, also for model and data.
    fn choose_reference(&mut self, preparing: &Preparing) -> Option<Vec<Ready>> {
        let ready = |worker: &WorkerId| {
            let peer = self.peers.get(worker).filter(|peer| peer.standing == Standing::Ready)?;
            Some((peer.seat?.rank, *worker, peer.ready.clone()?))
        };
        let mut all = preparing.sources.iter().map(ready).collect::<Option<Vec<_>>>()?;
        all.sort_by_key(|(rank, worker, _)| (*rank, *worker));
        let firsts = all.chunk_by(|one, next| one.0 == next.0).filter_map(|of_part| of_part.first());
        let reference: Vec<Ready> = firsts.map(|(_, _, ready)| ready.clone()).collect();
        if reference.len() != self.stages() as usize {
            return None;
        }
        let facts = facts_of(&reference)?;
        let differing: Vec<(WorkerId, String)> = all
            .iter()
            .filter_map(|(rank, worker, ready)| Some((*worker, difference(&facts, *rank, ready)?)))
            .collect();
        for (worker, difference) in &differing {
            self.refuse(*worker, difference);
        }
        if !differing.is_empty() {
            return None;
        }
        if let Some(preparing) = &mut self.preparing {
            preparing.reference = Some(reference.clone());
        }
        Some(reference)
    }

    /// Tells everybody who has a seat and waits to heal from those who hold the same part of the state.
    pub(super) fn heal_waiting(&mut self, is_donor: impl Fn(&Peer) -> bool) {
        let donors: Vec<(u32, WorkerId)> = self
            .peers
            .iter()
            .filter(|(_, peer)| is_donor(peer))
            .filter_map(|(&worker, peer)| Some((peer.seat?.rank, worker)))
            .collect();
        let orphaned = |peer: &Peer| {
            let is_here = |donor: &WorkerId| donors.iter().any(|(_, worker)| worker == donor);
            peer.standing == Standing::Healing && !peer.donors.iter().any(is_here)
        };
        let waiting = |peer: &Peer| peer.standing == Standing::Waiting || orphaned(peer);
        let waiting: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| waiting(peer)).map(|(&w, _)| w).collect();
        for worker in waiting {
            let Some(peer) = self.peers.get(&worker) else { continue };
            let Some(rank) = peer.seat.map(|seat| seat.rank) else { continue };
            let site = peer.known.site;
            let of_part = donors.iter().filter(|(of, _)| *of == rank);
            let mut members: Vec<_> =
                of_part.filter_map(|(_, donor)| Some(self.peers.get(donor)?.member(*donor))).collect();
            if members.is_empty() {
                continue;
            }
            members.sort_by_key(|member| (member.site != site, member.worker));
            members.truncate(DONORS_MAX);
            if let Some(peer) = self.peers.get_mut(&worker) {
                // The answer of one that heals already may be on its way: it is of a state from before.
                if peer.standing == Standing::Waiting {
                    peer.reopened = None;
                }
                peer.standing = Standing::Healing;
                peer.donors = members.iter().map(|member| member.worker).collect();
            }
            self.send(worker, ToWorker::Heal { donors: members });
        }
    }

    fn begin_first(
        &mut self,
        reference: &[Ready],
        replicas: Vec<Vec<WorkerId>>,
        sources: &BTreeSet<WorkerId>,
    ) {
        let Some(first_round) = reference.first().map(|part| part.next_round) else { return };
        // The start was chosen among those that the ledger reaches.
        self.state.ledger.cut_back(first_round);
        self.keep_pace(first_round);
        self.state.releases.begin_at(first_round);
        let keeps = |worker: &WorkerId| {
            let of_peer = |peer: &Peer| {
                let rank = peer.seat?.rank;
                offer_of(peer, first_round, rank, reference.get(rank as usize)?.state_hash)
            };
            let offer = self.peers.get(worker).and_then(of_peer);
            offer.is_some_and(|offer| offer.private) && sources.contains(worker)
        };
        let whole = replicas.iter().filter(|workers| workers.iter().all(keeps));
        let keepers = whole.filter_map(|workers| workers.first().copied()).collect();
        for (round, worker) in self.state.late.cut_back(first_round, &keepers) {
            self.state.ledger.lose(round, worker);
        }
        self.parity.values_mut().for_each(|parity| parity.cut_back(first_round));
        self.state.milestones.retain(|round, _| *round <= first_round);
        self.summaries.cut_back(first_round);
        self.refusals.cut_back(first_round);
        self.state.facts = facts_of(reference);
        self.state.announced = self.state.announced.next();
        self.preparing = None;
        self.state.phase = Phase::Training;
        let until = Round(self.state.schedule.rounds());
        let nothing_open = reference.iter().map(|_| None).collect();
        self.assemble(self.state.announced, replicas, nothing_open, (first_round, until), first_round);
    }
}

/// What the parts of one model say of it; of the data, what the first one says. None: there is no part.
fn facts_of(parts: &[Ready]) -> Option<Facts> {
    let first = parts.first()?;
    let parameters = parts.iter().map(|part| part.parameters).collect();
    Some(Facts { parameters, samples: first.samples, data_hash: first.data_hash })
}

fn holds(peer: &Peer, round: Round, hash: Hash) -> bool {
    let same = |ready: &Ready| (ready.next_round, ready.state_hash) == (round, hash);
    peer.standing == Standing::Ready && peer.ready.as_ref().is_some_and(same)
}

fn offer_of(peer: &Peer, round: Round, rank: u32, hash: Hash) -> Option<CheckpointOffer> {
    let is_it =
        |offer: &&CheckpointOffer| (offer.next_round, offer.rank, offer.state_hash) == (round, rank, hash);
    peer.offers.iter().find(is_it).cloned()
}
