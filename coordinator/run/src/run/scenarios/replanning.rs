//! Plans that change while a run goes on.

use longhaul_common::id::SiteId;
use longhaul_proto::control::message::{Heartbeat, HeldPart, MeasuredLink, SeenLink, TimeSpent};

use super::moves::{held, offer};
use super::pipelines::{lineup, rank_in, ready_with};
use super::planning::{ROOMY, SMALL, links, open, profile, reported, welcomed};
use super::*;
use longhaul_plan::Answer;

/// Two workers that exchange dense gradients over a fast link, and so hold the whole model each.
fn whole() -> Story {
    let mut story = open("preset = \"dense\"");
    for worker in [1, 2] {
        story.join_with(worker, ROOMY);
        story.say(worker, profile(1e10));
    }
    story.say(1, links(100_000.0));
    story.say(2, links(100_000.0));
    for worker in [1, 2] {
        story.say(worker, ready(0, 7));
    }
    assert_eq!((story.run.state().phase, story.run.core.ranks()), (Phase::Training, 1));
    story
}

/// Reports the traffic's rate on the link between the two.
pub(super) fn shows(story: &mut Story, mbit: f64) {
    let link = MeasuredLink { bytes_per_s: mbit * 125e3, round_trip_s: 0.02 };
    story.say(1, ToCoordinator::SeenLinks(vec![SeenLink { to: SiteId(1), link }]));
    story.say(2, ToCoordinator::SeenLinks(vec![SeenLink { to: SiteId(0), link }]));
}

/// Lets time pass with signs of life of these workers, and answers all questions. Returns the answers, and the messages to workers.
pub(super) fn pass(story: &mut Story, seconds: u64, workers: &[u32]) -> (Vec<Answer>, Vec<ToWorker>) {
    let end = story.now + Duration::from_secs(seconds);
    let (mut answers, mut told) = (Vec::new(), Vec::new());
    while story.now < end {
        story.now = (story.now + Duration::from_secs(2)).min(end);
        for &worker in workers {
            // Whatever comes first makes it look.
            story.say(worker, heartbeat(0));
            let asked = story.commands.iter().find_map(|command| match command {
                Command::Plan(question) => Some(question.answer()),
                _ => None,
            });
            if let Some(answer) = asked {
                answers.push(answer.clone());
                story.handle(Event::Planned(Box::new(answer)));
            }
            told.extend(workers.iter().flat_map(|&worker| story.told(worker)));
        }
    }
    (answers, told)
}

fn answers(story: &mut Story, seconds: u64) -> Vec<Answer> {
    pass(story, seconds, &[1, 2]).0
}

#[test]
fn a_link_that_stays_slow_for_a_minute_makes_the_run_move_to_another_plan() {
    let mut story = whole();
    assert!(answers(&mut story, 100).is_empty(), "nothing has changed");
    shows(&mut story, 1.0);
    assert!(answers(&mut story, 58).is_empty());
    let answered = answers(&mut story, 14);
    let [Answer::Move(_, why)] = answered.as_slice() else { panic!("{answered:?}") };
    assert!(
        reported(&story, "the plan changes: 1 × 2 takes") && why.contains("a step, 2 × 1 takes"),
        "{why}"
    );
    let moving = story.run.state().plans.moving.clone().unwrap();
    assert_eq!((moving.plan.parallel.stages, moving.workers.len()), (2, 2));
    assert!(story.run.status(0).cluster.plan.unwrap().contains("Next, the plan: 1 × 2"));
    // All finish their rounds, and write checkpoints.
    for worker in [1, 2] {
        story.settled(worker, 2, 0, 0);
    }
    assert_eq!(story.begun(1).until, Round(1));
    story.say(1, finished(1, None));
    assert!(welcomed(&story.told(1)).is_empty());
    story.say(2, finished(1, None));
    for worker in [1, 2] {
        assert_eq!(welcomed(&story.told(worker))[0].parallel.stages, 2);
    }
    assert_eq!((story.run.state().phase, story.run.state().cut_at), (Phase::Gathering, Some(Round(1))));

    // They come back, and have the checkpoint of the whole model.
    let of_whole = CheckpointOffer { parts: 1, ..offer(1, 0, true) };
    story.join(1, std::slice::from_ref(&of_whole));
    assert_eq!(story.run.state().phase, Phase::Gathering, "the other one is waited for");
    story.join(2, std::slice::from_ref(&of_whole));
    for (worker, other) in [(1, 2), (2, 1)] {
        let parts = held(&story, worker);
        let [HeldPart { offer, holders }] = parts.as_slice() else { panic!("{parts:?}") };
        assert_eq!((offer.parts, holders[0].worker), (1, WorkerId(other)));
    }
    let slots = [1, 2].map(|worker| rank_in(&story.told(worker)).unwrap());
    for (worker, rank) in [1, 2].into_iter().zip(slots) {
        story.say(worker, ready_with(rank, 1, 50 + rank as u8));
    }
    assert_eq!((story.run.state().phase, story.begun(1).first_round), (Phase::Training, Round(1)));
    assert!(story.run.state().plans.moving.is_none());
    assert!(story.run.status(0).cluster.plan.unwrap().starts_with("the plan: 1 × 2"));
    // Under the same conditions nothing moves any more.
    assert!(answers(&mut story, 300).is_empty());
}

/// Neither is it looked at, however often that happens, nor does the run move when it is the same plan that is best.
#[test]
fn a_link_that_is_slow_for_a_while_moves_nothing() {
    let mut story = whole();
    answers(&mut story, 20);
    for _ in 0..4 {
        shows(&mut story, 1.0);
        assert!(answers(&mut story, 30).is_empty());
        // A report of a fast link counts at once.
        shows(&mut story, 100_000.0);
        assert!(answers(&mut story, 30).is_empty());
    }
    shows(&mut story, 45_000.0);
    answers(&mut story, 130);
    shows(&mut story, 45_000.0);
    let answered = answers(&mut story, 200);
    assert!(answered.iter().all(|answer| matches!(answer, Answer::Stay(_))), "{answered:?}");
    assert!(story.run.state().plans.moving.is_none());
}

#[test]
fn who_leaves_while_a_move_is_prepared_leaves_the_plan_as_it_was() {
    let mut story = whole();
    answers(&mut story, 20);
    shows(&mut story, 1.0);
    assert_eq!(answers(&mut story, 80).len(), 1);
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.settled(1, 3, 0, 0);
    story.say(1, finished(1, None));
    assert!(reported(&story, "a worker that the new plan needs has left"));
    assert_eq!(welcomed(&story.told(1))[0].parallel.stages, 1);
    let of_whole = CheckpointOffer { parts: 1, ..offer(1, 0, true) };
    story.join(1, std::slice::from_ref(&of_whole));
    assert_eq!(story.told(1).last(), Some(&ToWorker::Prepare(Start::Checkpoint(of_whole))));
}

/// The second worker returns after losing its slot, with its own part and a copy of the other one.
fn comes_back(story: &mut Story) {
    story.handle(Event::Closed { connection: ConnectionId(2) });
    story.enter(2, "site-2", |join| {
        (join.memory_bytes, join.checkpoints) = (ROOMY, vec![offer(0, 0, false), offer(0, 1, true)]);
    });
}

/// One of two workers with half of the model each is lost for good, and the other one has room for all of it.
#[test]
fn who_is_left_with_a_part_takes_the_whole_model_where_it_has_room() {
    let mut story = open("preset = \"auto\"");
    for (worker, memory_bytes) in [(1, SMALL), (2, ROOMY)] {
        story.join_with(worker, memory_bytes);
        story.say(worker, profile(1e10));
    }
    story.say(1, links(100.0));
    story.say(2, links(100.0));
    let slots = [1, 2].map(|worker| rank_in(&story.told(worker)).unwrap());
    for (worker, rank) in [1, 2].into_iter().zip(slots) {
        story.say(worker, ready_with(rank, 0, 7));
    }
    assert_eq!(lineup(&story).len(), 1);
    story.handle(Event::Closed { connection: ConnectionId(1) });
    pass(&mut story, 120, &[2]);
    assert_eq!(story.run.state().phase, Phase::Gathering);
    comes_back(&mut story);
    assert!(welcomed(&story.told(2))[0].parallel.is_pipelined());
    let told = welcomed(&pass(&mut story, 120, &[2]).1);
    assert!(!told[0].parallel.is_pipelined(), "{told:?}");
    assert!(reported(&story, "the plan changes: the present plan does not work on the available machines"));
    comes_back(&mut story);
    assert_eq!(held(&story, 2).len(), 2);
    story.say(2, ready(0, 9));
    assert_eq!((story.run.state().phase, lineup(&story)), (Phase::Training, vec![vec![2]]));
}

/// Two workers that have half of a model each, over a slow link.
fn halves() -> Story {
    let run = RunToml::new("halves").workers(2).steps(100_000).batch(16).set("train.micro_batch", 2);
    let run = run.gpt2(Gpt2 { layers: 8, width: 128, heads: 2, context: 64 }).set("sync.preset", "dense");
    let mut story = Story::of(parsed(&run));
    for worker in [1, 2] {
        story.join_with(worker, ROOMY);
        story.say(worker, profile(1e9));
    }
    story.say(1, links(1.0));
    story.say(2, links(1.0));
    let slots = [1, 2].map(|worker| rank_in(&story.told(worker)).unwrap());
    for (worker, rank) in [1, 2].into_iter().zip(slots) {
        story.say(worker, ready_with(rank, 0, 7 + rank as u8));
    }
    assert_eq!((story.run.state().phase, story.run.core.ranks()), (Phase::Training, 2));
    story
}

/// Both compute for this many seconds, each with its share of a second, at this many tokens. Returns the planner's answers.
fn computing(story: &mut Story, seconds: u64, tokens_a_second: u64, computes: [f64; 2]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for _ in 0..seconds {
        story.now += Duration::from_secs(1);
        for (worker, share) in [1, 2].into_iter().zip(computes) {
            let before = story
                .run
                .core
                .peers
                .get(&WorkerId(worker))
                .and_then(|peer| peer.progress.meter.latest().cloned());
            let before = before.unwrap_or_default();
            let heartbeat = Heartbeat {
                step: before.step + 1,
                tokens: before.tokens + tokens_a_second,
                selected_tokens: before.selected_tokens + tokens_a_second,
                time: TimeSpent { compute_s: before.time.compute_s + share, ..before.time },
                ..before
            };
            // What is due by then is done with it.
            story.say(worker, ToCoordinator::Heartbeat(heartbeat));
            let asked = story.commands.iter().find_map(|command| match command {
                Command::Plan(question) => Some(question.answer()),
                _ => None,
            });
            if let Some(answer) = asked {
                answers.push(answer.clone());
                story.handle(Event::Planned(Box::new(answer)));
            }
        }
    }
    answers
}

#[test]
fn a_machine_that_becomes_slow_gets_a_smaller_part_of_the_model() {
    let mut story = halves();
    assert!(computing(&mut story, 120, 1000, [0.5, 0.5]).is_empty());
    let slow = story.run.core.replicas_where(|_| true)[0][1];
    // A fifth of the tokens, for which the slow one computes all the time, and the other one as fast as ever.
    let computes = [1, 2].map(|worker| if slow == WorkerId(worker) { 1.0 } else { 0.1 });
    assert!(computing(&mut story, 60, 200, computes).is_empty(), "it may pass");
    let answered = computing(&mut story, 60, 200, computes);
    let [Answer::Move(choice, why)] = answered.as_slice() else { panic!("{answered:?}") };
    assert!(
        reported_before(&story, &format!("{slow} computes 0.10 times as fast")),
        "{:#?}",
        story.run.core.notices
    );
    let stages = &choice.best.0.stages;
    let blocks: Vec<u32> = stages.iter().map(|stage| stage.end - stage.start).collect();
    assert!(why.contains("a step") && blocks.iter().max() > blocks.iter().min(), "{blocks:?} {why}");
}

fn reported_before(story: &Story, text: &str) -> bool {
    story.run.core.notices.iter().any(|notice| notice.text.contains(text))
}

/// Selection leaves out backward passes: less computing per token is not more speed.
#[test]
fn who_computes_less_as_less_is_selected_is_as_fast_as_before() {
    let mut story = halves();
    computing(&mut story, 60, 1000, [0.6, 0.6]);
    for _ in 0..40 {
        story.now += Duration::from_secs(1);
        for worker in [1, 2] {
            let before = story.run.core.peers[&WorkerId(worker)].progress.meter.latest().cloned().unwrap();
            // A third is for all samples, and of the rest a tenth.
            let heartbeat = Heartbeat {
                step: before.step + 1,
                tokens: before.tokens + 1000,
                selected_tokens: before.selected_tokens + 100,
                time: TimeSpent { compute_s: before.time.compute_s + 0.2 + 0.04, ..before.time },
                ..before
            };
            story.say(worker, ToCoordinator::Heartbeat(heartbeat));
        }
        story.handle(Event::Timer);
    }
    let speeds = [1, 2].map(|worker| story.run.planning.speed_factor(WorkerId(worker)));
    assert!(speeds.iter().all(|factor| (factor - 1.0).abs() < 1e-6), "{speeds:?}");
}

#[test]
fn a_machine_that_has_another_part_is_as_fast_as_it_was_with_the_last_one() {
    let mut story = halves();
    computing(&mut story, 60, 1000, [0.5, 0.5]);
    computing(&mut story, 20, 500, [0.5, 0.5]);
    assert_eq!(story.run.planning.speed_factor(WorkerId(1)), 0.5);
    let told = |story: &Story| story.run.core.peers[&WorkerId(1)].known.flops_per_s;
    assert_eq!(told(&story), Some(1_000_000_000));
    for peer in story.run.core.peers.values_mut() {
        peer.slot.as_mut().unwrap().replica += 1;
    }
    computing(&mut story, 11, 500, [0.5, 0.5]);
    assert_eq!((story.run.planning.speed_factor(WorkerId(1)), told(&story)), (1.0, Some(500_000_000)));
}
