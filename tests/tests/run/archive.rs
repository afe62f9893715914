//! Runs that outlive all their machines.

use std::process::Command;

use longhaul_tests::cluster::binary;
use serde_json::Value;

use crate::faults::assert_exactly_once;
use crate::scenario::{QUICK_LINK, RUN_MAX, Scenario, Setup, applied_rounds, at_once};

/// Kills all workers and deletes their disks.
fn lose_all_machines(scenario: &mut Scenario) {
    for worker in 0..2 {
        scenario.cluster.kill_worker(worker);
        for folder in ["checkpoints", "cache"] {
            let folder = scenario.cluster.folder().join(format!("{folder}-{worker}"));
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

/// Returns the archive's checkpoints by `coordinator checkpoints`, all of which are intact.
fn archived(scenario: &Scenario) -> Vec<Value> {
    let folder = scenario.cluster.folder().join("archive");
    let mut command = Command::new(binary("coordinator").unwrap());
    let output = command.args(["checkpoints", "verify", "--json", "--dir"]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_run_goes_on_from_the_archive_when_all_machines_and_their_disks_are_lost() {
    at_once(vec!["plan = \"fixed\"", "stages = 2"], |parallel| {
        let checkpoint = "every_rounds = 10\nkeep = 3\nto = \"archive\"";
        let setup = Setup {
            steps: 360,
            sites: vec![1, 1],
            link: QUICK_LINK,
            own_checkpoints: true,
            parallel,
            checkpoint,
            ..Setup::default()
        };
        let mut scenario = setup.start();
        scenario.wait_for_round(60);
        lose_all_machines(&mut scenario);
        assert!(!archived(&scenario).is_empty());
        (0..2).for_each(|worker| scenario.cluster.start_worker(worker).unwrap());
        let goes_on = |status: &Value| {
            status["events"].to_string().contains("goes on from the checkpoint before")
                && applied_rounds(status) >= 70
        };
        scenario.cluster.wait_for("the run to go on", RUN_MAX, goes_on).unwrap();
        let status = scenario.finish();
        assert_exactly_once(&status);
        assert!(!status["events"].to_string().contains("starts from the beginning"), "{status:#}");
        let share = status["checkpoint_stall_share"].as_f64().unwrap();
        assert!(share > 0.0 && share < 1.0, "{share}");
        for worker in 0..2 {
            let log = scenario.cluster.worker(worker).unwrap().log();
            assert!(log.contains("a checkpoint's part is here from the archive"), "{log}");
            assert!(!log.contains("start from zero"), "{log}");
        }
        // The last one, of all parts, and two before it.
        let parts = if parallel.starts_with("stages") { 2 } else { 1 };
        let all = archived(&scenario);
        assert_eq!(all.len(), 3 * parts, "{all:?}");
        assert_eq!(all[0]["next_round"], status["rounds"]);
    });
}
