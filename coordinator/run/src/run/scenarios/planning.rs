//! Events on the way to a plan, where the coordinator makes it.

use longhaul_common::config::ShareRule;
use longhaul_common::id::SiteId;
use longhaul_proto::control::message::{MeasuredLink, Profile, SeenLink};

use super::super::LinkStatus;
use super::*;

/// Two workers and a model of about 13 MB, with all its state, for any `sync`.
pub(super) fn open(sync: &str) -> Story {
    open_for(2, sync)
}

fn open_for(workers: u32, sync: &str) -> Story {
    let batch = 8 * workers;
    let run = RunToml::new("open").workers(workers).steps(20).batch(batch).set("train.micro_batch", 2);
    let run = run.gpt2(Gpt2 { layers: 2, width: 128, heads: 2, context: 8 }).lines("sync", sync);
    Story::of(parsed(&run))
}

pub(super) fn welcomed(told: &[ToWorker]) -> Vec<RunConfig> {
    let config = |message: &ToWorker| match message {
        ToWorker::Welcome(welcome) => Some(RunConfig::parse(&welcome.config).unwrap()),
        _ => None,
    };
    told.iter().filter_map(config).collect()
}

fn probed(told: &[ToWorker]) -> Vec<Vec<u32>> {
    let peers = |message: &ToWorker| match message {
        ToWorker::Probe { peers } => Some(peers.iter().map(|peer| peer.worker.0).collect()),
        _ => None,
    };
    told.iter().filter_map(peers).collect()
}

pub(super) fn profile(flops_per_s: f64) -> ToCoordinator {
    ToCoordinator::Profile(Profile { flops_per_s, vocabulary: 256, gradient_hash: 7 })
}

pub(super) fn links(mbit: f64) -> ToCoordinator {
    let link = MeasuredLink { bytes_per_s: mbit * 125e3, round_trip_s: 0.02 };
    ToCoordinator::Links(vec![Some(link)])
}

pub(super) const ROOMY: u64 = 1 << 34;
pub(super) const SMALL: u64 = 9 << 20;

#[test]
fn where_everybody_holds_the_model_and_bits_follow_links_nobody_measures_anything() {
    let mut story = open("preset = \"auto\"");
    story.join_with(1, ROOMY);
    let [config] = &welcomed(&story.told(1))[..] else { panic!("one welcome") };
    assert!(!config.is_plan_open() && config.parallel.stages == 1);
    story.join_with(2, ROOMY);
    assert_eq!(story.run.state().phase, Phase::Preparing);
    assert!(matches!(story.told(1).as_slice(), [ToWorker::Prepare(Start::Fresh)]));
    assert!(story.run.state().plans.decided.is_some());
}

/// All messages can be parsed, as [`welcomed`] does.
#[test]
fn a_plan_of_parts_says_that_shares_do_not_follow_speed_though_that_was_asked_for() {
    let mut config = open("preset = \"auto\"").run.core.config;
    config.train.shares = Some(ShareRule::BySpeed);
    let mut story = Story::of(config);
    story.join_with(1, ROOMY);
    story.join_with(2, SMALL);
    for message in [profile(1e10), links(100.0)] {
        story.say(1, message.clone());
        story.say(2, message);
    }
    let told = welcomed(&story.told(2));
    assert!(
        told.iter().any(|config| config.parallel.stages == 2 && config.train.shares.is_none()),
        "{told:#?}"
    );
    let is_word = |command: &Command| matches!(command, Command::Report(notice) if notice.text.contains("shares are even"));
    assert!(story.commands.iter().any(is_word), "{:?}", story.commands);
}

/// The model does not fit the second worker, so the first one learns that no plan exists yet.
#[test]
fn who_has_too_little_memory_has_all_tell_what_they_can_do() {
    let mut story = open("preset = \"auto\"");
    story.join_with(1, SMALL);
    assert!(welcomed(&story.told(1))[0].is_plan_open());
    let mut story = open("preset = \"auto\"");
    story.join_with(1, ROOMY);
    assert!(!welcomed(&story.told(1))[0].is_plan_open());
    story.join_with(2, SMALL);
    assert!(welcomed(&story.told(1))[0].is_plan_open() && welcomed(&story.told(2))[0].is_plan_open());
    assert_eq!(story.run.state().phase, Phase::Gathering);

    story.say(1, profile(1e10));
    assert!(story.told(1).is_empty());
    story.say(2, profile(1e10));
    assert_eq!((probed(&story.told(1)), probed(&story.told(2))), (vec![vec![2]], vec![vec![1]]));
    story.say(1, links(100.0));
    assert_eq!(story.run.state().phase, Phase::Gathering);
    story.say(2, links(50.0));
    // Both receive the same plan, then their parts.
    let configs: Vec<RunConfig> = [1, 2].iter().flat_map(|&worker| welcomed(&story.told(worker))).collect();
    assert_eq!((configs.len(), configs[0].parallel.stages, configs[0].is_plan_open()), (2, 2, false));
    assert_eq!(configs[0], configs[1]);
    let slots =
        |worker| story.told(worker).iter().any(|told| matches!(told, ToWorker::Placed { rank: Some(_) }));
    assert!(slots(1) && slots(2));
    let said = story
        .commands
        .iter()
        .any(|command| matches!(command, Command::Report(notice) if notice.text.contains("the plan: 1 × 2")));
    assert!(said, "{:?}", story.commands);

    // A coordinator that is started again has the same plan.
    let again =
        Run::new(open("preset = \"auto\"").run.core.config, story.run.state().clone(), story.now).unwrap();
    assert_eq!(again.core.config.parallel, configs[0].parallel);
}

/// Dense gradients of 0.5 million parameters over a megabit a second take seconds, activations of sixteen sequences of eight tokens a few hundredths.
#[test]
fn a_slow_link_cuts_the_model_where_all_of_every_update_is_exchanged() {
    let plan_at = |mbit: f64| {
        let mut story = open("preset = \"dense\"");
        for worker in [1, 2] {
            story.join_with(worker, ROOMY);
            story.say(worker, profile(1e10));
        }
        story.say(1, links(mbit));
        story.say(2, links(mbit));
        assert_eq!(story.run.state().phase, Phase::Preparing);
        story.run.state().plans.decided.as_ref().unwrap().parallel.stages
    };
    assert_eq!((plan_at(1.0), plan_at(100_000.0)), (2, 1));
}

#[test]
fn where_no_plan_fits_that_is_said_once_and_the_run_waits() {
    let mut story = open("preset = \"auto\"");
    for worker in [1, 2] {
        story.join_with(worker, 1 << 20);
        story.say(worker, profile(1e10));
    }
    story.say(1, links(100.0));
    story.say(2, links(100.0));
    let told = |story: &Story| {
        let is_it = |command: &&Command| matches!(command, Command::Report(notice) if notice.text.contains("no plan fits"));
        story.commands.iter().filter(is_it).count()
    };
    assert_eq!((told(&story), story.run.state().phase), (1, Phase::Gathering));
    assert!(story.run.status(0).problems.iter().any(|problem| problem.contains("no plan fits")));
    story.say(1, heartbeat(0));
    assert_eq!(told(&story), 0);
    // Others come: known facts about the present two are kept, and the third one's links are requested.
    story.join_with(3, ROOMY);
    story.say(3, profile(1e10));
    assert_eq!(probed(&story.told(1)), [[3]]);
}

/// The exchanged state is in the machine's memory: 66 bytes of 0.4 million parameters, and 24 on the GPU.
#[test]
fn gpus_hold_the_whole_model_where_both_memories_have_room_for_what_lies_in_them() {
    for (gpu_bytes, host_bytes, is_whole) in
        [(12 << 20, ROOMY, true), (12 << 20, u64::MAX, true), (ROOMY, 16 << 20, false), (SMALL, ROOMY, false)]
    {
        let mut story = open("preset = \"auto\"");
        story.enter(1, "site-1", |join| {
            (join.memory_bytes, join.host_memory_bytes) = (gpu_bytes, Some(host_bytes));
        });
        story.join_with(2, ROOMY);
        // The vocabulary is known, as tokens are bytes.
        assert_eq!(story.run.state().plans.decided.is_some(), is_whole, "{gpu_bytes} and {host_bytes}");
        let why = story.run.state().plans.decided.as_ref().map_or("", |plan| &plan.why);
        assert_eq!(why.contains("on a GPU, "), is_whole, "{why}");
    }
}

/// As after an upgrade of its memory.
#[test]
fn a_worker_that_comes_back_with_more_memory_is_planned_with() {
    let mut story = open("preset = \"dense\"");
    for (worker, memory_bytes) in [(1, ROOMY), (2, 1 << 18)] {
        story.join_with(worker, memory_bytes);
        story.say(worker, profile(1e10));
    }
    assert_eq!(
        story.run.status(0).problems,
        ["the plan waits for w1, w2 to measure their speed and their links"]
    );
    story.say(1, links(100.0));
    story.say(2, links(100.0));
    assert!(story.run.status(0).problems.iter().any(|problem| problem.contains("no plan fits")));
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.join_with(2, ROOMY);
    assert!(!story.run.status(0).problems.iter().any(|problem| problem.contains("no plan fits")));
    story.say(2, profile(1e10));
    story.say(2, links(100.0));
    assert_eq!(story.run.state().phase, Phase::Preparing);
}

/// The second worker has room for the smaller part alone.
#[test]
fn who_has_which_part_stays_as_it_was_planned_until_there_are_states() {
    let mut story = open("preset = \"auto\"");
    for (worker, memory_bytes) in [(1, SMALL), (2, ROOMY)] {
        story.join_with(worker, memory_bytes);
        story.say(worker, profile(1e10));
    }
    story.say(1, links(100.0));
    story.say(2, links(100.0));
    let rank = |told: &[ToWorker]| {
        told.iter().find_map(|told| match told {
            ToWorker::Placed { rank } => *rank,
            _ => None,
        })
    };
    let planned = [rank(&story.told(1)), rank(&story.told(2))];
    assert!(planned.iter().all(Option::is_some), "{:?}", story.commands);
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(story.run.state().phase, Phase::Gathering);
    story.join_with(2, ROOMY);
    assert_eq!([rank(&story.told(1)), rank(&story.told(2))], planned);
}

/// One place had no answer, and one report is impossible.
#[test]
fn ways_that_are_not_known_are_taken_for_slow_ones() {
    let mut story = open("preset = \"dense\"");
    for worker in [1, 2] {
        story.join_with(worker, ROOMY);
        story.say(worker, profile(f64::NAN));
    }
    story.say(1, ToCoordinator::Links(vec![None]));
    let absurd = MeasuredLink { bytes_per_s: f64::INFINITY, round_trip_s: -1.0 };
    story.say(2, ToCoordinator::Links(vec![Some(absurd)]));
    assert_eq!(story.run.state().phase, Phase::Preparing, "{:?}", story.commands);
}

#[test]
fn who_leaves_before_it_has_answered_is_not_waited_for() {
    let mut story = open("preset = \"dense\"");
    for worker in [1, 2] {
        story.join_with(worker, ROOMY);
        story.say(worker, profile(1e10));
    }
    story.say(1, links(100.0));
    story.handle(Event::Closed { connection: ConnectionId(2) });
    assert_eq!(story.run.state().phase, Phase::Gathering);
    story.join_with(3, ROOMY);
    assert!(welcomed(&story.told(3))[0].is_plan_open());
    story.say(3, profile(1e10));
    assert_eq!(probed(&story.told(3)), [[1]]);
}

/// Lets time pass with signs of life of these workers, and nothing else.
pub(super) fn pass(story: &mut Story, seconds: u64, workers: &[u32]) {
    let end = story.now + Duration::from_secs(seconds);
    while story.now < end {
        story.now = (story.now + Duration::from_secs(2)).min(end);
        for &worker in workers {
            story.say(worker, heartbeat(0));
        }
    }
}

pub(super) fn reported(story: &Story, text: &str) -> bool {
    story.run.status(0).events.iter().any(|event| event.text.contains(text))
}

#[test]
fn who_never_tells_how_fast_it_is_is_taken_out_and_the_plan_is_made_without_it() {
    let mut story = open("preset = \"dense\"");
    for worker in [1, 2, 3] {
        story.join_with(worker, ROOMY);
    }
    for worker in [1, 2] {
        story.say(worker, profile(1e10));
    }
    pass(&mut story, 298, &[1, 2, 3]);
    assert_eq!(story.run.status(0).problems.len(), 1, "{:?}", story.run.status(0).problems);
    story.pass_to(Duration::from_secs(300));
    assert_eq!(story.run.next_timeout(), Some(Duration::from_secs(300)));
    story.handle(Event::Timer);
    let told = story.told(3);
    let [ToWorker::Refused { reason }] = told.as_slice() else { panic!("{told:?}") };
    assert!(reason.contains("may join again") && reason.contains("plan = \"fixed\""), "{reason}");
    assert!(reported(&story, "has not reported its speed"));
    assert_eq!((probed(&story.told(1)), probed(&story.told(2))), (vec![vec![2]], vec![vec![1]]));
    story.say(1, links(100.0));
    story.say(2, links(100.0));
    assert_eq!(story.run.state().phase, Phase::Preparing);
}

#[test]
fn where_too_few_are_left_another_is_waited_for_also_the_one_that_was_taken_out() {
    let mut story = open("preset = \"dense\"");
    story.join_with(1, ROOMY);
    story.say(1, profile(1e10));
    story.join_with(2, ROOMY);
    pass(&mut story, 300, &[1, 2]);
    assert_eq!(story.run.status(0).problems, ["1 of 2 workers have joined; the run starts when all have"]);
    pass(&mut story, 600, &[1]);
    story.join_with(2, ROOMY);
    story.say(2, profile(1e10));
    assert_eq!(probed(&story.told(1)), [[2]]);
    story.say(1, links(100.0));
    story.say(2, links(100.0));
    assert_eq!(story.run.state().phase, Phase::Preparing);
}

/// Four sites; 3 and 4 do not answer. The others' measurements of them count.
#[test]
fn ways_that_nobody_tells_of_in_time_are_as_slow_as_the_slowest_that_was_measured() {
    let mut story = open_for(4, "preset = \"dense\"");
    for worker in 1..=4 {
        story.join_with(worker, ROOMY);
        story.say(worker, profile(1e10));
    }
    let told = |mbits: [f64; 3], round_trip_s| {
        let link = |mbit: f64| Some(MeasuredLink { bytes_per_s: mbit * 125e3, round_trip_s });
        ToCoordinator::Links(mbits.map(link).to_vec())
    };
    story.say(1, told([100.0, 20.0, 300.0], 0.03));
    story.say(2, told([100.0, 300.0, 300.0], 0.02));
    // While another one measures itself, no plan is made.
    story.join_with(5, ROOMY);
    pass(&mut story, 58, &[1, 2, 3, 4, 5]);
    story.pass_to(Duration::from_secs(60));
    assert_eq!(story.run.next_timeout(), Some(Duration::from_secs(60)), "thirty, and ten for each of three");
    assert_eq!(story.run.status(0).problems.len(), 1);
    story.handle(Event::Timer);
    for worker in [3, 4] {
        assert!(story.told(worker).is_empty(), "it may train");
    }
    assert!(reported(&story, "the speed of the links from site-1, site-2, site-4"));
    let known = |story: &Story| -> Vec<(f64, f64)> {
        let links = story.run.planning.links(&story.run.core, &[0, 1, 2, 3].map(SiteId)).into_values();
        links.map(|link| (link.bytes_per_s / 125e3, link.round_trip_s)).collect()
    };
    // From 0 to 1, 2, 3; from 1 to 2, 3; from 2 to 3, which is not reported.
    let expected = [(100.0, 0.03), (20.0, 0.03), (300.0, 0.03), (300.0, 0.02), (300.0, 0.02), (20.0, 0.03)];
    assert_eq!(known(&story), expected);
    // It is too late, and would pass for an answer to the next question.
    story.say(3, told([1.0; 3], 9.0));
    story.say(5, profile(1e10));
    assert_eq!((probed(&story.told(1)), probed(&story.told(3))), (vec![vec![5]], vec![]));
    assert_eq!(probed(&story.told(5)), [[1, 2, 3, 4]]);
    assert_eq!(known(&story), expected);
}

#[test]
fn what_traffic_shows_of_ways_takes_the_place_of_what_was_measured_and_the_status_shows_it() {
    let mut story = open("preset = \"dense\"");
    for worker in [1, 2] {
        story.join_with(worker, ROOMY);
        story.say(worker, profile(1e10));
    }
    story.say(1, links(100.0));
    story.say(2, links(100.0));
    let link = MeasuredLink { bytes_per_s: 3.0 * 125e3, round_trip_s: 0.2 };
    story.say(1, ToCoordinator::SeenLinks(vec![SeenLink { to: SiteId(1), link }]));
    story.now = Duration::from_secs(2);
    story.say(2, heartbeat(0));
    let shown: Vec<_> = story.run.status(0).cluster.links.into_iter().collect();
    let figures = |link: &LinkStatus| (link.bytes_per_s, link.round_trip_s, link.seen_s);
    assert_eq!(figures(&shown[0]), (375e3, 0.2, Some(2.0)));
    assert_eq!(figures(&shown[1]), (12.5e6, 0.02, None), "the other direction as it was measured");
    assert_eq!((shown[0].from.as_str(), shown[0].to.as_str()), ("site-1", "site-2"));
    let known = story.run.planning.links(&story.run.core, &[0, 1].map(SiteId)).into_values().next().unwrap();
    assert_eq!((known.bytes_per_s, known.round_trip_s), (375e3, 0.2), "what the planner reads");
}

/// This many workers of twenty sites have joined and reported their speed, and one has not reported its links yet.
fn gathered(workers: u32) -> Story {
    let mut story = open_for(workers, "preset = \"dense\"");
    for worker in 1..=workers {
        story.enter(worker, &format!("site-{}", worker % SITES), |_| {});
    }
    for worker in 1..=workers {
        story.say(worker, profile(1e10));
    }
    // All but one: with the last one, the plan is made.
    for worker in 1..SITES {
        story.say(worker, ToCoordinator::Links(Vec::new()));
    }
    assert_eq!(story.run.planning.untold(&story.run.core), [WorkerId(SITES)]);
    story
}

const SITES: u32 = 20;

#[test]
fn what_many_workers_tell_takes_looks_in_proportion_to_their_number() {
    let looked = |workers| gathered(workers).run.planning.surveys_looked_at();
    let (some, many) = (looked(100), looked(1_000));
    assert!(some > 0 && many <= 10 * some, "{some} and {many}");
}

#[test]
fn the_model_is_worked_out_once_for_many_workers() {
    let mut story = open_for(1_000, "preset = \"auto\"");
    for worker in 1..1_000 {
        story.join_with(worker, ROOMY);
    }
    assert_eq!(story.run.planning.models_worked_out(), 1);
    story.join_with(1_000, ROOMY);
    assert_eq!((story.run.state().phase, story.run.planning.models_worked_out()), (Phase::Preparing, 1));
}
