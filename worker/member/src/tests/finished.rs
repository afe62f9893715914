//! Gradients that leave fragment by fragment, during computation of the rest.

use std::sync::Arc;

use longhaul_common::id::SiteId;
use longhaul_proto::round::FragmentResult;

use super::*;
use crate::message::{FinishedPart, FromDevice};

/// Three fragments.
pub const DENSE: &str = "preset = \"dense\"\nfragment_values = 32";

pub fn gradient(at: usize, round: u64) -> Vec<f32> {
    (0..VALUES).map(|index| ((index * 7 + at * 5 + round as usize * 3) % 13) as f32 - 6.0).collect()
}

pub fn finish(worker: &mut Worker, round: u64, gradient: &[f32], part: std::ops::Range<usize>) {
    finish_weighted(worker, round, gradient, part, 4);
}

pub fn finish_weighted(
    worker: &mut Worker,
    round: u64,
    gradient: &[f32],
    part: std::ops::Range<usize>,
    weight: u32,
) {
    let (round, start) = (Round(round), part.start);
    let part = FinishedPart { round, weight, start, values: gradient[part].to_vec() };
    worker.handle(SyncEvent::Device(FromDevice::Finished(part)));
}

pub fn has(worker: &Worker, round: u64, fragment: u32) -> bool {
    worker.running().member.lookup(Round(round), FragmentId(fragment)).is_some()
}

/// Returns the mean that a device receives for application.
pub fn mean(worker: &mut Worker, round: u64) -> Vec<f32> {
    match worker.device.try_recv().unwrap() {
        ToDevice::Apply { round: of, update: RoundUpdate::Mean(mean), .. } if of == Round(round) => mean,
        other => panic!("{other:?}"),
    }
}

fn sites(worker: &Worker, round: u64, fragment: u32) -> Vec<SiteId> {
    let (bytes, _) = worker.running().member.lookup(Round(round), FragmentId(fragment)).unwrap();
    FragmentResult::decode(&bytes).unwrap().sites().collect()
}

#[test]
fn what_is_final_is_exchanged_before_the_rest_is_computed() {
    let mut rig = training_of([1, 2], DENSE);
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        finish(worker, 0, &gradient(at, 0), 64..96);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 2)));
    assert!(rig.workers.iter().all(|worker| !has(worker, 0, 0) && !has(worker, 0, 1)));
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        finish(worker, 0, &gradient(at, 0), 32..64);
        worker.send(0, gradient(at, 0));
    }
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(0)));
    let expected: Vec<f32> =
        gradient(0, 0).iter().zip(gradient(1, 0)).map(|(one, other)| (one + other) / 2.0).collect();
    assert_eq!(rig.workers.each_mut().map(|worker| mean(worker, 0)), [expected.clone(), expected]);
}

#[test]
fn of_a_round_that_did_not_wait_only_what_was_not_final_in_time_is_carried_over() {
    let mut rig = training_of([1, 2], DENSE);
    let late = gradient(1, 0);
    finish(&mut rig.workers[1], 0, &late, 64..96);
    rig.workers[0].send(0, gradient(0, 0));
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(0)));
    assert_eq!([0, 1, 2].map(|fragment| sites(&rig.workers[0], 0, fragment).len()), [1, 1, 2]);

    // Late parts count with the rest.
    finish(&mut rig.workers[1], 0, &late, 32..64);
    rig.workers[1].send(0, late.clone());
    let carry = rig.workers[1].running().contributions.carry.clone().unwrap();
    assert_eq!((&carry[..64], &carry[64..]), (&late[..64], &[0.0; 32][..]));

    for worker in &mut rig.workers {
        mean(worker, 0);
        worker.applied(0, Some(vec![0.5; VALUES]));
        worker.begin(1);
    }
    let next = [0, 1].map(|at| gradient(at, 1));
    finish(&mut rig.workers[1], 1, &next[1], 0..32);
    assert_eq!(
        rig.workers[1].running().contributions.carry.as_ref().unwrap()[..32],
        [0.0; 32],
        "it left with that part"
    );
    for (worker, next) in rig.workers.iter_mut().zip(&next) {
        worker.send(1, next.clone());
    }
    assert_eq!(rig.workers[1].running().contributions.carry, None);
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(1)));
    let carried = |index: usize| if index < 64 { late[index] } else { 0.0 };
    let expected: Vec<f32> =
        (0..VALUES).map(|index| (next[0][index] + next[1][index] + carried(index)) / 2.0).collect();
    assert_eq!(rig.workers.each_mut().map(|worker| mean(worker, 1)), [expected.clone(), expected]);
}

/// A generation ends after some parts have become results and others have left, before the rest is computed.
#[test]
fn a_settlement_amid_a_step_counts_every_part_once() {
    let calm = format!("{DENSE}\ndeadline_floor_ms = 20000\ndeadline_ceiling_ms = 20000");
    let mut rig = training_of([1, 2], &calm);
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        finish(worker, 0, &gradient(at, 0), 64..96);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 2)));
    finish(&mut rig.workers[0], 0, &gradient(0, 0), 32..64);
    let answers = rig.workers.each_mut().map(|worker| (worker.member.worker, worker.settle(2)));
    // While nothing may be sent.
    finish(&mut rig.workers[1], 0, &gradient(1, 0), 32..64);
    let old = rig.begin(1, &[0, 1], 0, &[], None).membership;
    let settled = longhaul_proto::round::settle(&old, rig.layout(), rig.schedule(), &answers.into()).unwrap();
    let adopted = settled.settlement.results.iter().map(|result| result.fragment).collect::<Vec<_>>();
    assert_eq!((settled.settlement.open_round, adopted), (Round(0), vec![FragmentId(2)]));
    let start = rig.begin(2, &[0, 1], settled.first_round.0, &[0, 1], Some(settled.settlement));
    for worker in &mut rig.workers {
        worker.hear(ToWorker::Begin(Arc::new(start.clone())));
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 1)));
    assert!(rig.workers.iter().all(|worker| !has(worker, 0, 0)));
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        worker.send(0, gradient(at, 0));
    }
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(0)));
    let expected: Vec<f32> =
        gradient(0, 0).iter().zip(gradient(1, 0)).map(|(one, other)| (one + other) / 2.0).collect();
    assert_eq!(rig.workers.each_mut().map(|worker| mean(worker, 0)), [expected.clone(), expected]);
    assert!(rig.workers.iter().all(|worker| worker.running().contributions.carry.is_none()));
}

/// The first round is contributed as a whole and the others stream, as in the warm-up of `auto`; unselected values wait in the residual. Bundles show every
/// contribution.
#[test]
fn a_settlement_amid_a_streamed_step_of_a_mixed_warmup_loses_nothing() {
    let mixed = "preset = \"auto\"\nwarmup_rounds = 6\nfragment_values = 32\nresult = \"bundle\"\n\
                 deadline_floor_ms = 20000\ndeadline_ceiling_ms = 20000";
    let mut rig = training_of([1, 2], mixed);
    let streams = |rig: &Rig, round| rig.workers[0].sync.config.sync.streams_in(Round(round), true);
    assert!(!streams(&rig, 0) && streams(&rig, 1));
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        learn(worker, &gradient(at, 0));
        worker.send(0, gradient(at, 0));
    }
    apply_mean(&mut rig, 0);
    assert_nothing_is_lost(&rig);

    for (at, worker) in rig.workers.iter_mut().enumerate() {
        worker.begin(1);
        learn(worker, &gradient(at, 1));
        finish(worker, 1, &gradient(at, 1), 64..96);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 1, 2)));
    finish(&mut rig.workers[0], 1, &gradient(0, 1), 32..64);
    let answers = rig.workers.each_mut().map(|worker| (worker.member.worker, worker.settle(2)));
    // While nothing may be sent.
    finish(&mut rig.workers[1], 1, &gradient(1, 1), 32..64);
    let old = rig.begin(1, &[0, 1], 0, &[], None).membership;
    let settled = longhaul_proto::round::settle(&old, rig.layout(), rig.schedule(), &answers.into()).unwrap();
    assert_eq!(settled.settlement.open_round, Round(1));
    let start = rig.begin(2, &[0, 1], settled.first_round.0, &[0, 1], Some(settled.settlement));
    for worker in &mut rig.workers {
        worker.hear(ToWorker::Begin(Arc::new(start.clone())));
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 1, 1)));
    assert!(rig.workers.iter().all(|worker| !has(worker, 1, 0)));
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        worker.send(1, gradient(at, 1));
    }
    apply_mean(&mut rig, 1);
    assert_nothing_is_lost(&rig);
    assert!(rig.workers.iter().all(|worker| worker.kept().iter().any(|value| *value != 0.0)));
}

fn learn(worker: &mut Worker, gradient: &[f32]) {
    worker.learnt.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += f64::from(*value));
}

/// Both members have the same mean of a round, and apply it.
fn apply_mean(rig: &mut Rig, round: u64) {
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(round)));
    let [mine, same] = rig.workers.each_mut().map(|worker| mean(worker, round));
    assert_eq!(mine, same);
    for worker in &mut rig.workers {
        worker.count(Round(round));
        worker.applied(round, Some(mine.clone()));
    }
}

/// Owners see sums only, of parts as well.
#[test]
fn parts_are_masked_as_whole_contributions_are() {
    let masked =
        "preset = \"dense\"\nnorm_limit = 0\nfragment_values = 32\n[secure_aggregation]\nrange = 64.0";
    let mut rig: Rig<3> = training_of([1, 2, 3], masked);
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        // The batch has eight samples.
        finish_weighted(worker, 0, &gradient(at, 0), 32..96, 2);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 1) && has(worker, 0, 2)));
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        worker.send_weighted(0, gradient(at, 0), 2);
    }
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(0)));
    let sum = |index: usize| (0..3).map(|at| f64::from(gradient(at, 0)[index])).sum::<f64>();
    for mean in rig.workers.each_mut().map(|worker| mean(worker, 0)) {
        for (index, value) in mean.iter().enumerate() {
            let expected = sum(index) / 3.0;
            assert!((f64::from(*value) - expected).abs() < 1e-5, "{index}: {value} is not {expected}");
        }
    }
}

/// The norm of the whole is unknown when a part leaves: each is clipped to its share.
#[test]
fn parts_are_clipped_and_noisy_as_whole_contributions_are() {
    let (clip, noise) = (0.5_f64, 0.01_f64);
    let mut rig =
        training_of([1, 2], &format!("{DENSE}\n[privacy]\nclip = {clip}\nnoise = {noise}\ndelta = 1e-6"));
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        finish(worker, 0, &gradient(at, 0), 32..96);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 1) && has(worker, 0, 2)));
    for (at, worker) in rig.workers.iter_mut().enumerate() {
        worker.send(0, gradient(at, 0));
    }
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(0)));
    let grid = (clip * noise / 1024.0).log2().floor().exp2();
    let [mean, same] = rig.workers.each_mut().map(|worker| mean(worker, 0));
    assert_eq!(mean, same);
    let is_released = |value: &f32| (f64::from(*value) * 2.0 / grid).fract() == 0.0;
    assert!(mean.iter().all(is_released), "digits of the gradient are left");
    for part in mean.chunks(32) {
        let norm = part.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let (longest, noise) = (clip / 3.0_f64.sqrt(), clip * noise * 32.0_f64.sqrt());
        assert!(norm > noise && norm < longest + 2.0 * noise, "{norm} after clipping to {longest}");
    }
}
