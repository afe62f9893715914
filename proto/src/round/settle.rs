//! The coordinator's part of a settlement: the outcome of the open round when a generation ends.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_common::schedule::RoundSchedule;

use crate::control::message::{Adopted, HeldResult, Settled, Settlement};

/// Outcome of the members' replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// For `GenerationStart::settlement`.
    pub settlement: Settlement,
    /// E, for `GenerationStart::first_round`: the first round that no member has started and that is not
    /// already complete, in which new members may take part. Until then all surviving old members are active;
    /// those that have not started a round sit it out by themselves.
    pub first_round: Round,
    /// Whether the results of all due fragments of the open round are adopted: members that have applied the
    /// round already stay consistent.
    pub is_whole: bool,
    /// Sites named in the adopted results of all due fragments of the open round, in order.
    pub counted_sites: Vec<SiteId>,
}

impl Outcome {
    /// Returns the first round without the share of a departed member of this site: its samples must be
    /// reassigned from here to `first_round` (exclusive).
    #[must_use]
    pub fn first_undone(&self, site: SiteId) -> Round {
        let open = self.settlement.open_round;
        if self.counted_sites.contains(&site) { open.next() } else { open }
    }
}

/// Decides from the replies of all surviving members of `old` (others are ignored) to the same `Settle`.
///
/// The most advanced member's open round stays open. Results of it that any member has are valid; the rest is
/// void. If two members report different bytes for a fragment, which honest owners never publish, those of
/// the lowest-numbered one win.
///
/// `None`: no replies.
#[must_use]
pub fn settle(
    old: &Membership,
    layout: FragmentLayout,
    schedule: RoundSchedule,
    answers: &BTreeMap<WorkerId, Settled>,
) -> Option<Outcome> {
    let answers = || answers.iter().filter(|(worker, _)| old.member(**worker).is_some());
    let open_round = answers().map(|(_, settled)| settled.open_round).max()?;
    let computing = answers().map(|(_, settled)| settled.computing).max()?;
    let complete = || answers().filter(|(_, settled)| settled.open_round == open_round);

    let mut adopted: BTreeMap<FragmentId, (&HeldResult, Vec<WorkerId>)> = BTreeMap::new();
    for (&worker, settled) in complete() {
        for held in settled.results.iter().filter(|held| held.fragment.0 < layout.count()) {
            let (first, holders) = adopted.entry(held.fragment).or_insert((held, Vec::new()));
            if first.hash == held.hash {
                holders.push(worker);
            }
        }
    }
    let is_due = |fragment: &FragmentId| schedule.is_due(open_round, *fragment);
    let due = layout.fragments().filter(is_due).count();
    let is_whole = adopted.keys().copied().filter(is_due).count() == due;
    // A complete round admits no further shares, even if no surviving member has started it.
    let first_free = if is_whole { open_round.next() } else { open_round };
    let counted_sites = sites_in_all(due, adopted.values().map(|(held, _)| *held));
    let results = adopted
        .into_iter()
        .map(|(fragment, (held, holders))| Adopted { fragment, hash: held.hash, holders })
        .collect();
    Some(Outcome {
        settlement: Settlement {
            open_round,
            complete_at: complete().map(|(&worker, _)| worker).collect(),
            results,
        },
        // Slow members may all be behind the open round, but contribute to no round before it.
        first_round: computing.next().max(first_free),
        is_whole,
        counted_sites,
    })
}

/// Returns the sites named in the results of all `due` fragments; none while one is void.
fn sites_in_all<'a>(due: usize, results: impl ExactSizeIterator<Item = &'a HeldResult>) -> Vec<SiteId> {
    if results.len() < due {
        return Vec::new();
    }
    let sites = results.map(|held| held.sites.iter().copied().collect::<BTreeSet<_>>());
    sites.reduce(|all, named| &all & &named).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use longhaul_common::id::Generation;
    use longhaul_common::plan::Member;
    use longhaul_common::schedule::Changes;

    use super::*;

    const LAYOUT: FragmentLayout = FragmentLayout { values: 2, fragment_values: 1 };
    const SCHEDULE: RoundSchedule = RoundSchedule {
        warmup_rounds: 0,
        warmup_every: 1,
        every: 1,
        overlap: 1,
        groups: 1,
        exchanges: 1,
        steps: 100,
        changes: Changes::NONE,
    };

    fn old() -> Membership {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let member = |(worker, site)| Member {
            worker: WorkerId(worker),
            site: SiteId(site),
            lan_address: address,
            wan_address: address,
            upload_weight: 1,
        };
        Membership::assign(Generation(1), [(1, 0), (2, 0), (3, 1)].map(member).to_vec(), LAYOUT, 1)
    }

    /// (fragment, hash byte, sites)
    type Holding<'a> = (u32, u8, &'a [u32]);

    /// (worker, open round, computing, results of the open round)
    fn outcome(answers: &[(u32, u64, u64, &[Holding<'_>])]) -> Option<Outcome> {
        let held = |(fragment, hash, sites): &Holding<'_>| HeldResult {
            fragment: FragmentId(*fragment),
            hash: [*hash; 32],
            sites: sites.iter().map(|&site| SiteId(site)).collect(),
        };
        let settled = |&(worker, open_round, computing, results): &(u32, u64, u64, &[Holding<'_>])| {
            let results = results.iter().map(held).collect();
            let settled = Settled {
                generation: Generation(2),
                open_round: Round(open_round),
                computing: Round(computing),
                results,
            };
            (WorkerId(worker), settled)
        };
        settle(&old(), LAYOUT, SCHEDULE, &answers.iter().map(settled).collect())
    }

    #[test]
    fn the_most_advanced_member_sets_the_open_round_and_its_results_are_adopted() {
        // w1 has a result of round 5, w2 one of round 4, which w1 has applied already.
        let outcome = outcome(&[(1, 5, 6, &[(1, 9, &[0])]), (2, 4, 5, &[(0, 8, &[0, 1])]), (3, 5, 5, &[])]);
        let adopted = Adopted { fragment: FragmentId(1), hash: [9; 32], holders: vec![WorkerId(1)] };
        let settlement = Settlement {
            open_round: Round(5),
            complete_at: vec![WorkerId(1), WorkerId(3)],
            results: vec![adopted],
        };
        assert_eq!(
            outcome,
            Some(Outcome { settlement, first_round: Round(7), is_whole: false, counted_sites: vec![] })
        );
    }

    #[test]
    fn a_share_counts_when_its_site_is_in_all_fragments() {
        let outcome =
            outcome(&[(1, 5, 5, &[(0, 1, &[0, 1])]), (2, 5, 5, &[(1, 2, &[0])])]).expect("two answered");
        assert_eq!(outcome.counted_sites, [SiteId(0)]);
        assert!(outcome.is_whole);
        assert_eq!(outcome.first_undone(SiteId(0)), Round(6));
        assert_eq!(outcome.first_undone(SiteId(1)), Round(5));
    }

    #[test]
    fn all_holders_of_a_result_are_named_and_others_bytes_are_not() {
        let held: &[Holding<'_>] = &[(0, 1, &[0])];
        let outcome =
            outcome(&[(1, 5, 5, held), (2, 5, 5, held), (3, 5, 5, &[(0, 7, &[1])])]).expect("all answered");
        assert_eq!(outcome.settlement.results.len(), 1);
        assert_eq!(outcome.settlement.results[0].hash, [1; 32]);
        assert_eq!(outcome.settlement.results[0].holders, [WorkerId(1), WorkerId(2)]);
    }

    #[test]
    fn strangers_and_fragments_that_do_not_exist_are_not_counted() {
        assert_eq!(outcome(&[(9, 5, 5, &[])]), None);
        let outcome = outcome(&[(1, 5, 5, &[(2, 1, &[0])]), (9, 8, 8, &[])]).expect("w1 answered");
        assert_eq!(outcome.settlement.open_round, Round(5));
        assert_eq!(outcome.settlement.results, []);
        assert!(!outcome.is_whole);
    }

    #[test]
    fn new_members_start_no_earlier_than_the_open_round() {
        let outcome = outcome(&[(1, 5, 2, &[])]).expect("w1 answered");
        assert_eq!(outcome.first_round, Round(5));
    }

    /// The member that computed it has left, and its samples are in the result: they would count twice.
    #[test]
    fn nobody_computes_a_round_of_which_all_is_adopted() {
        let first_round =
            |held: &[Holding<'_>]| outcome(&[(1, 5, 2, held)]).expect("w1 answered").first_round;
        assert_eq!(first_round(&[(0, 1, &[1]), (1, 2, &[1])]), Round(6));
        assert_eq!(first_round(&[(0, 1, &[1])]), Round(5), "the rest is made anew");
    }
}
