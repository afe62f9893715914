use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::{Differences, ValueFormat};
use longhaul_common::id::{Generation, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::model::tiny::{tiny_bottleneck, tiny_llama, tiny_subspace};
use longhaul_common::pipeline::{Pipeline, PipelineSchedule, Task, Work};
use longhaul_common::plan::Member;
use longhaul_engine::testing as pipeline_tests;
use longhaul_engine::{EngineError, Gift, Pipe};
use longhaul_peer::StageGroup;
use longhaul_peer::testing::{Worker, authority};
use longhaul_proto::transport::bulk::ReceiveLimits;
use tch::Tensor;
use tokio::time::timeout;

use super::{BoundaryFormats, NetworkPipe};

/// The networks of a replica's ranks, each at its own site, and their pipes.
pub fn replica(pipeline: &Pipeline, formats: BoundaryFormats) -> (Vec<Worker>, Vec<NetworkPipe>) {
    let session = Generation(4);
    let authority = authority();
    let ranks: Vec<Worker> = (1..=pipeline.ranks)
        .map(|number| Worker::start(&authority, number, ReceiveLimits::default()))
        .collect();
    let members: Vec<Member> = ranks.iter().map(|rank| rank.member.clone()).collect();
    let workers: Vec<WorkerId> = members.iter().map(|member| member.worker).collect();
    let pipe = |(rank, worker): (u32, &Worker)| {
        worker.network.set_members(&members, 0);
        worker.network.join_replica(Some(StageGroup { session, workers: workers.clone() }));
        let network = Arc::clone(&worker.network);
        NetworkPipe::new(network, pipeline.clone(), rank, session, workers.clone(), WorkerId(1), formats)
            .unwrap()
    };
    let pipes = (0..).zip(&ranks).map(pipe).collect();
    (ranks, pipes)
}

/// The results of one engine with the whole model, and of three ranks with parts of it.
async fn trained_whole_and_in_parts(
    formats: BoundaryFormats,
    spec: ModelSpec,
) -> (Vec<Worker>, [pipeline_tests::Trained; 2]) {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 3, 1);
    let (ranks, pipes) = replica(&pipeline, formats);
    let spawned = tokio::task::spawn_blocking(move || {
        let whole = pipeline_tests::trained(pipeline_tests::whole(&spec, 0.0));
        let pipes = pipes.into_iter().map(|pipe| Box::new(pipe) as Box<dyn Pipe>).collect();
        [whole, pipeline_tests::trained_through(pipes, &spec, &pipeline_tests::train_config(0.0), &pipeline)]
    });
    (ranks, spawned.await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_on_several_machines_make_the_same_bits_as_the_whole_model() {
    let (ranks, [whole, in_parts]) = trained_whole_and_in_parts(BoundaryFormats::EXACT, tiny_llama()).await;
    assert!(whole == in_parts);
    assert!(ranks.iter().all(|rank| rank.network.progress().heartbeat().traffic.wan_sent_bytes > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_talk_in_eight_bits_train_as_well() {
    let int8 = ValueFormat::Int8;
    // Lent embeddings of six columns, and messages of six or 32 values per token.
    for spec in [tiny_llama(), tiny_subspace(true), tiny_bottleneck()] {
        let formats = BoundaryFormats::of(int8);
        let (_ranks, [(_, whole, _), (_, in_parts, _)]) = trained_whole_and_in_parts(formats, spec).await;
        assert!(whole != in_parts && (in_parts / whole - 1.0).abs() < 0.02, "{in_parts} for {whole}");
    }
}

/// Three quarters of the gradients' values: the tiny model's boundary has 512.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_hand_some_values_of_gradients_back_train_nearly_as_well() {
    let formats = BoundaryFormats { gradient_keep: 384, ..BoundaryFormats::of(ValueFormat::Int8) };
    let (_ranks, [(_, whole, _), (_, in_parts, _)]) = trained_whole_and_in_parts(formats, tiny_llama()).await;
    assert!(whole != in_parts && (in_parts / whole - 1.0).abs() < 0.1, "{in_parts} for {whole}");
}

/// A quarter of the values of one gradient, sixty-four times. The mean of the largest quarter alone would have another direction (a cosine of 0.7).
#[tokio::test(flavor = "multi_thread")]
async fn of_a_gradient_other_values_are_drawn_each_time_and_their_mean_is_right() {
    const TIMES: i64 = 64;
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let formats = BoundaryFormats { gradient_keep: 1024, ..BoundaryFormats::EXACT };
    let (_ranks, mut pipes) = replica(&pipeline, formats);
    let sending = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(5 * 4096, (tch::Kind::Float, tch::Device::Cpu)).sin().view([5, 64, 64]);
        let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
        let mut sum = values.zeros_like();
        for time in 0..TIMES {
            let task = Task { work: Work::Backward, chunk: 0, micro_batch: 0 };
            [&mut *first, second].into_iter().for_each(|pipe| pipe.begin());
            second.send(task, &values).unwrap();
            let got = first.receive(task, &[5, 64, 64]).unwrap();
            let sent = got.count_nonzero(0).sum(tch::Kind::Int64).int64_value(&[]);
            assert!((5 * 1023..=5 * 1024).contains(&sent), "{sent} values at time {time}");
            sum += got;
        }
        let cosine = sum.view([-1]).dot(&values.view([-1])) / (sum.norm() * values.norm());
        let length =
            f64::try_from(sum.view([-1]).dot(&values.view([-1])) / values.square().sum(tch::Kind::Float))
                .unwrap();
        (f64::try_from(cosine).unwrap(), length / TIMES as f64)
    });
    let (cosine, length) = sending.await.unwrap();
    assert!(cosine > 0.95 && (length - 1.0).abs() < 0.02, "{cosine}, {length}");
}

/// Activations of repeated sequences with small changes: four bits of the difference are finer than eight bits of the value.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_sequence_that_comes_again_what_has_changed_is_sent() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let differences = Differences { values: ValueFormat::Int4, memory_mib: 64 };
    let formats =
        BoundaryFormats { differences: Some(differences), ..BoundaryFormats::of(ValueFormat::Int8) };
    let (ranks, mut pipes) = replica(&pipeline, formats);
    let network = Arc::clone(&ranks[0].network);
    let sending = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(600_000, (tch::Kind::Float, tch::Device::Cpu)).sin().view([2, 300, 1000]);
        let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
        let (mut errors, mut bytes) = (Vec::new(), Vec::new());
        let task = Task { work: Work::Forward, chunk: 0, micro_batch: 0 };
        // Other sequences in between; the two of the first epoch in another order; and an evaluation without sequences.
        for (epoch, names) in [vec![1, 2], vec![3, 4], vec![2, 1], Vec::new()].into_iter().enumerate() {
            let values = match epoch {
                2 => values.flip([0]) + 0.01 * values.cos(),
                _ => values.copy(),
            };
            let before = network.progress().heartbeat().traffic.wan_sent_bytes;
            for pipe in [&mut *first, second] {
                pipe.begin();
                if !names.is_empty() {
                    pipe.name(vec![names.clone()]);
                }
            }
            first.send(task, &values).unwrap();
            let got = second.receive(task, &[2, 300, 1000]).unwrap();
            errors.push(f64::try_from((got - values).abs().max()).unwrap());
            bytes.push(network.progress().heartbeat().traffic.wan_sent_bytes - before);
        }
        (errors, bytes)
    });
    let (errors, bytes) = sending.await.unwrap();
    // Half a level: of a range up to one in 127 levels, and of a range up to 0.014 in seven.
    assert!(errors[0] > 1e-3 && errors[0] <= 0.5 / 127.0 + 1e-3, "{errors:?}");
    assert!(errors[2] > 0.0 && errors[2] <= 0.5 * 0.015 / 7.0 + 1e-4, "{errors:?}");
    assert_eq!(errors[3], errors[0]);
    assert!(bytes[2] < bytes[0] * 6 / 10, "{bytes:?}");
}

/// Two chunks per rank, so that each rank sends and receives, with memory for six sequences of each. Micro-batches of two sequences arrive in any order, are
/// evicted and return.
/// Full values are exact and differences have small errors; if the caches diverged, errors would be as large as the values.
#[tokio::test(flavor = "multi_thread")]
async fn both_ranks_remember_and_forget_the_same() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::Interleaved, 2, 2);
    let differences = Differences { values: ValueFormat::Int4, memory_mib: 3 };
    let formats = BoundaryFormats { differences: Some(differences), ..BoundaryFormats::EXACT };
    let (_ranks, mut pipes) = replica(&pipeline, formats);
    let sending = tokio::task::spawn_blocking(move || {
        let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
        let of_sequence = |name: u64, step: u64| {
            let base = Tensor::arange(65_536, (tch::Kind::Float, tch::Device::Cpu)).view([1, 256, 256]);
            (base + name as f64).sin() + 0.001 * step as f64
        };
        let mut errors = Vec::new();
        for step in 0..12_u64 {
            let names: Vec<Vec<u64>> =
                (0..2).map(|micro| vec![(step * 3 + micro) % 5, (step + micro) % 3 + 5]).collect();
            for pipe in [&mut *first, second] {
                pipe.begin();
                pipe.name(names.clone());
            }
            // From the first rank's chunks to the second's, and from the second rank's first chunk back to the first rank's second.
            for (micro_batch, names) in (0..).zip(&names) {
                let values = Tensor::cat(&[of_sequence(names[0], step), of_sequence(names[1], step)], 0);
                let task = |chunk| Task { work: Work::Forward, chunk, micro_batch };
                for (from_first, sent, taken) in [(true, 0, 0), (false, 0, 1), (true, 1, 1)] {
                    let (from, to) =
                        if from_first { (&mut *first, &mut *second) } else { (&mut *second, &mut *first) };
                    from.send(task(sent), &values).unwrap();
                    let got = to.receive(task(taken), &[2, 256, 256]).unwrap();
                    errors.push(f64::try_from((got - &values).abs().max()).unwrap());
                }
            }
        }
        errors
    });
    let errors = sending.await.unwrap();
    let exact = errors.iter().filter(|&&error| error == 0.0).count();
    assert!(exact > 6 && exact + 6 < errors.len(), "{exact} of {} were sent whole", errors.len());
    assert!(errors.iter().all(|&error| error < 2e-3), "{errors:?}");
}

/// 8.125 bits instead of 32, and headers.
#[tokio::test(flavor = "multi_thread")]
async fn activations_in_eight_bits_are_a_quarter_of_the_bytes() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let sent = async |activations: ValueFormat| {
        let formats = BoundaryFormats { activations, ..BoundaryFormats::EXACT };
        let (ranks, mut pipes) = replica(&pipeline, formats);
        let task = Task { work: Work::Forward, chunk: 0, micro_batch: 0 };
        let sending = tokio::task::spawn_blocking(move || {
            let values =
                Tensor::arange(600_000, (tch::Kind::Float, tch::Device::Cpu)).sin().view([2, 300, 1000]);
            let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
            first.begin();
            first.send(task, &values).unwrap();
            second.begin();
            let got = second.receive(task, &[2, 300, 1000]).unwrap();
            f64::try_from((got - values).abs().max()).unwrap()
        });
        let error = sending.await.unwrap();
        (error, ranks[0].network.progress().heartbeat().traffic.wan_sent_bytes as f64)
    };
    let ((exact, whole), (rounded, quarter)) = (sent(ValueFormat::F32).await, sent(ValueFormat::Int8).await);
    assert_eq!(exact, 0.0);
    assert!(rounded > 0.0 && rounded <= 0.5 / 127.0 + 1e-3, "{rounded}");
    assert!(quarter / whole < 0.256, "{quarter} of {whole}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tensor_of_several_frames_arrives_and_who_waits_is_told_when_the_replica_changes() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let (ranks, pipes) = replica(&pipeline, BoundaryFormats::EXACT);
    let [mut first, mut second] = <[NetworkPipe; 2]>::try_from(pipes).ok().unwrap();
    let network = Arc::clone(&ranks[1].network);
    let waiting = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(600_000, (tch::Kind::Float, tch::Device::Cpu)).view([600, 1000]);
        first.begin();
        first.give(1, Gift::Values, &values).unwrap();
        second.begin();
        assert_eq!(second.take(0, Gift::Values, &[600, 1000]).unwrap(), values);
        network.join_replica(None);
        assert!(matches!(second.take(0, Gift::Values, &[600, 1000]), Err(EngineError::Interrupted(_))));
        assert!(matches!(second.total(1.0), Err(EngineError::Interrupted(_))));
    });
    waiting.await.unwrap();
}

/// Ranks receive a generation one after the other, and data acknowledged by their transport is not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn who_hears_of_a_replica_late_has_what_was_sent_before() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let (ranks, pipes) = replica(&pipeline, BoundaryFormats::EXACT);
    let [mut first, mut second] = <[NetworkPipe; 2]>::try_from(pipes).ok().unwrap();
    let late = Arc::clone(&ranks[1].network);
    let workers = ranks.iter().map(|rank| rank.member.worker).collect();
    late.join_replica(None);
    let waiting = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(1000, (tch::Kind::Float, tch::Device::Cpu));
        first.begin();
        first.give(1, Gift::Values, &values).unwrap();
        while late.progress().heartbeat().traffic.wan_received_bytes == 0 {
            std::thread::yield_now();
        }
        late.join_replica(Some(StageGroup { session: Generation(4), workers }));
        second.begin();
        assert_eq!(second.take(0, Gift::Values, &[1000]).unwrap(), values);
    });
    timeout(Duration::from_secs(60), waiting).await.expect("the message is lost").unwrap();
}
