//! Which rounds have results, for those who hold one part of the model.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{Generation, Round, SiteId, WorkerId};
use longhaul_proto::control::message::GenerationStart;

/// The workers that hold a part, in one generation.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub generation: Generation,
    pub members: Vec<WorkerId>,
    /// Where they are.
    pub sites: Vec<SiteId>,
    /// Members that contribute to rounds before [`Self::first_round`].
    active_before: BTreeSet<WorkerId>,
    first_round: Round,
    /// Rounds before this one have results.
    pub complete: Round,
    /// How many have contributed to a round.
    contributed: BTreeMap<Round, usize>,
    /// Results that are on their way.
    published: Round,
}

impl Group {
    pub fn of(start: &GenerationStart) -> Self {
        let open = start.settlement.as_ref().map_or(start.first_round, |settlement| settlement.open_round);
        Self {
            generation: start.membership.generation,
            members: start.membership.members().iter().map(|member| member.worker).collect(),
            sites: start.membership.sites().collect(),
            active_before: start.active_before.iter().copied().collect(),
            first_round: start.first_round,
            complete: open,
            contributed: BTreeMap::new(),
            published: open,
        }
    }

    /// Whether it takes part in a round.
    pub fn is_active(&self, worker: WorkerId, round: Round) -> bool {
        round >= self.first_round || self.active_before.contains(&worker)
    }

    fn active(&self, round: Round) -> usize {
        if round < self.first_round { self.active_before.len() } else { self.members.len() }
    }

    /// A member has contributed. The rounds that have all contributions now, and their results before none of theirs.
    pub fn contribute(&mut self, worker: WorkerId, round: Round) -> Vec<Round> {
        if round < self.published || !self.is_active(worker, round) {
            return Vec::new();
        }
        *self.contributed.entry(round).or_default() += 1;
        let mut whole = Vec::new();
        while self.contributed.get(&self.published).is_some_and(|&count| count >= self.active(self.published))
        {
            whole.push(self.published);
            self.contributed.remove(&self.published);
            self.published = self.published.next();
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_whole_when_all_who_take_part_in_it_have_contributed() {
        let mut group = Group {
            members: vec![WorkerId(1), WorkerId(2)],
            active_before: BTreeSet::from([WorkerId(1)]),
            first_round: Round(3),
            complete: Round(2),
            published: Round(2),
            ..Group::default()
        };
        assert!(group.contribute(WorkerId(2), Round(2)).is_empty(), "it comes later");
        assert!(group.contribute(WorkerId(2), Round(3)).is_empty());
        assert_eq!(group.contribute(WorkerId(1), Round(2)), [Round(2)]);
        assert_eq!(group.contribute(WorkerId(1), Round(3)), [Round(3)]);
        assert!(group.contribute(WorkerId(1), Round(3)).is_empty(), "again");
    }
}
