//! Which worker holds which part of the model, and with whom. Where everybody has all of it, each is a copy by itself.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_proto::control::message::ToWorker;
use longhaul_proto::round::RESULTS_KEPT_ROUNDS;

use super::command::Severity;
use super::machine::Run;
use super::peer::{Peer, Standing};

/// A place in a copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// Which copy; its number is never used twice.
    pub replica: u64,
    /// Which part.
    pub rank: u32,
}

/// A worker that may be given a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub worker: WorkerId,
    pub site: SiteId,
    /// Parts of which it has the state on its disk; empty: it has none.
    pub has: BTreeSet<u32>,
}

impl Run {
    /// Workers that share a copy of the model.
    pub(super) fn stages(&self) -> u32 {
        self.config.parallel.stages
    }

    /// Gives everybody a new seat, with regard to who has a state of which part.
    pub(super) fn seat_all(&mut self, has: &BTreeMap<WorkerId, BTreeSet<u32>>) {
        let had: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| peer.seat.is_some()).map(|(&worker, _)| worker).collect();
        self.peers.values_mut().for_each(|peer| peer.seat = None);
        self.seat_waiting(has);
        for worker in had {
            if self.stages() > 1 && self.rank_of(worker).is_none() {
                self.send_back_to_heal(worker);
                self.send(worker, ToWorker::Seat { rank: None });
            }
        }
    }

    /// Whether copies may be put together while others train. Where members make common steps whose gradients are clipped, those that have missed some would have to make
    /// them again together, and from the same one on.
    pub(super) fn copies_may_join(&self) -> bool {
        let (sync, through) = (&self.config.sync, self.state.ledger.through());
        let makes_common_steps = sync.source.is_gradient() || self.state.schedule.is_opening(through);
        self.stages() == 1 || self.config.train.gradient_clip == 0.0 || !makes_common_steps
    }

    /// Whether a member belongs to a copy, and all other copies have lost somebody.
    pub(super) fn is_of_the_last_copy(&self, worker: WorkerId) -> bool {
        let is_member = self.peers.get(&worker).is_some_and(|peer| peer.standing == Standing::Member);
        if self.stages() == 1 || !is_member {
            return false;
        }
        let whole = self.replicas_where(Peer::is_present_member);
        whole.iter().all(|workers| workers.contains(&worker))
    }

    /// Makes copies of the workers that have no seat, as many as there are enough for.
    pub(super) fn seat_waiting(&mut self, has: &BTreeMap<WorkerId, BTreeSet<u32>>) {
        let candidate = |(&worker, peer): (&WorkerId, &Peer)| Candidate {
            worker,
            site: peer.known.site,
            has: has.get(&worker).cloned().unwrap_or_default(),
        };
        let unseated = |peer: &Peer| peer.seat.is_none() && peer.connection.is_some();
        let candidates: Vec<Candidate> =
            self.peers.iter().filter(|(_, peer)| unseated(peer)).map(candidate).collect();
        let (mut copies, rest) = self.planned_copies(candidates);
        copies.extend(seated(rest, self.stages(), &self.sites_of_ranks()));
        for workers in copies {
            self.replicas_formed += 1;
            let replica = self.replicas_formed;
            for (rank, worker) in (0..).zip(workers) {
                if let Some(peer) = self.peers.get_mut(&worker) {
                    peer.seat = Some(Seat { replica, rank });
                }
                if self.stages() > 1 {
                    // Whatever it was told before is void.
                    self.send_back_to_heal(worker);
                    self.send(worker, ToWorker::Seat { rank: Some(rank) });
                }
            }
        }
    }

    /// The copies that were planned and are all here, and who is left. Once there are states, those decide.
    fn planned_copies(&self, mut candidates: Vec<Candidate>) -> (Vec<Vec<WorkerId>>, Vec<Candidate>) {
        let mut copies = Vec::new();
        if candidates.iter().any(|candidate| !candidate.has.is_empty()) {
            return (copies, candidates);
        }
        for copy in self.state.plan.iter().flat_map(|plan| &plan.copies) {
            let is_here = |worker: &WorkerId| candidates.iter().any(|candidate| candidate.worker == *worker);
            if copy.len() == self.stages() as usize && copy.iter().all(is_here) {
                candidates.retain(|candidate| !copy.contains(&candidate.worker));
                copies.push(copy.clone());
            }
        }
        (copies, candidates)
    }

    /// By rank, the site that the configuration wants it on; empty: anywhere. A site that nobody has joined from has no number.
    fn sites_of_ranks(&self) -> Vec<Option<SiteId>> {
        let number = |name: &String| {
            let at = self.state.sites.iter().position(|known| known == name)?;
            Some(SiteId(u32::try_from(at).ok()?))
        };
        self.config.parallel.sites.iter().map(number).collect()
    }

    /// A copy has lost a worker: the others have no part in the run until they are given another.
    pub(super) fn dissolve(&mut self, seat: Option<Seat>) {
        let Some(replica) = seat.map(|seat| seat.replica).filter(|_| self.stages() > 1) else { return };
        let of_it = |peer: &Peer| peer.seat.is_some_and(|seat| seat.replica == replica);
        let others: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| of_it(peer)).map(|(&worker, _)| worker).collect();
        for worker in others {
            let Some(peer) = self.peers.get_mut(&worker) else { continue };
            peer.seat = None;
            let is_here = peer.connection.is_some();
            if let Some(preparing) = &mut self.preparing {
                preparing.lost(worker);
            }
            if !is_here {
                // Nobody waits for one whose copy is gone.
                self.peers.remove(&worker);
            }
            self.gone.insert(worker);
            self.parity.values_mut().for_each(|parity| parity.forget(worker));
            self.send_back_to_heal(worker);
            self.send(worker, ToWorker::Seat { rank: None });
            self.notice(
                Severity::Info,
                Some(worker),
                "waits for another seat: its copy of the model has come apart".to_owned(),
            );
        }
    }

    /// The part that a worker holds, or is to hold.
    pub(super) fn rank_of(&self, worker: WorkerId) -> Option<u32> {
        Some(self.peers.get(&worker)?.seat?.rank)
    }

    /// The workers of each copy, by rank, of whose workers this is true.
    pub(super) fn replicas_where(&self, is_fit: impl Fn(&Peer) -> bool) -> Vec<Vec<WorkerId>> {
        let mut replicas: BTreeMap<u64, Vec<(u32, WorkerId)>> = BTreeMap::new();
        for (&worker, peer) in &self.peers {
            if let Some(seat) = peer.seat.filter(|_| is_fit(peer)) {
                replicas.entry(seat.replica).or_default().push((seat.rank, worker));
            }
        }
        let complete = replicas.into_values().filter(|ranks| ranks.len() == self.stages() as usize);
        let mut sorted: Vec<Vec<WorkerId>> = complete
            .map(|mut ranks| {
                ranks.sort_unstable();
                ranks.into_iter().map(|(_, worker)| worker).collect()
            })
            .collect();
        sorted.sort_unstable();
        sorted
    }

    /// Copies all of whose workers hold the state and wait for a generation.
    pub(super) fn ready_replicas(&self) -> Vec<Vec<WorkerId>> {
        self.replicas_where(|peer| peer.standing == Standing::Ready)
    }

    /// Who healed first, and waited for the others of its copy until members no longer have what it lacks, heals again.
    pub(super) fn refresh_ready(&mut self) {
        if self.stages() == 1 {
            return;
        }
        let through = self.state.ledger.through().0;
        let is_stale =
            |peer: &Peer| peer.next_round.is_some_and(|next| next.0 + RESULTS_KEPT_ROUNDS / 2 < through);
        let ready = self.ready_replicas();
        let stale: Vec<WorkerId> = ready
            .into_iter()
            .flatten()
            .filter(|worker| self.peers.get(worker).is_some_and(is_stale))
            .collect();
        stale.into_iter().for_each(|worker| self.send_back_to_heal(worker));
    }
}

/// The workers of each copy, by rank. A copy is within a site where it can be; but where workers have states of parts, that decides, and each gets the part that it has.
fn seated(mut candidates: Vec<Candidate>, stages: u32, sites: &[Option<SiteId>]) -> Vec<Vec<WorkerId>> {
    candidates.sort_by_key(|candidate| (candidate.site, candidate.worker));
    if sites.is_empty() && candidates.iter().all(|candidate| candidate.has.is_empty()) {
        return near_each_other(&candidates, stages as usize);
    }
    let copies = copies_among(&candidates, stages, sites);
    let may = |candidate: &Candidate, rank: u32| {
        sites.get(rank as usize).is_none_or(|site| *site == Some(candidate.site))
    };
    let mut by_rank: Vec<Vec<Candidate>> = (0..stages).map(|_| Vec::new()).collect();
    // Those with the fewest choices first, so that one who has several parts is left for the part that nobody else has.
    let mut with_state: Vec<_> = candidates.extract_if(.., |candidate| !candidate.has.is_empty()).collect();
    with_state.sort_by_key(|candidate| candidate.has.len());
    for candidate in with_state {
        let fits = |rank: &u32| may(&candidate, *rank) && by_rank[*rank as usize].len() < copies;
        let ranks = candidate.has.iter().copied().filter(|rank| *rank < stages);
        match ranks.filter(fits).min_by_key(|rank| by_rank[*rank as usize].len()) {
            Some(rank) => by_rank[rank as usize].push(candidate),
            None => candidates.push(candidate),
        }
    }
    candidates.sort_by_key(|candidate| (candidate.site, candidate.worker));
    for candidate in candidates {
        let fits = |rank: &u32| may(&candidate, *rank) && by_rank[*rank as usize].len() < copies;
        if let Some(rank) = (0..stages).find(fits) {
            by_rank[rank as usize].push(candidate);
        }
    }
    for holders in &mut by_rank {
        holders.sort_by_key(|candidate| (candidate.site, candidate.worker));
    }
    let whole = by_rank.iter().map(Vec::len).min().unwrap_or(0);
    (0..whole).map(|copy| by_rank.iter().map(|holders| holders[copy].worker).collect()).collect()
}

/// As many copies as there are workers for, on the sites that are wanted.
fn copies_among(candidates: &[Candidate], stages: u32, sites: &[Option<SiteId>]) -> usize {
    let by_site = sites.iter().map(|site| {
        let here = candidates.iter().filter(|candidate| Some(candidate.site) == *site).count();
        here / sites.iter().filter(|other| *other == site).count().max(1)
    });
    by_site.min().unwrap_or(candidates.len() / stages.max(1) as usize)
}

/// First within sites, then of those that are left over.
fn near_each_other(candidates: &[Candidate], stages: usize) -> Vec<Vec<WorkerId>> {
    let (mut copies, mut left) = (Vec::new(), Vec::new());
    for of_site in candidates.chunk_by(|one, next| one.site == next.site) {
        let workers: Vec<WorkerId> = of_site.iter().map(|candidate| candidate.worker).collect();
        let whole = workers.chunks_exact(stages.max(1));
        left.extend_from_slice(whole.remainder());
        copies.extend(whole.map(<[WorkerId]>::to_vec));
    }
    copies.extend(left.chunks_exact(stages.max(1)).map(<[WorkerId]>::to_vec));
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (worker, site, parts that it has)
    fn seats(workers: &[(u32, u32, &[u32])], stages: u32, sites: &[u32]) -> Vec<Vec<u32>> {
        let candidate = |&(worker, site, has): &(u32, u32, &[u32])| Candidate {
            worker: WorkerId(worker),
            site: SiteId(site),
            has: has.iter().copied().collect(),
        };
        let sites: Vec<_> = sites.iter().map(|&site| Some(SiteId(site))).collect();
        let copies = seated(workers.iter().map(candidate).collect(), stages, &sites);
        copies.into_iter().map(|copy| copy.into_iter().map(|worker| worker.0).collect()).collect()
    }

    #[test]
    fn everybody_is_a_copy_where_everybody_has_the_whole_model() {
        assert_eq!(seats(&[(2, 0, &[]), (1, 0, &[])], 1, &[]), [[1], [2]]);
        assert_eq!(seats(&[(2, 0, &[0]), (1, 0, &[])], 1, &[]), [[1], [2]]);
    }

    #[test]
    fn copies_are_within_sites_and_the_rest_is_across_them() {
        let workers: Vec<(u32, u32, &[u32])> =
            vec![(1, 0, &[]), (2, 1, &[]), (3, 0, &[]), (4, 1, &[]), (5, 0, &[]), (6, 1, &[]), (7, 1, &[])];
        assert_eq!(seats(&workers, 2, &[]), [[1, 3], [2, 4], [6, 7]]);
        assert_eq!(seats(&workers[..6], 2, &[]), [[1, 3], [2, 4], [5, 6]]);
        assert!(seats(&workers[..1], 2, &[]).is_empty());
    }

    #[test]
    fn who_has_the_state_of_a_part_gets_that_part() {
        assert_eq!(seats(&[(1, 0, &[1]), (2, 0, &[0])], 2, &[]), [[2, 1]]);
        assert_eq!(
            seats(&[(1, 0, &[0, 1]), (2, 0, &[0]), (3, 0, &[]), (4, 0, &[])], 2, &[]),
            [[2, 1], [3, 4]]
        );
        // More than are needed have the same part: one of them takes another.
        assert_eq!(seats(&[(1, 0, &[0]), (2, 0, &[0])], 2, &[]), [[1, 2]]);
    }

    #[test]
    fn parts_are_on_the_sites_that_are_wanted() {
        let workers: Vec<(u32, u32, &[u32])> = vec![(1, 0, &[]), (2, 1, &[]), (3, 0, &[]), (4, 1, &[])];
        assert_eq!(seats(&workers, 2, &[1, 0]), [[2, 1], [4, 3]]);
        assert_eq!(seats(&workers[..3], 2, &[1, 0]), [[2, 1]]);
        assert_eq!(seats(&workers, 4, &[0, 0, 1, 1]), [[1, 3, 2, 4]]);
        assert!(seats(&[(1, 0, &[]), (3, 0, &[])], 2, &[1, 0]).is_empty());
    }
}
