//! The same for any number of members.

use super::*;

/// In each round another member is too late, and sends its update with its next contribution.
fn rounds_with_a_late_member<const N: usize>() {
    let mut rig: Rig<N> = training_of(std::array::from_fn(|at| at as u32 + 1), SPARSE);
    for round in 0..4 {
        let late = round as usize % N;
        let in_time = (0..N).filter(|at| *at != late);
        in_time.for_each(|at| rig.workers[at].contribute(round));
        rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(round)));
        rig.workers[late].contribute(round);
        (0..N).for_each(|at| rig.apply(at, round));
        assert!(
            rig.workers[late].running().contributions.carry.is_some(),
            "worker {late} was in time for round {round}"
        );
        assert_nothing_is_lost(&rig);
        rig.workers.iter_mut().for_each(|worker| worker.begin(round + 1));
    }
}

#[test]
fn with_two_three_five_and_eight_members_nothing_is_lost_and_all_stay_equal_though_one_is_always_late() {
    rounds_with_a_late_member::<2>();
    rounds_with_a_late_member::<3>();
    rounds_with_a_late_member::<5>();
    rounds_with_a_late_member::<8>();
}
