//! Reduction among the members of one site before data leaves it.

use std::fs;

use longhaul_tests::cluster;

use crate::scenario::{Scenario, Setup};

/// The worker's message about the first completed ring.
const REDUCED: &str = "the first reduction with the members of this site is done";

/// Its message about a round partly reduced and sent while the rest was computed.
const IN_PARTS: &str = "the first round that this site reduced in parts is done";

/// Whether each worker's log contains these words.
fn said(scenario: &Scenario, words: &str, workers: usize) -> Vec<bool> {
    let log = |worker: usize| scenario.cluster.folder().join(format!("worker-{worker}.log"));
    (0..workers).map(|worker| fs::read_to_string(log(worker)).unwrap().contains(words)).collect()
}

#[test]
fn members_of_a_site_reduce_over_a_ring_and_replicas_stay_equal() {
    let mut scenario = Setup { sites: vec![3, 1], ..Setup::default() }.start();
    let loss = scenario.finish()["loss"].as_f64().unwrap();
    assert!(loss < 4.0, "the loss is {loss}");
    // The last one is alone at its site.
    assert_eq!(said(&scenario, REDUCED, 4), [true, true, true, false], "{}", scenario.cluster.logs());
}

#[test]
#[ignore = "nightly: covered by fragments_of_a_site_of_two_leave_before_the_rest_is_computed"]
fn gradients_leave_a_site_of_several_while_they_are_computed() {
    // On a GPU they leave at the end of the step.
    if cluster::device() != "cpu" {
        return;
    }
    let sync = "preset = \"dense\"\nfragment_values = 4096";
    let mut scenario = Setup { steps: 100, sites: vec![2, 2], sync, ..Setup::default() }.start();
    let loss = scenario.finish()["loss"].as_f64().unwrap();
    assert!(loss < 4.0, "the loss is {loss}");
    assert_eq!(said(&scenario, IN_PARTS, 4), [true; 4], "{}", scenario.cluster.logs());
}

#[test]
#[ignore = "nightly: covered by a_run_that_sends_columns_of_gradients_sends_less_and_keeps_replicas_equal"]
fn members_of_a_site_that_are_told_to_send_directly_have_no_ring() {
    let sync = "preset = \"sparse-local\"\nwarmup_share = 0.0\nevery = 4\noverlap = 1\nkeep = 256\nfragment_values = 16384\nwithin_site = \"direct\"";
    let mut scenario = Setup { sync, ..Setup::default() }.start();
    let loss = scenario.finish()["loss"].as_f64().unwrap();
    assert!(loss < 4.0, "the loss is {loss}");
    assert_eq!(said(&scenario, REDUCED, 4), [false; 4]);
}
