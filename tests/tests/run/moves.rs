//! Parts of the model that go from those who have them to those who are to have them.

use std::path::PathBuf;

use serde_json::Value;

use crate::faults::{assert_exactly_once, live_members};
use crate::scenario::{RUN_MAX, Scenario, Setup, applied_rounds};

/// One copy of the model on two workers, each with a disk of its own, and a third machine that may take the place of one of them.
fn one_copy() -> Setup<'static> {
    Setup {
        steps: 1200,
        sites: vec![2, 1],
        workers: Some(2),
        parallel: "stages = 2",
        own_checkpoints: true,
        checkpoint: "every_rounds = 10",
        ..Setup::default()
    }
}

fn start_two(setup: Setup<'static>) -> Scenario {
    let mut scenario = setup.start_coordinator();
    (0..2).for_each(|worker| scenario.cluster.start_worker(worker).unwrap());
    scenario
}

/// The worker is killed, and its disk is gone with it.
fn lose_for_good(scenario: &mut Scenario, worker: usize) {
    scenario.cluster.kill_worker(worker);
    let disk: PathBuf = scenario.cluster.folder().join(format!("checkpoints-{worker}"));
    std::fs::remove_dir_all(disk).unwrap();
}

fn events_of(status: &Value) -> String {
    status["events"].to_string()
}

/// The part of the worker that is lost is on the disk of the other one: the newcomer fetches it from there.
#[test]
fn a_part_whose_only_worker_is_lost_goes_on_with_another_one_from_the_copy_of_its_checkpoint() {
    for lost in [1, 0] {
        let mut scenario = start_two(one_copy());
        scenario.wait_for_round(45);
        lose_for_good(&mut scenario, lost);
        scenario.cluster.start_worker(2).unwrap();
        let goes_on =
            |status: &Value| live_members(status) == 2 && events_of(status).contains("fetches them");
        let status = scenario.cluster.wait_for("the newcomer to take the part", RUN_MAX, goes_on).unwrap();
        assert!(applied_rounds(&status) >= 20, "{status:#}");
        let status = scenario.finish();
        assert_exactly_once(&status);
        let events = events_of(&status);
        assert!(!events.contains("starts from the beginning"), "{events}");
        let loss = status["validation_loss"].as_f64().unwrap();
        assert!(loss < 3.4, "the loss is {loss}");
        let log = scenario.cluster.worker(2).unwrap().log();
        assert!(log.contains("a checkpoint's part is here") && !log.contains("no moments"), "{log}");
    }
}
