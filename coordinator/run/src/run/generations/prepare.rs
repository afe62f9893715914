//! From the first worker to the first generation: gathering, and preparing one state on all.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{Hash, Member, Ready, Start, ToWorker};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::generations::admit::difference;
use crate::run::liveness::Liveness;
use crate::run::machine::Run;
use crate::run::peer::{Peer, Standing};
use crate::run::recovery::source::Source;
use crate::run::state::{Facts, Phase};

/// Most donors for a healing worker: enough to outlive some, few enough for one message.
pub(crate) const DONORS_MAX: usize = 16;

/// The phase between gathering and training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Preparing {
    participants: BTreeSet<WorkerId>,
    /// The expected state: its next round, and the hash of each part of the model where known.
    expected: (Round, BTreeMap<u32, Hash>),
    /// Workers that load the state by themselves; the others heal from them.
    sources: BTreeSet<WorkerId>,
    /// Sources that have not reported yet.
    unheard: BTreeSet<WorkerId>,
    /// Ranks whose part comes from the disks of others.
    moved: BTreeSet<u32>,
    /// By rank, the answer of the lowest-numbered source: all others must match.
    reference: Option<Vec<Ready>>,
    /// A participant left: it starts over.
    broken: bool,
}

impl Preparing {
    pub fn lost(&mut self, worker: WorkerId) {
        self.broken |= self.participants.contains(&worker);
    }

    /// Records that a worker is ready.
    pub fn heard(&mut self, worker: WorkerId) {
        self.unheard.remove(&worker);
    }

    /// Whether all sources have reported. Nothing goes on before.
    pub fn has_heard_all(&self) -> bool {
        self.unheard.is_empty()
    }

    /// Whether this answers the last order, and not an earlier one.
    pub fn asked_for(&self, ready: &Ready) -> bool {
        let (round, hashes) = &self.expected;
        ready.next_round == *round && hashes.get(&ready.rank).is_none_or(|hash| *hash == ready.state_hash)
    }
}

impl Run {
    pub(crate) fn advance_gathering(&mut self) {
        if self.core.state.requests.drain {
            return self.finish(self.core.words_of_stop());
        }
        if self.accounting.is_held(&self.core) || !self.has_plan() {
            return;
        }
        if self.planning.waits_for_a_move(&self.core) {
            return;
        }
        let enough = self.core.has_all_workers() || self.planning.move_is_complete(&self.core);
        if enough || self.generations.gathering_ends(&self.core).is_some_and(|at| at <= self.core.now) {
            let source = self.core.choose_source();
            if !matches!(source, Source::Memory(..)) && self.core.waits_for_archive() {
                return;
            }
            if source == Source::Fresh && self.core.state.lineage.fork.is_some() {
                return;
            }
            if self.recovery.waits_for_absent_holders(&mut self.core, &source) {
                return;
            }
            self.place_all(&self.core.holders_of(&source));
            // Without a complete copy, more workers must come.
            if !self.core.replicas_where(|_| true).is_empty() {
                self.start_preparing(source);
            } else if let Source::Checkpoint(found) = source {
                self.replan_for_those_here(found.round);
            }
        }
    }

    fn start_preparing(&mut self, source: Source) {
        self.recovery.tell_what_did_not_come(&mut self.core, &source);
        let placed = self.core.peers.iter().filter(|(_, peer)| peer.slot.is_some());
        let participants: BTreeSet<WorkerId> = placed.map(|(&worker, _)| worker).collect();
        let starts: Vec<(WorkerId, Option<Start>)> = participants
            .iter()
            .map(|&worker| (worker, self.core.start_of(&source, worker, &participants)))
            .collect();
        let (mut sources, mut unheard, mut moved) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (worker, start) in starts {
            let Some(peer) = self.core.peers.get_mut(&worker) else { continue };
            if matches!(source, Source::Memory(round, hash) if holds(peer, round, hash)) {
                sources.insert(worker);
                continue;
            }
            peer.start.ready = None;
            peer.standing = if start.is_some() { Standing::Preparing } else { Standing::Waiting };
            peer.start.loads_own = matches!(&start, Some(Start::Checkpoint(offer)) if offer.private);
            if let Some(start) = start {
                if let Start::Held(_) = &start {
                    moved.extend(peer.slot.map(|slot| slot.rank));
                }
                sources.insert(worker);
                unheard.insert(worker);
                self.core.send(worker, ToWorker::Prepare(start));
            }
        }
        let text = match &source {
            Source::Fresh if self.core.state.lineage.facts.is_some() => {
                let text = "no worker holds the run's state or a checkpoint of it: the run starts from the beginning";
                self.core.notice(Severity::Error, None, text.to_owned());
                "preparing from the beginning".to_owned()
            }
            Source::Fresh => format!("{} workers prepare", participants.len()),
            Source::Memory(round, _) => {
                format!("goes on from the state before {round} in the memory of {sources:?}")
            }
            Source::Checkpoint(found) if moved.is_empty() => {
                format!("goes on from the checkpoint before {} of {} workers", found.round, sources.len())
            }
            Source::Checkpoint(found) => format!(
                "goes on from the checkpoint before {}: workers with parts {:?} of the model fetch them from workers that have them on disk",
                found.round,
                moved.iter().map(|rank| rank + 1).collect::<Vec<_>>()
            ),
        };
        self.core.notice(Severity::Info, None, text);
        let expected = match source {
            Source::Fresh => (Round(0), BTreeMap::new()),
            Source::Memory(round, hash) => (round, BTreeMap::from([(0, hash)])),
            Source::Checkpoint(found) if self.core.is_same_cut(&found) => {
                (found.round, (0..).zip(found.hashes).collect())
            }
            // The hashes of parts that were never written are unknown.
            Source::Checkpoint(found) => (found.round, BTreeMap::new()),
        };
        self.generations.preparing = Some(Preparing {
            participants,
            expected,
            sources,
            unheard,
            moved,
            reference: None,
            broken: false,
        });
        self.core.state.phase = Phase::Preparing;
        self.planning.preparing_begins(self.core.now);
        self.core.persist();
    }

    pub(crate) fn advance_preparing(&mut self) {
        if self.core.state.requests.drain {
            return self.finish(self.core.words_of_stop());
        }
        let Some(preparing) = self.generations.preparing.clone() else { return };
        if preparing.broken {
            self.generations.preparing = None;
            self.core.state.phase = Phase::Gathering;
            return;
        }
        let reference = match preparing.reference.clone() {
            Some(reference) => reference,
            None => match self.choose_reference(&preparing) {
                Some(reference) => reference,
                None => return,
            },
        };
        // Workers that came meanwhile, and those of incomplete copies.
        self.place_waiting(&BTreeMap::new());
        let agrees = |peer: &Peer| {
            let of_part = peer.slot.and_then(|slot| reference.get(slot.rank as usize));
            of_part.is_some_and(|part| holds(peer, part.next_round, part.state_hash))
        };
        for &worker in &preparing.participants {
            let Some(peer) = self.core.peers.get(&worker) else { continue };
            if peer.standing == Standing::Ready && !agrees(peer) {
                let text = "has a different state from the lowest-numbered worker, and heals".to_owned();
                self.core.notice(Severity::Warning, Some(worker), text);
                self.heal_again(worker);
            }
        }
        self.liveness.heal_waiting(&mut self.core, agrees);
        let all_agree =
            preparing.participants.iter().all(|worker| self.core.peers.get(worker).is_some_and(agrees));
        if all_agree && !self.accounting.is_held(&self.core) {
            // With the workers that came meanwhile and have healed already.
            let replicas = self.core.replicas_where(agrees);
            self.begin_first(&reference, replicas, &preparing);
        }
    }

    /// Chooses the reference once all sources are ready: the state of the lowest-numbered one of each part, also for
    /// model and data.
    fn choose_reference(&mut self, preparing: &Preparing) -> Option<Vec<Ready>> {
        let ready = |worker: &WorkerId| {
            let peer = self.core.peers.get(worker).filter(|peer| peer.standing == Standing::Ready)?;
            Some((peer.slot?.rank, *worker, peer.start.ready.clone()?))
        };
        let mut all = preparing.sources.iter().map(ready).collect::<Option<Vec<_>>>()?;
        all.sort_by_key(|(rank, worker, _)| (*rank, *worker));
        let firsts = all.chunk_by(|one, next| one.0 == next.0).filter_map(|of_part| of_part.first());
        let reference: Vec<Ready> = firsts.map(|(_, _, ready)| ready.clone()).collect();
        if reference.len() != self.core.ranks() as usize {
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
        if let Some(preparing) = &mut self.generations.preparing {
            preparing.reference = Some(reference.clone());
        }
        Some(reference)
    }

    fn begin_first(&mut self, reference: &[Ready], replicas: Vec<Vec<WorkerId>>, preparing: &Preparing) {
        let Some(first_round) = reference.first().map(|part| part.next_round) else { return };
        // The start was chosen among the rounds that the ledger reaches.
        self.core.state.rounds.ledger.cut_back(first_round);
        self.accounting.keep_pace(&mut self.core, first_round);
        self.core.state.releases.begin_at(first_round);
        let keeps = |worker: &WorkerId| self.core.peers.get(worker).is_some_and(|peer| peer.start.loads_own);
        let back = replicas.iter().flatten().copied().filter(keeps).collect();
        let whole = replicas.iter().filter(|workers| workers.iter().all(keeps));
        let keepers = whole.filter_map(|workers| workers.first().copied()).collect();
        for (round, worker) in self.core.state.rounds.late.cut_back(first_round, &keepers) {
            self.core.state.rounds.ledger.lose(round, worker);
        }
        self.accounting.cut_back(first_round);
        self.core.state.evaluations.cut_back(first_round);
        self.core.state.tasks.cut_back(first_round);
        self.core.state.lineage.milestones.retain(|round, _| *round <= first_round);
        self.core.state.lineage.facts = facts_of(reference);
        self.data.holders_change();
        self.core.count_what_did_not_come_back(&back, &preparing.moved, first_round);
        self.core.state.generations.announced = self.core.state.generations.announced.next();
        self.core.state.lineage.rewinds.note_all(
            self.core.ranks(),
            self.core.state.generations.announced,
            first_round,
        );
        self.core.state.end.left_with = None;
        self.recovery.begin();
        self.generations.preparing = None;
        self.planning.training_begins(self.core.now);
        self.core.state.phase = Phase::Training;
        let until = Round(self.core.state.rounds.schedule.rounds());
        let nothing_open = reference.iter().map(|_| None).collect();
        self.assemble(
            self.core.state.generations.announced,
            replicas,
            nothing_open,
            (first_round, until),
            first_round,
        );
    }
}

impl Core {
    /// Describes why an idle run is over.
    fn words_of_stop(&self) -> &'static str {
        match self.state.lineage.facts {
            None => "stopped before training began",
            Some(_) => "stopped before it went on; the newest checkpoints hold its progress",
        }
    }
}

impl Liveness {
    /// Has all waiting workers with a slot heal from holders of the same part.
    pub(crate) fn heal_waiting(&mut self, core: &mut Core, is_donor: impl Fn(&Peer) -> bool) {
        let donors: Vec<(u32, WorkerId)> = core
            .peers
            .iter()
            .filter(|(_, peer)| is_donor(peer))
            .filter_map(|(&worker, peer)| Some((peer.slot?.rank, worker)))
            .collect();
        let orphaned = |peer: &Peer| {
            let is_here = |donor: &WorkerId| {
                core.peers.get(donor).is_some_and(|donor| donor.slot.is_some() && is_donor(donor))
            };
            peer.standing == Standing::Healing && !peer.start.donors.iter().any(is_here)
        };
        let waiting = |peer: &Peer| peer.standing == Standing::Waiting || orphaned(peer);
        let waiting: Vec<WorkerId> =
            core.peers.iter().filter(|(_, peer)| waiting(peer)).map(|(&w, _)| w).collect();
        for worker in
            waiting.into_iter().filter(|worker| !self.is_kept_apart(core, *worker)).collect::<Vec<_>>()
        {
            let Some(peer) = core.peers.get(&worker) else { continue };
            let Some(rank) = peer.slot.map(|slot| slot.rank) else { continue };
            let site = peer.known.site;
            let of_part = donors.iter().filter(|(of, _)| *of == rank);
            let mut members: Vec<_> =
                of_part.filter_map(|(_, donor)| Some(core.peers.get(donor)?.member(*donor))).collect();
            if members.is_empty() {
                continue;
            }
            let far = |member: &Member| core.state.ways.far(site, member.site);
            members.sort_by(|a, b| far(a).total_cmp(&far(b)).then(a.worker.cmp(&b.worker)));
            members.truncate(DONORS_MAX);
            if let Some(peer) = core.peers.get_mut(&worker) {
                // The answer of an already healing worker may be in flight, with an older state.
                if peer.standing == Standing::Waiting {
                    peer.start.reopened = None;
                }
                peer.standing = Standing::Healing;
                peer.start.loads_own = false;
                peer.start.donors = members.iter().map(|member| member.worker).collect();
            }
            core.send(worker, ToWorker::Heal { donors: members });
        }
    }
}

/// Combines the parts' facts; those of the data come from the first one. `None`: there is no part.
fn facts_of(parts: &[Ready]) -> Option<Facts> {
    let first = parts.first()?;
    let parameters = parts.iter().map(|part| part.parameters).collect();
    let (samples, data_hash, evaluation) = (first.samples, first.data_hash, first.evaluation);
    Some(Facts { parameters, samples, data_hash, evaluation })
}

fn holds(peer: &Peer, round: Round, hash: Hash) -> bool {
    let same = |ready: &Ready| (ready.next_round, ready.state_hash) == (round, hash);
    peer.standing == Standing::Ready && peer.start.ready.as_ref().is_some_and(same)
}
