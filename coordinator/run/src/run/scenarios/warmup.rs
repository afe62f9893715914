//! Events on the way to a warm-up that every member computes, or to an exchanged one.

use longhaul_common::config::{PlanChoice, Redundancy};
use longhaul_proto::control::message::Profile;

use super::planning::{ROOMY, links, pass, profile, reported, welcomed};
use super::*;

/// Two workers with a model of about 0.4 million parameters, and a warm-up that is worth a measurement.
fn long_run() -> RunConfig {
    with_warmup(100)
}

fn with_warmup(rounds: u64) -> RunConfig {
    let run = RunToml::new("long").workers(2).steps(1500).batch(16).set("train.micro_batch", 2);
    let run = run.gpt2(Gpt2 { layers: 2, width: 128, heads: 2, context: 8 });
    parsed(&run.lines("sync", &format!("preset = \"auto\"\nwarmup_rounds = {rounds}")))
}

/// Both have joined at different sites, and know that no plan exists.
fn joined(config: RunConfig) -> Story {
    let mut story = Story::of(config);
    for worker in [1, 2] {
        story.join_with(worker, ROOMY);
    }
    assert!([1, 2].iter().all(|&worker| welcomed(&story.told(worker)).iter().all(RunConfig::is_plan_open)));
    story
}

/// Both have measured themselves and a link.
fn measured(config: RunConfig, mbit: f64, told: [ToCoordinator; 2]) -> Story {
    let mut story = joined(config);
    for (worker, told) in [1, 2].into_iter().zip(told) {
        story.say(worker, told);
    }
    assert_eq!(story.run.state().phase, Phase::Gathering, "the link is not known yet");
    story.say(1, links(mbit));
    story.say(2, links(mbit));
    assert_eq!(story.run.state().phase, Phase::Preparing);
    story
}

fn decided(config: &RunConfig) -> (Redundancy, f64) {
    (config.sync.warmup_redundant, config.sync.early_share)
}

#[test]
fn over_a_slow_link_every_worker_computes_the_warmup_and_knows_that() {
    let mut story = measured(long_run(), 0.1, [profile(1e10), profile(1e10)]);
    let configs = [1, 2].map(|worker| welcomed(&story.told(worker)).pop().unwrap());
    assert_eq!(configs.each_ref().map(decided), [(Redundancy::Always, 0.0); 2]);
    assert!(reported(&story, "each worker computes the whole batch"));
    // A coordinator that is started again has decided the same.
    let again = Run::new(long_run(), story.run.state().clone(), story.now).unwrap();
    assert_eq!(decided(&again.core.config), (Redundancy::Always, 0.0));
    story.join_with(3, ROOMY);
    assert_eq!(welcomed(&story.told(3)), [configs[0].clone()], "nobody who comes later measures");
}

#[test]
fn a_long_warmup_over_a_fast_link_and_one_of_unlike_workers_is_exchanged() {
    let unlike =
        |gradient_hash| ToCoordinator::Profile(Profile { flops_per_s: 1e10, vocabulary: 256, gradient_hash });
    for (warmup, mbit, told, why) in [
        (400, 10_000.0, [profile(1e10), profile(1e10)], "to compute the whole batch would take"),
        (100, 0.1, [unlike(7), unlike(8)], "differ by rounding"),
        (100, 0.1, [unlike(0), unlike(0)], "differ by rounding"),
    ] {
        let story = measured(with_warmup(warmup), mbit, told);
        let config = welcomed(&story.told(2)).pop().unwrap();
        assert_eq!(decided(&config), (Redundancy::Never, 0.2), "{why}");
        assert!(reported(&story, why), "{why}");
    }
}

#[test]
fn within_one_site_nobody_measures() {
    let mut story = Story::of(long_run());
    for worker in [1, 2] {
        story.enter(worker, "here", |join| join.memory_bytes = ROOMY);
    }
    assert_eq!(story.run.state().phase, Phase::Preparing);
    assert_eq!(decided(&welcomed(&story.told(1))[0]).0, Redundancy::Never);
}

#[test]
fn a_worker_that_never_tells_its_speed_keeps_its_place() {
    let mut story = joined(long_run());
    story.say(1, profile(1e10));
    pass(&mut story, 299, &[1, 2]);
    assert_eq!(story.run.state().phase, Phase::Gathering);
    pass(&mut story, 2, &[1, 2]);
    assert_eq!(story.run.state().phase, Phase::Preparing);
    assert_eq!(decided(&story.run.core.config).0, Redundancy::Never);
    assert!(reported(&story, "has not reported its speed in time"));
}

#[test]
fn states_are_compared_at_the_end_of_a_warmup_that_all_compute() {
    let mut config = long_run();
    config.parallel.plan = PlanChoice::Fixed;
    let from = |redundancy| {
        let mut config = config.clone();
        config.sync.warmup_redundant = redundancy;
        Story::of(config).trained().run.status(0).cluster.parity_from
    };
    assert_eq!(from(Redundancy::Always), Some(99));
    assert_eq!(from(Redundancy::Never), None);
}
