//! Moves of model parts between workers.

use std::path::PathBuf;

use serde_json::Value;

use longhaul_tests::cluster::training;

use crate::faults::assert_exactly_once;
use crate::operate::identity_of;
use crate::scenario::{QUICK_LINK, RUN_MAX, Scenario, Setup, applied_rounds, at_once};

/// One replica on two workers, each with its own disk, and a third machine that may replace one of them.
fn one_copy() -> Setup<'static> {
    Setup {
        steps: 600,
        sites: vec![2, 1],
        link: QUICK_LINK,
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

/// Kills the worker and deletes its disk.
pub(super) fn lose_for_good(scenario: &mut Scenario, worker: usize) {
    scenario.cluster.kill_worker(worker);
    let disk: PathBuf = scenario.cluster.folder().join(format!("checkpoints-{worker}"));
    std::fs::remove_dir_all(disk).unwrap();
}

pub(super) fn events_of(status: &Value) -> String {
    status["events"].to_string()
}

/// The lost worker's part is on the other one's disk, from which the newcomer fetches it.
#[test]
fn a_part_whose_only_worker_is_lost_goes_on_with_another_one_from_the_copy_of_its_checkpoint() {
    at_once(vec![1, 0], |lost| {
        let mut scenario = start_two(one_copy());
        scenario.wait_for_round(45);
        lose_for_good(&mut scenario, lost);
        scenario.cluster.start_worker(2).unwrap();
        let goes_on = |status: &Value| training(status) == 2 && events_of(status).contains("fetch them");
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
    });
}

/// Gradients of all parameters are exchanged, so replicas cannot join others that train. Two machines with
/// memory for half of the model each are joined by two more.
#[test]
#[ignore = "nightly: covered by machines_that_have_joined_are_made_use_of, a_checkpoint_of_other_parts_is_cut_anew_by_all"]
fn machines_that_join_make_the_coordinator_plan_anew_and_the_state_moves_to_them() {
    let mut scenario = start_two(Setup {
        steps: 20_000,
        sites: vec![4],
        width: 64,
        worker_arguments: &["--memory-gib", "0.0079"],
        parallel: "replan_after_s = 3",
        sync: "preset = \"dense\"\nfragment_values = 8192",
        checkpoint: "every_rounds = 50",
        alone: true,
        ..one_copy()
    });
    let before = scenario.wait_for_round(20);
    assert_eq!((before["parts"].as_u64(), training(&before)), (Some(2), 2));
    (2..4).for_each(|worker| scenario.cluster.start_worker(worker).unwrap());
    let moved = |status: &Value| training(status) == 4 && events_of(status).contains("the plan changes");
    let status = scenario.cluster.wait_for("the run to move", RUN_MAX, moved).unwrap();
    let (events, round) = (events_of(&status), applied_rounds(&status));
    assert!(events.contains("the plan changes: 2 × 2") && events.contains("a step, 1 × 2"), "{events}");
    assert!(status["plan"].as_str().unwrap().starts_with("the plan: 2 × 2"), "{status:#}");
    let status = scenario.wait_for_round(round + 20);
    assert_exactly_once(&status);
    assert_eq!(status["parity"]["equal"], true, "{status:#}");
    let loss = |status: &Value| status["loss"].as_f64().unwrap();
    assert!(loss(&status) < loss(&before), "{} after {}", loss(&status), loss(&before));
    for worker in 2..4 {
        let log = scenario.cluster.worker(worker).unwrap().log();
        assert!(log.contains("a checkpoint's part is here") && !log.contains("no moments"), "{log}");
    }
    let shown = scenario.told(&["status"]);
    assert!(shown.contains("plan       2 × 2"), "{shown}");
}

/// Across a slow link the model is divided, as gradients are large and activations small. One worker is lost
/// permanently without replacement, and the other has memory for the whole model.
#[test]
#[ignore = "nightly: covered by who_is_left_with_a_part_takes_the_whole_model_where_it_has_room, a_model_in_parts_goes_on_in_other_parts_with_its_moments"]
fn who_is_left_goes_on_with_the_whole_model_out_of_the_parts() {
    let mut scenario = Setup {
        steps: 150,
        sites: vec![1, 1],
        parallel: "replan_after_s = 3",
        sync: "preset = \"dense\"\nfragment_values = 8192",
        link: "rate_mbit=2,delay_ms=5",
        checkpoint: "every_rounds = 20\nkeep = 3",
        alone: true,
        ..one_copy()
    }
    .start();
    let status = scenario.wait_for_round(70);
    assert_eq!(status["parts"].as_u64(), Some(2), "{status:#}");
    lose_for_good(&mut scenario, 1);
    let status = scenario.finish();
    assert_exactly_once(&status);
    let events = events_of(&status);
    assert!(events.contains("does not work on the available machines"), "{events}");
    assert!(!events.contains("starts from the beginning"), "{events}");
    assert_eq!(status["parts"].as_u64(), Some(1));
    assert!(!scenario.cluster.worker(0).unwrap().log().contains("no moments"));
}

/// No checkpoint exists yet when the worker is asked to leave, by an operator or by a signal.
#[test]
#[ignore = "nightly: covered by the_only_holder_of_a_part_goes_when_another_has_a_copy_and_a_spare_takes_its_place, a_part_goes_from_disk_to_disk_with_the_private_state_of_who_wrote_it"]
fn who_alone_has_a_part_hands_it_over_before_it_goes() {
    for drained in [true, false] {
        let mut scenario = start_two(Setup { checkpoint: "every_rounds = 0", ..one_copy() });
        let round = applied_rounds(&scenario.wait_for_round(20));
        scenario.cluster.start_worker(2).unwrap();
        let here = |status: &Value| status["members"].as_array().is_some_and(|members| members.len() == 3);
        scenario.cluster.wait_for("the third to come", RUN_MAX, here).unwrap();
        if drained {
            let name = identity_of(&scenario, 1).worker().to_string();
            let told = scenario.told(&["drain", &name]);
            assert!(told.contains(&name), "{told}");
        } else {
            scenario.cluster.worker(1).unwrap().signal("TERM").unwrap();
        }
        let leaving = scenario.cluster.worker(1).unwrap();
        assert!(leaving.wait(RUN_MAX).unwrap().success(), "{}", leaving.log());
        assert!(leaving.log().contains("is needed until its state is on a disk"), "{}", leaving.log());

        let goes_on = |status: &Value| {
            training(status) == 2 && events_of(status).contains("goes on from the checkpoint before")
        };
        let status = scenario.cluster.wait_for("the third to take the part", RUN_MAX, goes_on).unwrap();
        scenario.wait_for_round(applied_rounds(&status) + 5);
        scenario.told(&["stop", "--wait"]);
        let status = scenario.cluster.wait_until_finished(RUN_MAX).unwrap();
        assert_exactly_once(&status);
        let events = events_of(&status);
        assert!(events.contains("no other worker has its part of the model"), "{events}");
        assert!(!events.contains("starts from the beginning"), "{events}");
        assert!(applied_rounds(&status) > round, "{status:#}");
    }
}

/// Two machines have a model in two parts; one is then slowed to a third, and gives blocks away.
#[test]
#[ignore = "nightly: covered by a_machine_that_becomes_slow_gets_a_smaller_part_of_the_model"]
fn a_machine_that_becomes_slow_gets_a_smaller_part() {
    let mut scenario = Setup {
        steps: 100_000,
        layers: 6,
        width: 256,
        batch: 64,
        micro_batch: 16,
        learning_rate: 1e-3,
        parallel: "replan_after_s = 5",
        sync: "preset = \"dense\"\nfragment_values = 8192",
        link: QUICK_LINK,
        sites: vec![1, 1],
        checkpoint: "every_rounds = 1000",
        silent_after_ms: 60_000,
        alone: true,
        ..one_copy()
    }
    .start();
    let status = scenario.wait_for_round(3);
    assert_eq!(status["parts"].as_u64(), Some(2), "{status:#}");
    let is_known = |status: &Value| {
        let members = status["members"].as_array();
        members.is_some_and(|members| members.iter().all(|member| member["speed"].is_number()))
    };
    scenario.cluster.wait_for("it to be known how fast they are", RUN_MAX, is_known).unwrap();
    let slowed = scenario.cluster.worker(1).unwrap().slow_down();
    let moved = |status: &Value| events_of(status).contains("the plan changes") && training(status) == 2;
    let status = scenario.cluster.wait_for("the plan to change", RUN_MAX, moved).unwrap();
    let events = events_of(&status);
    assert!(events.contains("times as fast as when the plan was made"), "{events}");
    let round = applied_rounds(&status);
    scenario.wait_for_round(round + 3);
    drop(slowed);
    scenario.told(&["stop", "--wait"]);
    let status = scenario.cluster.wait_until_finished(RUN_MAX).unwrap();
    assert_exactly_once(&status);
}
