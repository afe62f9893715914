//! Coordinators that take over from each other, with a real etcd.

use longhaul_tests::cluster::{Pair, training};
use serde_json::Value;
use tempfile::TempDir;

use crate::faults::assert_exactly_once;
use crate::scenario::{RUN_MAX, Setup, applied_rounds, take_turn};

/// Two coordinators of a run that two workers train. None: there is no etcd on this machine.
fn pair() -> Option<(Pair, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let setup =
        Setup { steps: 6000, sites: vec![1, 1], checkpoint: "every_rounds = 200", ..Setup::default() };
    // Workers hear nothing of a coordinator for fifteen seconds before they look for another one.
    let run_toml = setup.run_toml().replace("reconnect_grace_ms = 8000", "reconnect_grace_ms = 60000");
    let mut pair = Pair::start(folder.path(), &run_toml).unwrap()?;
    pair.start_worker().unwrap();
    pair.start_worker().unwrap();
    let trains = |status: &Value| training(status) == 2 && applied_rounds(status) >= 5;
    pair.wait_for(0, "the run to begin", RUN_MAX, trains).unwrap();
    Some((pair, folder))
}

/// The run goes on under the second coordinator as if nothing had been: the same generation, so that no worker was given up, and no round is lost.
fn goes_on_to_its_end(pair: &mut Pair, before: &Value) {
    let back = pair.wait_for(1, "the workers to be back", RUN_MAX, |s| training(s) == 2).unwrap();
    assert_eq!((&back["generation"], &back["run"]), (&before["generation"], &before["run"]), "{back:#}");
    let reached = applied_rounds(before);
    pair.wait_for(1, "the run to go on", RUN_MAX, |status| applied_rounds(status) > reached).unwrap();
    let end = pair.wait_for(1, "the run to finish", RUN_MAX, |s| s["phase"] == "finished").unwrap();
    assert_eq!(end["step"], end["steps"], "{end:#}");
    assert_eq!(
        (&end["parity"]["equal"], &end["generation"]),
        (&true.into(), &before["generation"]),
        "{end:#}"
    );
    assert_exactly_once(&end);
    assert_eq!(end["ledger"]["pending"], 0, "{end:#}");
}

#[test]
fn survival_of_a_dead_leader_another_coordinator_takes_over_and_no_round_is_lost() {
    let _turn = take_turn();
    let Some((mut pair, _folder)) = pair() else { return };
    let before = pair.status(0);
    pair.kill_coordinator(0);
    pair.wait_for(1, "the second coordinator to lead", RUN_MAX, |status| !status.is_null()).unwrap();
    goes_on_to_its_end(&mut pair, &before);
}

#[test]
fn survival_of_a_frozen_leader_it_leads_no_more_when_it_thaws() {
    let _turn = take_turn();
    let Some((mut pair, _folder)) = pair() else { return };
    let before = pair.status(0);
    pair.signal(0, "STOP").unwrap();
    pair.wait_for(1, "the second coordinator to lead", RUN_MAX, |status| !status.is_null()).unwrap();
    pair.signal(0, "CONT").unwrap();
    pair.wait_for_words(0, "does not lead any more").unwrap();
    pair.wait_for_words(0, "another coordinator leads").unwrap();
    assert!(pair.status(0).is_null(), "it answers for a run that it does not lead");
    goes_on_to_its_end(&mut pair, &before);
    // It is there for the next turn.
    pair.kill_coordinator(1);
    let again = pair.wait_for(0, "the first coordinator to lead again", RUN_MAX, |s| !s.is_null()).unwrap();
    assert_eq!(again["phase"], "finished", "{again:#}");
}
