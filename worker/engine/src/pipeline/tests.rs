//! Ranks on threads against one engine that has the whole model.

use longhaul_common::config::{SparseBackwardConfig, SparseMode, TrainConfig};
use longhaul_common::model::Stream;
use longhaul_common::model::tiny::{tiny_bottleneck, tiny_decoders, tiny_gpt2, tiny_llama, tiny_subspace};
use longhaul_common::pipeline::PipelineSchedule;

use super::*;
use crate::testing::{
    Selected, Trained, batch, channels, engine, part, pipeline, stages, train_config, train_selected,
    trained, trained_through, whole,
};

fn trained_in_pipeline(spec: &ModelSpec, train: &TrainConfig, pipeline: &Pipeline) -> Trained {
    trained_through(channels(pipeline), spec, train, pipeline)
}

fn pipelines() -> [Pipeline; 4] {
    use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    [(OneForwardOneBackward, 2, 1), (Gpipe, 3, 1), (Interleaved, 2, 2), (ZeroBubble, 4, 1)]
        .map(|(schedule, ranks, chunks)| pipeline(schedule, ranks, chunks))
}

/// For sums in the same order, with and without recomputation.
#[test]
fn a_pipeline_makes_the_same_bits_as_the_whole_model() {
    for spec in [tiny_llama(), tiny_subspace(false), tiny_bottleneck()] {
        let (losses, evaluated, parameters) = trained(whole(&spec, 0.0));
        // Of narrow streams, each pipeline once.
        let cases = pipelines().into_iter().enumerate().flat_map(|(at, pipeline)| match spec.stream {
            Stream::Full => vec![(pipeline.clone(), true), (pipeline, false)],
            _ => vec![(pipeline, at % 2 == 0)],
        });
        for (pipeline, recompute) in cases {
            let train = TrainConfig { recompute, ..train_config(0.0) };
            let (own_losses, own_evaluated, own) = trained_in_pipeline(&spec, &train, &pipeline);
            let case = format!("{:?}, {pipeline:?}, {recompute}", spec.stream);
            assert_eq!((own_losses, own_evaluated), (losses.clone(), evaluated), "{case}");
            assert!(own == parameters, "{case}");
        }
    }
}

#[test]
fn a_pipeline_of_each_decoder_makes_the_same_bits_as_the_whole_model() {
    let ranks = pipeline(PipelineSchedule::ZeroBubble, 2, 1);
    for spec in tiny_decoders().into_iter().filter(|spec| !spec.tied_embeddings) {
        let expected = trained(whole(&spec, 0.0));
        for recompute in [false, true] {
            let train = TrainConfig { recompute, ..train_config(0.0) };
            let found = trained_in_pipeline(&spec, &train, &ranks);
            assert!(found == expected, "{:?}, {recompute}", spec.kind);
        }
    }
}

/// With and without deferred weight gradients, each micro-batch chooses the same columns.
#[test]
fn a_pipeline_with_sparse_backward_passes_makes_the_same_bits_as_the_whole_model() {
    let spec = tiny_llama();
    let layers = vec!["*".to_owned(), spec.output_projection().to_owned()];
    let sparse_backward = Some(SparseBackwardConfig { keep: 0.2, mode: SparseMode::Columns, layers });
    let train = TrainConfig { sparse_backward, ..train_config(0.0) };
    let expected = trained(engine(&spec, &train));
    for pipeline in pipelines() {
        assert!(trained_in_pipeline(&spec, &train, &pipeline) == expected, "{pipeline:?}");
    }
}

/// The norm for clipping is summed stage by stage, and a tied embedding's gradient separately for its two places: last bits differ, which AdamW
/// amplifies: to 1e-4 after 50 steps.
#[test]
fn a_pipeline_with_clipping_and_a_tied_embedding_trains_as_the_whole_model_does() {
    for (spec, pipeline) in [tiny_gpt2(), tiny_subspace(true)]
        .iter()
        .flat_map(|spec| pipelines().map(|pipeline| (spec, pipeline)))
    {
        let (losses, evaluated, parameters) = trained(whole(spec, 0.5));
        let train = TrainConfig { recompute: true, ..train_config(0.5) };
        let (own_losses, own_evaluated, own) = trained_in_pipeline(spec, &train, &pipeline);
        let close = |a: f32, b: f32| (a - b).abs() <= 1e-4 * b.abs().max(1e-2);
        assert!(losses.iter().zip(&own_losses).all(|(a, b)| close(*a, *b)), "{pipeline:?}: {own_losses:?}");
        assert!(close(evaluated, own_evaluated), "{pipeline:?}: {own_evaluated} for {evaluated}");
        assert_eq!(own.len(), parameters.len());
        for (name, values) in &parameters {
            // Equal for all keys, it moves no softmax: its gradient is rounding, which AdamW scales like any other.
            let keys = if name.ends_with("c_attn.bias") { 32..64 } else { 0..0 };
            let apart = values.iter().zip(&own[name]).enumerate().filter(|(at, _)| !keys.contains(at));
            let apart = apart.map(|(_, (a, b))| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-4, "{pipeline:?}: {name} is {apart} apart");
        }
    }
}

#[test]
fn a_part_that_is_not_that_of_its_place_is_refused() {
    let spec = tiny_gpt2();
    let pipeline = pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let both = stages(&spec, 2);
    let one = |stage: usize| vec![both[stage].clone()];
    // Too many chunks; the first part at the last place; the last one at the first.
    for (chunks, rank) in [(both.clone(), 1), (one(0), 1), (one(1), 0)] {
        let mut engine = engine(&spec.part(chunks.clone()), &train_config(0.0));
        let channels = channels(&pipeline).pop().unwrap();
        let joined = engine.join(PipelineRank::new(pipeline.clone(), rank, channels));
        assert!(matches!(joined, Err(EngineError::Place { .. })), "{chunks:?} at {rank}");
        assert!(matches!(engine.train_step(0, &batch(0)), Err(EngineError::Part)));
    }
}

#[test]
fn ranks_of_a_pipeline_train_on_what_the_last_one_selects_also_where_that_is_nothing() {
    let spec = tiny_llama();
    for pipeline in pipelines() {
        let train = train_config(0.0);
        let expected = train_selected(engine(&spec, &train));
        assert!(expected.weights.contains(&0.0) && expected.weights.contains(&1.5));
        let ranks: Vec<_> = (0..)
            .zip(channels(&pipeline))
            .map(|(rank, pipe)| {
                let mut engine = engine(&part(&spec, &pipeline, rank), &train);
                engine.join(PipelineRank::new(pipeline.clone(), rank, pipe)).unwrap();
                std::thread::spawn(move || train_selected(engine))
            })
            .collect();
        for (rank, found) in ranks.into_iter().enumerate() {
            let found = found.join().unwrap();
            let is_last = rank as u32 + 1 == pipeline.ranks;
            let of_samples = if is_last { expected.of_samples.clone() } else { Vec::new() };
            assert_eq!(found, Selected { of_samples, ..expected.clone() }, "{pipeline:?}, rank {rank}");
        }
    }
}
