//! Attacks by strangers and malicious members on every port, while honest ones train.

use std::time::Duration;

use longhaul_tests::hostile::{Attackers, Kind, Target, memory_of};

use crate::faults::assert_exactly_once;
use crate::scenario::{RUN_MAX, Setup};

/// Some of each kind.
const ATTACKS: u64 = 20 * Kind::ALL.len() as u64;
/// Duration of the attacks.
const DURATION: Duration = Duration::from_secs(20);
/// Maximum growth of a process's memory: less than the windows of all concurrently admitted strangers.
const GROWTH_MAX: u64 = 64 << 20;

#[test]
fn strangers_at_every_door_get_nothing_and_the_run_goes_on() {
    let mut scenario =
        Setup { steps: 100_000, checkpoint: "every_rounds = 1000", ..Setup::reproducible() }.start();
    scenario.wait_for_round(2);
    let cluster = &mut scenario.cluster;
    let ids: Vec<u32> = [
        cluster.coordinator().unwrap().id(),
        cluster.worker(0).unwrap().id(),
        cluster.worker(1).unwrap().id(),
    ]
    .into();
    let resident = || ids.iter().map(|id| memory_of(*id).unwrap().resident).collect::<Vec<_>>();
    let (before, target) = (resident(), Target::of(cluster, 2).unwrap());
    let secrets = [target.api_token.clone(), target.join_token.trim().to_owned(), "PRIVATE KEY".to_owned()];

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let outcome = runtime.block_on(async {
        let attackers = Attackers::enlist(target).await.unwrap();
        attackers.attack(ATTACKS, DURATION, 1).await.unwrap()
    });
    assert!(outcome.breaches.is_empty(), "{:#?}", outcome.breaches);
    assert!(outcome.made.len() == Kind::ALL.len() && outcome.made.values().sum::<u64>() == ATTACKS);

    // The coordinator prints the join line on purpose.
    let logs = scenario.cluster.whole_logs().unwrap();
    let logs = logs.lines().filter(|line| !line.contains("worker join ")).collect::<Vec<_>>().join("\n");
    assert!(logs.contains("begins with 2 workers"), "the logs are others");
    for secret in secrets {
        assert!(!logs.contains(&secret), "a secret is in a log");
    }
    for (before, after) in before.iter().zip(resident()) {
        assert!(after < before + GROWTH_MAX, "{before} bytes became {after}");
    }
    // Current rounds: those before the attack do not count.
    let round = scenario.cluster.status()["round"].as_u64().unwrap();
    let went_on = |status: &serde_json::Value| status["round"].as_u64().unwrap_or(0) > round + 2;
    let status = scenario.cluster.wait_for("the run to go on", RUN_MAX, went_on).unwrap();
    assert_eq!(status["phase"], "training");
    assert!(
        status["parity"]["equal"] == true && status["loss"].as_f64().is_some_and(f64::is_finite),
        "{status:#}"
    );
    assert_exactly_once(&status);
    let members = status["members"].as_array().unwrap();
    assert_eq!(members.iter().filter(|member| member["state"] == "training").count(), 2, "{status:#}");
}
