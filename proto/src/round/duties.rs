//! A member's view of a generation.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_common::plan::{Member, Membership};
use longhaul_common::timeline::place_in;

use crate::control::message::GenerationStart;

/// Participation in rounds, and this member's duties per fragment. Constant within a generation.
#[derive(Debug)]
pub(super) struct Duties {
    pub me: WorkerId,
    pub site: SiteId,
    pub membership: Membership,
    /// Exclusive end of rounds.
    pub until: Round,
    first_round: Round,
    active_before: Arc<[WorkerId]>,
    /// The sites that contribute: to rounds before the first one with all members, and from that on. Only owners and
    /// those who wait ask for them.
    contributing: [OnceLock<BTreeSet<SiteId>>; 2],
    /// Round that was open when the generation began.
    open_round: Round,
    /// Fragments of that round with an adopted result.
    adopted: BTreeSet<FragmentId>,
}

impl Duties {
    /// Returns `None` if `me` is not a member.
    pub fn new(me: WorkerId, open_round: Round, start: &GenerationStart) -> Option<Self> {
        let site = start.membership.member(me)?.site;
        let settlement = start.settlement.as_ref();
        Some(Self {
            me,
            site,
            membership: start.membership.clone(),
            until: start.until,
            first_round: start.first_round,
            active_before: Arc::clone(&start.active_before),
            contributing: Default::default(),
            open_round: settlement.map_or(open_round, |settlement| settlement.open_round),
            adopted: settlement.iter().flat_map(|s| &s.results).map(|adopted| adopted.fragment).collect(),
        })
    }

    pub fn generation(&self) -> Generation {
        self.membership.generation
    }

    /// Returns the first round whose result for this fragment is made in this generation.
    pub fn first_made(&self, fragment: FragmentId) -> Round {
        if self.adopted.contains(&fragment) { self.open_round.next() } else { self.open_round }
    }

    /// Whether this generation makes the result of this round.
    pub fn makes(&self, round: Round, fragment: FragmentId) -> bool {
        round >= self.first_made(fragment) && round < self.until
    }

    /// Returns the first round with all members.
    pub fn first_round(&self) -> Round {
        self.first_round
    }

    pub fn is_active(&self, worker: WorkerId, round: Round) -> bool {
        round >= self.first_round || place_in(&self.active_before, worker).is_some()
    }

    /// Returns the members whose local updates form this site's contribution to a round, in member order.
    pub fn locals(&self, round: Round) -> impl Iterator<Item = WorkerId> + '_ {
        let members = self.membership.members_of(self.site).map(|member| member.worker);
        members.filter(move |&worker| self.is_active(worker, round))
    }

    /// Returns the sites with members active in a round.
    pub fn contributing_sites(&self, round: Round) -> &BTreeSet<SiteId> {
        self.contributing[usize::from(round >= self.first_round)].get_or_init(|| {
            let members = self.membership.members().iter();
            let active = members.filter(|member| self.is_active(member.worker, round));
            active.map(|member| member.site).collect()
        })
    }

    pub fn owner(&self, fragment: FragmentId) -> Option<WorkerId> {
        self.membership.owner(fragment)
    }

    /// Returns the uploader of this member's site.
    pub fn uploader(&self, fragment: FragmentId) -> Option<WorkerId> {
        self.membership.uploader(self.site, fragment)
    }

    pub fn owns(&self, fragment: FragmentId) -> bool {
        self.owner(fragment) == Some(self.me)
    }

    pub fn uploads(&self, fragment: FragmentId) -> bool {
        self.uploader(fragment) == Some(self.me)
    }

    /// Returns the receivers of this member's copy of a result: for an owner the sites' uploaders, for an
    /// uploader its members.
    pub fn result_receivers(&self, fragment: FragmentId) -> BTreeSet<WorkerId> {
        let mut receivers = BTreeSet::new();
        if self.owns(fragment) {
            let sites = self.membership.sites();
            receivers.extend(sites.filter_map(|site| self.membership.uploader(site, fragment)));
        }
        if self.uploads(fragment) {
            receivers.extend(self.membership.members_of(self.site).map(|member| member.worker));
            // The owner published the result.
            if let Some(owner) = self.owner(fragment) {
                receivers.remove(&owner);
            }
        }
        receivers.remove(&self.me);
        receivers
    }

    /// Returns the other members that may have a result, the most likely first: uploader, owner, own site,
    /// the rest.
    pub fn likely_holders(&self, fragment: FragmentId) -> Vec<WorkerId> {
        let likely = [self.uploader(fragment), self.owner(fragment)];
        let everybody = self.membership.members().iter().map(|member| member.worker).collect();
        let mut holders = self.own_site_first(everybody);
        holders.sort_by_key(|&worker| {
            likely.iter().position(|&holder| holder == Some(worker)).unwrap_or(likely.len())
        });
        holders
    }

    /// Returns the first `most` of the other members among `workers`, this member's site first. In large runs each member
    /// asks it of all the others: those that are sorted, as the coordinator names them, are not all looked at.
    pub fn nearest(&self, workers: &[WorkerId], most: usize) -> Vec<WorkerId> {
        if !workers.is_sorted() {
            let mut nearest = self.own_site_first(workers.to_vec());
            nearest.truncate(most);
            return nearest;
        }
        let is_here = |member: &&Member| workers.binary_search(&member.worker).is_ok();
        let own = self.membership.members_of(self.site).filter(is_here).map(|member| member.worker);
        let is_far =
            |worker: &&WorkerId| self.membership.member(**worker).is_some_and(|far| far.site != self.site);
        let far = workers.iter().filter(is_far).copied();
        own.filter(|worker| *worker != self.me).chain(far).take(most).collect()
    }

    /// Returns the other members among `workers`, this member's site first.
    fn own_site_first(&self, mut workers: Vec<WorkerId>) -> Vec<WorkerId> {
        let site = |worker: WorkerId| self.membership.member(worker).map(|member| member.site);
        workers.retain(|&worker| worker != self.me && site(worker).is_some());
        workers.sort_by_key(|&worker| site(worker) != Some(self.site));
        workers
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use longhaul_common::plan::FragmentLayout;
    use longhaul_common::schedule::{Changes, RoundSchedule};

    use super::*;

    #[test]
    fn the_nearest_of_workers_are_those_of_the_own_site_whatever_their_order() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let member = |worker: u32| Member {
            worker: WorkerId(worker),
            site: SiteId(worker % 3),
            lan_address: address,
            wan_address: address,
            upload_weight: 1,
        };
        let layout = FragmentLayout { values: 1, fragment_values: 1 };
        let (groups, warmup_rounds) = (1, 0);
        let start = GenerationStart {
            membership: Membership::assign(Generation(1), (1..=9).map(member).collect(), layout, 1),
            settlement: None,
            first_round: Round(0),
            active_before: Arc::default(),
            assignments: Vec::new(),
            until: Round(9),
            schedule: RoundSchedule {
                warmup_rounds,
                warmup_every: 1,
                every: 1,
                overlap: 1,
                groups,
                exchanges: 1,
                steps: 9,
                changes: Changes::NONE,
            },
            replica: None,
            checkpoint: false,
        };
        let duties = Duties::new(WorkerId(4), Round(0), &start).expect("it is a member");
        let nearest = |workers: &[u32], most| -> Vec<u32> {
            let workers: Vec<WorkerId> = workers.iter().copied().map(WorkerId).collect();
            duties.nearest(&workers, most).into_iter().map(|worker| worker.0).collect()
        };
        // Workers 1, 4 and 7 are of its site, and 12 is no member.
        for most in 0..6 {
            assert_eq!(nearest(&[1, 2, 4, 6, 7, 12], most), [1, 7, 2, 6][..most.min(4)]);
            assert_eq!(nearest(&[7, 12, 6, 4, 2, 1], most), [7, 1, 6, 2][..most.min(4)]);
        }
    }
}
