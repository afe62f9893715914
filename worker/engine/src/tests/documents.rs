//! Several conversations in a row against each alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use longhaul_common::model::tiny::tiny_decoders;
use longhaul_common::model::{Decoder, Experts};
use longhaul_common::pipeline::PipelineSchedule;
use longhaul_data::{START, TRAINED};

use super::*;
use crate::models::{Documents, Pass};
use crate::testing::{channels, part, pipeline};

/// Tokens of a row, less one.
const LENGTH: usize = 16;
/// Padding, as rows have it.
const PAD: u32 = 1 << 29;

/// Conversations by row: some fill theirs, and one has no target within a micro-batch of its own.
const ROWS: [&[usize]; 5] = [&[7, 10], &[17], &[5, 6, 4], &[2, 3], &[9]];

/// Returns the words of a conversation: every token but the first few of each five is trained.
fn words(number: usize, length: usize) -> Vec<u32> {
    let word = |at: usize| {
        let token = ((number * 13 + at * at * 7 + at) % 64) as u32;
        let is_trained = at > 0 && (at + number) % 5 > 1;
        token | if is_trained { TRAINED } else { 0 } | if at == 0 { START } else { 0 }
    };
    (0..length).map(word).collect()
}

fn conversations() -> Vec<Vec<Vec<u32>>> {
    let mut number = 0;
    let mut next = |length: &usize| {
        number += 1;
        words(number, *length)
    };
    ROWS.iter().map(|row| row.iter().map(&mut next).collect()).collect()
}

fn rows_of(rows: impl IntoIterator<Item = Vec<u32>>) -> Batch {
    let mut batch = Batch::of_rows(LENGTH);
    for mut row in rows {
        row.resize(LENGTH + 1, PAD);
        batch.push_row(row);
    }
    batch
}

fn packed() -> Batch {
    rows_of(conversations().into_iter().map(|row| row.concat()))
}

/// In another order, each in a row of its own.
fn unpacked() -> Batch {
    rows_of(conversations().into_iter().flatten().rev())
}

/// Without the loss that balances experts, which is of the tokens of a micro-batch together.
fn specs() -> Vec<ModelSpec> {
    let unbalanced = |spec: ModelSpec| {
        let decoder = spec.decoder.as_deref().map(|decoder| {
            let experts = decoder.experts.clone().map(|experts| Experts { balance: 0.0, ..experts });
            Arc::new(Decoder { experts, ..decoder.clone() })
        });
        ModelSpec { decoder, ..spec }
    };
    [tiny_gpt2(), tiny_llama()].into_iter().chain(tiny_decoders()).map(unbalanced).collect()
}

fn gradient(spec: &ModelSpec, train: &TrainConfig, batch: &Batch) -> (StepOutcome, Vec<f32>) {
    let mut gradient = Vec::new();
    let outcome = engine(spec, train).gradient(batch, &mut gradient).unwrap();
    (outcome, gradient)
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, at: &str) {
    assert_eq!(found.len(), expected.len(), "{at}");
    let scale = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(scale > 0.0 && apart <= tolerance * scale, "{at}: {apart} apart of {scale}");
}

/// Also with recomputation, and with micro-batches of other sizes, whose means have other weights.
#[test]
fn packed_conversations_have_the_loss_and_the_gradients_of_single_ones() {
    for spec in specs() {
        let train = |micro_batch, recompute| TrainConfig { micro_batch, recompute, ..TrainConfig::default() };
        let (alone, expected) = gradient(&spec, &train(3, false), &unpacked());
        for (micro_batch, recompute) in [(2, false), (5, true)] {
            let at = format!("{:?}, {micro_batch}, {recompute}", spec.kind);
            let (together, found) = gradient(&spec, &train(micro_batch, recompute), &packed());
            assert!((together.loss - alone.loss).abs() < 1e-5 * alone.loss, "{at}: {together:?}, {alone:?}");
            assert_close(&found, &expected, 2e-5, &at);
        }
    }
}

/// By the cross entropies of each conversation alone, without padding or labels.
#[test]
fn the_loss_is_the_mean_over_trained_tokens() {
    for spec in specs() {
        let engine = engine(&spec, &TrainConfig { micro_batch: 2, ..TrainConfig::default() });
        let (mut sum, mut count, mut of_rows) = (0.0, 0, Vec::new());
        for row in conversations() {
            let before = (sum, count);
            for words in &row {
                let tokens: Vec<i64> = words.iter().map(|word| i64::from(word & 0xffff)).collect();
                let tokens = Tensor::from_slice(&tokens).view([1, -1]).to_device(test_device());
                let losses = tch::no_grad(|| engine.whole().unwrap().token_losses(&tokens)).unwrap();
                let losses = Vec::<f32>::try_from(losses.view([-1])).unwrap();
                for (loss, word) in losses.iter().zip(&words[1..]).filter(|(_, word)| **word & TRAINED > 0) {
                    sum += f64::from(*loss);
                    count += usize::from(word & TRAINED > 0);
                }
            }
            of_rows.push(((sum - before.0) / (count - before.1) as f64) as f32);
        }
        let expected = (sum / count as f64) as f32;
        assert_eq!(packed().losses(), count);
        let evaluated = engine.evaluate([packed(), Batch::of_rows(LENGTH)]).unwrap().unwrap().loss;
        let (outcome, _) =
            gradient(&spec, &TrainConfig { micro_batch: 2, ..TrainConfig::default() }, &packed());
        for found in [evaluated, outcome.loss] {
            assert!((found - expected).abs() < 1e-5 * expected, "{:?}: {found} for {expected}", spec.kind);
        }
        assert_close(&engine.sample_losses(&packed()).unwrap(), &of_rows, 1e-5, &format!("{:?}", spec.kind));
    }
}

/// Workers contribute with their numbers of trained tokens as weights.
#[test]
fn the_mean_over_workers_weighted_by_trained_tokens_is_that_of_the_whole_step() {
    let (spec, train) = (tiny_llama(), TrainConfig { micro_batch: 2, ..TrainConfig::default() });
    let (whole, expected) = gradient(&spec, &train, &packed());
    let all: Vec<Vec<u32>> = conversations().into_iter().map(|row| row.concat()).collect();
    let (mut mean, mut loss, mut count) = (vec![0.0; expected.len()], 0.0, 0);
    for part in [&all[..1], &all[1..]] {
        let batch = rows_of(part.iter().cloned());
        let weight = batch.losses() as f32 / packed().losses() as f32;
        let (own, gradient) = gradient(&spec, &train, &batch);
        mean.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += weight * value);
        loss += weight * own.loss;
        count += batch.losses();
    }
    assert_eq!(count, packed().losses());
    assert!((loss - whole.loss).abs() < 1e-5 * whole.loss, "{loss} for {}", whole.loss);
    assert_close(&mean, &expected, 2e-5, "weighted");
}

/// A later token or another document has no influence on a query.
#[test]
fn nothing_crosses_documents() {
    let spec = tiny_llama();
    let engine = engine(&spec, &TrainConfig::default());
    let starts = Tensor::from_slice2(&[[1_i64, 0, 0, 0, 1, 0, 0, 0]]).to_device(test_device());
    let documents = Documents::new(&starts).unwrap();
    let behind = |first: i64| {
        let tokens = Tensor::from_slice2(&[[first, 2, 3, 4, 5, 6, 7, 8]]).to_device(test_device());
        let pass = Pass { documents: Some(&documents), ..Pass::default() };
        tch::no_grad(|| engine.whole().unwrap().forward_in(&tokens, pass)).unwrap()
    };
    let [one, other] = [behind(1), behind(9)];
    assert!(one.narrow(1, 4, 4).equal(&other.narrow(1, 4, 4)));
    assert!(!one.narrow(1, 1, 3).equal(&other.narrow(1, 1, 3)));
}

/// Every stage knows the documents, with and without recomputation.
#[test]
fn a_pipeline_has_the_gradients_of_the_whole_model() {
    for (spec, schedule, ranks, chunks) in [
        (tiny_llama(), PipelineSchedule::ZeroBubble, 3, 1),
        (tiny_gpt2(), PipelineSchedule::Interleaved, 2, 2),
    ] {
        let pipeline = pipeline(schedule, ranks, chunks);
        for recompute in [false, true] {
            let train = TrainConfig { micro_batch: 2, recompute, ..TrainConfig::default() };
            let (whole, expected) = gradient(&spec, &train, &packed());
            let expected = named(&spec, &expected);
            let compute = |(rank, pipe): (u32, _)| {
                let (spec, pipeline, train) = (part(&spec, &pipeline, rank), pipeline.clone(), train.clone());
                thread::spawn(move || {
                    let mut engine = engine(&spec, &train);
                    engine.join(PipelineRank::new(pipeline, rank, pipe)).unwrap();
                    let mut gradient = Vec::new();
                    let outcome = engine.gradient(&packed(), &mut gradient).unwrap();
                    let evaluated = engine.evaluate([packed()]).unwrap().unwrap().loss;
                    (outcome.loss, evaluated, named(&spec, &gradient))
                })
            };
            let ranks: Vec<_> = (0..).zip(channels(&pipeline)).map(compute).collect();
            for rank in ranks {
                let (loss, evaluated, gradient) = rank.join().unwrap();
                for found in [loss, evaluated] {
                    assert!((found - whole.loss).abs() < 1e-5 * whole.loss, "{schedule:?}: {found}");
                }
                for (name, found) in &gradient {
                    assert_close(found, &expected[name], 2e-5, &format!("{schedule:?}, {recompute}, {name}"));
                }
            }
        }
    }
}

fn named(spec: &ModelSpec, flat: &[f32]) -> HashMap<String, Vec<f32>> {
    let mut rest = flat;
    let mut cut = |count: usize| {
        let (part, after) = rest.split_at(count);
        rest = after;
        part.to_vec()
    };
    let tensors = spec.parameters().into_iter();
    tensors.map(|tensor| (tensor.name.clone(), cut(tensor.count() as usize))).collect()
}
