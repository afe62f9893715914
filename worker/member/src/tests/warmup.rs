//! Remainders of a warm-up of common steps before rounds that exchange other quantities.

use super::finished::mean;
use super::*;

const ONEBIT: &str = "preset = \"onebit-adam\"\nwarmup_share = 0.0\nwarmup_rounds = 3\nfragment_values = 96";

/// All take part in a round but worker 2, which is too late for it.
fn round_without_the_second(rig: &mut Rig, round: u64) {
    rig.workers[0].send(round, vec![1.0; VALUES]);
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(round)));
    rig.workers[1].send(round, vec![4.0; VALUES]);
    apply(rig, round, 1.0);
}

fn round_of_all(rig: &mut Rig, round: u64, expected: f32) {
    rig.workers.iter_mut().for_each(|worker| worker.send(round, vec![1.0; VALUES]));
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(round)));
    apply(rig, round, expected);
}

/// Both devices receive this mean, make their step, and begin the next round.
fn apply(rig: &mut Rig, round: u64, expected: f32) {
    for worker in &mut rig.workers {
        assert_eq!(mean(worker, round), vec![expected; VALUES], "round {round}");
        worker.applied(round, Some(vec![round as f32; VALUES]));
        worker.begin(round + 1);
    }
}

fn carried(rig: &Rig) -> Option<f32> {
    rig.workers[1].running().contributions.carry.as_ref().map(|carry| carry[0])
}

/// The warm-up of 1-bit Adam is plain dense: a late gradient is part of the next one, and none is part of a momentum, which holds a tenth of each.
#[test]
fn a_late_gradient_of_a_warmup_is_in_the_next_one_and_in_no_momentum() {
    let mut rig = training(ONEBIT);
    round_without_the_second(&mut rig, 0);
    assert_eq!(carried(&rig), Some(4.0));
    round_of_all(&mut rig, 1, 3.0);
    assert_eq!(carried(&rig), None);
    round_without_the_second(&mut rig, 2);
    assert_eq!(carried(&rig), None, "the next one is a momentum");
}

/// The next momentum contains a late one except for the share of its gradient.
#[test]
fn of_a_late_momentum_the_gradients_share_is_in_the_next_one() {
    let mut rig = training(ONEBIT);
    (0..3).for_each(|round| round_of_all(&mut rig, round, 1.0));
    rig.workers[0].send_repeated(3, vec![1.0; VALUES], vec![0.75; VALUES], 4);
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(3)));
    rig.workers[1].send_repeated(3, vec![2.0; VALUES], vec![0.75; VALUES], 4);
    assert_eq!(carried(&rig), Some(1.25));
    apply(&mut rig, 3, 1.0);
    // 1 from one; 1.5 and the late rest from the other.
    rig.workers[0].send_repeated(4, vec![1.0; VALUES], vec![0.75; VALUES], 4);
    rig.workers[1].send_repeated(4, vec![1.5; VALUES], vec![0.75; VALUES], 4);
    assert_eq!(carried(&rig), None);
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(4)));
    apply(&mut rig, 4, 1.875);
}

/// Two bits leave half of a gradient behind.
#[test]
fn what_rounding_left_of_gradients_is_in_no_momentum() {
    let mut rig = training(&format!("{ONEBIT}\nwarmup_values = \"2bit\""));
    let gradient: Vec<f32> = (0..VALUES).map(|index| index as f32).collect();
    for round in 0..3 {
        assert_eq!(rig.workers[0].running().codec.compressor.memories().len(), usize::from(round > 0));
        rig.workers.iter_mut().for_each(|worker| worker.send(round, gradient.clone()));
        rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(round)));
        for worker in &mut rig.workers {
            mean(worker, round);
            worker.applied(round, Some(vec![0.0; VALUES]));
            worker.begin(round + 1);
        }
    }
    for worker in &rig.workers {
        let running = worker.running();
        assert!(
            running.codec.compressor.memories().is_empty() && running.codec.reducer.residuals().is_empty()
        );
    }
}

const REDUNDANT: &str = "preset = \"auto\"\nwarmup_share = 0.0\nwarmup_rounds = 2\nwarmup_redundant = \"always\"\nfragment_values = 96\nchunk = 32";

/// Every member has computed the whole gradient, so a round carries a value of each fragment, and a late member misses nothing.
#[test]
fn in_a_redundant_warmup_each_applies_its_own_gradient() {
    let mut rig = training(REDUNDANT);
    for (round, is_late) in [(0, false), (1, true)] {
        rig.workers[0].send(round, vec![1.0; VALUES]);
        if !is_late {
            rig.workers[1].send(round, vec![4.0; VALUES]);
        }
        rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(round)));
        if is_late {
            rig.workers[1].send(round, vec![4.0; VALUES]);
        }
        for (worker, own) in rig.workers.iter_mut().zip([1.0, 4.0]) {
            assert_eq!(mean(worker, round), vec![own; VALUES], "round {round}");
            worker.applied(round, Some(vec![round as f32; VALUES]));
            assert!(worker.running().contributions.redundant.is_empty());
            worker.begin(round + 1);
        }
    }
    assert_eq!(carried(&rig), None, "nothing is left for later");
    let layouts = rig.workers[0].running().rounds.layouts;
    assert_eq!(
        [1, 2].map(|round| layouts.of(Round(round)).values),
        [VALUES.div_ceil(96) as u64, VALUES as u64]
    );
}
