//! Encoders on masked sequences.

use std::thread;

use longhaul_common::model::tiny::tiny_encoders;
use longhaul_common::pipeline::PipelineSchedule;
use longhaul_data::{HostBatch, LABEL_BIT};
use tch::Reduction;

use super::*;
use crate::models::{IGNORED, Model, Parameters};
use crate::testing::{channels, part, pipeline};

const LENGTH: i64 = 12;
const SEQUENCES: i64 = 5;

/// Inputs and labels `[B, T]` of sequences of which the third and the last predict nothing.
fn sequences() -> (Vec<i64>, Vec<i64>) {
    let places = (0..SEQUENCES).flat_map(|row| (0..LENGTH).map(move |at| (row, at)));
    let of = |(row, at): (i64, i64)| {
        let (input, label) = ((row * 17 + at * at * 5) % 64, (row * 7 + at * 3) % 64);
        let is_predicted = row % 2 == 0 && row != 4 && at > 0 && (at + row) % 4 == 1 || row == 1 && at == 7;
        (input, if is_predicted { label } else { IGNORED })
    };
    places.map(of).unzip()
}

fn masked() -> Batch {
    let (inputs, labels) = sequences();
    let word = |(input, label): (&i64, &i64)| input | (label + 1).max(0) << LABEL_BIT;
    let words: Vec<i64> = inputs.iter().zip(&labels).map(word).collect();
    let mut batch = Batch::of_masked(LENGTH as usize);
    words.chunks(LENGTH as usize).for_each(|row| batch.push_masked_words(row.iter().copied()));
    batch
}

fn train(micro_batch: u32, recompute: bool) -> TrainConfig {
    TrainConfig { micro_batch, recompute, ..TrainConfig::default() }
}

/// Returns the mean loss and its gradient by the logits of all tokens, in one pass.
fn reference(spec: &ModelSpec) -> (f64, Vec<f32>) {
    let values = parameters(&engine(spec, &train(1, false)));
    let parameters = Parameters::new(spec, &values, test_device()).unwrap();
    let model = Model::of_all(spec, &parameters, Precision::F32).unwrap();
    let (inputs, labels) = sequences();
    let tensor = |values: &[i64]| Tensor::from_slice(values).to_device(test_device());
    let logits = model.logits(&tensor(&inputs).view([SEQUENCES, LENGTH])).unwrap().view([-1, 64]);
    let labels = tensor(&labels);
    let loss = logits.cross_entropy_loss::<Tensor>(&labels, None, Reduction::Mean, IGNORED, 0.0);
    loss.backward();
    let gradients =
        parameters.views().iter().map(|view| Vec::<f32>::try_from(view.grad().flatten(0, -1)).unwrap());
    (loss.double_value(&[]), gradients.collect::<Vec<_>>().concat())
}

fn assert_close(found: &[f32], expected: &[f32], at: &str) {
    assert_eq!(found.len(), expected.len(), "{at}");
    let scale = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(scale > 0.0 && apart <= 2e-5 * scale, "{at}: {apart} apart of {scale}");
}

#[test]
fn loss_and_gradients_are_those_of_the_mean_over_predicted_tokens() {
    let count = sequences().1.iter().filter(|label| **label != IGNORED).count();
    assert_eq!((masked().losses(), masked().tokens()), (count, 60));
    for spec in tiny_encoders() {
        let (loss, expected) = reference(&spec);
        for (micro_batch, recompute) in [(1, false), (2, true), (5, false)] {
            let at = format!("{:?}, {micro_batch}, {recompute}", spec.kind);
            let mut engine = engine(&spec, &train(micro_batch, recompute));
            let mut gradient = Vec::new();
            let found = engine.gradient(&masked(), &mut gradient).unwrap();
            let evaluated = engine.evaluate([masked()]).unwrap().unwrap();
            for found in [found.loss, evaluated.loss] {
                assert!((f64::from(found) - loss).abs() < 1e-5 * loss, "{at}: {found} for {loss}");
            }
            assert_close(&gradient, &expected, &at);
            let mut by_tensor = Vec::new();
            engine.gradient_by_tensor(&masked(), &mut by_tensor, &mut |_, _| {}).unwrap();
            assert_eq!(by_tensor, gradient, "{at}");
        }
    }
}

#[test]
fn dropout_is_the_same_in_a_recomputed_pass_and_with_scores_in_memory() {
    let seeded = || Batch::from(HostBatch::clone(&masked()).seeded((0..SEQUENCES as u64).collect()));
    for spec in tiny_encoders() {
        let gradient = |dropout, attention_dropout, recompute| {
            let train = TrainConfig { dropout, attention_dropout, ..train(2, recompute) };
            let mut gradient = Vec::new();
            let outcome = engine(&spec, &train).gradient(&seeded(), &mut gradient).unwrap();
            (outcome.loss, gradient)
        };
        let dropped = gradient(Some(0.2), Some(0.2), false);
        assert!(gradient(Some(0.2), Some(0.2), true) == dropped, "{:?}", spec.kind);
        let (loss, plain) = gradient(None, None, false);
        assert_ne!(dropped.0, loss);
        // No word is below such a rate.
        let (given, with_scores) = gradient(None, Some(1e-12), false);
        assert!((given - loss).abs() < 1e-5 * loss, "{:?}: {given} for {loss}", spec.kind);
        assert_close(&with_scores, &plain, &format!("{:?}", spec.kind));
    }
}

#[test]
fn without_a_predicted_token_nothing_changes() {
    let spec = &tiny_encoders()[0];
    let mut batch = Batch::of_masked(LENGTH as usize);
    batch.push_masked_words(0..LENGTH);
    let mut engine = engine(spec, &train(1, false));
    let mut gradient = Vec::new();
    assert_eq!(engine.gradient(&batch, &mut gradient).unwrap().loss, 0.0);
    assert!(gradient.iter().all(|value| *value == 0.0));
    assert_eq!(engine.evaluate([&batch]).unwrap(), None);
}

/// The output projection is the token embedding: the last stage borrows it.
#[test]
fn a_pipeline_has_the_gradients_of_the_whole_model() {
    for (spec, schedule, ranks, chunks) in tiny_encoders()
        .into_iter()
        .zip([
            (PipelineSchedule::OneForwardOneBackward, 2, 1),
            (PipelineSchedule::Interleaved, 2, 2),
            (PipelineSchedule::ZeroBubble, 3, 1),
        ])
        .map(|(spec, (schedule, ranks, chunks))| (spec, schedule, ranks, chunks))
    {
        let (pipeline, (loss, expected)) = (pipeline(schedule, ranks, chunks), reference(&spec));
        let mut places = std::collections::HashMap::new();
        spec.parameters().iter().fold(0, |start, tensor| {
            let end = start + tensor.count() as usize;
            places.insert(tensor.name.clone(), start..end);
            end
        });
        let compute = |(rank, pipe): (u32, _)| {
            let (spec, pipeline) = (part(&spec, &pipeline, rank), pipeline.clone());
            thread::spawn(move || {
                let mut engine = testing::engine(&spec, &train(2, rank == 0));
                engine.join(PipelineRank::new(pipeline, rank, pipe)).unwrap();
                let mut gradient = Vec::new();
                let outcome = engine.gradient(&masked(), &mut gradient).unwrap();
                let evaluated = engine.evaluate([masked()]).unwrap().unwrap().loss;
                (spec.parameters(), gradient, outcome.loss, evaluated)
            })
        };
        let ranks: Vec<_> = (0..).zip(channels(&pipeline)).map(compute).collect();
        for rank in ranks {
            let (tensors, gradient, own, evaluated) = rank.join().unwrap();
            for found in [own, evaluated] {
                assert!((f64::from(found) - loss).abs() < 1e-5 * loss, "{:?}: {found} for {loss}", spec.kind);
            }
            let mut rest = gradient.as_slice();
            for tensor in tensors {
                let (part, after) = rest.split_at(tensor.count() as usize);
                let expected = &expected[places[&tensor.name].clone()];
                let apart = part.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart < 2e-6, "{:?}, {}: {apart}", spec.kind, tensor.name);
                rest = after;
            }
        }
    }
}
