//! Renewal of certificates during training.

use std::path::Path;

use longhaul_proto::identity::Identity;
use longhaul_tests::chaos::{Pace, run_toml};
use longhaul_tests::cluster::{Cluster, ClusterConfig, Process, training};

use crate::scenario::{RUN_MAX, applied_rounds};
use crate::turns::take_turn;

/// More than half the life of a certificate, and less than all of it.
const AHEAD_S: i64 = 13 * 3600;

/// Returns the first worker's number and certificate.
fn identity(folder: &Path) -> (u32, Vec<u8>) {
    let runs: Vec<_> = std::fs::read_dir(folder.join("cache-0/workers")).unwrap().collect();
    let [run] = runs.as_slice() else { panic!("{runs:?}") };
    let identity = Identity::load(&run.as_ref().unwrap().path().join("0")).unwrap().unwrap();
    (identity.worker().0, identity.certificate().to_vec())
}

/// A worker at each of two sites. All have their own calendars.
fn two_sites(folder: &Path) -> ClusterConfig {
    ClusterConfig {
        run_toml: run_toml(2, Pace::default()).to_string(),
        sites: vec![1, 1],
        link: "rate_mbit=50,delay_ms=10".parse().unwrap(),
        seed: 1,
        folder: folder.to_owned(),
        threads: 1,
        own_checkpoints: true,
        worker_arguments: Vec::new(),
        own_calendars: true,
    }
}

/// Longer than certificates and join tokens live.
const SLEPT_S: i64 = 30 * 3600;

/// After a sleep the machine's calendar has advanced, while its coordinator was not restarted.
#[test]
fn a_coordinator_whose_machine_has_slept_lets_workers_in_with_a_new_token() {
    let _turn = take_turn();
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_coordinator_only(two_sites(folder.path())).unwrap();
    cluster.set_head_calendar(SLEPT_S).unwrap();
    (0..2).for_each(|worker| cluster.set_calendar(worker, SLEPT_S).unwrap());
    let head = cluster.coordinator().unwrap();
    head.wait_for_words("clock has moved forward by 30.0 h", RUN_MAX).unwrap();

    let create = |command: &mut std::process::Command| {
        command.args(["token", "create", "--state-dir", "state"]);
    };
    let mut created = Process::start_as("coordinator", "token", folder.path(), create).unwrap();
    assert!(created.wait(RUN_MAX).unwrap().success(), "{}", created.log_tail());
    std::fs::write(folder.path().join("join.txt"), created.log()).unwrap();
    (0..2).for_each(|worker| cluster.start_worker(worker).unwrap());
    let status = cluster.wait_for("both to train", RUN_MAX, |status| training(status) == 2).unwrap();
    let joined = status["events"]
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["text"].as_str().unwrap().contains("joined"));
    let at_s = joined.unwrap()["at_unix_ms"].as_i64().unwrap() / 1000;
    let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    assert!((at_s - now_s - SLEPT_S).abs() < 600, "an event has the time of the calendar: {at_s}, {now_s}");
}

#[test]
fn a_certificate_past_half_its_life_is_renewed_and_its_worker_goes_on_with_the_new_one() {
    let _turn = take_turn();
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(two_sites(folder.path())).unwrap();
    let all = cluster.wait_for("both to train", RUN_MAX, |status| training(status) == 2).unwrap();
    let before = identity(folder.path());
    cluster.set_calendar(0, AHEAD_S).unwrap();
    // It checks its certificate on each new connection to a coordinator, and every ten minutes.
    cluster.kill_coordinator();
    cluster.start_coordinator().unwrap();
    let renewed = |folder: &Path| {
        let (worker, certificate) = identity(folder);
        worker == before.0 && certificate != before.1
    };
    let back = cluster
        .wait_for("a new certificate", RUN_MAX, |status| training(status) == 2 && renewed(folder.path()))
        .unwrap();
    assert_eq!(back["generation"], all["generation"], "nobody was given up");
    // A new worker is dialled with it, and sees it.
    cluster.kill_worker(1);
    cluster.start_worker(1).unwrap();
    let again =
        |status: &serde_json::Value| training(status) == 2 && status["generation"] != all["generation"];
    let again = cluster.wait_for("the other one to be back", RUN_MAX, again).unwrap();
    let round = applied_rounds(&again);
    cluster.wait_for("rounds of both", RUN_MAX, |status| applied_rounds(status) > round + 3).unwrap();
    assert_eq!(cluster.status()["parity"]["equal"], true);
}
