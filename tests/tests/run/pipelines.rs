//! Replicas over several workers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use longhaul_tests::cluster::{self, binary};
use serde_json::Value;

use longhaul_tests::cluster::training;

use crate::faults::assert_exactly_once;
use crate::scenario::{QUICK_LINK, RUN_MAX, Scenario, Setup, applied_rounds, at_once};

/// Every step is exchanged without rounding: the result equals that of one worker with the whole model and
/// the same samples.
pub(super) const EXACT: &str =
    "preset = \"dense\"\nfragment_values = 8192\ndeadline_floor_ms = 240000\ndeadline_ceiling_ms = 240000";

pub fn dense(sites: &[usize], parallel: &'static str) -> Setup<'static> {
    Setup {
        steps: 50,
        sites: sites.to_vec(),
        parallel,
        sync: EXACT,
        silent_after_ms: 240_000,
        link: QUICK_LINK,
        ..Setup::default()
    }
}

/// Returns the loss on held-out text, and the parameters, of a run of 50 steps.
pub fn trained(setup: Setup<'_>) -> (f64, Vec<f32>) {
    let mut scenario = setup.start();
    let status = scenario.finish();
    assert_exactly_once(&status);
    assert_eq!(status["tokens"], 50 * 16 * 32, "samples of a copy count once: {status:#}");
    let parameters = parameters_in(&last_checkpoints(&scenario));
    (status["validation_loss"].as_f64().unwrap(), parameters)
}

/// Returns the folders of the last checkpoint, of all parts.
pub fn last_checkpoints(scenario: &Scenario) -> Vec<PathBuf> {
    let folder = scenario.cluster.folder().join("checkpoints");
    let mut found = Vec::new();
    collect(&folder, &mut found);
    let newest = found.iter().filter_map(|path| path.file_name()).max().unwrap().to_owned();
    found.retain(|path| path.file_name() == Some(&newest));
    found.sort();
    found
}

pub(super) fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.join("manifest.json").is_file() {
            found.push(path);
        } else if path.is_dir() {
            collect(&path, found);
        }
    }
}

/// Returns all tensors of the parts, sorted by name.
fn parameters_in(folders: &[PathBuf]) -> Vec<f32> {
    let mut tensors = Vec::new();
    for folder in folders {
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let values = |data: &[u8]| -> Vec<f32> {
            data.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        tensors.extend(file.tensors().into_iter().map(|(name, tensor)| (name, values(tensor.data()))));
    }
    tensors.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(tensors.windows(2).all(|pair| pair[0].0 != pair[1].0), "two parts have the same tensor");
    tensors.into_iter().flat_map(|(_, values)| values).collect()
}

/// Sums in another order differ in their last bits, and AdamW's division by the root of a second moment
/// amplifies that for small gradients. The tolerance is a fiftieth of one step at the maximum learning rate
/// of these runs. A missing, late or wrong part causes a thousand times that.
pub fn assert_close(name: &str, one: &(f64, Vec<f32>), other: &(f64, Vec<f32>)) {
    assert_eq!(one.1.len(), other.1.len(), "{name}");
    let furthest = one.1.iter().zip(&other.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let mean = one.1.iter().zip(&other.1).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>();
    let mean = mean / one.1.len() as f64;
    assert!(furthest < 1e-4 && mean < 1e-6, "{name}: {furthest:e} at most, {mean:e} on average");
    assert!((one.0 - other.0).abs() < 1e-4, "{name}: losses are {} and {}", one.0, other.0);
}

/// Replicas × stages ∈ {1×1, 1×2, 1×4, 2×2, 4×1}, a tied embedding, and each schedule.
#[test]
fn a_model_in_parts_learns_what_the_whole_model_learns() {
    let alone = trained(dense(&[1], ""));
    assert!(alone.0 < 5.0, "{}", alone.0);
    let in_parts = [
        ("4 x 1", dense(&[2, 2], "plan = \"fixed\"")),
        ("1 x 2, 1f1b", dense(&[2], "stages = 2\nboundary = \"f32\"")),
        (
            "1 x 4, gpipe, across sites",
            dense(&[2, 2], "stages = 4\nschedule = \"gpipe\"\nboundary = \"f32\""),
        ),
        ("2 x 2, zero-bubble", dense(&[2, 2], "stages = 2\nschedule = \"zero-bubble\"\nboundary = \"f32\"")),
        (
            "1 x 2, interleaved, each part on a site",
            dense(
                &[1, 1],
                "stages = 2\nchunks = 2\nschedule = \"interleaved\"\nboundary = \"f32\"\nsites = [\"site-1\", \"site-0\"]",
            ),
        ),
    ];
    at_once(in_parts.into(), |(name, setup)| assert_close(name, &alone, &trained(setup)));
}

/// Returns the milliseconds reported by each worker, by kind: computing, waiting, for data, for checkpoints,
/// encoding, bubble, and parallel encoding.
fn spent(history: &Value) -> BTreeMap<String, [u64; 7]> {
    let mut sums = BTreeMap::new();
    for interval in history["activity"].as_array().into_iter().flatten() {
        for (worker, kinds) in interval["workers"].as_object().unwrap() {
            let kinds: [u64; 7] = serde_json::from_value(kinds.clone()).unwrap();
            let sum: &mut [u64; 7] = sums.entry(worker.clone()).or_default();
            sum.iter_mut().zip(kinds).for_each(|(sum, ms)| *sum += ms);
        }
    }
    sums
}

/// Two replicas in two parts, one on each site, with compressed exchange. Workers with a reporter send their
/// counters every few seconds; the run lasts long enough.
#[test]
#[ignore = "nightly: covered by what_a_rank_waits_for_its_neighbours_within_a_step_is_bubble"]
fn workers_tell_bubbles_and_encoding_apart_from_other_waiting_and_no_moment_counts_twice() {
    let mut scenario = Setup { steps: 1_000_000, silent_after_ms: 240_000, ..hybrid() }.start();
    let (asked, mut history) = (scenario.cluster.http(), Value::Null);
    let all_told = |_: &Value| {
        history = cluster::history_at(asked);
        let spent = spent(&history);
        let has_encoded = spent.values().any(|kinds| kinds[4] + kinds[6] > 0);
        has_encoded && spent.len() == 4 && spent.values().all(|kinds| kinds[0] > 0 && kinds[5] > 0)
    };
    scenario.cluster.wait_for("all to have computed, and waited for neighbours", RUN_MAX, all_told).unwrap();
    let spent = spent(&history);
    let last = history["activity"].as_array().unwrap().last().unwrap();
    let elapsed_ms = last["at_ms"].as_u64().unwrap() - history["meta"]["begun_ms"].as_u64().unwrap();
    for (worker, [compute, wait, data, checkpoint, encode, bubble, beside]) in &spent {
        let device = compute + wait + data + checkpoint + encode + bubble;
        assert!(device <= elapsed_ms, "{worker} was busy for {device} ms of {elapsed_ms}: {spent:?}");
        assert!(encode + beside <= elapsed_ms, "{worker} encoded for longer than {elapsed_ms}: {spent:?}");
    }
    let encoded: u64 = spent.values().map(|kinds| kinds[4] + kinds[6]).sum();
    let bubbles: u64 = spent.values().map(|kinds| kinds[5]).sum();
    let number = |status: &Value, key: &str| status[key].as_f64().unwrap_or_default();
    let tells_as_much = |status: &Value| {
        number(status, "bubble_ms") >= bubbles as f64 && number(status, "encode_ms") >= encoded as f64
    };
    let status = scenario.cluster.wait_for("the status to tell as much", RUN_MAX, tells_as_much).unwrap();
    let share = number(&status, "bubble_share");
    assert!(share > 0.0 && share < 1.0, "{status:#}");
}

/// 0.12 million parameters, of which `dense` keeps 82 bytes each, 9.7 MB, and activations of four sequences
/// of 1.6 MB.
#[test]
#[ignore = "nightly: covered by what_does_not_fit_is_refused_with_what_would_help, who_has_too_little_memory_has_all_tell_what_they_can_do"]
fn a_model_that_is_too_large_for_one_worker_trains_on_two() {
    // On a GPU a parameter takes less of the limited memory.
    if cluster::device() != "cpu" {
        return;
    }
    let limited = |sites: &'static [usize], parallel| Setup {
        width: 64,
        worker_arguments: &["--memory-gib", "0.0079"],
        ..dense(sites, parallel)
    };
    let mut scenario = limited(&[1], "").start_coordinator();
    scenario.cluster.start_worker(0).unwrap();
    let worker = scenario.cluster.worker(0).unwrap();
    assert!(!worker.wait(RUN_MAX).unwrap().success());
    let log = worker.log();
    assert!(log.contains("--memory-gib allows") && log.contains("parallel.stages"), "{log}");
    drop(scenario);

    let mut scenario = limited(&[2], "stages = 2").start();
    scenario.finish();
    drop(scenario);

    // Without a plan in the file the workers report their capabilities, and the coordinator plans.
    let mut scenario = limited(&[1, 1], "").start();
    let status = scenario.finish();
    assert_eq!(status["parts"], 2, "{status:#}");
    let log = scenario.cluster.coordinator().unwrap().log();
    assert!(log.contains("the plan: 1 × 2"), "{log}");
}

/// Two replicas in two parts, one on each site, as in the demo.
fn hybrid() -> Setup<'static> {
    Setup { steps: 1500, parallel: "stages = 2", checkpoint: "every_rounds = 20", ..Setup::default() }
}

/// One of two replicas is lost with a worker and returns with it; the other continues.
pub(super) fn lose_a_copy_for_a_while(scenario: &mut Scenario, workers: usize) {
    scenario.wait_for_round(3);
    scenario.cluster.kill_worker(1);
    let alone = |status: &Value| training(status) == workers && applied_rounds(status) >= 8;
    let without = scenario.cluster.wait_for("the other copy to go on", RUN_MAX, alone).unwrap();
    let reached = applied_rounds(&without);
    scenario.cluster.start_worker(1).unwrap();
    let both = |status: &Value| training(status) == 2 * workers && applied_rounds(status) > reached;
    scenario.cluster.wait_for("both copies to go on", RUN_MAX, both).unwrap();
}

#[test]
#[ignore = "nightly: covered by those_who_are_left_of_two_copies_make_one_and_the_whole_one_does_not_wait_for_them, a_copy_that_loses_a_worker_comes_apart_and_the_others_go_on"]
fn a_worker_of_a_copy_dies_and_its_copy_comes_back_with_it() {
    let mut scenario = hybrid().start();
    lose_a_copy_for_a_while(&mut scenario, 2);
    let status = scenario.finish();
    assert_exactly_once(&status);
}

/// The rest of a replica has no part in the run until enough workers for another one exist: here, until a
/// second replica has lost a worker as well. No spare exists, no worker joins, and the plan stays; the
/// complete replica continues.
#[test]
fn those_who_are_left_of_two_copies_make_one_and_the_whole_one_does_not_wait_for_them() {
    let setup = Setup { steps: 20_000, sites: vec![2, 2, 2], checkpoint: "every_rounds = 200", ..hybrid() };
    let mut scenario = Setup { batch: 12, micro_batch: 2, ..setup }.start();
    scenario.wait_for_round(3);
    let waiting = |status: &Value| in_state(status, "waiting");
    let come_apart = |status: &Value| {
        status["events"].to_string().matches("its copy of the model has lost a worker").count()
    };
    scenario.cluster.kill_worker(1);
    let four = |status: &Value| training(status) == 4 && waiting(status) == 1;
    let status = scenario.cluster.wait_for("two copies to go on", RUN_MAX, four).unwrap();
    assert!(status["problems"].to_string().contains("1 workers wait for others"), "{status:#}");
    let round = applied_rounds(&status);
    // A waiting worker ends its work of the old replica, and joins again.
    let go_on = |status: &Value| four(status) && applied_rounds(status) >= round + 5;
    scenario.cluster.wait_for("two copies to train while one waits", RUN_MAX, go_on).unwrap();

    scenario.cluster.kill_worker(3);
    let again = |status: &Value| come_apart(status) >= 2 && training(status) == 4 && waiting(status) == 0;
    let status = scenario.cluster.wait_for("the two that are left to train", RUN_MAX, again).unwrap();
    assert!(applied_rounds(&status) >= round + 5, "{status:#}");
    let round = applied_rounds(&status);
    scenario.wait_for_round(round + 5);
    scenario.told(&["stop", "--wait"]);
    let status = scenario.cluster.wait_until_finished(RUN_MAX).unwrap();
    assert_eq!((&status["parity"]["equal"], &status["parts"]), (&true.into(), &2.into()), "{status:#}");
    assert_exactly_once(&status);
    let events = status["events"].to_string();
    assert!(
        !events.contains("the plan changes") && !events.contains("starts from the beginning"),
        "{events}"
    );
}

fn in_state(status: &Value, state: &str) -> usize {
    let members = status["members"].as_array();
    members.map_or(0, |members| members.iter().filter(|member| member["state"] == state).count())
}

/// One rank of a replica cannot apply clipped gradients of missed rounds alone, so the replica joins when all
/// restart from the checkpoints of the training workers.
#[test]
#[ignore = "nightly: covered by copies_join_others_only_where_what_they_have_missed_can_be_made_up_for, a_copy_that_cannot_join_while_others_train_comes_in_when_all_begin_anew"]
fn a_copy_that_cannot_join_alone_comes_in_when_all_begin_anew() {
    let sync = "preset = \"dense\"\nfragment_values = 8192";
    let mut scenario = Setup { steps: 20_000, sync, checkpoint: "every_rounds = 0", ..hybrid() }.start();
    scenario.wait_for_round(5);
    scenario.cluster.kill_worker(1);
    let alone = |status: &Value| training(status) == 2 && applied_rounds(status) >= 10;
    let status = scenario.cluster.wait_for("the other copy to go on", RUN_MAX, alone).unwrap();
    let round = applied_rounds(&status);
    scenario.cluster.start_worker(1).unwrap();
    let both = |status: &Value| training(status) == 4 && applied_rounds(status) > round + 5;
    let status = scenario.cluster.wait_for("both copies to train", RUN_MAX, both).unwrap();
    let events = status["events"].to_string();
    assert!(events.contains("when all workers restart together"), "{events}");
    assert!(!events.contains("starts from the beginning"), "{events}");
    scenario.told(&["stop", "--wait"]);
    let status = scenario.cluster.wait_until_finished(RUN_MAX).unwrap();
    assert_exactly_once(&status);
    assert_eq!(status["parity"]["equal"], true, "{status:#}");
    for worker in 0..4 {
        let ended = scenario.cluster.worker(worker).unwrap().wait(RUN_MAX).unwrap();
        assert!(ended.success(), "{ended}: {}", scenario.cluster.logs());
    }
}

/// Returns a continuation by the model in a folder.
pub fn sampled(folder: &Path) -> Output {
    let mut command = Command::new(binary("worker").unwrap());
    command.arg("sample").args(["--prompt", "In the", "--tokens", "20", "--threads", "1"]);
    command.arg("--checkpoint").arg(folder).output().unwrap()
}

#[test]
fn a_run_in_parts_goes_on_from_their_checkpoints_and_is_sampled_from_them() {
    let mut scenario = Setup { steps: 400, ..hybrid() }.start();
    scenario.wait_for_round(25);
    scenario.cluster.kill_coordinator();
    (0..4).for_each(|worker| scenario.cluster.kill_worker(worker));
    scenario.cluster.start_coordinator().unwrap();
    (0..4).for_each(|worker| scenario.cluster.start_worker(worker).unwrap());
    let status = scenario.finish();
    assert_exactly_once(&status);
    let text = serde_json::to_string(&status["events"]).unwrap();
    assert!(text.contains("goes on from the checkpoint before"), "{text}");
    let loss = status["validation_loss"].as_f64().unwrap();
    assert!(loss < 3.4, "the loss is {loss}");

    let folder = scenario.cluster.folder().join("checkpoints");
    let output = sampled(&folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("In the"), "{output:?}");

    // A part on another machine.
    let checkpoints = last_checkpoints(&scenario);
    std::fs::remove_dir_all(checkpoints[1].parent().unwrap()).unwrap();
    let output = sampled(&folder);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("part-2-of-2") && said.contains("missing"), "{said}");
}
