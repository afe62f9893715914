//! Traces of workers' activity.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::scenario::{RUN_MAX, Scenario, Setup};

/// The worker's word for a trace, which ends with its place.
const WRITTEN: &str = "trace of this worker's recent activity written";

/// Returns the trace that a worker has reported.
fn trace_of(scenario: &mut Scenario, worker: usize) -> Value {
    let folder = scenario.cluster.folder().to_owned();
    let process = scenario.cluster.worker(worker).unwrap();
    process.wait_for_words(WRITTEN, Duration::from_secs(30)).unwrap();
    let log = process.log();
    let line = log.lines().find(|line| line.contains(WRITTEN)).unwrap();
    let (_, path) = line.split_once("file=").unwrap();
    let path: PathBuf = folder.join(path.split_whitespace().next().unwrap());
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn names(trace: &Value) -> BTreeSet<&str> {
    trace["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["name"].as_str()).collect()
}

#[test]
fn a_worker_tells_what_it_does_when_it_is_asked_and_trains_on() {
    let mut scenario = Setup { steps: 120, ..Setup::reproducible() }.start();
    let limit = RUN_MAX;
    scenario.cluster.wait_for("some rounds", limit, |status| status["round"].as_u64() >= Some(4)).unwrap();
    scenario.cluster.worker(1).unwrap().signal("USR1").unwrap();
    let trace = trace_of(&mut scenario, 1);
    let told = names(&trace);
    for name in
        ["compute", "contribute", "compress", "send", "receive", "reduce", "decode", "update", "apply"]
    {
        assert!(told.contains(name), "{name}: {told:?}");
    }
    assert_eq!(trace["otherData"]["why"], "SIGUSR1");
    scenario.finish();
}

#[test]
#[ignore = "nightly: covered by a_thread_that_panics_leaves_a_trace_of_what_it_did"]
fn a_worker_that_fails_leaves_a_trace_behind() {
    // The loss becomes NaN soon.
    let mut scenario = Setup { learning_rate: 1e12, ..Setup::reproducible() }.start();
    let trace = trace_of(&mut scenario, 0);
    assert!(trace["otherData"]["why"].as_str().unwrap().contains("diverged"), "{}", trace["otherData"]);
    assert!(names(&trace).contains("compute"));
    assert!(!scenario.cluster.worker(0).unwrap().wait(RUN_MAX).unwrap().success());
}
