//! What the members of one site do together before anything leaves it.

use std::fs;

use crate::scenario::{Scenario, Setup};

/// The worker's word for a ring that carried something.
const REDUCED: &str = "the first reduction with the members of this site is done";

/// Whether each worker's log has [`REDUCED`].
fn reduced_together(scenario: &Scenario) -> Vec<bool> {
    let log = |worker: usize| scenario.cluster.folder().join(format!("worker-{worker}.log"));
    (0..4).map(|worker| fs::read_to_string(log(worker)).unwrap().contains(REDUCED)).collect()
}

#[test]
fn members_of_a_site_reduce_over_a_ring_and_replicas_stay_equal() {
    let mut scenario = Setup { sites: vec![3, 1], ..Setup::default() }.start();
    let loss = scenario.finish()["loss"].as_f64().unwrap();
    assert!(loss < 4.0, "the loss is {loss}");
    // The last one is alone at its site.
    assert_eq!(reduced_together(&scenario), [true, true, true, false], "{}", scenario.cluster.logs());
}

#[test]
fn members_of_a_site_that_are_told_to_send_directly_have_no_ring() {
    let sync = "preset = \"sparse-local\"\nopening_share = 0.0\nevery = 4\noverlap = 1\nkeep = 256\nfragment_values = 16384\nwithin_site = \"direct\"";
    let mut scenario = Setup { sync, ..Setup::default() }.start();
    let loss = scenario.finish()["loss"].as_f64().unwrap();
    assert!(loss < 4.0, "the loss is {loss}");
    assert_eq!(reduced_together(&scenario), [false; 4]);
}
