//! Copies of the model whose layers are shared by workers of a site.

use longhaul_proto::control::message::MeasuredLink;

use super::moves::{held, offer};
use super::pipelines::{lineup, rank_in, ready_with};
use super::planning::{profile, welcomed};
use super::replanning::{pass, shows};
use super::*;
use longhaul_plan::Answer;

pub(super) fn in_groups() -> RunToml {
    run_toml().workers(4).set("parallel.tensor", 2).set("model.heads", 2)
}

/// Workers 1 and 3 of site a, 2 and 4 of site b.
fn training() -> Story {
    let mut story = Story::of(parsed(&in_groups()));
    for (worker, site) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        story.join_from(worker, site);
    }
    let slots = [(1, 0), (3, 1), (2, 0), (4, 1)];
    assert!(slots.iter().all(|&(worker, index)| rank_in(&story.told(worker)) == Some(index)));
    for (worker, index) in slots {
        story.say(worker, ready_with(index, 0, 7 + index as u8));
    }
    assert_eq!(story.run.state().phase, Phase::Training);
    story
}

#[test]
fn groups_are_within_sites_and_those_with_the_same_share_are_members() {
    let story = training();
    assert_eq!(lineup(&story), [[1, 3], [2, 4]]);
    let start = story.begun(3);
    let members: Vec<u32> = start.membership.members().iter().map(|member| member.worker.0).collect();
    assert_eq!(members, [3, 4]);
    assert_eq!(start.assignments[0].workers, [WorkerId(1), WorkerId(2)]);
    assert_eq!(story.run.status(0).cluster.parts, 2);
}

/// The first part at site b and the second at site a, each shared by two.
#[test]
fn stages_of_a_copy_are_groups_of_a_site_each_and_may_be_at_different_ones() {
    let run = in_groups().set("model.layers", 2).lines("parallel", "stages = 2\nsites = [\"b\", \"a\"]");
    let mut story = Story::of(parsed(&run));
    for (worker, site) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        story.join_from(worker, site);
    }
    let slots = [(2, 0), (4, 1), (1, 2), (3, 3)];
    assert!(slots.iter().all(|&(worker, rank)| rank_in(&story.told(worker)) == Some(rank)));
    for (worker, rank) in slots {
        story.say(worker, ready_with(rank, 0, 7 + rank as u8));
    }
    assert_eq!(story.run.state().phase, Phase::Training);
    assert_eq!(lineup(&story), [[2, 4, 1, 3]]);
    let start = story.begun(3);
    let members: Vec<u32> = start.membership.members().iter().map(|member| member.worker.0).collect();
    assert_eq!((members, story.run.status(0).cluster.parts), (vec![3], 4));
    assert_eq!(start.assignments[0].workers, [WorkerId(2)]);
}

/// There would be enough for another copy, were they not at two sites.
#[test]
fn those_who_are_left_over_at_two_sites_wait_for_others_of_theirs() {
    let mut story = training();
    story.handle(Event::Closed { connection: ConnectionId(4) });
    assert_eq!(story.told(2), [ToWorker::Placed { rank: None }], "its copy has come apart");
    story.settled(1, 2, 0, 0);
    story.settled(3, 2, 0, 1);
    story.join_from(5, "a");
    assert_eq!(rank_in(&story.told(5)), None);
    let waits = |story: &Story| {
        let problems = story.run.status(0).problems;
        problems.iter().any(|problem| problem.ends_with("takes 2 workers, all at one site"))
    };
    assert!(waits(&story), "{:?}", story.run.status(0).problems);
    story.join_from(6, "b");
    assert_eq!([2, 6].map(|worker| rank_in(&story.told(worker))), [Some(0), Some(1)]);
}

/// The first member reports each round's values for all members, so that they cannot catch up missed steps individually.
#[test]
fn while_steps_are_common_no_group_joins_even_where_nothing_is_clipped() {
    let may_join = |parallel: &str| {
        let run = in_groups().set("train.gradient_clip", 0.0);
        let run = run.table("sync", "preset = \"dense\"").table("parallel", parallel);
        Story::of(parsed(&run)).run.core.copies_may_join()
    };
    assert!(may_join("stages = 2") && !may_join("tensor = 2"));
}

/// Four workers at two sites, of which none has room for the model, with links like these within each site.
fn planned_with(memory_bytes: u64, lan_mbit: f64) -> Story {
    let run = RunToml::new("open").workers(4).steps(20_000).batch(16).set("train.micro_batch", 2);
    let run = run.gpt2(Gpt2 { layers: 6, width: 128, heads: 2, context: 8 }).set("sync.preset", "dense");
    let mut story = Story::of(parsed(&run));
    for (worker, site) in [(1, "a"), (2, "b"), (3, "a"), (4, "b")] {
        story.enter(worker, site, |join| join.memory_bytes = memory_bytes);
        story.say(worker, profile(1e9));
    }
    let link = |mbit: f64, round_trip_s: f64| Some(MeasuredLink { bytes_per_s: mbit * 125e3, round_trip_s });
    let (lan, wan) = (link(lan_mbit, 1e-6), link(10_000.0, 0.001));
    story.say(1, ToCoordinator::Links(vec![lan, wan]));
    story.say(2, ToCoordinator::Links(vec![wan, lan]));
    story
}

const ROOM: u64 = 70 << 20;
const FAST: f64 = 1_000_000.0;

/// Parts of the model in a row wait for each other, members of a group hardly.
#[test]
fn the_plan_has_groups_where_sites_have_fast_links_of_their_own() {
    let story = planned_with(ROOM, FAST);
    let plan = story.run.state().plans.decided.clone().unwrap();
    assert_eq!((plan.parallel.tensor, plan.parallel.stages), (2, 1), "{}", plan.why);
    assert!(
        plan.why.contains("2 × 2, layer by layer") && plan.why.contains("tensor group of 2"),
        "{}",
        plan.why
    );
    assert_eq!([1, 2, 3, 4].map(|worker| rank_in(&story.told(worker))), [Some(0), Some(0), Some(1), Some(1)]);
    let apart = planned_with(ROOM, 1.0);
    assert_eq!(apart.run.state().plans.decided.as_ref().unwrap().parallel.tensor, 1);
}

/// Neither half of the model fits, nor a share of a member of two; half of such a share does. Each stage is at a site of its own, as a group is.
#[test]
fn the_plan_has_parts_of_groups_where_nothing_else_fits_that_is_as_fast() {
    let mut story = planned_with(ROOM / 2, FAST);
    let plan = story.run.state().plans.decided.clone().unwrap();
    assert_eq!((plan.parallel.tensor, plan.parallel.stages), (2, 2), "{}", plan.why);
    assert!(plan.why.contains("1 × 4 in 2 parts of 2"), "{}", plan.why);
    let [copy] = plan.copies.as_slice() else { panic!("{plan:?}") };
    let slots: Vec<Option<u32>> = copy.iter().map(|worker| rank_in(&story.told(worker.0))).collect();
    assert_eq!(slots, [0, 1, 2, 3].map(Some));
    let copy: Vec<u32> = copy.iter().map(|worker| worker.0).collect();
    for (rank, &worker) in (0..).zip(&copy) {
        story.say(worker, ready_with(rank, 0, 7 + rank as u8));
    }
    assert_eq!((story.run.state().phase, lineup(&story)), (Phase::Training, vec![copy]));
    let question = story.run.planning.question(&story.run.core).unwrap();
    let present = question.present.clone().unwrap();
    assert_eq!((present.members, present.plan.pipeline.ranks, present.plan.replicas.len()), (2, 2, 1));
    assert!(matches!(question.answer(), Answer::Stay(_)));
}

/// The link between the sites becomes slow: the groups, which exchanged all gradients over it, become the two parts of one copy. Their shares are cut of other layers, so
/// each takes the missing state out of all present shares.
#[test]
fn a_run_with_groups_moves_to_another_plan_and_its_shares_are_cut_anew() {
    let mut story = planned_with(ROOM, FAST);
    let slots = [(1, 0), (3, 1), (2, 0), (4, 1)];
    for (worker, index) in slots {
        story.say(worker, ready_with(index, 0, 7 + index as u8));
    }
    assert_eq!(story.run.state().phase, Phase::Training);
    let all = [1, 2, 3, 4];
    pass(&mut story, 20, &all);
    shows(&mut story, 20.0);
    let (answers, _) = pass(&mut story, 100, &all);
    let [Answer::Move(choice, why)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_ne!((choice.tensor, choice.best.0.pipeline.ranks), (2, 1), "{why}");
    assert!(why.contains(" s a step, 2 × 2, layer by layer takes"), "{why}");
    for worker in all {
        story.settled(worker, 2, 0, 0);
    }
    for worker in all {
        story.say(worker, finished(1, None));
    }
    let parallel = |story: &Story, worker| welcomed(&story.told(worker))[0].parallel.clone();
    let to = parallel(&story, 1);
    assert_eq!((to.tensor, to.stages), (choice.tensor, choice.best.0.pipeline.ranks));
    assert_eq!(to.ranks_per_replica(), 4);
    assert!(all.iter().all(|&worker| parallel(&story, worker) == to));
    for (worker, rank) in slots {
        story.enter(worker, ["a", "b"][(worker as usize + 1) % 2], |join| {
            (join.memory_bytes, join.checkpoints) = (ROOM, vec![offer(1, rank, true)]);
        });
    }
    for worker in all {
        let parts = held(&story, worker);
        let ranks: Vec<(u32, u32)> = parts.iter().map(|part| (part.offer.rank, part.offer.parts)).collect();
        assert_eq!(ranks, [(0, 2), (1, 2)], "worker {worker}");
        assert!(parts.iter().all(|part| !part.holders.is_empty()));
    }
    let slots = all.map(|worker| (worker, rank_in(&story.told(worker)).unwrap()));
    for (worker, rank) in slots {
        story.say(worker, ready_with(rank, 1, 50 + rank as u8));
    }
    assert_eq!((story.run.state().phase, story.begun(1).first_round), (Phase::Training, Round(1)));
    assert_eq!(lineup(&story).len(), 1);
    let (answers, _) = pass(&mut story, 300, &all);
    assert!(answers.is_empty(), "{answers:?}");
}
