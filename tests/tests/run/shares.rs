//! Workers of unequal speed.

use serde_json::Value;

use crate::faults::assert_exactly_once;
use crate::operate::identity_of;
use crate::scenario::{RUN_MAX, Setup, applied_rounds};

/// Returns the reported sequences per step of each of two workers; `None`: equal shares.
fn parts(status: &Value, of: [&str; 2]) -> Option<[u64; 2]> {
    let events = status["events"].as_array()?;
    let told = events.iter().rev().find_map(|event| {
        let text = event["text"].as_str()?;
        text.strip_prefix("shares of a step follow the workers' speeds: of 16 sequences ")
    })?;
    let part = |name: &str| {
        let part = told.split(", ").find_map(|part| part.strip_prefix(name)?.trim().parse::<u64>().ok());
        part.unwrap_or_else(|| panic!("{name} has no part in {told:?}"))
    };
    Some(of.map(part))
}

/// One of two equal machines is slowed to a third, and the other does not wait for it in the end. Shares
/// follow computing speed, so this needs a model that spends its time computing.
#[test]
fn a_worker_that_computes_slowly_has_a_smaller_part_of_each_step() {
    let setup = Setup {
        steps: 100_000,
        layers: 4,
        width: 256,
        learning_rate: 1e-3,
        shares: "by_speed",
        checkpoint: "every_rounds = 100000",
        alone: true,
        ..Setup::reproducible()
    };
    let mut scenario = setup.start();
    scenario.wait_for_round(1);
    let [fast, slow] = [0, 1].map(|index| identity_of(&scenario, index).worker().to_string());
    let slowed = scenario.cluster.worker(1).unwrap().slow_down();
    let is_spared = |status: &Value| parts(status, [&fast, &slow]).is_some_and(|[fast, slow]| slow < fast);
    let status = scenario.cluster.wait_for("the slow worker to have less to do", RUN_MAX, is_spared).unwrap();
    let [most, least] = parts(&status, [&fast, &slow]).unwrap();
    assert!(most + least == 16 && least >= 1, "{status:#}");
    // Rounds continue with those shares.
    let round = applied_rounds(&status);
    scenario.wait_for_round(round + 3);
    drop(slowed);

    scenario.told(&["stop", "--wait"]);
    let status = scenario.cluster.wait_until_finished(RUN_MAX).unwrap();
    assert_eq!(status["parity"]["equal"], true, "{status:#}");
    assert_exactly_once(&status);
    let counted = 16 * status["step"].as_u64().unwrap();
    let books = [&status["ledger"]["positions_applied"], &status["ledger"]["pending"]];
    assert_eq!(books, [&Value::from(counted), &Value::from(0)], "{status:#}");
}
