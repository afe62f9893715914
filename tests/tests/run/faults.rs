//! Processes that die, freeze, and return.

use std::process::Command;

use longhaul_tests::chaos::exactly_once;
use longhaul_tests::cluster::training;
use serde_json::Value;

use crate::scenario::{RUN_MAX, SLOW_LINK, Setup, applied_rounds};

/// Half a minute or more, most of which its workers wait.
fn long() -> Setup<'static> {
    Setup { steps: 600, link: SLOW_LINK, checkpoint: "every_rounds = 20", ..Setup::default() }
}

#[test]
fn survival_and_exactly_once_hold_when_a_worker_is_killed_and_comes_back() {
    survives_a_death_and_a_return(long());
}

/// Factors of all matrices, moments and parameters go to the joiner, possibly between the two exchanges of a
/// step.
#[test]
#[ignore = "nightly: covered by powersgd_follows_the_reference, a_joiner_goes_on_from_what_the_others_hold"]
fn low_rank_gradients_survive_a_death_and_a_return() {
    let sync = "preset = \"powersgd\"\nwarmup_share = 0\nfragment_values = 16384";
    survives_a_death_and_a_return(Setup { steps: 250, sync, ..Setup::default() });
}

/// Some fragments are due and others are not, and the outer momentum must be equal everywhere.
#[test]
#[ignore = "nightly: covered by streaming_diloco_follows_the_reference, any_mixture_of_faults_is_survived"]
fn streaming_with_momentum_survives_a_death_and_a_return() {
    let sync = "preset = \"streaming-diloco\"\nevery = 3\ngroups = 3\nfragment_values = 8192";
    survives_a_death_and_a_return(Setup { steps: 2500, sync, ..Setup::default() });
}

/// Owners change, and the residuals of their means with them.
#[test]
#[ignore = "nightly: covered by cocktail_follows_the_reference, any_mixture_of_faults_is_survived"]
fn two_way_compression_survives_a_death_and_a_return() {
    let sync = "preset = \"cocktail\"\nfragment_values = 8192";
    survives_a_death_and_a_return(Setup { steps: 500, sync, ..Setup::default() });
}

/// Residuals of columns stay with their worker, and a joiner has none.
#[test]
#[ignore = "nightly: covered by a_run_that_sends_columns_of_gradients_sends_less_and_keeps_replicas_equal, a_dense_joiner_replays_what_it_missed_and_says_which_rounds_went_on_without_it"]
fn columns_of_gradients_survive_a_death_and_a_return() {
    let sync = "preset = \"dense\"\nselection = \"columns\"\nresult = \"bundle\"\nwithin_site = \"direct\"\nvalues = \"int4\"\nerror_decay = 1.0\nfragment_values = 8192";
    survives_a_death_and_a_return(Setup { steps: 250, sync, sparse: Some("keep = 0.1"), ..Setup::default() });
}

/// A death and a return among members that make common steps.
#[test]
#[ignore = "nightly: covered by a_settlement_amid_a_streamed_step_of_a_mixed_warmup_loses_nothing, a_dense_joiner_replays_what_it_missed_and_says_which_rounds_went_on_without_it"]
fn a_warmup_of_common_steps_survives_a_death_and_a_return() {
    let sync = "warmup_rounds = 150\nevery_max = 1\nfragment_values = 8192";
    survives_a_death_and_a_return(Setup { steps: 250, sync, ..Setup::default() });
}

/// The same after it: the returning worker needs the frozen second moment.
#[test]
#[ignore = "nightly: covered by auto_follows_the_reference, moments_that_are_another_workers_alone_or_nowhere_start_from_zero"]
fn local_steps_under_a_frozen_moment_survive_a_death_and_a_return() {
    let sync = "warmup_rounds = 20\nwarmup_share = 0\nevery_max = 1\nfragment_values = 8192";
    let setup = Setup { steps: 600, sync, ..Setup::default() };
    survives_a_death_in(setup, 40);
}

/// All are killed while a mean is in flight: the step that waits for it is made again.
#[test]
#[ignore = "nightly: covered by dense_with_look_ahead_follows_the_reference, what_is_saved_is_what_comes_back"]
fn gradients_that_are_a_step_late_go_on_from_a_checkpoint() {
    let sync = "preset = \"dense\"\noverlap = 1\nlook_ahead = true\nfragment_values = 16384";
    let setup =
        Setup { steps: 150, sites: vec![1, 1], sync, checkpoint: "every_rounds = 20", ..Setup::default() };
    let mut scenario = setup.start();
    scenario.wait_for_round(50);
    scenario.cluster.kill_coordinator();
    (0..2).for_each(|worker| scenario.cluster.kill_worker(worker));
    scenario.cluster.start_coordinator().unwrap();
    (0..2).for_each(|worker| scenario.cluster.start_worker(worker).unwrap());
    let status = scenario.finish();
    assert_exactly_once(&status);
    let loss = status["loss"].as_f64().unwrap();
    assert!(loss < 3.4, "the loss is {loss}");
}

fn survives_a_death_and_a_return(setup: Setup<'_>) {
    survives_a_death_in(setup, 3);
}

fn survives_a_death_in(setup: Setup<'_>, round: u64) {
    let mut scenario = setup.start();
    scenario.wait_for_round(round);
    scenario.cluster.kill_worker(1);
    let without = scenario
        .cluster
        .wait_for("the run to go on with three", RUN_MAX, |status| {
            training(status) == 3 && applied_rounds(status) >= round + 3
        })
        .unwrap();
    let reached = applied_rounds(&without);
    scenario.cluster.start_worker(1).unwrap();
    scenario
        .cluster
        .wait_for("the run to go on with four", RUN_MAX, |status| {
            training(status) == 4 && applied_rounds(status) > reached
        })
        .unwrap();
    let status = scenario.finish();
    assert_exactly_once(&status);
}

#[test]
fn survival_of_a_coordinator_restart_stops_nobody_and_loses_no_round() {
    let mut scenario = long().start();
    scenario.wait_for_round(3);
    scenario.cluster.kill_coordinator();
    scenario.cluster.start_coordinator().unwrap();
    let back = scenario.cluster.wait_for("all workers to be back", RUN_MAX, |s| training(s) == 4).unwrap();
    let generation = back["generation"].as_u64().unwrap();
    let status = scenario.finish();
    assert_eq!(status["generation"].as_u64().unwrap(), generation, "nobody had left: {status:#}");
    // The grace is shorter than QUIC's idle timeout: the new process has reset their connections.
    assert!(!status["events"].to_string().contains("did not come back in time"), "{status:#}");
    assert_exactly_once(&status);
}

/// Two of three sites have no route between them; the coordinator reaches all.
#[test]
fn survival_two_sites_that_cannot_reach_each_other_do_not_hold_the_others_up() {
    let setup = Setup { sites: vec![1, 1, 1], batch: 12, ..long() };
    let mut scenario = setup.start();
    scenario.wait_for_round(3);
    scenario.cluster.wan().part(Some((1, 2)));
    let without = scenario
        .cluster
        .wait_for("one of the two to be left out", RUN_MAX, |status| training(status) == 2)
        .unwrap();
    assert!(without["events"].to_string().contains("cannot reach each other"), "{without:#}");
    scenario.wait_for_round(applied_rounds(&without) + 20);
    scenario.cluster.wan().part(None);
    scenario.cluster.wait_for("all to train again", RUN_MAX, |status| training(status) == 3).unwrap();
    assert_exactly_once(&scenario.finish());
}

#[test]
fn survival_a_frozen_worker_is_taken_out_and_heals_when_it_thaws() {
    let mut scenario = long().start();
    scenario.wait_for_round(3);
    scenario.cluster.worker(2).unwrap().signal("STOP").unwrap();
    scenario.cluster.wait_for("the frozen worker to be taken out", RUN_MAX, |s| training(s) == 3).unwrap();
    scenario.cluster.worker(2).unwrap().signal("CONT").unwrap();
    scenario.cluster.wait_for("the thawed worker to be back", RUN_MAX, |s| training(s) == 4).unwrap();
    scenario.finish();
}

#[test]
#[ignore = "nightly: covered by a_worker_on_a_terminal_shows_how_far_it_is_and_ctrl_c_has_it_leave_in_order"]
fn a_worker_that_is_asked_to_stop_leaves_and_the_others_go_on() {
    let mut scenario = long().start();
    scenario.wait_for_round(3);
    scenario.cluster.worker(3).unwrap().signal("INT").unwrap();
    let ended = scenario.cluster.worker(3).unwrap().wait(RUN_MAX).unwrap();
    assert!(ended.success(), "{ended}: {}", scenario.cluster.logs());
    scenario.cluster.wait_for("the run to go on with three", RUN_MAX, |s| training(s) == 3).unwrap();
    scenario.finish();
}

#[test]
fn a_drained_run_writes_a_checkpoint_and_releases_everybody() {
    let mut scenario = Setup { steps: 100_000, ..Setup::default() }.start();
    scenario.wait_for_round(2);
    let folder = scenario.cluster.folder().to_owned();
    let mut stop = longhaul_tests::cluster::Process::start_as("coordinator", "stop", &folder, |command| {
        command.args(["stop", "--wait", "--state-dir", "state"]);
    })
    .unwrap();
    assert!(stop.wait(RUN_MAX).unwrap().success(), "{}", stop.log_tail());
    for worker in 0..4 {
        assert!(scenario.cluster.worker(worker).unwrap().wait(RUN_MAX).unwrap().success());
    }
    let runs: Vec<_> = std::fs::read_dir(folder.join("checkpoints")).unwrap().collect();
    assert!(!runs.is_empty());
}

/// A folder that cannot be created costs only the checkpoint, and the status reports it.
#[test]
fn a_checkpoint_that_cannot_be_written_is_reported_and_training_goes_on() {
    let checkpoint = "every_rounds = 2\ndir = \"run.toml/checkpoints\"";
    let mut scenario = Setup { steps: 400, checkpoint, ..Setup::default() }.start();
    let status = scenario.finish();
    let problems = status["checkpoints"].to_string();
    assert!(problems.contains("run.toml/checkpoints"), "{status:#}");
}

/// Checks the run's accounting: of all positions up to the last applied one, each counts once, except those
/// of a departed member that await reassignment.
pub fn assert_exactly_once(status: &Value) {
    exactly_once(status).unwrap_or_else(|violation| panic!("{violation}\n{status:#}"));
    assert!(status["ledger"]["given_out"].as_u64() > Some(0), "nothing was trained on: {status:#}");
}

mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(applied: u64, duplicates: u64) -> Value {
        json!({ "ledger": { "positions_applied": applied, "duplicates": duplicates, "pending": 4, "given_out": 100, "waiting": 4 } })
    }

    #[test]
    fn a_run_whose_positions_count_or_are_given_out_again_is_right() {
        assert_exactly_once(&status(96, 0));
    }

    #[test]
    #[should_panic(expected = "of 100 assigned positions 95 count, and 4 await reassignment")]
    fn a_position_that_is_missing_is_found() {
        assert_exactly_once(&status(95, 0));
    }

    #[test]
    #[should_panic(expected = "1 positions count twice")]
    fn a_position_that_counts_twice_is_found() {
        assert_exactly_once(&status(96, 1));
    }

    #[test]
    #[should_panic(expected = "nothing was trained on")]
    fn a_status_without_books_is_none() {
        assert_exactly_once(&json!({}));
    }
}

/// As after cloning a machine, or copying a home folder.
#[test]
fn two_processes_with_one_identity_become_two_workers_and_train() {
    let setup = Setup { sites: vec![2, 1], workers: Some(2), ..long() };
    let mut scenario = setup.start_coordinator();
    let cluster = &mut scenario.cluster;
    for worker in [0, 2] {
        cluster.start_worker(worker).unwrap();
    }
    let before = cluster.wait_for("both to train", RUN_MAX, |status| training(status) == 2).unwrap();
    let copied = Command::new("cp").args(["-r", "cache-0", "cache-1"]).current_dir(cluster.folder()).status();
    assert!(copied.unwrap().success());
    cluster.start_worker(1).unwrap();
    let three = cluster.wait_for("all to train", RUN_MAX, |status| training(status) == 3).unwrap();
    let generation = |status: &Value| status["generation"].as_u64().unwrap();
    // The copy and the other yield to each other, and one joins as another worker.
    assert!(generation(&three) <= generation(&before) + 4, "{three:#}");
    let round = applied_rounds(&three);
    let later =
        cluster.wait_for("rounds of all", RUN_MAX, |status| applied_rounds(status) > round + 5).unwrap();
    assert_eq!((generation(&later), training(&later)), (generation(&three), 3), "{later:#}");
    assert!(cluster.whole_logs().unwrap().contains("another process has the identity in"));
}
