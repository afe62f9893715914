//! How much of a step each worker computes.

use std::collections::BTreeMap;

use longhaul_common::id::WorkerId;
use longhaul_common::timeline::Assignment;
use longhaul_proto::control::message::Replica;

/// By the step from which on they are so, in order: the sequences of a step that each worker has.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares(Vec<(u64, BTreeMap<WorkerId, u64>)>);

impl Shares {
    /// What the coordinator has assigned of steps of so many sequences. All workers of a copy compute with those of its first one.
    pub fn of(assignments: &[Assignment], replicas: &[Replica], batch: u64) -> Self {
        let each = |assignment: &Assignment| {
            let share = |(at, worker): (usize, &WorkerId)| {
                let share = assignment.share(batch, at);
                (*worker, share.end - share.start)
            };
            let mut shares: BTreeMap<WorkerId, u64> =
                assignment.workers.iter().enumerate().map(share).collect();
            for replica in replicas {
                let Some((first, others)) = replica.ranks.split_first() else { continue };
                let Some(&own) = shares.get(&first.worker) else { continue };
                shares.extend(others.iter().map(|member| (member.worker, own)));
            }
            (assignment.feed.first_step, shares)
        };
        Self(assignments.iter().map(each).collect())
    }

    /// None: it has no part in that step that anybody knows of.
    pub fn in_step(&self, step: u64, worker: WorkerId) -> Option<u64> {
        let (_, shares) = self.0.iter().rfind(|(from, _)| *from <= step)?;
        shares.get(&worker).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use longhaul_common::id::{Generation, SiteId};
    use longhaul_common::plan::Member;
    use longhaul_common::sampler::SampleFeed;

    use super::*;

    fn copy(workers: [u32; 2]) -> Replica {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let member = |worker| Member {
            worker: WorkerId(worker),
            site: SiteId(0),
            lan_address: nowhere,
            wan_address: nowhere,
            upload_weight: 1,
        };
        Replica { session: Generation(1), ranks: workers.map(member).to_vec() }
    }

    #[test]
    fn a_step_is_shared_as_the_newest_assignment_that_has_begun_says() {
        let from = |first_step, workers: [u32; 2], weights: Vec<u32>| Assignment {
            feed: SampleFeed { first_step, ..SampleFeed::default() },
            workers: workers.map(WorkerId).to_vec(),
            weights: weights.into(),
        };
        let assignments = [from(0, [1, 3], vec![]), from(5, [1, 3], vec![3, 1])];
        let shares = Shares::of(&assignments, &[copy([1, 2]), copy([3, 4])], 8);
        let at = |step| [1, 2, 3, 4, 5].map(|worker| shares.in_step(step, WorkerId(worker)));
        assert_eq!(at(4), [Some(4), Some(4), Some(4), Some(4), None]);
        assert_eq!(at(5), [Some(6), Some(6), Some(2), Some(2), None]);
    }
}
