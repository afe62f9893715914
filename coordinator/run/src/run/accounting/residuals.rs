//! Residuals: unsent changes, lost with a worker that dies or leaves.
//!
//! Each residual is with its maker: a site's with the uploader of the fragment, that of a recompressed mean with its owner. When the duty moves and the holder is still
//! present, the residual is handed over (`Command::MoveResidual`, `Command::MoveOwnerResidual`); otherwise it is lost, and counted here. Changes that low-rank factors
//! leave out belong to each member, for its whole part of the model, and cannot be handed over: they are lost with each member that goes, once there were factors.

use std::collections::BTreeSet;

use longhaul_common::config::SyncConfig;
use longhaul_common::id::{FragmentId, Round, SiteId, WorkerId};
use longhaul_common::plan::Membership;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::generations::generation_config::GenerationConfig;

/// Fragments whose residual was lost, over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidualsLost {
    /// Unsent contributions of sites; a fragment counts once for each site.
    pub contributions: u64,
    /// Unpublished results of owners.
    pub results: u64,
    /// Changes left out of low-rank factors; a fragment counts once for each member.
    #[serde(default)]
    pub factors: u64,
}

impl ResidualsLost {
    /// `is_warmup`: all rounds so far were, in which gradients are exchanged as they are.
    fn of(
        config: &SyncConfig,
        membership: &Membership,
        fragments: u32,
        gone: &BTreeSet<WorkerId>,
        is_warmup: bool,
    ) -> Self {
        let is_lost = |holder: Option<WorkerId>| holder.is_some_and(|holder| gone.contains(&holder));
        let all = || (0..fragments).map(FragmentId);
        let of_site =
            |site: SiteId| all().filter(|&fragment| is_lost(membership.uploader(site, fragment))).count();
        let contributions = if config.has_residual() && config.leaves_something() {
            membership.sites().map(of_site).sum::<usize>()
        } else {
            0
        };
        let of_owners = || all().filter(|&fragment| is_lost(membership.owner(fragment))).count();
        let results = if config.results_leave_something() { of_owners() } else { 0 };
        let has_factors = config.rank > 0 && !is_warmup;
        let members =
            gone.iter().filter(|worker| has_factors && membership.member(**worker).is_some()).count();
        Self {
            contributions: contributions as u64,
            results: results as u64,
            factors: members as u64 * u64::from(fragments),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            contributions: self.contributions.saturating_add(other.contributions),
            results: self.results.saturating_add(other.results),
            factors: self.factors.saturating_add(other.factors),
        }
    }
}

impl Core {
    /// Counts and reports the residuals of members that are absent at the end of a generation.
    pub(crate) fn count_lost_residuals(&mut self, old: &GenerationConfig, survivors: &BTreeSet<WorkerId>) {
        let members = old.members().map(|member| member.worker);
        let gone: BTreeSet<WorkerId> = members.filter(|worker| !survivors.contains(worker)).collect();
        self.count_lost_with(old, &gone);
    }

    /// Counts the unsent changes of members that trained before the run rested and do not go on from their own checkpoints.
    /// `moved`: parts that come from the disks of others. A run that starts anew from the beginning has none.
    pub(crate) fn count_what_did_not_come_back(
        &mut self,
        back: &BTreeSet<WorkerId>,
        moved: &BTreeSet<u32>,
        first_round: Round,
    ) {
        match self.state.residuals.resting.take() {
            _ if first_round == Round(0) => {}
            Some((old, kept)) => self.count_lost_with(&old, &kept.difference(back).copied().collect()),
            None => self.count_left_behind(moved),
        }
    }

    /// The model is cut into other parts than before the run rested: nothing that was kept is of any use to them.
    pub(crate) fn count_what_does_not_fit(&mut self) {
        if let Some((old, kept)) = self.state.residuals.resting.take() {
            self.count_lost_with(&old, &kept);
            self.state.residuals.resting = Some((old, BTreeSet::new()));
        }
    }

    /// The same where the earlier members are unknown: one site for each part of the model that is taken from an absent worker's checkpoint.
    fn count_left_behind(&mut self, ranks: &BTreeSet<u32>) {
        let sync = &self.config.sync;
        let is_warmup = self.state.rounds.schedule.is_warmup(self.state.rounds.ledger.through());
        let fragments: u64 = ranks.iter().map(|rank| u64::from(self.layout_of(*rank).count())).sum();
        let if_kept = |is_kept: bool| if is_kept { fragments } else { 0 };
        let lost = ResidualsLost {
            contributions: if_kept(sync.has_residual() && sync.leaves_something()),
            results: 0,
            factors: if_kept(sync.rank > 0 && !is_warmup),
        };
        if lost == ResidualsLost::default() {
            return;
        }
        self.state.residuals.lost = self.state.residuals.lost.plus(lost);
        let text = format!(
            "the residuals of {fragments} fragments are lost, as other workers take over these parts of the model"
        );
        self.notice(Severity::Warning, None, text);
    }

    fn count_lost_with(&mut self, old: &GenerationConfig, gone: &BTreeSet<WorkerId>) {
        if gone.is_empty() {
            return;
        }
        let is_warmup = self.state.rounds.schedule.is_warmup(self.state.rounds.ledger.through());
        let of_group = |(rank, membership)| {
            ResidualsLost::of(&self.config.sync, membership, self.layout_of(rank).count(), gone, is_warmup)
        };
        let lost = (0..).zip(old.groups.iter().map(|group| &group.membership)).map(of_group);
        let lost = lost.fold(ResidualsLost::default(), ResidualsLost::plus);
        if lost == ResidualsLost::default() {
            return;
        }
        self.state.residuals.lost = self.state.residuals.lost.plus(lost);
        let names: Vec<String> = gone.iter().map(ToString::to_string).collect();
        let text = format!(
            "unsent changes of {} are lost: residuals of {} contributed fragments, of {} published ones, and of {} encoded as low-rank factors",
            names.join(", "),
            lost.contributions,
            lost.results,
            lost.factors
        );
        self.notice(Severity::Warning, None, text);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use longhaul_common::config::{ResultForm, SyncPreset};
    use longhaul_common::id::Generation;
    use longhaul_common::plan::{FragmentLayout, Member};

    use super::*;

    const LAYOUT: FragmentLayout = FragmentLayout { values: 4_000, fragment_values: 1000 };

    fn lost(config: &SyncConfig, gone: &[u32]) -> ResidualsLost {
        lost_in(config, gone, false)
    }

    fn lost_in(config: &SyncConfig, gone: &[u32], is_warmup: bool) -> ResidualsLost {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let member = |worker: u32| Member {
            worker: WorkerId(worker),
            site: SiteId(worker % 2),
            lan_address: address,
            wan_address: address,
            upload_weight: 1,
        };
        let membership = Membership::assign(Generation(1), (1..=4).map(member).collect(), LAYOUT, 1);
        let gone = gone.iter().copied().map(WorkerId).collect();
        ResidualsLost::of(config, &membership, LAYOUT.count(), &gone, is_warmup)
    }

    #[test]
    fn each_fragment_is_lost_once_with_its_uploader_and_once_with_its_owner() {
        let config = SyncConfig::of(SyncPreset::Auto);
        assert_eq!(lost(&config, &[]), ResidualsLost::default());
        let each: Vec<ResidualsLost> = (1..=4).map(|worker| lost(&config, &[worker])).collect();
        let sum = each.iter().fold(ResidualsLost::default(), |sum, each| sum.plus(*each));
        // Four fragments from each of two sites, and four results.
        assert_eq!(sum, ResidualsLost { contributions: 8, results: 4, factors: 0 });
        assert_eq!(lost(&config, &[1, 2, 3, 4]), sum);
    }

    /// Each member has the error of all four fragments, whatever their uploader.
    #[test]
    fn what_factors_leave_out_is_lost_with_each_member_once_there_are_factors() {
        let config = SyncConfig::of(SyncPreset::Powersgd);
        assert_eq!([lost(&config, &[2]).factors, lost(&config, &[2, 3, 9]).factors], [4, 8]);
        assert_eq!(lost_in(&config, &[2], true).factors, 0);
        assert_eq!(lost(&SyncConfig::of(SyncPreset::Auto), &[2]).factors, 0);
    }

    #[test]
    fn where_nothing_is_kept_back_nothing_is_lost() {
        assert_eq!(lost(&SyncConfig::of(SyncPreset::Dense), &[1, 2]), ResidualsLost::default());
        let bundled = SyncConfig { result: ResultForm::Bundle, ..SyncConfig::of(SyncPreset::SparseLocal) };
        let lost = lost(&bundled, &[1, 3]);
        assert_eq!((lost.contributions, lost.results), (4, 0));
    }
}
