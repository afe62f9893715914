//! Whether all members hold the same bits after each round.

use std::collections::BTreeMap;

use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{Hash, NOT_COMPARED};
use serde::{Deserialize, Serialize};

/// Rounds whose hashes are kept, for members that lag and joiners that catch up. Far more than a member can lag
/// without being skipped ahead.
const ROUNDS_KEPT: usize = 64;

/// The hashes that members reported, by round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    reports: BTreeMap<Round, BTreeMap<WorkerId, Hash>>,
    latest: Option<Verdict>,
}

/// The comparison of one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which round.
    pub round: Round,
    /// The hash that counts: that of most members; on a tie, the lowest-numbered worker's among the leaders.
    pub hash: Hash,
    /// Workers with a different report.
    pub odd: Vec<WorkerId>,
}

impl Parity {
    /// Notes a report; how many there are of the round now. None: it is too old to be kept, or its state is not to be compared.
    pub fn report(&mut self, round: Round, worker: WorkerId, hash: Hash) -> Option<usize> {
        if hash == NOT_COMPARED {
            return None;
        }
        if self.reports.len() >= ROUNDS_KEPT
            && self.reports.first_key_value().is_some_and(|(&first, _)| round < first)
        {
            return None;
        }
        let reports = self.reports.entry(round).or_default();
        reports.insert(worker, hash);
        let count = reports.len();
        while self.reports.len() > ROUNDS_KEPT {
            self.reports.pop_first();
        }
        Some(count)
    }

    /// The verdict over a round, if all `expected` have reported it.
    pub fn judge(&mut self, round: Round, expected: &[WorkerId]) -> Option<Verdict> {
        let reports = self.reports.get(&round)?;
        if !expected.iter().all(|worker| reports.contains_key(worker)) {
            return None;
        }
        let verdict = verdict_of(round, reports)?;
        if self.latest.as_ref().is_none_or(|latest| latest.round <= round) {
            self.latest = Some(verdict.clone());
        }
        Some(verdict)
    }

    /// The hash that counts after `round`, as far as it is known.
    #[must_use]
    pub fn hash_after(&self, round: Round) -> Option<Hash> {
        verdict_of(round, self.reports.get(&round)?).map(|verdict| verdict.hash)
    }

    /// The newest round that all members reported.
    #[must_use]
    pub fn latest(&self) -> Option<&Verdict> {
        self.latest.as_ref()
    }

    /// Drops a worker's reports: it reports again, with another state.
    pub fn forget(&mut self, worker: WorkerId) {
        for reports in self.reports.values_mut() {
            reports.remove(&worker);
        }
        self.reports.retain(|_, reports| !reports.is_empty());
    }

    /// The run goes back to the state before `round`.
    pub fn cut_back(&mut self, round: Round) {
        self.reports.retain(|&q, _| q < round);
        self.latest = self.latest.take().filter(|latest| latest.round < round);
    }
}

fn verdict_of(round: Round, reports: &BTreeMap<WorkerId, Hash>) -> Option<Verdict> {
    let mut votes: BTreeMap<&Hash, usize> = BTreeMap::new();
    reports.values().for_each(|hash| *votes.entry(hash).or_default() += 1);
    // Workers come in order and `max_by_key` keeps the last of equals, so that the lowest wins a tie in reverse.
    let hash = *reports.values().rev().max_by_key(|hash| votes.get(hash))?;
    let odd = reports.iter().filter(|(_, other)| **other != hash).map(|(&worker, _)| worker).collect();
    Some(Verdict { round, hash, odd })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: [WorkerId; 4] = [WorkerId(1), WorkerId(2), WorkerId(3), WorkerId(4)];

    fn verdict(hashes: &[u8]) -> Verdict {
        let mut parity = Parity::default();
        let mut last = None;
        for (worker, &hash) in MEMBERS.iter().zip(hashes) {
            parity.report(Round(3), *worker, [hash; 32]);
            last = parity.judge(Round(3), &MEMBERS[..hashes.len()]);
        }
        assert_eq!(parity.latest(), last.as_ref());
        last.unwrap()
    }

    #[test]
    fn equal_hashes_leave_nobody_odd() {
        assert!(verdict(&[5, 5, 5]).odd.is_empty());
    }

    #[test]
    fn the_majority_wins_over_the_lowest_worker() {
        let verdict = verdict(&[9, 5, 5]);
        assert_eq!((verdict.hash[0], verdict.odd), (5, vec![WorkerId(1)]));
    }

    #[test]
    fn the_lowest_worker_wins_a_tie() {
        let verdict = verdict(&[9, 5, 5, 9]);
        assert_eq!((verdict.hash[0], verdict.odd), (9, vec![WorkerId(2), WorkerId(3)]));
    }

    #[test]
    fn there_is_no_verdict_before_all_have_reported() {
        let mut parity = Parity::default();
        assert_eq!(parity.report(Round(0), WorkerId(1), [1; 32]), Some(1));
        assert_eq!(parity.judge(Round(0), &MEMBERS[..2]), None);
        assert_eq!(parity.report(Round(0), WorkerId(2), [1; 32]), Some(2));
        assert!(parity.judge(Round(0), &MEMBERS[..2]).is_some());
    }

    #[test]
    fn memory_is_bounded_and_old_rounds_cannot_push_new_ones_out() {
        let mut parity = Parity::default();
        for round in (100..300).map(Round) {
            parity.report(round, WorkerId(1), [1; 32]);
        }
        assert_eq!(parity.reports.len(), ROUNDS_KEPT);
        assert_eq!(parity.report(Round(3), WorkerId(1), [1; 32]), None);
        assert_eq!(parity.hash_after(Round(299)), Some([1; 32]));
    }
}
