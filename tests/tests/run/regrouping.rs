//! Plans that change to tensor groups of another size during a run, so that each worker's share of the model
//! is divided anew.

use std::path::PathBuf;

use longhaul_common::id::Round;
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_proto::checkpoint::folder::{MANIFEST, Manifest};
use longhaul_proto::checkpoint::{folder_name, sealed};
use longhaul_tests::cluster::training;
use serde_json::Value;

use crate::faults::assert_exactly_once;
use crate::moves::{events_of, lose_for_good};
use crate::pipelines::{EXACT, collect};
use crate::scenario::{RUN_MAX, Scenario, Setup, applied_rounds};
use crate::tensor_groups::{assert_members_never_part, model_of, tensor};

const WIDTH: u32 = 384;
/// Rounds between checkpoints.
const EVERY: u64 = 20;

const SHARED: &str = "1 × 2, layer by layer";
const WHOLE: &str = "1 × 1";

/// A run of one replica: with wide layers and two sequences per step, two replicas would exchange many times
/// the bytes that two members sum, and with one micro-batch the parts of a pipeline do not compute in
/// parallel. Two workers therefore share each layer, and a single one has the whole model.
fn one_copy(workers: usize) -> Setup<'static> {
    Setup {
        steps: 100_000,
        sites: vec![3],
        workers: Some(workers),
        width: WIDTH,
        batch: 2,
        micro_batch: 2,
        learning_rate: 1e-3,
        parallel: "replan_after_s = 3\nboundary = \"f32\"",
        sync: EXACT,
        checkpoint: "every_rounds = 20\nkeep = 100",
        own_checkpoints: true,
        alone: true,
        ..Setup::default()
    }
}

fn is_planned(status: &Value, plan: &str) -> bool {
    status["plan"].as_str().is_some_and(|told| told.starts_with(&format!("the plan: {plan} (")))
}

/// Waits until this many workers train under a plan and have applied another round. Returns the number of
/// applied rounds.
fn wait_for_plan(scenario: &mut Scenario, plan: &str, workers: usize) -> u64 {
    let is_so = |status: &Value| training(status) == workers && is_planned(status, plan);
    let status = scenario.cluster.wait_for(plan, RUN_MAX, is_so).unwrap();
    let round = applied_rounds(&status);
    let goes_on = |status: &Value| is_so(status) && applied_rounds(status) > round;
    let status = scenario.cluster.wait_for(plan, RUN_MAX, goes_on).unwrap();
    applied_rounds(&status)
}

fn stop(scenario: &mut Scenario) -> Value {
    scenario.told(&["stop", "--wait"]);
    scenario.cluster.wait_until_finished(RUN_MAX).unwrap()
}

/// Returns the folders of all workers' checkpoints before a round.
fn folders_before(scenario: &Scenario, round: u64) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    collect(scenario.cluster.folder(), &mut folders);
    let name = folder_name(Round(round));
    folders.retain(|folder| folder.file_name().is_some_and(|own| *own == *name));
    folders
}

/// Returns the whole model before a round, from all checkpoints of workers. Values in several of them must
/// have equal bits.
fn model_before(scenario: &Scenario, round: u64, whole: &ModelSpec) -> Vec<f32> {
    let empty = |of: &ParameterSpec| vec![f32::NAN; of.count() as usize];
    let mut model: Vec<(String, Vec<f32>)> =
        whole.parameters().iter().map(|of| (of.name.clone(), empty(of))).collect();
    for folder in folders_before(scenario, round) {
        let manifest = std::fs::read(folder.join(MANIFEST)).unwrap();
        let part = sealed::from_bytes::<Manifest>(&manifest).unwrap().part_of(whole).unwrap();
        for own in part.synchronised() {
            let (_, into) = model.iter_mut().find(|(name, _)| *name == own.name).unwrap();
            let places = own.places(part.shard).flatten();
            for (place, value) in places.zip(tensor(&folder, &own.name)) {
                let there = std::mem::replace(&mut into[place], value);
                assert!(there.is_nan() || there.to_bits() == value.to_bits(), "{folder:?}: {}", own.name);
            }
        }
    }
    let values: Vec<f32> = model.into_iter().flat_map(|(_, values)| values).collect();
    assert!(values.iter().all(|value| value.is_finite()), "nobody has all of the model before round {round}");
    values
}

/// One of two workers that share each layer is lost permanently, with its disk: the other makes whole layers
/// of both shares, as it has a copy of the lost one. Then another worker joins, the run is re-planned, and
/// each takes a share again: the newcomer gets its share from the worker with the whole model. The result
/// then equals that of one worker that never moved, with the same samples in each step.
#[test]
#[ignore = "nightly: covered by a_run_with_groups_moves_to_another_plan_and_its_shares_are_cut_anew, a_model_whose_layers_are_shared_goes_on_with_other_shares_and_in_other_parts"]
fn a_copy_goes_from_a_tensor_group_to_one_worker_and_back_and_learns_what_one_worker_learns() {
    let mut scenario = one_copy(2).start_coordinator();
    (0..2).for_each(|worker| scenario.cluster.start_worker(worker).unwrap());
    wait_for_plan(&mut scenario, SHARED, 2);
    scenario.wait_for_round(2 * EVERY + 5);

    lose_for_good(&mut scenario, 1);
    let round = wait_for_plan(&mut scenario, WHOLE, 1);
    assert!(round > EVERY, "it goes on from a checkpoint: {round}");

    scenario.cluster.start_worker(2).unwrap();
    let round = wait_for_plan(&mut scenario, SHARED, 2);
    // The second checkpoint of the new shares, so that all of them were trained for a while.
    let compared = (round / EVERY + 2) * EVERY;
    scenario.wait_for_round(compared);
    let status = stop(&mut scenario);
    assert_exactly_once(&status);
    assert_members_never_part(&scenario);
    let events = events_of(&status);
    assert!(!events.contains("starts from the beginning"), "{events}");
    let log = scenario.cluster.worker(2).unwrap().log();
    assert!(log.contains("a checkpoint's part is here") && !log.contains("no moments"), "{log}");

    let whole = model_of(WIDTH);
    let moved = model_before(&scenario, compared, &whole);
    drop(scenario);
    let [_, shared] = unmoved(2, compared, &whole);
    let [began, alone] = unmoved(1, compared, &whole);
    let (apart, unavoidable) = (mean_difference(&moved, &alone), mean_difference(&shared, &alone));
    let way = mean_difference(&alone, &began);
    // Two members sum in another order than one, runs of two do not all sum alike, and AdamW's first steps
    // follow the signs of even small gradients. A shared run that never moves deviates from one worker's by
    // 10 to 16 % of the training distance, and this one by 1.0 to 1.6 times as much. A misplaced share would
    // deviate by the whole training distance.
    assert!(
        apart < 3.0 * unavoidable && apart < 0.5 * way,
        "{apart} apart, a run that never moved {unavoidable}, where training went {way} since round {EVERY}; moved at {round}, compared at {compared}"
    );
}

/// Returns the model before the first checkpoint's round and before another round, in a run that keeps its
/// plan.
fn unmoved(workers: usize, round: u64, whole: &ModelSpec) -> [Vec<f32>; 2] {
    let mut scenario = Setup { sites: vec![workers], ..one_copy(workers) }.start();
    scenario.wait_for_round(round);
    stop(&mut scenario);
    [EVERY, round].map(|round| model_before(&scenario, round, whole))
}

fn mean_difference(left: &[f32], right: &[f32]) -> f64 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| f64::from((left - right).abs())).sum::<f64>()
        / left.len() as f64
}
