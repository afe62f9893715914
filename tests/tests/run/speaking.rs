//! Workers that report signs of life for others of their site.

use longhaul_tests::cluster::training;
use serde_json::Value;

use crate::faults::assert_exactly_once;
use crate::operate::{identity_of, replay_all};
use crate::scenario::{RUN_MAX, Scenario, Setup, applied_rounds};

/// A worker's message when another one first reports for it.
const SPOKEN_FOR: &str = "another worker of this site says that this one is alive";

/// One site of one worker, and one of three, with indices 1 to 3.
fn three_together() -> Scenario {
    Setup { steps: 100_000, sites: vec![1, 3], checkpoint: "every_rounds = 1000", ..Setup::default() }.start()
}

/// Returns the indices of the three, by their numbers: the first one reports for the others.
fn by_number(scenario: &Scenario) -> [usize; 3] {
    let mut places = [1, 2, 3];
    places.sort_by_key(|place| identity_of(scenario, *place).worker());
    places
}

/// Waits until a worker has logged this many times that another one reports for it.
fn wait_until_spoken_for(scenario: &mut Scenario, place: usize, times: usize) {
    let log = scenario.cluster.folder().join(format!("worker-{place}.log"));
    let has_said =
        |_: &Value| std::fs::read_to_string(&log).is_ok_and(|log| log.matches(SPOKEN_FOR).count() >= times);
    scenario.cluster.wait_for("a worker to be spoken for", RUN_MAX, has_said).unwrap();
}

/// Returns the workers removed for silence.
fn silent(status: &Value) -> Vec<String> {
    let events = status["events"].as_array().unwrap().iter();
    let of_silence = events.filter(|event| event["text"].as_str().unwrap().contains("is gone: silent for"));
    of_silence.map(|event| event["worker"].as_str().unwrap().to_owned()).collect()
}

/// All train, one reports for two others, and stops: it alone is removed, and another one takes over.
fn loses_its_speaker(scenario: &mut Scenario, stop: impl FnOnce(&mut Scenario, usize)) -> (usize, Value) {
    scenario.wait_for_round(3);
    let [first, second, third] = by_number(scenario);
    let [speaker, next] = [first, second].map(|place| identity_of(scenario, place).worker().to_string());
    for place in [second, third] {
        wait_until_spoken_for(scenario, place, 1);
    }
    stop(scenario, first);
    scenario
        .cluster
        .wait_for("the speaker to be taken out", RUN_MAX, |status| training(status) == 3)
        .unwrap();
    wait_until_spoken_for(scenario, third, 2);
    let log = std::fs::read_to_string(scenario.cluster.folder().join(format!("worker-{third}.log"))).unwrap();
    let last = log.lines().rfind(|line| line.contains(SPOKEN_FOR)).unwrap();
    assert!(last.contains(&next), "{next} is the next one, not {last}");
    let status = scenario.cluster.status();
    assert!(silent(&status).iter().all(|worker| *worker == speaker), "{status:#}");
    assert_eq!(training(&status), 3, "{status:#}");
    (first, status)
}

#[test]
fn survival_a_frozen_worker_that_speaks_for_its_site_takes_nobody_with_it() {
    let mut scenario = three_together();
    let freeze =
        |scenario: &mut Scenario, place| scenario.cluster.worker(place).unwrap().signal("STOP").unwrap();
    let (speaker, without) = loses_its_speaker(&mut scenario, freeze);
    scenario.cluster.worker(speaker).unwrap().signal("CONT").unwrap();
    let back = |status: &Value| training(status) == 4 && applied_rounds(status) > applied_rounds(&without);
    scenario.cluster.wait_for("the thawed worker to be back", RUN_MAX, back).unwrap();
    assert_exactly_once(&scenario.cluster.status());
    replay_all(&scenario);
}

#[test]
#[ignore = "nightly: covered by survival_a_frozen_worker_that_speaks_for_its_site_takes_nobody_with_it, a_speaker_that_falls_silent_takes_nobody_with_it"]
fn survival_a_killed_worker_that_speaks_for_its_site_takes_nobody_with_it() {
    let mut scenario = three_together();
    let kill = |scenario: &mut Scenario, place| scenario.cluster.kill_worker(place);
    let (_, without) = loses_its_speaker(&mut scenario, kill);
    let goes_on =
        |status: &Value| training(status) == 3 && applied_rounds(status) > applied_rounds(&without) + 10;
    scenario.cluster.wait_for("the others to go on", RUN_MAX, goes_on).unwrap();
}
