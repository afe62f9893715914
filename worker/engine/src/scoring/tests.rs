//! Weighted means of losses, against sums of single gradients in f64.

use std::num::NonZeroU32;

use longhaul_common::config::TrainConfig;
use longhaul_common::model::ModelSpec;

use super::*;
use crate::testing::test_device;
use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};

fn engine(spec: &ModelSpec, recompute: bool) -> Engine {
    let train = TrainConfig { micro_batch: 2, recompute, ..TrainConfig::default() };
    Engine::new(spec, &train, 100, 1, test_device(), NonZeroU32::new(1)).unwrap()
}

fn batch(sequences: u32) -> Batch {
    let mut batch = Batch::new(16);
    for start in 0..sequences {
        batch.push((0..=16).map(|i| (start * 11 + i * (1 + start % 3)) % 64));
    }
    batch
}

fn gradient(engine: &mut Engine, batch: &Batch) -> Vec<f32> {
    let mut into = Vec::new();
    engine.gradient(batch, &mut into).unwrap();
    into
}

/// The unweighted gradients of single sequences.
fn single_gradients(engine: &mut Engine, all: &Batch) -> Vec<Vec<f32>> {
    let one = |at: usize| {
        let mut single = Batch::new(16);
        let tokens = all.micro_batches(1).nth(at).unwrap().to_tensor(tch::Device::Cpu).unwrap();
        single.push(Vec::<i64>::try_from(tokens.view(-1)).unwrap().into_iter().map(|token| token as u32));
        single
    };
    (0..all.sequences()).map(|at| gradient(engine, &one(at))).collect()
}

fn assert_close(found: &[f64], expected: &[f64]) {
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 2e-5 * largest, "{found} is not {expected}, of {largest}");
    }
}

fn weighted_mean(gradients: &[Vec<f32>], weights: &[f32], divisor: f64) -> Vec<f64> {
    let mut sum = vec![0.0; gradients[0].len()];
    for (gradient, weight) in gradients.iter().zip(weights) {
        sum.iter_mut()
            .zip(gradient)
            .for_each(|(sum, value)| *sum += f64::from(*weight) * f64::from(*value) / divisor);
    }
    sum
}

#[test]
fn what_is_selected_counts_by_its_weight_and_tells_its_loss() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        for recompute in [false, true] {
            let mut engine = engine(&spec, recompute);
            let (all, weights) = (batch(5), [1.0, 0.0, 2.5, 0.25, 1.0]);
            let losses = engine.sample_losses(&all).unwrap();
            let selected = all.selected(&weights);
            let mut into = Vec::new();
            let outcome = engine.gradient(&selected, &mut into).unwrap();
            assert_eq!((selected.sequences(), outcome.tokens), (4, 64));
            let expected = weighted_mean(&single_gradients(&mut engine, &all), &weights, 4.0);
            assert_close(&into.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), &expected);

            let kept: Vec<f32> = [0, 2, 3, 4].map(|at: usize| losses[at]).into();
            let apart =
                outcome.losses.iter().zip(&kept).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(outcome.losses.len() == 4 && apart < 1e-5, "{:?} and {kept:?}", outcome.losses);
            let mean: f64 =
                losses.iter().zip(weights).map(|(loss, weight)| f64::from(loss * weight)).sum::<f64>() / 4.0;
            assert!((f64::from(outcome.loss) - mean).abs() < 1e-5, "{} is not {mean}", outcome.loss);

            let mut streamed = Vec::new();
            engine.gradient_by_tensor(&selected, &mut streamed, &mut |_, _| ()).unwrap();
            assert_eq!(streamed, into);
        }
    }
}

#[test]
fn where_all_are_selected_the_gradient_is_that_of_the_batch() {
    let mut engine = engine(&tiny_gpt2(), false);
    let all = batch(5);
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let plain = wide(gradient(&mut engine, &all));
    assert_close(&wide(gradient(&mut engine, &all.selected(&[1.0; 5]))), &plain);
}

#[test]
fn of_nothing_the_gradient_is_zero_and_no_step_is_made() {
    let mut engine = engine(&tiny_gpt2(), false);
    let nothing = batch(3).selected(&[0.0; 3]);
    let mut before = Vec::new();
    engine.parameters_to_host(&mut before).unwrap();
    assert_eq!(engine.train_step(0, &nothing).unwrap().tokens, 0);
    let mut after = Vec::new();
    engine.parameters_to_host(&mut after).unwrap();
    assert_eq!(after, before);
    let mut into = vec![1.0];
    let outcome =
        engine.gradient_by_tensor(&nothing, &mut into, &mut |_, _| panic!("nothing arrives")).unwrap();
    assert_eq!((outcome.loss, into), (0.0, vec![0.0; before.len()]));
}

/// Each possible selection of four samples, with its probability: the engine's expected gradient is that of all.
#[test]
fn the_expectation_of_gradients_that_are_corrected_by_importance_is_the_dense_one() {
    let mut engine = engine(&tiny_gpt2(), false);
    let (all, probabilities) = (batch(4), [1.0 / 16.0, 0.25, 0.5, 1.0]);
    let mut expectation = vec![0.0; engine.parameter_count()];
    for set in 0_u32..16 {
        let is_in = |at: usize| set & (1 << at) != 0;
        let of = |at: usize| if is_in(at) { probabilities[at] } else { 1.0 - probabilities[at] };
        let chance: f64 = (0..4).map(of).product();
        let share = f64::from(set.count_ones()) / 4.0;
        let weights: [f32; 4] =
            std::array::from_fn(|at| if is_in(at) { (share / probabilities[at]) as f32 } else { 0.0 });
        let found = gradient(&mut engine, &all.selected(&weights));
        expectation.iter_mut().zip(found).for_each(|(sum, value)| *sum += chance * f64::from(value));
    }
    let dense = weighted_mean(&single_gradients(&mut engine, &all), &[1.0; 4], 4.0);
    assert_close(&expectation, &dense);
}
