//! Runs with `[secure_aggregation]`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_proto::round::{Frame, FrameKind};

use super::training_of;
use crate::SyncEvent;
use crate::testing::{Rig, Worker};

const PLAIN: &str =
    "selection = \"all\"\nresult = \"mean\"\nresult_values = \"f32\"\nnorm_limit = 0\nfragment_values = 32";
const RANGE: f64 = 64.0;

fn masked() -> Rig<3> {
    let mut rig = training_of([1, 2, 3], &format!("{PLAIN}\n[secure_aggregation]\nrange = {RANGE:?}"));
    rig.tamper = look_at;
    rig
}

/// A step of the sum is 64 · 8 · 15 / 2³¹ here, and the updates are below 8: without masks, all words would be below 2²⁴.
fn look_at(frame: &mut Frame) {
    if frame.header.kind == FrameKind::Contribution {
        let (words, _) = frame.body[8..].as_chunks::<4>();
        let is_large = |word: &&[u8; 4]| i32::from_le_bytes(**word).unsigned_abs() > 1 << 24;
        assert!(
            words.iter().filter(is_large).count() > words.len() / 2,
            "a contribution went out without masks"
        );
    }
}

fn assert_parameters(rig: &Rig<3>, expected: impl Fn(usize) -> f64) {
    for worker in &rig.workers {
        for (at, value) in worker.running().replica.parameters().iter().enumerate() {
            let expected = expected(at);
            assert!((f64::from(*value) - expected).abs() < 1e-5, "parameter {at}: {value} is not {expected}");
        }
    }
}

#[test]
fn masked_contributions_have_the_same_mean_as_plain_ones() {
    let [plain, masked] = [training_of([1, 2, 3], PLAIN), masked()].map(|mut rig| {
        for round in 0..3 {
            rig.workers.iter_mut().for_each(|worker| worker.contribute(round));
            (0..3).for_each(|at| rig.apply(at, round));
            rig.workers.iter_mut().for_each(|worker| worker.begin(round + 1));
        }
        rig
    });
    let parameters = plain.workers[0].running().replica.parameters().clone();
    assert!(parameters.iter().any(|value| value.abs() > 0.5));
    assert_parameters(&masked, |at| f64::from(parameters[at]));
}

/// Sites contribute the same eight of sixteen values each round, whose positions are never sent; the rest waits.
#[test]
fn random_positions_that_all_know_are_masked_and_what_is_not_chosen_waits() {
    for form in ["mean", "union"] {
        let sync = PLAIN.replace("\"mean\"", &format!("{form:?}"));
        let sync = format!("{sync}\nrandom_keep = 8\nerror_decay = 1.0");
        let mut rig: Rig<3> =
            training_of([1, 2, 3], &format!("{sync}\n[secure_aggregation]\nrange = {RANGE:?}"));
        rig.tamper = |frame| {
            look_at(frame);
            if frame.header.kind == FrameKind::Contribution {
                assert_eq!(frame.body.len(), 8 + 4 * 16, "half of the fragment's 32 values");
            }
        };
        for round in 0..6 {
            // A late site in the third round leaves all without a sum: no residual may change.
            let in_time = if round == 2 { 2 } else { 3 };
            rig.workers[..in_time].iter_mut().for_each(|worker| worker.contribute(round));
            (0..in_time).for_each(|at| rig.apply(at, round));
            rig.workers[in_time..].iter_mut().for_each(|worker| worker.contribute(round));
            (in_time..3).for_each(|at| rig.apply(at, round));
            rig.workers.iter_mut().for_each(|worker| worker.begin(round + 1));
        }
        let kept: Vec<Vec<f64>> = rig.workers.iter().map(Worker::kept).collect();
        assert!(kept.iter().flatten().any(|rest| rest.abs() > 0.5), "unselected values are kept");
        let of_all = |at: usize| {
            let of = |worker: usize| rig.workers[worker].learnt[at] - kept[worker][at];
            (0..3).map(of).sum::<f64>() / 3.0
        };
        assert_parameters(&rig, |at| -of_all(at));
    }
}

#[test]
fn a_round_in_which_somebody_is_late_has_no_sum_and_everybody_carries_it_over() {
    let mut rig = masked();
    rig.workers[..2].iter_mut().for_each(|worker| worker.contribute(0));
    (0..2).for_each(|at| rig.apply(at, 0));
    rig.workers[2].contribute(0);
    rig.apply(2, 0);
    assert!(rig.workers.iter().all(|worker| worker.running().contributions.carry.is_some()));
    assert_parameters(&rig, |_| 0.0);

    rig.workers.iter_mut().for_each(|worker| worker.begin(1));
    rig.workers.iter_mut().for_each(|worker| worker.contribute(1));
    (0..3).for_each(|at| rig.apply(at, 1));
    let learnt = |at: usize| rig.workers.iter().map(|worker| worker.learnt[at]).sum::<f64>();
    assert_parameters(&rig, |at| -learnt(at) / 3.0);
    assert!(rig.workers.iter().all(|worker| worker.running().contributions.carry.is_none()));
}

#[test]
fn a_secret_is_for_one_generation_and_for_the_two_that_share_it() {
    let rig = masked();
    let given = |at: usize, generation, peer| {
        let masking = rig.workers[at].running().codec.masking.as_ref().unwrap();
        masking.secret_for(Generation(generation), WorkerId(peer))
    };
    let [of_two, of_three] = [2, 3].map(|peer| given(0, 1, peer).unwrap());
    assert_ne!(of_two, of_three);
    for (at, generation, peer) in [(0, 1, 1), (0, 1, 4), (0, 2, 2), (0, 0, 2), (1, 1, 1), (2, 1, 2)] {
        assert_eq!(given(at, generation, peer), None, "worker {} in {generation} to {peer}", at + 1);
    }
}

/// A request that waits for a secret at the end of a generation is repeated in the next one.
#[test]
fn a_contribution_that_waits_for_a_secret_is_made_in_the_next_generation() {
    let mut rig = masked();
    rig.workers.iter_mut().for_each(|worker| worker.contribute(0));
    let answers = rig.workers.each_mut().map(|worker| (worker.member.worker, worker.settle(2)));
    let old = rig.begin(1, &[0, 1, 2], 0, &[], None).membership;
    let settled = longhaul_proto::round::settle(&old, rig.layout(), rig.schedule(), &answers.into()).unwrap();
    let start = rig.begin(2, &[0, 1, 2], 1, &[0, 1, 2], Some(settled.settlement));
    for worker in &mut rig.workers {
        worker.hear(longhaul_proto::control::message::ToWorker::Begin(Arc::new(start.clone())));
    }
    (0..3).for_each(|at| rig.apply(at, 0));
    assert_eq!(rig.workers[0].running().replica.next_round(), Round(1));
    let learnt = |at: usize| rig.workers.iter().map(|worker| worker.learnt[at]).sum::<f64>();
    assert_parameters(&rig, |at| -learnt(at) / 3.0);
}

/// The third worker dies after the two others' contributions have left: those are void, because its masks cannot be removed. The others contribute the same
/// again under their common masks.
#[test]
fn a_member_that_drops_out_of_a_round_voids_it_and_the_others_count() {
    let patient = "deadline_floor_ms = 20000\ndeadline_ceiling_ms = 20000";
    let sync = format!("{PLAIN}\n{patient}\n[secure_aggregation]\nrange = {RANGE:?}");
    let mut rig: Rig<3> = training_of([1, 2, 3], &sync);
    rig.tamper = look_at;
    let came = Rc::new(Cell::new(0));
    let counting = Rc::clone(&came);
    rig.tap(move |_, event| {
        let is_contribution =
            matches!(&event, SyncEvent::Frame { frame, .. } if frame.header.kind == FrameKind::Contribution);
        counting.set(counting.get() + u32::from(is_contribution));
        event
    });
    rig.workers[..2].iter_mut().for_each(|worker| worker.contribute(0));
    // Three fragments from each of two; those uploaded by their own owner are no frames.
    rig.pump(|_| came.get() >= 2);
    assert!(rig.workers.iter().all(|worker| worker.running().member.open_round() == Round(0)));
    let answers: Vec<_> =
        rig.workers[..2].iter_mut().map(|worker| (worker.member.worker, worker.settle(2))).collect();
    let old = rig.begin(1, &[0, 1, 2], 0, &[], None).membership;
    let answers = answers.into_iter().collect();
    let settled = longhaul_proto::round::settle(&old, rig.layout(), rig.schedule(), &answers).unwrap();
    let start = rig.begin(2, &[0, 1], 1, &[0, 1], Some(settled.settlement));
    for worker in &mut rig.workers[..2] {
        worker.hear(longhaul_proto::control::message::ToWorker::Begin(Arc::new(start.clone())));
    }
    (0..2).for_each(|at| rig.apply(at, 0));
    let learnt = |at: usize| rig.workers[..2].iter().map(|worker| worker.learnt[at]).sum::<f64>();
    for worker in &rig.workers[..2] {
        for (at, value) in worker.running().replica.parameters().iter().enumerate() {
            let expected = -learnt(at) / 2.0;
            assert!((f64::from(*value) - expected).abs() < 1e-5, "parameter {at}: {value} is not {expected}");
        }
    }
}
