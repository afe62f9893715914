//! From the first worker to the first generation: gathering, and preparing one state on all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use longhaul_common::plan::Membership;
use longhaul_proto::control::message::{CheckpointOffer, GenerationStart, Hash, Ready, Start, ToWorker};

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
    /// What is loaded: the round that follows, and the hash where it is known.
    expected: (Round, Option<Hash>),
    /// Those who load the state by themselves; the others heal from them.
    sources: BTreeSet<WorkerId>,
    /// What the lowest-numbered source holds: all must.
    reference: Option<Ready>,
    /// A participant left: it starts over.
    broken: bool,
}

impl Preparing {
    pub fn lost(&mut self, worker: WorkerId) {
        self.broken |= self.participants.contains(&worker);
    }

    /// Whether this answers what was asked last, and not something before.
    pub fn asked_for(&self, ready: &Ready) -> bool {
        let (round, hash) = self.expected;
        ready.next_round == round && hash.is_none_or(|hash| hash == ready.state_hash)
    }
}

/// Where the state comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Fresh,
    /// Workers hold it in memory: they were about to join when the last member was lost.
    Memory(Round, Hash),
    Checkpoint(Round, Hash),
}

impl Run {
    pub(super) fn advance_gathering(&mut self) {
        if self.state.drain {
            return self.finish("stopped before training began");
        }
        let enough = self.peers.len() >= self.config.run.workers as usize;
        if enough || self.gathering_ends().is_some_and(|at| at <= self.now) {
            self.start_preparing();
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

    /// The newest state that anybody has. Of equally new ones that differ, the one that more workers have.
    fn choose_source(&self) -> Source {
        let mut count: BTreeMap<(Round, bool, Hash), usize> = BTreeMap::new();
        for peer in self.peers.values() {
            let ready = peer
                .ready
                .as_ref()
                .filter(|ready| peer.standing == Standing::Ready && ready.next_round > Round(0));
            if let Some(ready) = ready.filter(|ready| self.is_usable(ready.next_round)) {
                *count.entry((ready.next_round, true, ready.state_hash)).or_default() += 1;
            }
            let offers: BTreeSet<_> =
                peer.offers.iter().map(|offer| (offer.next_round, false, offer.state_hash)).collect();
            for offer in offers.into_iter().filter(|(round, ..)| self.is_usable(*round)) {
                *count.entry(offer).or_default() += 1;
            }
        }
        match count.into_iter().map(|((round, memory, hash), workers)| (round, memory, workers, hash)).max() {
            Some((round, true, _, hash)) => Source::Memory(round, hash),
            Some((round, false, _, hash)) => Source::Checkpoint(round, hash),
            None => Source::Fresh,
        }
    }

    fn is_usable(&self, round: Round) -> bool {
        round.0 <= self.state.schedule.rounds() && self.state.ledger.reaches(round)
    }

    fn start_preparing(&mut self) {
        let source = self.choose_source();
        let participants: BTreeSet<WorkerId> = self.peers.keys().copied().collect();
        let mut sources = BTreeSet::new();
        for &worker in &participants {
            let Some(peer) = self.peers.get_mut(&worker) else { continue };
            if matches!(source, Source::Memory(round, hash) if holds(peer, round, hash)) {
                sources.insert(worker);
                continue;
            }
            let start = match source {
                Source::Fresh => Some(Start::Fresh),
                Source::Memory(..) => None,
                Source::Checkpoint(round, hash) => offer_of(peer, round, hash).map(Start::Checkpoint),
            };
            peer.ready = None;
            peer.standing = if start.is_some() { Standing::Preparing } else { Standing::Waiting };
            if let Some(start) = start {
                sources.insert(worker);
                self.send(worker, ToWorker::Prepare(start));
            }
        }
        let text = match source {
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
            Source::Fresh => (Round(0), None),
            Source::Memory(round, hash) | Source::Checkpoint(round, hash) => (round, Some(hash)),
        };
        self.preparing = Some(Preparing { participants, expected, sources, reference: None, broken: false });
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
        let agrees = |peer: &Peer| holds(peer, reference.next_round, reference.state_hash);
        for &worker in &preparing.participants {
            let Some(peer) = self.peers.get(&worker) else { continue };
            if peer.standing == Standing::Ready && !agrees(peer) {
                let text = "has another state than the lowest-numbered worker, and heals".to_owned();
                self.notice(Severity::Warning, Some(worker), text);
                self.heal_again(worker);
            }
        }
        let donors: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| agrees(peer)).map(|(&w, _)| w).collect();
        self.heal_waiting(&donors);
        let all_agree =
            preparing.participants.iter().all(|worker| self.peers.get(worker).is_some_and(agrees));
        if all_agree {
            // With those who came meanwhile and have healed already.
            self.begin_first(&reference, donors.into_iter().collect(), &preparing.sources);
        }
    }

    /// When all sources are ready: what the lowest-numbered one holds counts, also for model and data.
    fn choose_reference(&mut self, preparing: &Preparing) -> Option<Ready> {
        let ready = |run: &Self, worker| {
            run.peers
                .get(worker)
                .filter(|peer| peer.standing == Standing::Ready)
                .and_then(|peer| peer.ready.clone())
        };
        let all: Option<Vec<Ready>> = preparing.sources.iter().map(|worker| ready(self, worker)).collect();
        let all = all?;
        let reference = all.first()?.clone();
        let facts = facts_of(&reference);
        let differing: Vec<_> = preparing
            .sources
            .iter()
            .zip(&all)
            .filter_map(|(&worker, ready)| Some((worker, difference(&facts, &facts_of(ready))?)))
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

    /// Tells everybody who waits to heal from these members.
    pub(super) fn heal_waiting(&mut self, donors: &[WorkerId]) {
        if donors.is_empty() {
            return;
        }
        let orphaned = |peer: &Peer| {
            peer.standing == Standing::Healing && !peer.donors.iter().any(|donor| donors.contains(donor))
        };
        let waiting = |peer: &Peer| peer.standing == Standing::Waiting || orphaned(peer);
        let waiting: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| waiting(peer)).map(|(&w, _)| w).collect();
        for worker in waiting {
            let Some(site) = self.peers.get(&worker).map(|peer| peer.known.site) else { continue };
            let mut members: Vec<_> =
                donors.iter().filter_map(|donor| Some(self.peers.get(donor)?.member(*donor))).collect();
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
        reference: &Ready,
        participants: BTreeSet<WorkerId>,
        sources: &BTreeSet<WorkerId>,
    ) {
        let first_round = reference.next_round;
        // The start was chosen among those that the ledger reaches.
        self.state.ledger.cut_back(first_round);
        self.state.releases.begin_at(first_round);
        let private = |(&worker, peer): (&WorkerId, &Peer)| {
            let offer = offer_of(peer, first_round, reference.state_hash)?;
            (offer.private && sources.contains(&worker)).then_some(worker)
        };
        let keepers = self.peers.iter().filter_map(private).collect();
        for (round, worker) in self.state.late.cut_back(first_round, &keepers) {
            self.state.ledger.lose(round, worker);
        }
        self.state.ledger.assign(first_round, participants.iter().copied().collect());
        self.parity.cut_back(first_round);
        self.summaries.cut_back(first_round);
        self.refusals.cut_back(first_round);
        self.state.facts = Some(facts_of(reference));
        self.state.announced = self.state.announced.next();
        let members =
            participants.iter().filter_map(|worker| Some(self.peers.get(worker)?.member(*worker))).collect();
        self.preparing = None;
        self.state.phase = Phase::Training;
        self.begin(GenerationStart {
            membership: Membership::assign(self.state.announced, members, self.layout()),
            settlement: None,
            first_round,
            active_before: Vec::new(),
            assignments: self.state.ledger.assignments_from(first_round),
            until: Round(self.state.schedule.rounds()),
            schedule: self.state.schedule,
        });
    }
}

fn facts_of(ready: &Ready) -> Facts {
    Facts { parameters: ready.parameters, samples: ready.samples, data_hash: ready.data_hash }
}

fn holds(peer: &Peer, round: Round, hash: Hash) -> bool {
    let same = |ready: &Ready| (ready.next_round, ready.state_hash) == (round, hash);
    peer.standing == Standing::Ready && peer.ready.as_ref().is_some_and(same)
}

fn offer_of(peer: &Peer, round: Round, hash: Hash) -> Option<CheckpointOffer> {
    peer.offers.iter().find(|offer| (offer.next_round, offer.state_hash) == (round, hash)).cloned()
}
