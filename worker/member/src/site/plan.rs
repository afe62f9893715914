//! The plan of a site's reductions: the same for all its members, because it follows from common messages.

use std::collections::BTreeSet;

use longhaul_collective::RingMember;
use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::place_in;
use longhaul_proto::control::message::GenerationStart;
use longhaul_proto::round::Frame;

use super::layout::{Placed, SiteLayout};

/// A site of at least two members, in one generation.
#[derive(Debug)]
pub(crate) struct SitePlan {
    site: SiteId,
    membership: Membership,
    /// In worker order, which is that of ranks.
    members: Vec<RingMember>,
    rank: usize,
    /// First round with all members taking part.
    complete_from: Round,
    /// The settlement's open round, and its fragments with results.
    adopted: Option<(Round, BTreeSet<FragmentId>)>,
}

impl SitePlan {
    /// `None`: `me` is alone at its site, or no member.
    pub fn new(start: &GenerationStart, me: WorkerId) -> Option<Self> {
        let membership = &start.membership;
        let site = membership.member(me)?.site;
        let members: Vec<_> = membership
            .members_of(site)
            .map(|member| RingMember { worker: member.worker, address: member.lan_address })
            .collect();
        let rank = members.iter().position(|member| member.worker == me)?;
        let all_were_active =
            members.iter().all(|member| place_in(&start.active_before, member.worker).is_some());
        let complete_from = if all_were_active { Round(0) } else { start.first_round };
        let settlement = start.settlement.as_ref();
        let adopted = settlement.map(|settlement| {
            let fragments = settlement.results.iter().map(|adopted| adopted.fragment).collect();
            (settlement.open_round, fragments)
        });
        let membership = membership.clone();
        (members.len() > 1).then_some(Self { site, membership, members, rank, complete_from, adopted })
    }

    pub fn members(&self) -> &[RingMember] {
        &self.members
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn site(&self) -> SiteId {
        self.site
    }

    /// Reports whether a frame is another member's, for this one's upload.
    pub fn expects(&self, frame: &Frame) -> bool {
        let rank = self.members.iter().position(|member| member.worker == frame.from);
        let uploader = self.membership.uploader(self.site, frame.header.fragment);
        rank.is_some_and(|rank| rank != self.rank) && uploader == Some(self.members[self.rank].worker)
    }

    /// Reports whether this round is reduced jointly: all members take part in it.
    pub fn covers(&self, round: Round) -> bool {
        round >= self.complete_from
    }

    /// Returns the layout of a round's reduction: due fragments whose results are made in this generation, each at its uploader.
    pub fn layout(&self, round: Round, schedule: &RoundSchedule, of: FragmentLayout) -> SiteLayout {
        let is_made = |fragment: FragmentId| match &self.adopted {
            Some((open, adopted)) => *open != round || !adopted.contains(&fragment),
            None => true,
        };
        let place = |fragment: FragmentId| {
            let uploader = self.membership.uploader(self.site, fragment)?;
            let rank = self.members.iter().position(|member| member.worker == uploader)?;
            Some(Placed { fragment, rank })
        };
        let due: Vec<Placed> = of
            .fragments()
            .filter(|fragment| schedule.is_due(round, *fragment) && is_made(*fragment))
            .filter_map(place)
            .collect();
        SiteLayout::new(of, self.members.len(), due.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use longhaul_common::id::Generation;
    use longhaul_common::plan::Member;
    use longhaul_common::schedule::Changes;
    use longhaul_proto::control::message::{Adopted, Settlement};

    use super::*;
    use crate::sparse_ranges::SparseRanges;

    const LAYOUT: FragmentLayout = FragmentLayout { values: 95, fragment_values: 10 };
    const SCHEDULE: RoundSchedule = RoundSchedule {
        warmup_rounds: 0,
        warmup_every: 1,
        every: 1,
        overlap: 1,
        groups: 2,
        exchanges: 1,
        steps: 100,
        changes: Changes::NONE,
    };

    fn start(adopted: &[u32]) -> GenerationStart {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let member = |(worker, site)| Member {
            worker: WorkerId(worker),
            site: SiteId(site),
            lan_address: address,
            wan_address: address,
            upload_weight: 1,
        };
        let members = [(1, 0), (2, 1), (3, 0), (4, 0)].map(member).to_vec();
        let adopted = adopted.iter().map(|&fragment| Adopted {
            fragment: FragmentId(fragment),
            hash: [0; 32],
            holders: Vec::new(),
        });
        GenerationStart {
            membership: Membership::assign(Generation(3), members, LAYOUT, 1),
            settlement: Some(Settlement {
                open_round: Round(4),
                complete_at: Vec::new(),
                results: adopted.collect(),
            }),
            first_round: Round(6),
            active_before: [1, 2, 3].map(WorkerId).into(),
            assignments: Vec::new(),
            until: Round(100),
            schedule: SCHEDULE,
            replica: None,
            checkpoint: false,
        }
    }

    #[test]
    fn all_members_make_the_same_layout_and_every_due_fragment_is_at_its_uploader_once() {
        let start = start(&[2, 3]);
        let plans = [1, 3, 4].map(|worker| SitePlan::new(&start, WorkerId(worker)).unwrap());
        for round in (4..8).map(Round) {
            let [a, b, c] = plans.each_ref().map(|plan| plan.layout(round, &SCHEDULE, LAYOUT));
            assert!(a == b && b == c);
            let all = 0..a.count();
            let of = |rank| a.fragments_of(rank, all.clone()).into_iter().map(|(fragment, _)| fragment);
            let mut held: Vec<_> = (0..3).flat_map(of).collect();
            held.sort_unstable();
            let is_adopted = |f: FragmentId| round == Round(4) && (f.0 == 2 || f.0 == 3);
            let due = LAYOUT.fragments().filter(|f| SCHEDULE.is_due(round, *f) && !is_adopted(*f));
            assert_eq!(held, due.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_packed_update_has_each_fragment_where_the_layout_says() {
        let plan = SitePlan::new(&start(&[]), WorkerId(3)).unwrap();
        let layout = plan.layout(Round(7), &SCHEDULE, LAYOUT);
        let update: Vec<f32> = (0..95u8).map(f32::from).collect();
        let packed = layout.pack(&SparseRanges::whole(update.clone()));
        assert_eq!(packed.len(), layout.values());
        let all = 0..layout.count();
        let ranges = layout.ranges(all.clone());
        for (rank, range) in ranges.into_iter().enumerate() {
            let own = &packed[range];
            let fragments = layout.fragments_of(rank, all.clone());
            assert_eq!(own.len(), fragments.iter().map(|(_, place)| place.len()).sum::<usize>());
            for (fragment, place) in fragments {
                assert_eq!(own[place], update[LAYOUT.range(fragment)]);
            }
        }
    }

    #[test]
    fn rounds_in_which_somebody_sits_out_are_not_reduced_together() {
        let plan = SitePlan::new(&start(&[]), WorkerId(1)).unwrap();
        assert_eq!([5, 6].map(|round| plan.covers(Round(round))), [false, true]);
        assert!(SitePlan::new(&start(&[]), WorkerId(2)).is_none(), "worker 2 is alone at its site");
    }
}
