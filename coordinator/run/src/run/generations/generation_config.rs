//! Members of a generation, and their groups.

use std::sync::Arc;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::plan::{Member, Membership};
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::Assignment;
use longhaul_proto::control::message::{GenerationStart, ReplicaMembers, Settlement};
use serde::{Deserialize, Serialize};

/// A generation over all workers: each receives the part that concerns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationConfig {
    /// Which generation.
    pub generation: Generation,
    /// By rank: the holders of that part of the model. One group, where every worker has all of it.
    pub groups: Vec<SyncGroup>,
    /// The copies of the model, sorted by their first workers.
    pub replicas: Vec<ReplicaMembers>,
    /// As in [`GenerationStart`].
    pub first_round: Round,
    /// As in [`GenerationStart`], of all groups.
    pub active_before: Arc<[WorkerId]>,
    /// As in [`GenerationStart`].
    pub assignments: Vec<Arc<Assignment>>,
    /// As in [`GenerationStart`].
    pub until: Round,
    /// As in [`GenerationStart`].
    pub schedule: RoundSchedule,
}

/// The holders of one part of the model, and the outcome of their open round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncGroup {
    /// They, and their duties.
    pub membership: Membership,
    /// None at the start of a run.
    pub settlement: Option<Settlement>,
}

impl GenerationConfig {
    /// All workers that take part, group by group.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.groups.iter().flat_map(|group| group.membership.members())
    }

    /// Which part of the model a worker holds.
    #[must_use]
    pub fn rank_of(&self, worker: WorkerId) -> Option<usize> {
        self.groups.iter().position(|group| group.membership.member(worker).is_some())
    }

    /// The copy that a worker has a part of, or all.
    #[must_use]
    pub fn replica_of(&self, worker: WorkerId) -> Option<&ReplicaMembers> {
        self.replica_led_by(worker).or_else(|| self.replica_with(worker))
    }

    /// The copy led by this worker.
    #[must_use]
    pub fn replica_led_by(&self, worker: WorkerId) -> Option<&ReplicaMembers> {
        let first = |replica: &ReplicaMembers| replica.ranks.first().map(|first| first.worker);
        let at = self.replicas.binary_search_by_key(&Some(worker), first).ok()?;
        self.replicas.get(at)
    }

    fn replica_with(&self, worker: WorkerId) -> Option<&ReplicaMembers> {
        if self.groups.len() == 1 {
            return None;
        }
        self.replicas.iter().find(|replica| replica.ranks.iter().any(|member| member.worker == worker))
    }

    /// The start for all workers, where it is the same for all: each has a copy by itself.
    #[must_use]
    pub fn common_start(&self, checkpoint: bool) -> Option<Arc<GenerationStart>> {
        let [_] = &*self.groups else { return None };
        self.start_of(self.members().next()?.worker, checkpoint).map(Arc::new)
    }

    /// The start for a worker; `None`: it does not take part. `checkpoint`: whether all are to write one after the first
    /// round.
    #[must_use]
    pub fn start_of(&self, worker: WorkerId, checkpoint: bool) -> Option<GenerationStart> {
        let group = &self.groups[self.rank_of(worker)?];
        let membership = &group.membership;
        let of_group = |worker: &&WorkerId| membership.member(**worker).is_some();
        let replica = self.replica_of(worker).filter(|replica| replica.ranks.len() > 1);
        Some(GenerationStart {
            membership: membership.clone(),
            settlement: group.settlement.clone(),
            first_round: self.first_round,
            active_before: match &*self.groups {
                [_] => Arc::clone(&self.active_before),
                _ => self.active_before.iter().filter(of_group).copied().collect(),
            },
            assignments: self.assignments.clone(),
            until: self.until,
            schedule: self.schedule,
            replica: replica.cloned(),
            checkpoint,
        })
    }
}
