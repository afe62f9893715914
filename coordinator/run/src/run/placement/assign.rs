//! Assignment of workers to copies of the model.

mod groups;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use groups::placed_in_groups;
use longhaul_common::id::{SiteId, WorkerId};

/// A worker that may be given a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub worker: WorkerId,
    pub site: SiteId,
    /// Parts with a state on its disk; may be empty.
    pub has: BTreeSet<u32>,
}

/// Sites for the parts of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// By rank, at these sites alone.
    Only(Vec<SiteId>),
    /// At a site without workers.
    Nowhere,
    /// At any site: first copies at these sites, each up to its number; then copies within one site.
    Near(BTreeMap<Vec<SiteId>, usize>),
}

impl Rows {
    fn admits(&self, rank: u32, site: SiteId) -> bool {
        match self {
            Self::Only(sites) => sites.get(rank as usize) == Some(&site),
            Self::Nowhere => false,
            Self::Near(_) => true,
        }
    }

    /// Returns the number of copies that the workers allow.
    fn copies_among(&self, candidates: &[Candidate], stages: u32) -> usize {
        match self {
            Self::Only(sites) => {
                let by_site = sites.iter().map(|site| {
                    let here = candidates.iter().filter(|candidate| candidate.site == *site).count();
                    here / sites.iter().filter(|other| *other == site).count().max(1)
                });
                by_site.min().unwrap_or(0)
            }
            Self::Nowhere => 0,
            Self::Near(_) => candidates.len() / stages.max(1) as usize,
        }
    }
}

/// Returns the workers of each copy, by rank. A worker with states of parts gets one of those; apart from that, copies follow the wanted rows.
pub(crate) fn placed(mut candidates: Vec<Candidate>, stages: u32, rows: &Rows) -> Vec<Vec<WorkerId>> {
    candidates.sort_by_key(|candidate| (candidate.site, candidate.worker));
    let sites: BTreeSet<SiteId> = candidates.iter().map(|candidate| candidate.site).collect();
    let mut pool = Pool::of(candidates, stages, rows);
    let mut copies = Vec::new();
    let within = |site: &SiteId| vec![*site; stages as usize];
    match rows {
        Rows::Only(sites) => copies.extend(std::iter::from_fn(|| pool.take_whole(sites))),
        Rows::Nowhere => {}
        Rows::Near(planned) => {
            for (row, &count) in planned {
                copies.extend((0..count).map_while(|_| pool.take_whole(row)));
            }
            for site in &sites {
                copies.extend(std::iter::from_fn(|| pool.take_whole(&within(site))));
            }
            // Of the rest, each as near to one of these as possible.
            let rows: Vec<Vec<SiteId>> = planned.keys().cloned().chain(sites.iter().map(within)).collect();
            copies.extend(std::iter::from_fn(|| pool.take_nearest(&rows)));
        }
    }
    copies.sort_unstable();
    copies
}

/// Workers by site; taken from the end.
type BySite = BTreeMap<SiteId, Vec<WorkerId>>;

/// Workers without a place. For each rank, its holders and its open places for workers without a part number as many as the copies still to be made; so any order of
/// copies works out.
struct Pool {
    /// By rank: holders that get it.
    holders: Vec<BySite>,
    /// By rank: open places for workers without a part.
    open: Vec<usize>,
    free: BySite,
}

impl Pool {
    fn of(candidates: Vec<Candidate>, stages: u32, rows: &Rows) -> Self {
        let copies = rows.copies_among(&candidates, stages);
        let mut holders: Vec<BySite> = (0..stages).map(|_| BySite::new()).collect();
        let (mut open, mut free) = (vec![copies; stages as usize], BySite::new());
        // Workers with the fewest choices first, so that one with several parts is left for the part that no other has.
        let (mut with_state, without): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| !candidate.has.is_empty());
        with_state.sort_by_key(|candidate| candidate.has.len());
        for Candidate { worker, site, has } in with_state.into_iter().chain(without) {
            let fits = |rank: &u32| rows.admits(*rank, site) && open[*rank as usize] > 0;
            let ranks = has.iter().copied().filter(|rank| *rank < stages);
            match ranks.filter(fits).max_by_key(|&rank| (open[rank as usize], std::cmp::Reverse(rank))) {
                Some(rank) => {
                    open[rank as usize] -= 1;
                    holders[rank as usize].entry(site).or_default().push(worker);
                }
                None => free.entry(site).or_default().push(worker),
            }
        }
        for workers in holders.iter_mut().flat_map(BTreeMap::values_mut).chain(free.values_mut()) {
            workers.sort_unstable_by(|one, other| other.cmp(one));
        }
        Self { holders, open, free }
    }

    /// Takes a copy at exactly these sites; `None`: impossible.
    fn take_whole(&mut self, row: &[SiteId]) -> Option<Vec<WorkerId>> {
        let sources = self.sources_at(row);
        if row.len() != self.holders.len() || sources.iter().any(Option::is_none) {
            return None;
        }
        (0..).zip(row).zip(sources).map(|((rank, site), source)| self.take(rank, *site, source?)).collect()
    }

    /// Takes the copy that fits one of these rows best, and of equals the one with most of its state. `None`: too few workers for another one.
    fn take_nearest(&mut self, rows: &[Vec<SiteId>]) -> Option<Vec<WorkerId>> {
        if (0..self.holders.len()).any(|rank| self.open[rank] == 0 && self.holders[rank].is_empty()) {
            return None;
        }
        let nearness = |sources: &[Option<Source>]| {
            let of = |source| sources.iter().filter(|found| **found == Some(source)).count();
            (of(Source::Holder) + of(Source::Free), of(Source::Holder))
        };
        let tries = rows.iter().map(|row| (row, self.sources_at(row)));
        // The first of equals.
        let (row, sources) =
            tries.reduce(|best, next| if nearness(&next.1) > nearness(&best.1) { next } else { best })?;
        let mut copy: Vec<Option<WorkerId>> = (0..)
            .zip(row)
            .zip(sources)
            .map(|((rank, site), source)| self.take(rank, *site, source?))
            .collect();
        for (rank, worker) in copy.iter_mut().enumerate().filter(|(_, worker)| worker.is_none()) {
            *worker = self.take_anywhere(rank);
        }
        copy.into_iter().collect()
    }

    /// By rank, the source of a worker at this site; `None`: no source.
    fn sources_at(&self, row: &[SiteId]) -> Vec<Option<Source>> {
        let mut free: BTreeMap<SiteId, usize> = BTreeMap::new();
        let mut source = |(rank, site): (usize, &SiteId)| {
            if self.holders.get(rank)?.contains_key(site) {
                return Some(Source::Holder);
            }
            let taken = free.entry(*site).or_default();
            let is_there = self.open[rank] > 0 && self.free.get(site).is_some_and(|free| free.len() > *taken);
            *taken += usize::from(is_there);
            is_there.then_some(Source::Free)
        };
        row.iter().enumerate().map(|(rank, site)| source((rank, site))).collect()
    }

    fn take(&mut self, rank: usize, site: SiteId, source: Source) -> Option<WorkerId> {
        let of = match source {
            Source::Holder => self.holders.get_mut(rank)?,
            Source::Free => &mut self.free,
        };
        let workers = of.get_mut(&site)?;
        let worker = workers.pop()?;
        if workers.is_empty() {
            of.remove(&site);
        }
        if source == Source::Free {
            self.open[rank] -= 1;
        }
        Some(worker)
    }

    fn take_anywhere(&mut self, rank: usize) -> Option<WorkerId> {
        let holder = self.holders.get(rank)?.keys().next().map(|site| (*site, Source::Holder));
        let free =
            || self.free.keys().next().filter(|_| self.open[rank] > 0).map(|site| (*site, Source::Free));
        let (site, source) = holder.or_else(free)?;
        self.take(rank, site, source)
    }
}

/// Source of a worker for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// It has the part.
    Holder,
    /// It has none.
    Free,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (worker, site, parts that it has)
    fn slots(workers: &[(u32, u32, &[u32])], stages: u32, sites: &[u32]) -> Vec<Vec<u32>> {
        let rows = match sites {
            [] => Rows::Near(BTreeMap::new()),
            _ => Rows::Only(sites.iter().map(|&site| SiteId(site)).collect()),
        };
        slots_at(workers, stages, &rows)
    }

    fn slots_at(workers: &[(u32, u32, &[u32])], stages: u32, rows: &Rows) -> Vec<Vec<u32>> {
        let candidate = |&(worker, site, has): &(u32, u32, &[u32])| Candidate {
            worker: WorkerId(worker),
            site: SiteId(site),
            has: has.iter().copied().collect(),
        };
        let copies = placed(workers.iter().map(candidate).collect(), stages, rows);
        copies.into_iter().map(|copy| copy.into_iter().map(|worker| worker.0).collect()).collect()
    }

    #[test]
    fn everybody_is_a_copy_where_everybody_has_the_whole_model() {
        assert_eq!(slots(&[(2, 0, &[]), (1, 0, &[])], 1, &[]), [[1], [2]]);
        assert_eq!(slots(&[(2, 0, &[0]), (1, 0, &[])], 1, &[]), [[1], [2]]);
    }

    #[test]
    fn copies_are_within_sites_and_the_rest_is_across_them() {
        let workers: Vec<(u32, u32, &[u32])> =
            vec![(1, 0, &[]), (2, 1, &[]), (3, 0, &[]), (4, 1, &[]), (5, 0, &[]), (6, 1, &[]), (7, 1, &[])];
        assert_eq!(slots(&workers, 2, &[]), [[1, 3], [2, 4], [6, 7]]);
        assert_eq!(slots(&workers[..6], 2, &[]), [[1, 3], [2, 4], [5, 6]]);
        assert!(slots(&workers[..1], 2, &[]).is_empty());
    }

    #[test]
    fn who_has_the_state_of_a_part_gets_that_part() {
        assert_eq!(slots(&[(1, 0, &[1]), (2, 0, &[0])], 2, &[]), [[2, 1]]);
        assert_eq!(
            slots(&[(1, 0, &[0, 1]), (2, 0, &[0]), (3, 0, &[]), (4, 0, &[])], 2, &[]),
            [[2, 1], [3, 4]]
        );
        // More than are needed have the same part: one of them takes another.
        assert_eq!(slots(&[(1, 0, &[0]), (2, 0, &[0])], 2, &[]), [[1, 2]]);
    }

    #[test]
    fn parts_are_on_the_sites_that_are_wanted() {
        let workers: Vec<(u32, u32, &[u32])> = vec![(1, 0, &[]), (2, 1, &[]), (3, 0, &[]), (4, 1, &[])];
        assert_eq!(slots(&workers, 2, &[1, 0]), [[2, 1], [4, 3]]);
        assert_eq!(slots(&workers[..3], 2, &[1, 0]), [[2, 1]]);
        assert_eq!(slots(&workers, 4, &[0, 0, 1, 1]), [[1, 3, 2, 4]]);
        assert!(slots(&[(1, 0, &[]), (3, 0, &[])], 2, &[1, 0]).is_empty());
    }

    /// In the order of sites, each part's first holders would be put together: 1 with 2 and 3 with 4.
    #[test]
    fn copies_of_those_who_have_parts_are_within_sites_where_they_can_be() {
        let workers: Vec<(u32, u32, &[u32])> = vec![(1, 1, &[0]), (2, 0, &[1]), (3, 2, &[0]), (4, 1, &[1])];
        assert_eq!(slots(&workers, 2, &[]), [[1, 4], [3, 2]]);
        // A worker without a part takes the one that is missing at its site.
        let workers: Vec<(u32, u32, &[u32])> = vec![(1, 0, &[1]), (2, 0, &[]), (3, 1, &[0]), (4, 1, &[])];
        assert_eq!(slots(&workers, 2, &[]), [[2, 1], [3, 4]]);
    }

    #[test]
    fn copies_are_at_the_sites_that_were_planned_as_often_as_was_planned() {
        let planned = Rows::Near(BTreeMap::from([(vec![SiteId(1), SiteId(0)], 1)]));
        let workers: Vec<(u32, u32, &[u32])> =
            vec![(1, 0, &[]), (2, 0, &[]), (3, 0, &[]), (4, 1, &[]), (5, 1, &[]), (6, 1, &[])];
        assert_eq!(slots_at(&workers, 2, &planned), [[2, 3], [4, 1], [5, 6]]);
        // The second part is where its state is, and the first one where it was planned.
        let workers: Vec<(u32, u32, &[u32])> = vec![(1, 0, &[]), (2, 1, &[]), (3, 2, &[1]), (4, 2, &[1])];
        assert_eq!(slots_at(&workers, 2, &planned)[1], [2, 4]);
    }

    #[test]
    fn whatever_parts_and_sites_workers_have_as_many_copies_are_made_as_can_be() {
        let mut state = 1_u32;
        let mut draw = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..300 {
            let (stages, count) = (1 + draw(4), 1 + draw(12));
            let parts: Vec<Vec<u32>> =
                (0..count).map(|_| (0..stages).filter(|_| draw(3) == 0).collect()).collect();
            let workers: Vec<(u32, u32, &[u32])> =
                (0..count).zip(&parts).map(|(worker, has)| (worker, draw(3), &has[..])).collect();
            let row = |draw: &mut dyn FnMut(u32) -> u32| (0..stages).map(|_| SiteId(draw(3))).collect();
            let planned = Rows::Near(BTreeMap::from([(row(&mut draw), 1), (row(&mut draw), 2)]));
            let copies = slots_at(&workers, stages, &planned);
            assert_eq!(copies.len(), (count / stages) as usize, "{workers:?}");
            let all: BTreeSet<u32> = copies.iter().flatten().copied().collect();
            assert_eq!(all.len(), copies.len() * stages as usize, "{copies:?}");
            // A part held by one worker alone is where a worker holds it.
            for rank in 0..stages {
                let only: Vec<&(u32, u32, &[u32])> =
                    workers.iter().filter(|(_, _, has)| *has == [rank]).collect();
                let is_placed = |worker: u32| copies.iter().any(|copy| copy[rank as usize] == worker);
                assert!(copies.is_empty() || only.is_empty() || only.iter().any(|of| is_placed(of.0)));
            }
        }
    }
}
