//! Columns against the dense gradients of the same backward passes.

use std::num::NonZeroU32;

use longhaul_common::config::{Precision, SparseBackwardConfig, SparseMode, TrainConfig};
use longhaul_common::model::ModelSpec;

use super::*;
use crate::testing::test_device;
use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};

fn engine(spec: &ModelSpec, train: &TrainConfig, collects: bool) -> Engine {
    let mut engine = Engine::new(spec, train, 100, 1, test_device(), NonZeroU32::new(1)).unwrap();
    if collects {
        engine.collect_columns().unwrap();
    }
    engine
}

fn batch(sequences: u32) -> Batch {
    let mut batch = Batch::new(16);
    for start in 0..sequences {
        batch.push((0..=16).map(|i| (start * 11 + i * (1 + start % 3)) % 64));
    }
    batch
}

fn train(spec: &ModelSpec, micro_batch: u32) -> TrainConfig {
    let layers = vec!["*".to_owned(), spec.output_projection().to_owned()];
    let sparse_backward = Some(SparseBackwardConfig { keep: 0.1, mode: SparseMode::Columns, layers });
    TrainConfig { micro_batch, sparse_backward, ..TrainConfig::default() }
}

fn models() -> [ModelSpec; 4] {
    let (gpt2, llama) = (tiny_gpt2(), tiny_llama());
    let other = |spec: &ModelSpec| ModelSpec { tied_embeddings: !spec.tied_embeddings, ..spec.clone() };
    [other(&gpt2), gpt2, other(&llama), llama]
}

/// Returns the largest difference over the largest value; the same values must be zero.
fn off_by(found: &[f32], dense: &[f32]) -> f32 {
    assert_eq!(found.len(), dense.len());
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, f32::max);
    let scale = largest(&mut dense.iter().map(|value| value.abs())).max(f32::MIN_POSITIVE);
    let pairs = found.iter().zip(dense);
    assert!(pairs.clone().all(|(one, other)| (*one == 0.0) == (*other == 0.0)), "others are zero");
    largest(&mut pairs.map(|(one, other)| (one - other).abs())) / scale
}

#[test]
fn columns_are_the_dense_gradient_wherever_it_is_cut() {
    for spec in models() {
        for precision in [Precision::F32, Precision::Bf16] {
            for recompute in [false, true] {
                let train = TrainConfig { precision, recompute, ..train(&spec, 2) };
                let (batch, mut dense) = (batch(5), Vec::new());
                let expected = engine(&spec, &train, false).gradient(&batch, &mut dense).unwrap();
                let (outcome, found) = engine(&spec, &train, true).column_gradient(&batch).unwrap();
                let norm = dense.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
                assert!((f64::from(outcome.gradient_norm.unwrap()) / norm - 1.0).abs() < 1e-6, "{outcome:?}");
                assert_eq!(StepOutcome { gradient_norm: expected.gradient_norm, ..outcome }, expected);
                assert_eq!(found.len, dense.len());
                // Products of other shapes may add in another order.
                let tolerance = if precision == Precision::F32 { 1e-6 } else { 1e-2 };
                for len in [dense.len(), 1000, 77] {
                    for start in (0..dense.len()).step_by(len) {
                        let range = start..dense.len().min(start + len);
                        let cut = found.cut(range.clone()).unwrap();
                        let off = off_by(&cut.to_dense(), &dense[range.clone()]);
                        assert!(off <= tolerance, "{:?}, {precision:?}, {range:?}: {off}", spec.kind);
                    }
                }
            }
        }
    }
}

/// With one micro-batch, a tenth of the columns of each product.
#[test]
fn there_are_as_many_columns_as_backward_passes_go_on_with() {
    let spec = tiny_llama();
    let (_, found) = engine(&spec, &train(&spec, 8), true).column_gradient(&batch(4)).unwrap();
    // Seven products in each of two layers, and the output projection.
    assert_eq!(found.weights.len(), 15);
    for weight in &found.weights {
        let kept = (0.1 * f64::from(weight.columns)).round().max(1.0) as usize;
        assert_eq!(weight.values.len(), kept, "{:?}", weight.place);
        assert!(weight.values.values().all(|values| values.len() == weight.rows as usize));
    }
}

/// The gradient of a tied projection is that of the embedding too, with a row for each token of the batch.
#[test]
fn a_tied_output_projection_is_dense() {
    let spec = tiny_gpt2();
    assert!(spec.tied_embeddings);
    let (_, found) = engine(&spec, &train(&spec, 8), true).column_gradient(&batch(4)).unwrap();
    assert_eq!((found.weights.len(), found.rest[0].0, found.rest[0].1.len()), (8, 0, 64 * 32));
}

#[test]
fn of_no_samples_there_are_no_columns_and_the_rest_is_zero() {
    let spec = tiny_llama();
    let (outcome, found) = engine(&spec, &train(&spec, 8), true).column_gradient(&Batch::new(16)).unwrap();
    assert_eq!(outcome.tokens, 0);
    assert!(found.weights.iter().all(|weight| weight.values.is_empty()));
    assert!(found.rest.iter().all(|(_, values)| values.iter().all(|value| *value == 0.0)));
}

#[test]
fn who_does_not_collect_columns_has_none() {
    let spec = tiny_llama();
    let refused = engine(&spec, &train(&spec, 8), false).column_gradient(&batch(1));
    assert!(matches!(refused, Err(EngineError::Part)));
}
