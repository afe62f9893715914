//! Runs that begin from a checkpoint of another one.

use std::path::Path;
use std::process::Command;

use longhaul_tests::cluster::{Cluster, ClusterConfig, binary};
use serde_json::Value;
use tempfile::TempDir;

use crate::scenario::{QUICK_LINK, RUN_MAX, Setup, cluster_config};
use crate::turns::{Turn, take_turn};

fn dense() -> Setup<'static> {
    let sync = "preset = \"dense\"\ndeadline_floor_ms = 240000\ndeadline_ceiling_ms = 240000";
    let checkpoint = "every_rounds = 6\nkeep = 9";
    Setup { steps: 24, link: QUICK_LINK, sync, checkpoint, ..Setup::reproducible() }
}

fn finished(cluster: &mut Cluster) -> Value {
    let status = cluster.wait_until_finished(RUN_MAX).unwrap();
    assert_eq!(status["parity"]["equal"], true, "{status:#}");
    status
}

/// Runs `coordinator fork` in the folder of a run that is over; returns its success and what it says.
fn fork(from: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(binary("coordinator").unwrap());
    command.args(["fork", "state", "forked", "--dir", "checkpoints"]).args(arguments).current_dir(from);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// A fork in its own folder. One worker has the checkpoint, and others take the moments from it.
struct Forked {
    cluster: Cluster,
    _folder: TempDir,
    _turn: Turn<'static>,
}

fn start_fork(from: &Path, run_toml: String) -> Forked {
    let folder = tempfile::tempdir().unwrap();
    for (old, new) in [("forked", "state"), ("checkpoints", "checkpoints-0")] {
        std::fs::rename(from.join(old), folder.path().join(new)).unwrap();
    }
    let turn = take_turn();
    let config = cluster_config(folder.path(), run_toml, vec![1, 1], QUICK_LINK);
    let cluster = Cluster::start(ClusterConfig { own_checkpoints: true, ..config }).unwrap();
    Forked { cluster, _folder: folder, _turn: turn }
}

/// The state folder of a run that is over, and its last status.
fn trained() -> (TempDir, Value) {
    let folder = tempfile::tempdir().unwrap();
    let _turn = take_turn();
    let run_toml = dense().run_toml().to_string();
    let mut cluster =
        Cluster::start(cluster_config(folder.path(), run_toml, vec![1, 1], QUICK_LINK)).unwrap();
    let status = finished(&mut cluster);
    (folder, status)
}

#[test]
fn a_fork_that_keeps_its_step_ends_as_the_run_that_went_on() {
    let (folder, whole) = trained();
    let from = folder.path();
    let other = dense().run_toml().set("train.optimiser", "lion").set("model.width", 64);
    other.write(from.join("other.toml")).unwrap();
    let (is_done, said) = fork(from, &["--config", "other.toml"]);
    assert!(!is_done && said.contains("model.width was 32 and is 64, train.optimiser"), "{said}");
    let (is_done, said) = fork(from, &["--config", "run.toml", "--round", "12", "--keep-step"]);
    assert!(is_done, "{said}");
    let status = finished(&mut start_fork(from, dense().run_toml().to_string()).cluster);
    assert_eq!(status["parity"]["hash"], whole["parity"]["hash"]);
    assert_eq!(status["samples_counted"], whole["samples_counted"]);
    assert_ne!(status["run"], whole["run"]);
}

#[test]
fn a_fork_trains_on_with_other_rates_and_rounds() {
    let (folder, before) = trained();
    let from = folder.path();
    let setup = Setup { steps: 16, learning_rate: 1e-3, link: QUICK_LINK, ..Setup::reproducible() };
    let run_toml = setup.run_toml().set("train.warmup_steps", 0);
    run_toml.write(from.join("other.toml")).unwrap();
    let (is_done, said) = fork(from, &["--config", "other.toml"]);
    assert!(is_done, "{said}");
    let mut forked = start_fork(from, run_toml.to_string());
    let status = finished(&mut forked.cluster);
    assert_eq!(status["step"], 16);
    assert!(status["fork"].as_str().unwrap().ends_with("at step 24"), "{status:#}");
    assert!(status["validation_loss"].as_f64() < before["validation_loss"].as_f64(), "{status:#}");
    for worker in 0..2 {
        let log = forked.cluster.worker(worker).unwrap().log();
        assert!(!log.contains("start from zero"), "{log}");
    }
}
