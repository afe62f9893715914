//! Events on the way to a warm-up that every member computes, or to an exchanged one.

use longhaul_common::config::Redundancy;
use longhaul_proto::control::message::Profile;

use super::planning::{ROOMY, links, pass, profile, reported, welcomed};
use super::*;

/// Two workers with a model of about 0.4 million parameters, and a warm-up that is worth a measurement.
fn long_run() -> RunConfig {
    let run = RunToml::new("long").workers(2).steps(1500).batch(16).set("train.micro_batch", 2);
    let run = run.gpt2(Gpt2 { layers: 2, width: 128, heads: 2, context: 8 });
    parsed(&run.lines("sync", "preset = \"auto\""))
}

/// Both have joined at different sites, and know that no plan exists.
fn joined() -> Story {
    let mut story = Story::of(long_run());
    for worker in [1, 2] {
        story.join_with(worker, ROOMY);
    }
    assert!([1, 2].iter().all(|&worker| welcomed(&story.told(worker)).iter().all(RunConfig::is_plan_open)));
    story
}

/// Both have measured themselves and a link.
fn measured(mbit: f64, told: [ToCoordinator; 2]) -> Story {
    let mut story = joined();
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
    let mut story = measured(0.1, [profile(1e10), profile(1e10)]);
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
fn over_a_fast_link_or_between_unlike_workers_the_warmup_is_exchanged() {
    let unlike =
        |gradient_hash| ToCoordinator::Profile(Profile { flops_per_s: 1e10, vocabulary: 256, gradient_hash });
    for (mbit, told, why) in [
        (10_000.0, [profile(1e10), profile(1e10)], "to compute the whole batch would take"),
        (0.1, [unlike(7), unlike(8)], "differ by rounding"),
        (0.1, [unlike(0), unlike(0)], "differ by rounding"),
    ] {
        let story = measured(mbit, told);
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
    let mut story = joined();
    story.say(1, profile(1e10));
    pass(&mut story, 299, &[1, 2]);
    assert_eq!(story.run.state().phase, Phase::Gathering);
    pass(&mut story, 2, &[1, 2]);
    assert_eq!(story.run.state().phase, Phase::Preparing);
    assert_eq!(decided(&story.run.core.config).0, Redundancy::Never);
    assert!(reported(&story, "has not reported its speed in time"));
}
