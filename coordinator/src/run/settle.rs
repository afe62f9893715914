//! What becomes of the open round when a generation ends: arithmetic on the members' answers.

use std::collections::BTreeMap;

use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_proto::control::message::{Adopted, Settled, Settlement};

/// The outcome of a settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// For the members of the new generation.
    pub settlement: Settlement,
    /// The first round that nobody has begun: new members are active from here.
    pub first_round: Round,
    /// Sites that are named in the results of *all* fragments of the open round: what their members contributed to it
    /// counts, even if they are gone.
    pub counted_sites: Vec<SiteId>,
}

/// Settles a generation of `fragments` fragments. `answers` are those of the members that are still there; `until` is
/// the old generation's. `docs/protocol.md`, "When membership changes".
///
/// Nothing to settle without answers: the open round is 0 then.
#[must_use]
pub fn settle(answers: &BTreeMap<WorkerId, Settled>, fragments: u32, until: Round) -> Outcome {
    let open_round = answers.values().map(|answer| answer.open_round).max().unwrap_or_default();
    let computing = answers.values().map(|answer| answer.computing).max().unwrap_or_default();
    let at_front = || answers.iter().filter(|(_, answer)| answer.open_round == open_round);

    // Fragment → (hash → (holders, sites)). Two results of one fragment cannot be while owners are sound; the one that
    // more members hold counts then.
    let mut held: BTreeMap<FragmentId, BTreeMap<_, (Vec<WorkerId>, &[SiteId])>> = BTreeMap::new();
    for (&worker, answer) in at_front() {
        for result in answer.results.iter().filter(|result| result.fragment.0 < fragments) {
            let of_fragment = held.entry(result.fragment).or_default();
            let (holders, _) = of_fragment.entry(result.hash).or_insert((Vec::new(), &result.sites));
            if !holders.contains(&worker) {
                holders.push(worker);
            }
        }
    }
    let mut results = Vec::with_capacity(held.len());
    let mut counted_sites: Option<Vec<SiteId>> = None;
    for (fragment, candidates) in held {
        let best = candidates.into_iter().rev().max_by_key(|(_, (holders, _))| holders.len());
        let Some((hash, (holders, sites))) = best else { continue };
        results.push(Adopted { fragment, hash, holders });
        match &mut counted_sites {
            Some(complete) => complete.retain(|site| sites.contains(site)),
            None => counted_sites = Some(sites.to_vec()),
        }
    }
    let all_fragments = results.len() == fragments as usize;
    Outcome {
        settlement: Settlement { open_round, complete_at: at_front().map(|(&w, _)| w).collect(), results },
        first_round: computing.next().max(open_round).min(until),
        counted_sites: counted_sites.filter(|_| all_fragments).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Generation;
    use longhaul_proto::control::message::HeldResult;

    use super::*;

    const UNTIL: Round = Round(100);

    fn answer(open: u64, computing: u64, results: &[(u32, u8, &[u32])]) -> Settled {
        let held = |&(fragment, hash, sites): &(u32, u8, &[u32])| HeldResult {
            fragment: FragmentId(fragment),
            hash: [hash; 32],
            sites: sites.iter().map(|&site| SiteId(site)).collect(),
        };
        Settled {
            generation: Generation(2),
            open_round: Round(open),
            computing: Round(computing),
            results: results.iter().map(held).collect(),
        }
    }

    fn answers(of: impl IntoIterator<Item = (u32, Settled)>) -> BTreeMap<WorkerId, Settled> {
        of.into_iter().map(|(worker, answer)| (WorkerId(worker), answer)).collect()
    }

    #[test]
    fn the_most_advanced_members_decide_what_is_open_and_where_new_members_start() {
        let outcome = settle(
            &answers([(1, answer(4, 5, &[])), (2, answer(5, 5, &[])), (3, answer(5, 6, &[]))]),
            2,
            UNTIL,
        );
        assert_eq!(outcome.settlement.open_round, Round(5));
        assert_eq!(outcome.settlement.complete_at, [WorkerId(2), WorkerId(3)]);
        assert_eq!(outcome.first_round, Round(7));
        assert!(outcome.settlement.results.is_empty() && outcome.counted_sites.is_empty());
    }

    #[test]
    fn results_of_the_open_round_are_adopted_from_whoever_holds_them() {
        let given = answers([
            (1, answer(5, 5, &[(0, 7, &[0, 1])])),
            (2, answer(5, 5, &[(0, 7, &[0, 1]), (2, 9, &[1])])),
            (3, answer(4, 5, &[(1, 8, &[0, 1])])),
        ]);
        let outcome = settle(&given, 3, UNTIL);
        let adopted: Vec<_> =
            outcome.settlement.results.iter().map(|r| (r.fragment.0, r.hash[0], r.holders.len())).collect();
        assert_eq!(adopted, [(0, 7, 2), (2, 9, 1)], "w3's result belongs to an earlier round");
        assert!(outcome.counted_sites.is_empty(), "fragment 1 has no result");
    }

    #[test]
    fn a_site_is_complete_when_every_fragment_names_it() {
        let given = answers([(1, answer(5, 5, &[(0, 7, &[0, 1])])), (2, answer(5, 5, &[(1, 9, &[1, 2])]))]);
        assert_eq!(settle(&given, 2, UNTIL).counted_sites, [SiteId(1)]);
    }

    #[test]
    fn nobody_starts_beyond_the_end() {
        let outcome = settle(&answers([(1, answer(100, 99, &[])), (2, answer(99, 99, &[]))]), 1, UNTIL);
        assert_eq!((outcome.settlement.open_round, outcome.first_round), (UNTIL, UNTIL));
    }

    #[test]
    fn of_two_results_for_one_fragment_the_one_with_more_holders_counts() {
        let given = answers([
            (1, answer(5, 5, &[(0, 7, &[0])])),
            (2, answer(5, 5, &[(0, 6, &[0])])),
            (3, answer(5, 5, &[(0, 6, &[0])])),
        ]);
        let outcome = settle(&given, 1, UNTIL);
        assert_eq!(outcome.settlement.results[0].hash, [6; 32]);
        assert_eq!(outcome.settlement.results[0].holders, [WorkerId(2), WorkerId(3)]);
    }
}
