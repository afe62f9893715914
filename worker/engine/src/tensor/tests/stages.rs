//! Pipelines whose stages are tensor groups.

use std::vec::IntoIter;

use longhaul_common::pipeline::{Pipeline, PipelineSchedule};

use super::*;
use crate::testing::{Selected, channels, part, pipeline, train_selected};
use crate::{Pipe, PipelineRank};

/// Applies `work` to each rank's engine in a pipeline of groups of two, stage by stage: each is connected to the same index of the others.
fn each_in_stages<T: Send>(
    spec: &ModelSpec,
    train: &TrainConfig,
    pipeline: &Pipeline,
    work: impl Fn(Engine) -> T + Sync,
) -> Vec<Vec<T>> {
    let mut alike = [channels(pipeline).into_iter(), channels(pipeline).into_iter()];
    let stage = |rank: u32| -> Vec<Engine> {
        let shards = part(spec, pipeline, rank).shards(2).unwrap();
        let members = shards.iter().zip(Threads::group(2, Fault::Nothing)).zip(&mut alike);
        let member = |((shard, collective), pipes): ((&ModelSpec, Box<dyn Collective>), &mut IntoIter<_>)| {
            let mut engine = engine(shard, train);
            engine.join_group(TensorGroup::new(collective).unwrap()).unwrap();
            engine.join(PipelineRank::new(pipeline.clone(), rank, pipes.next().unwrap())).unwrap();
            engine
        };
        members.map(member).collect()
    };
    let stages: Vec<Vec<Engine>> = (0..pipeline.ranks).map(stage).collect();
    thread::scope(|scope| {
        let work = &work;
        let start = |engines: Vec<Engine>| -> Vec<_> {
            engines.into_iter().map(|engine| scope.spawn(move || work(engine))).collect()
        };
        let threads: Vec<Vec<_>> = stages.into_iter().map(start).collect();
        let end = |of_stage: Vec<thread::ScopedJoinHandle<'_, T>>| {
            of_stage.into_iter().map(|thread| thread.join().unwrap()).collect()
        };
        threads.into_iter().map(end).collect()
    })
}

fn trained_in_stages(spec: &ModelSpec, train: &TrainConfig, pipeline: &Pipeline) -> Trained {
    let all = each_in_stages(spec, train, pipeline, trained);
    let (losses, evaluated) = (all[0][0].0.clone(), all[0][0].1);
    assert!(all.iter().flatten().all(|of| (&of.0, of.1) == (&losses, evaluated)), "all get the same loss");
    let parameters = (0..).zip(all).flat_map(|(rank, members)| {
        let own: Vec<_> = members.into_iter().map(|(.., parameters)| parameters).collect();
        put_together(&part(spec, pipeline, rank), &own)
    });
    (losses, evaluated, parameters.collect())
}

fn pipelines_of_two() -> [Pipeline; 4] {
    use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    [(OneForwardOneBackward, 1), (ZeroBubble, 1), (Gpipe, 1), (Interleaved, 2)]
        .map(|(schedule, chunks)| pipeline(schedule, 2, chunks))
}

#[test]
fn stages_of_tensor_groups_train_as_one_engine_with_the_whole_model_does() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        let expected = trained(whole(&spec, 0.5));
        for pipeline in pipelines_of_two() {
            let run = |recompute| {
                let train = TrainConfig { recompute, ..train_config(0.5) };
                trained_in_stages(&spec, &train, &pipeline)
            };
            let found = run(false);
            assert_near(&found, &expected, &format!("{}, {:?}", about(&spec), pipeline.schedule));
            assert!(run(true) == found, "{}, {:?}", about(&spec), pipeline.schedule);
        }
    }
}

/// For sums in the same order: without a norm or the gradient of a tied embedding.
#[test]
fn stages_of_tensor_groups_make_the_same_bits_as_one_group_with_all_layers() {
    for spec in models().into_iter().filter(|spec| !spec.tied_embeddings) {
        let train = train_config(0.0);
        let expected = trained_in_group(Threads::group(2, Fault::Nothing), &spec, &train);
        for pipeline in pipelines_of_two() {
            let found = trained_in_stages(&spec, &train, &pipeline);
            assert!(found == expected, "{}, {:?}", about(&spec), pipeline.schedule);
        }
    }
}

#[test]
fn a_norm_that_is_clipped_is_that_of_all_stages_and_their_members() {
    for spec in models() {
        let pipeline = &pipelines_of_two()[0];
        let work = |mut engine: Engine| clipped_gradient(&mut engine, 0.01);
        let all = each_in_stages(&spec, &train_config(0.0), pipeline, work);
        let stages =
            (0..).zip(&all).map(|(rank, members)| put_together(&part(&spec, pipeline, rank), members));
        let squares = stages.flat_map(HashMap::into_values).flatten().map(|value| f64::from(value).powi(2));
        let norm = squares.sum::<f64>().sqrt();
        assert!((norm - 0.01).abs() < 1e-6, "{}: {norm}", about(&spec));
    }
}

#[test]
fn the_norms_that_all_parts_tell_add_up_to_that_of_the_whole_model() {
    for spec in models() {
        let mut gradient = Vec::new();
        engine(&spec, &train_config(0.0)).gradient(&batch(0), &mut gradient).unwrap();
        let expected = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        for clip in [0.0, 0.01] {
            let pipeline = &pipelines_of_two()[0];
            let norms = each_in_stages(&spec, &train_config(clip), pipeline, |mut engine| {
                engine.train_step(0, &batch(0)).unwrap().gradient_norm.unwrap()
            });
            let squares = norms.iter().flatten().map(|norm| f64::from(*norm).powi(2)).sum::<f64>();
            assert!((squares / expected - 1.0).abs() < 1e-4, "{}: {norms:?} and {expected}", about(&spec));
        }
    }
}

#[test]
fn a_share_of_a_part_joins_its_group_before_the_pipeline() {
    let pipeline = &pipelines_of_two()[0];
    let mut share = engine(&part(&tiny_gpt2(), pipeline, 0).shards(2).unwrap()[0], &train_config(0.0));
    let rank =
        |pipes: Vec<Box<dyn Pipe>>| PipelineRank::new(pipeline.clone(), 0, pipes.into_iter().next().unwrap());
    assert!(matches!(share.join(rank(channels(pipeline))), Err(EngineError::NoGroup)));
    let collective = Threads::group(2, Fault::Nothing).swap_remove(0);
    share.join_group(TensorGroup::new(collective).unwrap()).unwrap();
    assert!(matches!(share.train_step(0, &batch(0)), Err(EngineError::Part)), "a share alone is no model");
    assert!(share.join(rank(channels(pipeline))).is_ok());
}

#[test]
fn all_workers_of_a_copy_train_on_the_same_samples() {
    for spec in models() {
        let train = train_config(0.5);
        let expected = train_selected(whole(&spec, 0.5));
        let near = |found: &Selected| {
            let pairs = found.losses.iter().zip(&expected.losses);
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-4 && found.weights == expected.weights
        };
        let group =
            each(Threads::group(2, Fault::Nothing), &spec, &train, |_, engine| train_selected(engine));
        assert!(group[0] == group[1] && near(&group[0]), "{}: {group:?}", about(&spec));
        for pipeline in pipelines_of_two() {
            let stages = each_in_stages(&spec, &train, &pipeline, train_selected);
            assert!(stages.iter().flatten().all(near), "{}, {pipeline:?}: {stages:?}", about(&spec));
            assert!(stages[1][0].of_samples.len() > 10 && stages[0][0].of_samples.is_empty());
        }
    }
}
