//! A member's view of a generation.

use std::collections::BTreeSet;

use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_common::plan::Membership;

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
    active_before: Vec<WorkerId>,
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
            active_before: start.active_before.clone(),
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
        round >= self.first_round || self.active_before.contains(&worker)
    }

    /// Returns the members whose local updates form this site's contribution to a round, in member order.
    pub fn locals(&self, round: Round) -> impl Iterator<Item = WorkerId> + '_ {
        let members = self.membership.members_of(self.site).map(|member| member.worker);
        members.filter(move |&worker| self.is_active(worker, round))
    }

    /// Returns the sites with members active in a round.
    pub fn contributing_sites(&self, round: Round) -> BTreeSet<SiteId> {
        let active = self.membership.members().iter().filter(|member| self.is_active(member.worker, round));
        active.map(|member| member.site).collect()
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

    /// Returns the other members among `workers`, this member's site first.
    pub fn own_site_first(&self, mut workers: Vec<WorkerId>) -> Vec<WorkerId> {
        let site = |worker: WorkerId| self.membership.member(worker).map(|member| member.site);
        workers.retain(|&worker| worker != self.me && site(worker).is_some());
        workers.sort_by_key(|&worker| site(worker) != Some(self.site));
        workers
    }
}
