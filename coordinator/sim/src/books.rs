//! The world's own accounts: samples trained on by devices, and sites named by results.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_proto::control::message::{GenerationStart, Hash, RoundReport};

/// Beside the coordinator's ledger, and made of other facts.
#[derive(Debug, Default)]
pub struct Books {
    /// Positions that a worker has last contributed for a round, at least with a part of the model.
    trained: BTreeMap<(WorkerId, Round), Vec<u64>>,
    /// Positions of contributions that were made anew with others.
    replaced: BTreeSet<u64>,
    /// By generation: its participants in each round.
    generations: BTreeMap<Generation, TakesPart>,
    /// Rounds whose whole result a generation took over from an earlier one, which made it.
    taken_over: BTreeMap<Round, Generation>,
    /// The members' reports of each round: its generation, the sites in its result, and the states after it.
    results: BTreeMap<Round, Told>,
}

/// Members of a generation.
#[derive(Debug)]
struct TakesPart {
    all: BTreeSet<WorkerId>,
    /// Those that take part in rounds before the first one.
    before: BTreeSet<WorkerId>,
    first: Round,
}

#[derive(Debug)]
struct Told {
    generation: Generation,
    sites: Vec<SiteId>,
    states: BTreeSet<Hash>,
}

impl Books {
    pub(crate) fn trained(&mut self, worker: WorkerId, round: Round, positions: Vec<u64>) {
        let before = self.trained.insert((worker, round), positions.clone());
        self.replaced.extend(before.filter(|before| *before != positions).into_iter().flatten());
    }

    /// Reports of the latest generation count: earlier ones may be of a result that was replaced.
    pub(crate) fn applied(&mut self, report: &RoundReport) {
        let RoundReport { round, generation, sites, state_hash, .. } = report;
        let new = || Told { generation: *generation, sites: sites.clone(), states: BTreeSet::new() };
        let known = self.results.entry(*round).or_insert_with(new);
        // With the same state after it, it is the same result, which was pulled.
        if known.generation < *generation && !known.states.contains(state_hash) {
            *known = new();
        }
        if known.generation == *generation || known.states.contains(state_hash) {
            known.states.insert(*state_hash);
        }
    }

    /// A generation begins. It makes all rounds anew that are open, and earlier reports of them are void. `fragments`: of the model.
    pub(crate) fn begins(&mut self, start: &GenerationStart, fragments: u32) {
        let all: BTreeSet<WorkerId> = start.membership.members().iter().map(|member| member.worker).collect();
        let before: BTreeSet<WorkerId> = start.active_before.iter().copied().collect();
        let (generation, first) = (start.membership.generation, start.first_round);
        let open = start.settlement.as_ref().map_or(first, |settled| settled.open_round);
        let remade = if is_whole(start, fragments) { open.next() } else { open };
        if !self.generations.contains_key(&generation) {
            let last = self.generations.last_key_value().map(|(last, _)| *last);
            let maker = self.taken_over.get(&open).copied().or(last).filter(|_| remade > open);
            self.taken_over.retain(|round, _| *round < open);
            self.taken_over.extend(maker.map(|maker| (open, maker)));
        }
        // An earlier process's contributions to rounds that are made anew died with it.
        for worker in all.difference(&before) {
            let of_worker = (*worker, remade)..(*worker, first.max(remade));
            let died: Vec<_> = self.trained.range(of_worker).map(|(key, _)| *key).collect();
            let positions = died.iter().filter_map(|key| self.trained.remove(key)).flatten();
            self.replaced.extend(positions);
        }
        self.generations.insert(generation, TakesPart { all, before, first });
        self.reopened(generation, open);
    }

    fn reopened(&mut self, generation: Generation, open: Round) {
        self.results.retain(|round, told| *round < open || told.generation >= generation);
    }

    /// The last reported round, and the states after it.
    #[must_use]
    pub fn last(&self) -> Option<(Round, &BTreeSet<Hash>)> {
        self.results.last_key_value().map(|(round, told)| (*round, &told.states))
    }

    /// Samples trained on for a round, by any workers, in order.
    #[must_use]
    pub fn trained_in(&self, round: Round) -> Vec<u64> {
        let of_round = self.trained.iter().filter(|((_, trained), _)| *trained == round);
        let mut positions: Vec<u64> = of_round.flat_map(|(_, positions)| positions.clone()).collect();
        positions.sort_unstable();
        positions
    }

    /// Whether each result names so many sites.
    #[must_use]
    pub fn all_name(&self, sites: usize) -> bool {
        self.results.values().all(|told| told.sites.len() == sites)
    }

    /// Positions in the results, and those that are in none though they were trained on. `is_at`: whether a worker is at a site.
    ///
    /// # Panics
    /// A position is in two results.
    #[must_use]
    pub fn positions(&self, is_at: impl Fn(WorkerId, SiteId) -> bool) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let (mut applied, mut missed) = (BTreeSet::new(), self.replaced.clone());
        for ((worker, round), positions) in &self.trained {
            let told = self.results.get(round);
            let is_member = |told: &Told| {
                let maker = self.taken_over.get(round).unwrap_or(&told.generation);
                self.generations.get(maker).is_some_and(|members| {
                    members.all.contains(worker)
                        && (*round >= members.first || members.before.contains(worker))
                })
            };
            let is_named = told
                .is_some_and(|told| is_member(told) && told.sites.iter().any(|site| is_at(*worker, *site)));
            for position in positions {
                if !is_named {
                    missed.insert(*position);
                } else {
                    assert!(applied.insert(*position), "position {position} is in two results");
                }
            }
        }
        (applied, missed)
    }
}

/// Whether all results of its open round were there when a generation began: then the round is not made anew.
fn is_whole(start: &GenerationStart, fragments: u32) -> bool {
    let Some(settled) = &start.settlement else { return false };
    let schedule = start.schedule.for_fragments(fragments);
    let is_due = |fragment: &FragmentId| schedule.is_due(settled.open_round, *fragment);
    let adopted = settled.results.iter().filter(|adopted| is_due(&adopted.fragment)).count();
    adopted == (0..fragments).map(FragmentId).filter(is_due).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(rounds: &[(u32, u64, &[u64])]) -> Books {
        let mut books = Books::default();
        let (all, before) = ((1..4).map(WorkerId).collect(), BTreeSet::new());
        books.generations.insert(Generation(1), TakesPart { all, before, first: Round(0) });
        for (worker, round, positions) in rounds {
            books.trained(WorkerId(*worker), Round(*round), positions.to_vec());
        }
        for round in 0..2 {
            let sites = vec![SiteId(1), SiteId(2)];
            let told = Told { generation: Generation(1), sites, states: BTreeSet::new() };
            books.results.insert(Round(round), told);
        }
        books
    }

    fn is_at(worker: WorkerId, site: SiteId) -> bool {
        worker.0 == site.0
    }

    #[test]
    fn samples_of_sites_that_a_result_names_are_in_it() {
        let books = books(&[(1, 0, &[0, 1]), (3, 0, &[2]), (1, 1, &[3]), (1, 1, &[4])]);
        let (applied, missed) = books.positions(is_at);
        assert_eq!((applied, missed), (BTreeSet::from([0, 1, 4]), BTreeSet::from([2, 3])));
    }

    #[test]
    #[should_panic(expected = "position 1 is in two results")]
    fn a_sample_in_two_results_is_found() {
        let _ = books(&[(1, 0, &[0, 1]), (2, 1, &[1])]).positions(is_at);
    }

    #[test]
    fn what_is_told_of_rounds_that_are_made_anew_counts_no_more() {
        let mut books = books(&[]);
        books.reopened(Generation(2), Round(1));
        assert_eq!(books.results.keys().copied().collect::<Vec<_>>(), [Round(0)]);
    }
}
