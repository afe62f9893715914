//! Runs with `[privacy]`.

use longhaul_common::id::{FragmentId, Round, RunId};
use longhaul_common::plan::FragmentLayout;

use super::training;
use crate::layouts::Layouts;
use crate::privacy::mechanism_of;
use crate::testing::{Rig, VALUES};
use crate::{CodecPool, Compressor, Job, Local};

const CLIP: f64 = 0.5;
const NOISE: f64 = 0.01;

fn private(more: &str) -> String {
    format!("fragment_values = 32\n[privacy]\nclip = {CLIP}\nnoise = {NOISE}\ndelta = 1e-6\n{more}")
}

/// The state after a round with contributions from both.
fn after_a_round(more: &str) -> Rig {
    let mut rig = training(&private(more));
    rig.workers.iter_mut().for_each(|worker| worker.contribute(0));
    (0..2).for_each(|at| rig.apply(at, 0));
    rig
}

/// Top-k sends 2 of 16 values unchanged and keeps the others for later, which must not reveal anything.
#[test]
fn what_is_sent_and_what_is_kept_for_later_are_clipped_and_noisy_alike() {
    let rig = after_a_round("");
    let grid = (CLIP * NOISE / 1024.0).log2().floor().exp2();
    for worker in &rig.workers {
        let released = worker.kept().into_iter().zip(&worker.counted).map(|(kept, sent)| kept + sent);
        let released: Vec<f64> = released.collect();
        assert!(released.iter().all(|value| (value / grid).fract() == 0.0), "digits of the update are left");
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let (longest, noise) = (norm(&worker.learnt), CLIP * NOISE * (VALUES as f64).sqrt());
        assert!(longest > 2.0 * CLIP, "clipping is exercised");
        assert!(norm(&released) < CLIP + 2.0 * noise, "{} after clipping to {CLIP}", norm(&released));
    }
    let hashes = rig.workers.each_ref().map(|worker| worker.running().replica.hash());
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn the_coordinator_is_told_no_figure_of_the_data_unless_somebody_asked_for_it() {
    for (more, loss) in [("", None), ("report_loss = true", Some(1.0))] {
        let mut rig = after_a_round(more);
        let reports = rig.workers[0].round_reports();
        let [report] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!((report.loss, report.gradient_norm, report.residual_ratio), (loss, loss, None));
    }
}

/// The owner may have seen the first one: the same noise on another update would reveal the difference.
#[test]
fn a_round_that_is_contributed_again_is_noisy_anew() {
    let rig = Rig::new([1, 2], &private(""));
    let config = &rig.workers[0].sync.config;
    let layout = FragmentLayout { values: VALUES as u64, fragment_values: 32 };
    let layouts = Layouts::new(layout, None, config.round_schedule());
    let mut compressor = Compressor::new(RunId([0; 16]), &config.sync, layouts, 0, CodecPool::of(1))
        .unwrap()
        .with_mechanism(mechanism_of(config, Round(0)).unwrap());
    let mut contribution = || {
        let job = Job { fragment: FragmentId(1), locals: vec![(4, Local::Own(&[0.25; 32]))], base: None };
        let body = compressor.compress(Round(0), &[job]).remove(0).unwrap();
        compressor.retract(Round(0), FragmentId(1));
        body
    };
    assert_ne!(contribution(), contribution());
}
