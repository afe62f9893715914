//! Copies of the model on several workers each.

use longhaul_common::id::RunId;
use longhaul_proto::round::SMALL_RESULTS_KEPT_ROUNDS;

use super::super::Decided;
use super::*;

const PARAMETERS: [u64; 4] = [10, 30, 20, 40];

pub(super) fn in_parts() -> RunToml {
    run_toml().workers(4).set("parallel.stages", 2)
}

pub(super) fn config_in_parts() -> RunConfig {
    parsed(&in_parts())
}

pub(super) fn ready_with(rank: u32, next_round: u64, hash: u8) -> ToCoordinator {
    let ToCoordinator::Ready(ready) = ready(next_round, hash) else { unreachable!() };
    ToCoordinator::Ready(Ready { rank, parameters: PARAMETERS[rank as usize], ..ready })
}

pub(super) fn rank_in(told: &[ToWorker]) -> Option<u32> {
    let slot = |message: &ToWorker| match message {
        ToWorker::Placed { rank } => Some(*rank),
        _ => None,
    };
    told.iter().rev().find_map(slot).flatten()
}

/// Workers 1 and 2 have one copy, 3 and 4 the other; the state of part 0 is 7, that of part 1 is 8.
pub(super) fn training() -> Story {
    training_of(config_in_parts())
}

pub(super) fn training_of(config: RunConfig) -> Story {
    let mut story = Story::of(config);
    for worker in 1..=4 {
        story.join(worker, &[]);
    }
    let ranks: Vec<_> = (1..=4).map(|worker| rank_in(&story.told(worker))).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(0), Some(1)]);
    for worker in 1..=4 {
        let rank = (worker - 1) % 2;
        story.say(worker, ready_with(rank, 0, 7 + rank as u8));
    }
    assert_eq!(story.run.state().phase, Phase::Training);
    story
}

fn workers_of(start: &GenerationStart) -> (Vec<u32>, Vec<u32>) {
    let group = start.membership.members().iter().map(|member| member.worker.0);
    let replica = start.replica.iter().flat_map(|replica| &replica.ranks).map(|member| member.worker.0);
    (group.collect(), replica.collect())
}

pub(super) fn lineup(story: &Story) -> Vec<Vec<u32>> {
    let replicas = &story.run.state().generations.present.as_ref().unwrap().replicas;
    let workers = |ranks: &[Member]| ranks.iter().map(|member| member.worker.0).collect();
    replicas.iter().map(|replica| workers(&replica.ranks)).collect()
}

#[test]
fn those_with_the_same_part_are_members_and_the_first_of_a_copy_has_its_samples() {
    let story = training();
    assert_eq!(workers_of(&story.begun(1)), (vec![1, 3], vec![1, 2]));
    assert_eq!(workers_of(&story.begun(4)), (vec![2, 4], vec![3, 4]));
    let start = story.begun(4);
    assert_eq!(start.assignments[0].workers, [WorkerId(1), WorkerId(3)]);
    assert_eq!(start.replica.unwrap().session, Generation(1));
    assert_eq!(story.run.state().lineage.facts.as_ref().unwrap().parameters, PARAMETERS[..2]);
}

#[test]
fn parts_are_compared_with_those_that_are_the_same_and_samples_count_once() {
    let mut story = training();
    for (worker, hash) in [(1, 20), (2, 30), (3, 20), (4, 30)] {
        story.applied(worker, 0, hash);
    }
    assert!(story.run.status(0).cluster.parity.unwrap().equal);
    assert_eq!(story.run.status(0).progress.round, 1);
    for (worker, hash) in [(1, 21), (2, 31), (3, 21), (4, 99)] {
        story.applied(worker, 1, hash);
    }
    // The differing member's copy has no place until it has healed.
    assert_eq!(story.told(4).iter().rev().find_map(rank_told), Some(Some(1)), "{:?}", story.told(4));
    assert!(matches!(story.told(1).as_slice(), [ToWorker::Settle { .. }]));
    assert!(story.told(3).contains(&ToWorker::Placed { rank: None }));
}

fn rank_told(message: &ToWorker) -> Option<Option<u32>> {
    match message {
        ToWorker::Placed { rank } => Some(*rank),
        _ => None,
    }
}

#[test]
fn a_copy_that_loses_a_worker_comes_apart_and_the_others_go_on() {
    let mut story = training();
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(story.told(1), [ToWorker::Placed { rank: None }], "it waits for another slot");
    assert!(matches!(story.told(3).as_slice(), [ToWorker::Settle { .. }]));
    story.settled(3, 2, 0, 0);
    story.settled(4, 2, 0, 1);
    let start = story.begun(3);
    assert_eq!(workers_of(&start), (vec![3], vec![3, 4]));
    let again: u64 =
        start.assignments.last().unwrap().feed.backlog.iter().map(|lost| lost.end - lost.start).sum();
    assert_eq!(again, 8, "two rounds of two steps of two samples");
    assert_eq!((start.first_round, start.replica.unwrap().session), (Round(2), Generation(1)));
    assert_eq!(lineup(&story), [[3, 4]]);
    let status = story.run.status(0);
    assert!(
        status.problems.iter().any(|problem| problem.contains("1 workers wait")),
        "{:?}",
        status.problems
    );

    // Another takes the place: the waiting one has the first part, from its holders.
    story.join(5, &[]);
    let told = [story.told(1), story.told(5)];
    assert_eq!([rank_in(&told[0]), rank_in(&told[1])], [Some(0), Some(1)]);
    let donors = |told: &[ToWorker]| match told.last() {
        Some(ToWorker::Heal { donors }) => donors.iter().map(|donor| donor.worker.0).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!((donors(&told[0]), donors(&told[1])), (vec![3], vec![4]));

    // Its report about a part that it does not have does not count; no worker joins before the whole copy is ready.
    story.say(5, ready_with(0, 2, 7));
    story.say(1, ready_with(0, 2, 7));
    assert!(story.told(3).is_empty());
    story.say(5, ready_with(1, 2, 8));
    assert!(matches!(story.told(3).as_slice(), [ToWorker::Settle { .. }]));
    story.settled(3, 3, 2, 2);
    story.settled(4, 3, 2, 2);
    assert_eq!(workers_of(&story.begun(5)), (vec![4, 5], vec![1, 5]));
    let start = story.begun(5);
    assert_eq!(start.replica.unwrap().session, Generation(3));
    assert_eq!(*start.active_before, [WorkerId(4)]);
    assert_eq!(start.assignments.last().unwrap().workers, [WorkerId(1), WorkerId(3)]);
}

#[test]
fn parts_settle_each_by_themselves_and_begin_together() {
    let mut story = training();
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(3, 2, 4, 5);
    story.settled(4, 2, 3, 5);
    let [first, second] = [story.begun(3), story.begun(4)];
    assert_eq!(first.settlement.unwrap().open_round, Round(4));
    assert_eq!(second.settlement.unwrap().open_round, Round(3));
    assert_eq!((first.first_round, second.first_round), (Round(6), Round(6)));
}

#[test]
fn a_run_in_parts_goes_on_from_checkpoints_of_all_of_them() {
    let offer = |next_round, rank, hash| CheckpointOffer {
        next_round: Round(next_round),
        state_hash: [hash; 32],
        private: false,
        rank,
        parts: 2,
        generation: WRITTEN_IN,
    };
    let mut story = Story::of(config_in_parts());
    // No worker has the second part of the newest state.
    story.join(1, &[offer(4, 1, 41)]);
    story.join(2, &[offer(6, 0, 60), offer(4, 0, 40)]);
    story.join(3, &[]);
    story.join(4, &[]);
    assert_eq!(rank_in(&story.told(1)), Some(1));
    assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Checkpoint(offer(4, 1, 41)))));
    assert_eq!(story.told(2).last(), Some(&ToWorker::Prepare(Start::Checkpoint(offer(4, 0, 40)))));
    story.say(1, ready_with(1, 4, 41));
    story.say(2, ready_with(0, 4, 40));
    assert!(matches!(story.told(3).last(), Some(ToWorker::Heal { .. })), "{:?}", story.told(3));
    story.say(3, ready_with(0, 4, 40));
    story.say(4, ready_with(1, 4, 41));
    assert_eq!(lineup(&story), [[2, 1], [3, 4]]);
    assert_eq!(story.begun(1).first_round, Round(4));
}

fn offer_at(rank: u32) -> CheckpointOffer {
    CheckpointOffer {
        next_round: Round(4),
        state_hash: [40 + rank as u8; 32],
        private: false,
        rank,
        parts: 2,
        generation: WRITTEN_IN,
    }
}

/// In the order of sites alone, 2 would be put together with 1, and 3 with 4.
#[test]
fn copies_that_go_on_from_checkpoints_are_within_sites() {
    let mut story = Story::of(config_in_parts());
    for (worker, site, rank) in [(2, "a", 1), (1, "b", 0), (3, "c", 0), (4, "b", 1)] {
        story.join_as(worker, site, None, &[offer_at(rank)]);
    }
    for (worker, rank) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        story.say(worker, ready_with(rank, 4, 40 + rank as u8));
    }
    assert_eq!(lineup(&story), [[1, 4], [3, 2]]);
}

/// The plan has first parts at one site and second parts at another. One worker at each site has lost its disk.
#[test]
fn who_has_no_checkpoint_takes_the_part_that_its_site_has_in_the_plan() {
    let config = config_in_parts();
    let decided = Decided {
        parallel: config.parallel.clone(),
        recompute: false,
        copies: [[1, 2], [3, 4]].map(|copy| copy.map(WorkerId).to_vec()).to_vec(),
        redundant_warmup: false,
        why: String::new(),
    };
    let mut state = RunState::new(RunId([1; 16]), &config);
    state.plans.decided = Some(decided);
    let mut story = Story::of_state(config, state);
    story.join_as(2, "a", None, &[offer_at(1)]);
    story.join_as(1, "b", None, &[offer_at(0)]);
    story.join_from(4, "a");
    story.join_from(3, "b");
    story.say(1, ready_with(0, 4, 40));
    story.say(2, ready_with(1, 4, 41));
    story.say(3, ready_with(0, 4, 40));
    story.say(4, ready_with(1, 4, 41));
    assert_eq!(lineup(&story), [[1, 2], [3, 4]]);
}

/// Begun rounds may be repeated with other results, and some workers have checkpoints of the earlier ones.
#[test]
fn parts_of_different_pasts_are_not_put_together() {
    let mut story = training_of(parsed(&in_parts().set("checkpoint.every_rounds", 2)));
    for (round, hashes) in [(0, [20, 30]), (1, [21, 31])] {
        for worker in 1..=4 {
            story.applied(worker, round, hashes[(worker as usize - 1) % 2]);
        }
    }
    let state = story.run.state().clone();
    assert_eq!(state.lineage.milestones[&Round(2)][&1], [31; 32]);
    let offer = |rank, hash| CheckpointOffer {
        next_round: Round(2),
        state_hash: [hash; 32],
        private: true,
        rank,
        parts: 2,
        generation: WRITTEN_IN,
    };
    let gathered = |offers: [CheckpointOffer; 4]| {
        let mut state = state.clone();
        (state.phase, state.generations.present) = (Phase::Gathering, None);
        let mut story = Story::of_state(config_in_parts(), state);
        for (worker, offer) in (5..).zip(offers) {
            story.join(worker, &[offer]);
        }
        story
    };
    // Most have the abandoned state, and one has the valid one.
    let story = gathered([offer(0, 21), offer(1, 99), offer(1, 99), offer(1, 31)]);
    assert!(
        story.told(8).contains(&ToWorker::Prepare(Start::Checkpoint(offer(1, 31)))),
        "{:?}",
        story.told(8)
    );
    assert!(!story.told(6).iter().any(|told| matches!(told, ToWorker::Prepare(_))), "{:?}", story.told(6));
    // No worker has it.
    let story = gathered([offer(0, 21), offer(1, 99), offer(1, 99), offer(1, 98)]);
    assert!(
        story.told(6).contains(&ToWorker::Prepare(Start::Checkpoint(offer(1, 99)))),
        "{:?}",
        story.told(6)
    );
}

#[test]
fn a_run_in_parts_does_not_begin_before_a_copy_is_complete() {
    let mut story = Story::of(parsed(&in_parts().set("parallel.sites", ["site-1", "site-2"])));
    story.join(1, &[]);
    story.join(3, &[]);
    let told = story.told(3);
    let [ToWorker::Refused { reason }] = told.as_slice() else { panic!("{told:?}") };
    assert!(reason.contains("site-3") && reason.contains("parallel.sites"), "{reason}");

    // Enough workers, and all of them where the first part is to be.
    for worker in [5, 6, 7] {
        story.join_from(worker, "site-1");
    }
    assert_eq!(story.run.state().phase, Phase::Gathering);
    let problems = story.run.status(0).problems;
    assert!(problems.iter().any(|problem| problem.contains("parallel.sites")), "{problems:?}");
    story.join_from(8, "site-2");
    assert_eq!(story.run.state().phase, Phase::Preparing);
    assert_eq!(rank_in(&story.told(8)), Some(1));
}

/// As when the coordinator's machine was suspended: all connections are closed at once, and no memory is lost.
#[test]
fn the_only_copy_that_is_left_is_awaited_as_a_whole() {
    let mut story = training();
    for worker in [1, 2, 3, 4] {
        story.handle(Event::Closed { connection: ConnectionId(worker) });
    }
    story.now = Duration::from_secs(10);
    story.handle(Event::Timer);
    assert_eq!(story.run.state().phase, Phase::Training);
    for worker in [3, 4] {
        story.resume(worker, Generation(1));
        let told = story.told(worker);
        assert!(matches!(&told[0], ToWorker::Welcome(welcome) if welcome.resumed), "{told:?}");
    }
    assert!(matches!(story.told(4).last(), Some(ToWorker::Settle { .. })), "{:?}", story.told(4));
    story.settled(3, 2, 0, 0);
    story.settled(4, 2, 0, 0);
    assert_eq!(lineup(&story), [[3, 4]]);
}

/// A worker without part in the next attempt must not pass for one that still prepares for the last one.
#[test]
fn who_loses_a_slot_starts_over() {
    let mut story = Story::of(config_in_parts());
    for (worker, site) in [(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "a"), (6, "c")] {
        story.join_from(worker, site);
    }
    story.handle(Event::Closed { connection: ConnectionId(1) });
    assert_eq!(story.told(3), [ToWorker::Placed { rank: None }], "2 and 5 are at one site, and 4 and 6");
    for (worker, rank) in [(2, 0), (4, 0), (5, 1), (6, 1)] {
        story.say(worker, ready_with(rank, 0, 7 + rank as u8));
    }
    assert_eq!(lineup(&story), [[2, 5], [4, 6]]);
    story.join_from(7, "b");
    assert!(
        matches!(story.told(3).as_slice(), [ToWorker::Placed { rank: Some(0) }, ToWorker::Heal { .. }]),
        "{:?}",
        story.told(3)
    );
}

/// Gradients that are clipped by the norm of the whole model cannot be applied again by one rank alone.
#[test]
fn copies_join_others_only_where_what_they_have_missed_can_be_made_up_for() {
    let mut story = training_of(parsed(&in_parts().set("sync.warmup_rounds", 3)));
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(3, 2, 0, 0);
    story.settled(4, 2, 0, 0);
    story.join(5, &[]);
    assert!(
        story.told(5).iter().all(|message| matches!(message, ToWorker::Welcome(_))),
        "{:?}",
        story.told(5)
    );
    let problems = story.run.status(0).problems;
    assert!(problems.iter().any(|problem| problem.contains("after the warm-up")), "{problems:?}");
    for round in 0..3 {
        for (worker, hash) in [(3, 7), (4, 8)] {
            let report = RoundReport { generation: Generation(2), ..report(round, hash) };
            story.say(worker, ToCoordinator::RoundApplied(report));
        }
    }
    assert!(matches!(story.told(5).as_slice(), [ToWorker::Placed { rank: Some(1) }, ToWorker::Heal { .. }]));
}

#[test]
fn a_restarted_coordinator_waits_for_copies_as_a_whole() {
    let story = training();
    let state = story.run.state().clone();
    let mut story = Story::of(config_in_parts());
    story.run = Run::new(config_in_parts(), state, Duration::ZERO).unwrap();
    for worker in [1, 3, 4] {
        story.resume(worker, Generation(1));
    }
    for second in (0..).step_by(5) {
        story.now = Duration::from_secs(second);
        for worker in [1, 3, 4] {
            story.say(worker, heartbeat(1));
            if matches!(story.told(4).as_slice(), [ToWorker::Settle { .. }]) {
                assert!(second >= 20, "the second worker may come back");
                assert_eq!(story.told(1), [ToWorker::Placed { rank: None }]);
            }
        }
        if story.run.status(0).cluster.members.len() == 3 {
            break;
        }
        assert!(second < 60, "{:?}", story.run.status(0).problems);
    }
    story.settled(3, 2, 0, 0);
    story.settled(4, 2, 0, 0);
    assert_eq!(lineup(&story), [[3, 4]]);
    assert_eq!(
        story.run.status(0).throughput.tokens,
        2,
        "of what three have trained on, the two that are first in a copy tell"
    );
}

/// A worker that fetches a state while others begin would catch up the later rounds by itself, and the others of its copy from other
/// rounds on.
#[test]
fn those_who_came_while_others_prepared_wait_like_those_who_come_later() {
    let began = |warmup_rounds: u64| {
        let run = in_parts().workers(2).set("sync.warmup_rounds", warmup_rounds);
        let mut story = Story::of(parsed(&run));
        (1..=4).for_each(|worker| story.join(worker, &[]));
        (1..=2).for_each(|worker| story.say(worker, ready_with(worker - 1, 0, 6 + worker as u8)));
        assert_eq!(lineup(&story), [[1, 2]]);
        story
    };
    let story = began(0);
    assert_eq!(rank_in(&story.told(3)), Some(0), "what it misses is of use to it alone");

    let mut story = began(3);
    for worker in [3, 4] {
        assert_eq!(story.told(worker).iter().rev().find_map(rank_told), Some(None));
    }
    story.say(3, ready_with(0, 0, 7));
    story.applied(1, 0, 7);
    story.applied(2, 0, 8);
    story.say(4, ready_with(1, 1, 8));
    assert!(story.told(1).is_empty(), "{:?}", story.told(1));
    for (round, worker) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        story.applied(worker, round, 6 + worker as u8);
    }
    for worker in [3, 4] {
        let told = story.told(worker);
        assert!(
            matches!(told.as_slice(), [ToWorker::Placed { rank: Some(_) }, ToWorker::Heal { .. }]),
            "{told:?}"
        );
    }
}

/// Where rounds are short, some pass while a state is fetched, and each that was sent back would find the others as old when it has fetched another.
#[test]
fn who_has_waited_for_others_of_its_copy_heals_again_only_if_nobody_can_have_what_it_lacks() {
    for (rounds, is_taken) in [(20, true), (SMALL_RESULTS_KEPT_ROUNDS + 1, false)] {
        let mut story = training_of(parsed(&in_parts().steps(5000)));
        story.handle(Event::Closed { connection: ConnectionId(2) });
        story.settled(3, 2, 0, 0);
        story.settled(4, 2, 0, 0);
        story.join(5, &[]);
        story.say(1, ready_with(0, 0, 7));
        for (round, (worker, hash)) in (0..rounds).flat_map(|round| [(round, (3, 7)), (round, (4, 8))]) {
            let report = RoundReport { generation: Generation(2), ..report(round, hash) };
            story.say(worker, ToCoordinator::RoundApplied(report));
        }
        story.say(5, ready_with(1, rounds, 8));
        let settles = matches!(story.told(3).as_slice(), [ToWorker::Settle { .. }]);
        let heals = matches!(story.told(1).as_slice(), [ToWorker::Heal { .. }]);
        assert_eq!((settles, heals), (is_taken, !is_taken), "{rounds}: {:?}", story.commands);
    }
}
