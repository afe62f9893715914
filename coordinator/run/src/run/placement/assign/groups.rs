//! Copies whose parts are shared by tensor groups: each group is of one site, and takes the place of a worker with a whole part.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{SiteId, WorkerId};

use super::{Candidate, Rows, placed};

/// The workers of each copy, by rank: of each of so many stages, the `members` of its group, one after the other. Where workers have states of parts, groups are made of those with the same
/// stage, and each gets a part that it has; `rows` are of sites of stages.
pub(in super::super) fn placed_in_groups(
    candidates: Vec<Candidate>,
    stages: u32,
    members: u32,
    rows: &Rows,
) -> Vec<Vec<WorkerId>> {
    let mut by_site: BTreeMap<SiteId, Vec<Candidate>> = BTreeMap::new();
    candidates.into_iter().for_each(|one| by_site.entry(one.site).or_default().push(one));
    // By the first worker of each.
    let groups: BTreeMap<WorkerId, Vec<Candidate>> = by_site
        .into_values()
        .flat_map(|here| grouped(here, stages, members))
        .filter_map(|group| Some((group.first()?.worker, group)))
        .collect();
    let as_one = |(&worker, group): (&WorkerId, &Vec<Candidate>)| Candidate {
        worker,
        site: group[0].site,
        has: group.iter().flat_map(|one| &one.has).map(|rank| rank / members).collect(),
    };
    let copies = placed(groups.iter().map(as_one).collect(), stages, rows);
    let of_stage = |(stage, first): (u32, WorkerId)| {
        groups.get(&first).into_iter().flat_map(move |group| by_index(group, stage, members).concat())
    };
    copies.into_iter().map(|copy| (0..).zip(copy).flat_map(of_stage).collect()).collect()
}

/// Groups a site's workers, as many as they suffice for: holders of parts of one stage together, filled up with workers without a part.
fn grouped(mut here: Vec<Candidate>, stages: u32, members: u32) -> Vec<Vec<Candidate>> {
    let mut groups = Vec::new();
    here.sort_by_key(|one| one.worker);
    for stage in 0..stages {
        let is_of_it = |one: &Candidate| one.has.iter().any(|rank| rank / members == stage);
        let (mut own, mut others): (Vec<_>, Vec<_>) = here.into_iter().partition(is_of_it);
        let lacking = own.len().next_multiple_of(members as usize) - own.len();
        if others.iter().filter(|one| one.has.is_empty()).count() >= lacking {
            own.extend(others.extract_if(.., |one| one.has.is_empty()).take(lacking));
        }
        for row in by_index(&own, stage, members) {
            groups.push(own.extract_if(.., |one| row.contains(&one.worker)).collect());
        }
        others.append(&mut own);
        others.sort_by_key(|one| one.worker);
        here = others;
    }
    groups.extend(here.chunks_exact(members as usize).map(<[_]>::to_vec));
    groups
}

/// Groups these workers by index: a holder of a share of this stage keeps it, where possible.
fn by_index(workers: &[Candidate], stage: u32, members: u32) -> Vec<Vec<WorkerId>> {
    let share = |rank: &u32| (rank / members == stage).then_some(rank % members);
    let of_stage = |one: &Candidate| {
        let has: BTreeSet<u32> = one.has.iter().filter_map(share).collect();
        Candidate { has, ..one.clone() }
    };
    placed(workers.iter().map(of_stage).collect(), members, &Rows::Near(BTreeMap::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (worker, site, ranks of its parts)
    type Workers<'a> = &'a [(u32, u32, &'a [u32])];

    fn slots(workers: Workers<'_>, stages: u32, rows: &Rows) -> Vec<Vec<u32>> {
        let candidate = |&(worker, site, has): &(u32, u32, &[u32])| Candidate {
            worker: WorkerId(worker),
            site: SiteId(site),
            has: has.iter().copied().collect(),
        };
        let copies = placed_in_groups(workers.iter().map(candidate).collect(), stages, 2, rows);
        copies.into_iter().map(|copy| copy.into_iter().map(|worker| worker.0).collect()).collect()
    }

    fn near() -> Rows {
        Rows::Near(BTreeMap::new())
    }

    /// One worker is left at each site, and the two do not form a copy.
    #[test]
    fn a_tensor_group_is_never_across_sites() {
        let workers: Workers<'_> = &[
            (1, 0, &[1]),
            (2, 1, &[]),
            (3, 0, &[]),
            (4, 1, &[0]),
            (5, 0, &[0]),
            (6, 1, &[]),
            (7, 2, &[0]),
            (8, 0, &[]),
        ];
        assert_eq!(slots(workers, 1, &near()), [[5, 1], [3, 8], [4, 2]]);
        assert!(slots(&[(1, 0, &[0]), (2, 1, &[1])], 1, &near()).is_empty());
    }

    #[test]
    fn stages_of_a_copy_are_at_one_site_where_they_can_be_and_each_group_is_in_any_case() {
        let workers: Workers<'_> =
            &[(1, 0, &[]), (2, 1, &[]), (3, 0, &[]), (4, 1, &[]), (5, 1, &[]), (6, 1, &[]), (7, 1, &[])];
        assert_eq!(slots(workers, 2, &near()), [[2, 4, 5, 6]]);
        assert_eq!(slots(&workers[..4], 2, &near()), [[1, 3, 2, 4]]);
        // Two groups would have to be made of three and one.
        assert!(slots(&[(1, 0, &[]), (2, 0, &[]), (3, 0, &[]), (4, 1, &[])], 2, &near()).is_empty());
        let written = Rows::Only(vec![SiteId(1), SiteId(0)]);
        assert_eq!(slots(workers, 2, &written), [[2, 4, 1, 3]]);
    }

    #[test]
    fn who_has_the_state_of_a_share_of_a_stage_gets_that_share() {
        let workers: Workers<'_> = &[(1, 0, &[3]), (2, 0, &[0]), (3, 0, &[1]), (4, 0, &[2])];
        assert_eq!(slots(workers, 2, &near()), [[2, 3, 4, 1]]);
        // One lost its disk, and takes the place that is left.
        let workers: Workers<'_> = &[(1, 0, &[3]), (2, 0, &[0]), (3, 0, &[]), (4, 0, &[2])];
        assert_eq!(slots(workers, 2, &near()), [[2, 3, 4, 1]]);
        // All see the same folder, and so have all.
        let all: &[u32] = &[0, 1, 2, 3];
        let workers: Workers<'_> = &[(1, 0, all), (2, 1, all), (3, 0, all), (4, 1, all)];
        assert_eq!(slots(workers, 2, &near()), [[1, 3, 2, 4]]);
        // Those of the second stage are at the first site.
        let workers: Workers<'_> = &[(1, 0, &[2]), (2, 1, &[1]), (3, 0, &[3]), (4, 1, &[0])];
        assert_eq!(slots(workers, 2, &near()), [[4, 2, 1, 3]]);
    }

    #[test]
    fn as_many_groups_are_made_at_each_site_as_it_has_workers_for_whatever_they_have() {
        let mut state = 1_u32;
        let mut draw = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..300 {
            let (stages, count) = (1 + draw(3), 1 + draw(14));
            let parts: Vec<Vec<u32>> =
                (0..count).map(|_| (0..2 * stages).filter(|_| draw(4) == 0).collect()).collect();
            let workers: Vec<(u32, u32, &[u32])> =
                (0..count).zip(&parts).map(|(worker, has)| (worker, draw(2), &has[..])).collect();
            let copies = slots(&workers, stages, &near());
            let here = |site: u32| workers.iter().filter(|worker| worker.1 == site).count();
            assert_eq!(copies.len(), (here(0) / 2 + here(1) / 2) / stages as usize, "{workers:?}");
            let all: BTreeSet<u32> = copies.iter().flatten().copied().collect();
            assert_eq!(all.len(), copies.len() * 2 * stages as usize, "{copies:?}");
            let site_of = |worker: u32| workers[worker as usize].1;
            let groups = copies.iter().flat_map(|copy| copy.chunks(2));
            assert!(groups.into_iter().all(|group| site_of(group[0]) == site_of(group[1])), "{copies:?}");
        }
    }
}
