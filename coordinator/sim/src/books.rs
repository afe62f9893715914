//! The world's own accounts: samples trained on by devices, and sites named by results.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_proto::control::message::{GenerationStart, Hash, NOT_COMPARED, RoundReport};

/// Beside the coordinator's ledger, and made of other facts.
#[derive(Debug, Default)]
pub struct Books {
    /// Positions that a worker has last contributed for a round, at least with a part of the model.
    trained: BTreeMap<(WorkerId, Round), Vec<u64>>,
    /// Positions of contributions that were made anew with others.
    replaced: BTreeSet<u64>,
    /// By generation: its participants in each round.
    generations: BTreeMap<Generation, TakesPart>,
    /// The members' reports of each round: the sites in its result, and the states after it.
    results: BTreeMap<Round, Told>,
}

/// Members of a generation.
#[derive(Debug)]
struct TakesPart {
    all: BTreeSet<WorkerId>,
    /// Those that take part in rounds before the first one.
    before: BTreeSet<WorkerId>,
    first: Round,
    /// It makes all rounds from this one on, whatever was made of them before.
    makes: Round,
}

#[derive(Debug)]
struct Told {
    sites: Vec<SiteId>,
    states: BTreeSet<Hash>,
}

impl Books {
    pub(crate) fn trained(&mut self, worker: WorkerId, round: Round, positions: Vec<u64>) {
        let before = self.trained.insert((worker, round), positions.clone());
        self.replaced.extend(before.filter(|before| *before != positions).into_iter().flatten());
    }

    /// A report of a member that is still in an earlier generation than the round's maker is of a result that was replaced.
    pub(crate) fn applied(&mut self, report: &RoundReport) {
        let RoundReport { round, generation, sites, state_hash, .. } = report;
        self.told(*generation, *round, sites, *state_hash);
    }

    fn told(&mut self, generation: Generation, round: Round, sites: &[SiteId], state: Hash) {
        if self.maker_of(round).is_none_or(|(maker, _)| maker > generation) {
            return;
        }
        let new = || Told { sites: sites.to_vec(), states: BTreeSet::new() };
        let told = self.results.entry(round).or_insert_with(new);
        told.states.extend(Some(state).filter(|state| *state != NOT_COMPARED));
    }

    /// The last generation that makes this round, and its participants.
    fn maker_of(&self, round: Round) -> Option<(Generation, &TakesPart)> {
        let last = self.generations.iter().rev().find(|(_, members)| members.makes <= round);
        last.map(|(generation, members)| (*generation, members))
    }

    /// A generation begins. It makes all rounds anew that are open, and earlier reports of them are void. `fragments`: of the model.
    pub(crate) fn begins(&mut self, start: &GenerationStart, fragments: u32) {
        let all: BTreeSet<WorkerId> = start.membership.members().iter().map(|member| member.worker).collect();
        let before: BTreeSet<WorkerId> = start.active_before.iter().copied().collect();
        let (generation, first) = (start.membership.generation, start.first_round);
        let open = start.settlement.as_ref().map_or(first, |settled| settled.open_round);
        let makes = if is_whole(start, fragments) { open.next() } else { open };
        // An earlier process's contributions to rounds that are made anew died with it.
        for worker in all.difference(&before) {
            let of_worker = (*worker, makes)..(*worker, first.max(makes));
            let died: Vec<_> = self.trained.range(of_worker).map(|(key, _)| *key).collect();
            let positions = died.iter().filter_map(|key| self.trained.remove(key)).flatten();
            self.replaced.extend(positions);
        }
        self.begin(generation, TakesPart { all, before, first, makes });
    }

    fn begin(&mut self, generation: Generation, members: TakesPart) {
        // Each of its members begins it.
        if !self.generations.contains_key(&generation) {
            self.results.retain(|round, _| *round < members.makes);
            self.generations.insert(generation, members);
        }
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
            let is_member = self.maker_of(*round).is_some_and(|(_, members)| {
                members.all.contains(worker) && (*round >= members.first || members.before.contains(worker))
            });
            let is_named =
                is_member && told.is_some_and(|told| told.sites.iter().any(|site| is_at(*worker, *site)));
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
        let members = TakesPart { all, before, first: Round(0), makes: Round(0) };
        books.generations.insert(Generation(1), members);
        for (worker, round, positions) in rounds {
            books.trained(WorkerId(*worker), Round(*round), positions.to_vec());
        }
        (0..2).for_each(|round| tell(&mut books, 1, round, &[1, 2]));
        books
    }

    fn tell(books: &mut Books, generation: u64, round: u64, sites: &[u32]) {
        let sites: Vec<SiteId> = sites.iter().copied().map(SiteId).collect();
        books.told(Generation(generation), Round(round), &sites, [7; 32]);
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

    /// Round 1 is made anew without member 2, which goes on in its generation and reaches the same state.
    #[test]
    fn of_a_round_that_is_made_anew_its_last_makers_reports_count() {
        let trained: [(u32, u64, &[u64]); 3] = [(1, 1, &[0]), (2, 1, &[1]), (1, 2, &[1])];
        let mut books = books(&trained);
        let (all, before) = ([1, 3].map(WorkerId).into(), BTreeSet::new());
        books.begin(Generation(2), TakesPart { all, before, first: Round(2), makes: Round(1) });
        assert_eq!(books.results.keys().copied().collect::<Vec<_>>(), [Round(0)]);
        tell(&mut books, 1, 1, &[1, 2]);
        assert_eq!(books.last().map(|(round, _)| round), Some(Round(0)));
        (1..3).for_each(|round| tell(&mut books, 2, round, &[1]));
        let (applied, missed) = books.positions(is_at);
        assert_eq!((applied, missed), (BTreeSet::from([1]), BTreeSet::from([0, 1])));
    }
}
