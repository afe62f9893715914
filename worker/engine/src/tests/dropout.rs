//! Dropout in whole steps.

use longhaul_common::config::{FrozenFormat, LoraConfig};
use longhaul_common::model::tiny::{tiny_decoders, tiny_gpt2};

use longhaul_data::HostBatch;

use super::{Batch, ModelSpec, TrainConfig, batch, tiny_llama};
use crate::testing::{engine, train_config};

fn dropping(hidden: f64, attention: f64) -> TrainConfig {
    TrainConfig { dropout: Some(hidden), attention_dropout: Some(attention), ..train_config(0.0) }
}

fn seeded(sequences: u32, seed: u64) -> Batch {
    let samples = batch(sequences, 16);
    HostBatch::clone(&samples).seeded((0..sequences).map(|at| seed + u64::from(at)).collect()).into()
}

fn gradient(spec: &ModelSpec, train: &TrainConfig, batch: &Batch) -> (f32, Vec<f32>) {
    let mut gradient = Vec::new();
    let outcome = engine(spec, train).gradient(batch, &mut gradient).unwrap();
    (outcome.loss, gradient)
}

fn assert_near(given: &[f32], expected: &[f32], within: f32) {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
    let difference = norm(&mut given.iter().zip(expected).map(|(one, other)| one - other));
    let of_all = norm(&mut expected.iter().copied());
    assert!(difference <= within * of_all, "{difference} of {of_all}");
}

#[test]
fn passes_that_are_repeated_or_divided_drop_the_same_values() {
    let train = dropping(0.2, 0.1);
    for spec in [tiny_gpt2(), tiny_llama()] {
        let (loss, whole) = gradient(&spec, &train, &seeded(5, 1));
        let recomputed = TrainConfig { recompute: true, ..train.clone() };
        assert!(gradient(&spec, &recomputed, &seeded(5, 1)) == (loss, whole.clone()));
        let (_, by_one) = gradient(&spec, &TrainConfig { micro_batch: 1, ..train.clone() }, &seeded(5, 1));
        assert_near(&by_one, &whole, 1e-5);
        let (other, values) = gradient(&spec, &train, &seeded(5, 2));
        assert!(other != loss && values != whole, "other seeds");
        let (none, without) = gradient(&spec, &train, &batch(5, 16));
        assert_eq!((none, without), gradient(&spec, &train_config(0.0), &seeded(5, 1)));
        assert_ne!(none, loss);
    }
}

#[test]
fn attention_with_scores_in_memory_is_that_of_the_kernels() {
    // No word is below such a rate, and windows, soft caps and groups of heads stay.
    let train = dropping(0.0, 1e-12);
    for spec in tiny_decoders().into_iter().chain([tiny_gpt2()]) {
        let (loss, expected) = gradient(&spec, &train_config(0.0), &seeded(3, 1));
        let (given, values) = gradient(&spec, &train, &seeded(3, 1));
        assert!((given - loss).abs() < 1e-5, "{:?}: {given} for {loss}", spec.kind);
        assert_near(&values, &expected, 1e-4);
    }
}

#[test]
fn validation_drops_nothing() {
    let (plain, dropped) =
        (engine(&tiny_llama(), &train_config(0.0)), engine(&tiny_llama(), &dropping(0.5, 0.5)));
    assert_eq!(dropped.evaluate([seeded(4, 1)]).unwrap(), plain.evaluate([seeded(4, 1)]).unwrap());
    assert_eq!(dropped.sample_losses(&seeded(4, 1)).unwrap(), plain.sample_losses(&seeded(4, 1)).unwrap());
}

#[test]
fn adapters_of_a_head_drop_their_inputs_too() {
    let with = |dropout| {
        let targets = vec!["lm_head".to_owned()];
        let base = FrozenFormat::F32;
        let lora =
            LoraConfig { rank: 3, alpha: None, use_rslora: false, use_dora: false, dropout, targets, base };
        TrainConfig { lora: Some(lora), ..train_config(0.0) }
    };
    let step =
        |dropout| gradient(&tiny_llama().tuned(&with(dropout)).unwrap(), &with(dropout), &seeded(4, 1)).1;
    assert_ne!(step(0.5), step(0.0));
}

/// A's gradient is that of B times the inputs that are left; with B = 0 only B has one.
#[test]
fn adapters_drop_their_inputs_alone() {
    let with = |dropout| {
        let targets = vec!["q_proj".to_owned()];
        let base = FrozenFormat::F32;
        let lora =
            LoraConfig { rank: 3, alpha: None, use_rslora: false, use_dora: false, dropout, targets, base };
        TrainConfig { lora: Some(lora), ..train_config(0.0) }
    };
    let spec = |dropout| tiny_llama().tuned(&with(dropout)).unwrap();
    let step = |dropout: f64, seed| gradient(&spec(dropout), &with(dropout), &seeded(4, seed));
    let (loss, plain) = step(0.0, 1);
    // The output does not depend on the inputs of adapters before the first update.
    let mut mean = vec![0.0; plain.len()];
    let seeds = 200;
    for seed in 0..seeds {
        let (given, dropped) = step(0.5, 10 * seed);
        assert_eq!(given, loss);
        assert_ne!(dropped, plain);
        mean.iter_mut().zip(&dropped).for_each(|(sum, value)| *sum += value / seeds as f32);
    }
    assert_near(&mean, &plain, 0.2);
    assert!(plain.iter().any(|value| *value != 0.0));
}
