//! Label smoothing and z-loss in whole steps.

use super::*;
use crate::testing::train_config;

fn smooth(recompute: bool) -> TrainConfig {
    TrainConfig { label_smoothing: 0.2, z_loss: 1e-2, recompute, ..train_config(0.0) }
}

#[test]
fn training_loss_has_them_and_validation_loss_does_not() {
    let spec = tiny_llama();
    let plain = engine(&spec, &train_config(0.0));
    let mut smoothed = engine(&spec, &smooth(false));
    let of_samples = batch(4, 16).selected(&[1.0; 4]);
    let cross_entropy = plain.evaluate([batch(4, 16)]).unwrap();
    assert_eq!(smoothed.evaluate([batch(4, 16)]).unwrap(), cross_entropy);
    assert_eq!(smoothed.sample_losses(&batch(4, 16)).unwrap(), plain.sample_losses(&batch(4, 16)).unwrap());
    let mut gradient = Vec::new();
    let outcome = smoothed.gradient(&batch(4, 16), &mut gradient).unwrap();
    let selected = smoothed.gradient(&of_samples, &mut gradient).unwrap();
    // A uniform prediction has log-sum-exp ln 64 + small logits; smoothing changes little there.
    let expected = cross_entropy.unwrap().loss + 1e-2 * 64f32.ln().powi(2);
    assert!((outcome.loss - expected).abs() < 0.02, "{} for {expected}", outcome.loss);
    assert!((selected.loss - outcome.loss).abs() < 1e-6);
    let mean = selected.losses.iter().sum::<f32>() / 4.0;
    assert!((mean - cross_entropy.unwrap().loss).abs() < 1e-5, "samples are compared by cross entropy");
}

/// Stages: see the optimisers' tests.
#[test]
fn recomputation_makes_the_same_bits() {
    let gradient = |recompute| {
        let mut gradient = Vec::new();
        let outcome =
            engine(&tiny_llama(), &smooth(recompute)).gradient(&batch(5, 16), &mut gradient).unwrap();
        (outcome, gradient)
    };
    assert!(gradient(true) == gradient(false));
}
