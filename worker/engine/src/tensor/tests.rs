//! Members on threads against one engine that has the whole model.

mod decoders;
mod sparse;
mod stages;
mod threads;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::thread;

use longhaul_common::config::{Precision, TrainConfig};
use longhaul_common::model::{Cut, ModelSpec};

use super::*;
use crate::Batch;
use crate::Generator;
use crate::testing::test_device;
use crate::testing::{Trained, train_config, trained, whole};
use longhaul_collective::{Collective, CollectiveError, RingCollective, loopback::pair};
use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};
use threads::{Fault, Threads};

/// Two members over TCP and TLS.
fn rings() -> Vec<Box<dyn Collective>> {
    let joining = pair().map(|(setup, listener)| {
        thread::spawn(move || {
            Box::new(RingCollective::join(&setup, &listener).unwrap()) as Box<dyn Collective>
        })
    });
    joining.map(|member| member.join().unwrap()).into()
}

fn engine(spec: &ModelSpec, train: &TrainConfig) -> Engine {
    Engine::new(spec, train, 100, 1, test_device(), NonZeroU32::new(1)).unwrap()
}

/// Applies `work` to each member's engine, in its own thread.
fn each<T: Send>(
    members: Vec<Box<dyn Collective>>,
    spec: &ModelSpec,
    train: &TrainConfig,
    work: impl Fn(usize, Engine) -> T + Sync,
) -> Vec<T> {
    let shards = spec.shards(members.len() as u32).unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .zip(&shards)
            .enumerate()
            .map(|(index, (collective, shard))| {
                let mut engine = engine(shard, train);
                engine.join_group(TensorGroup::new(collective).unwrap()).unwrap();
                let work = &work;
                scope.spawn(move || work(index, engine))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Assembles each tensor from all members' values. Replicated ones must have the same bits.
fn put_together(spec: &ModelSpec, members: &[HashMap<String, Vec<f32>>]) -> HashMap<String, Vec<f32>> {
    let shards = spec.shards(members.len() as u32).unwrap();
    let mut whole: HashMap<_, _> =
        spec.parameters().into_iter().map(|t| (t.name.clone(), vec![f32::NAN; t.count() as usize])).collect();
    for (share, values) in shards.iter().zip(members) {
        for tensor in share.parameters() {
            let (into, mut rest) = (whole.get_mut(&tensor.name).unwrap(), values[&tensor.name].as_slice());
            for place in tensor.places(share.shard) {
                let (own, after) = rest.split_at(place.len());
                let is_later = tensor.cut == Cut::Replicated && share.shard.index() > 0;
                let is_same =
                    into[place.clone()].iter().map(|v| v.to_bits()).eq(own.iter().map(|v| v.to_bits()));
                assert!(!is_later || is_same, "{} differs between members", tensor.name);
                into[place].copy_from_slice(own);
                rest = after;
            }
        }
    }
    whole
}

fn trained_in_group(members: Vec<Box<dyn Collective>>, spec: &ModelSpec, train: &TrainConfig) -> Trained {
    let mut all = each(members, spec, train, |_, engine| trained(engine));
    assert!(all.iter().all(|(losses, evaluated, _)| (losses, evaluated) == (&all[0].0, &all[0].1)));
    let parameters: Vec<_> = all.iter_mut().map(|(.., parameters)| std::mem::take(parameters)).collect();
    let (losses, evaluated, _) = all.pop().unwrap();
    (losses, evaluated, put_together(spec, &parameters))
}

/// Returns the largest differences of two trainings: of losses, relatively, and of parameters.
fn distance(one: &Trained, other: &Trained) -> [f32; 2] {
    let losses = one.0.iter().zip(&other.0).chain([(&one.1, &other.1)]);
    let losses = losses.map(|(a, b)| (a - b).abs() / b.abs().max(1e-2)).fold(0.0, f32::max);
    assert_eq!(one.2.len(), other.2.len());
    let apart = |(name, values): (&String, &Vec<f32>)| {
        // Equal for all keys, it moves no softmax: its gradient is rounding, which AdamW scales like any other.
        let keys = if name.ends_with("c_attn.bias") { 32..64 } else { 0..0 };
        let pairs = values.iter().zip(&other.2[name]).enumerate().filter(|(at, _)| !keys.contains(at));
        // NaN is far from everything.
        pairs.map(|(_, (a, b))| if (a - b).is_nan() { f32::MAX } else { (a - b).abs() }).fold(0.0, f32::max)
    };
    [losses, one.2.iter().map(apart).fold(0.0, f32::max)]
}

fn models() -> [ModelSpec; 4] {
    let (gpt2, llama) = (tiny_gpt2(), tiny_llama());
    assert!(gpt2.tied_embeddings && !llama.tied_embeddings);
    let other = |spec: &ModelSpec| ModelSpec { tied_embeddings: !spec.tied_embeddings, ..spec.clone() };
    [other(&gpt2), gpt2, other(&llama), llama]
}

/// Measured after 50 steps: losses 4·10⁻⁷ apart, parameters 3·10⁻⁵. Sums over two members are in another order, so last bits differ, which AdamW amplifies: one
/// engine with the whole model that takes its sequences one by one in place of two by two ends 3·10⁻⁷ and 9·10⁻⁶ from itself. Wrong sums are 0.06 and 0.2
/// away.
const TOLERANCE: [f32; 2] = [1e-5, 1e-4];

fn assert_near(found: &Trained, expected: &Trained, what: &str) {
    let apart = distance(found, expected);
    assert!(apart[0] < TOLERANCE[0] && apart[1] < TOLERANCE[1], "{what}: {apart:?}");
}

fn about(spec: &ModelSpec) -> String {
    format!("{:?}, tied: {}", spec.kind, spec.tied_embeddings)
}

#[test]
fn two_members_train_as_one_engine_with_the_whole_model_does() {
    for spec in models() {
        for clip in [0.0, 0.5] {
            let found = trained_in_group(Threads::group(2, Fault::Nothing), &spec, &train_config(clip));
            assert_near(&found, &trained(whole(&spec, clip)), &format!("{}, clip {clip}", about(&spec)));
        }
    }
}

#[test]
fn four_members_train_as_one_engine_with_the_whole_model_does() {
    let spec = tiny_gpt2();
    let found = trained_in_group(Threads::group(4, Fault::Nothing), &spec, &train_config(0.5));
    assert_near(&found, &trained(whole(&spec, 0.5)), "four members");
}

/// With two members only one order of a sum exists.
#[test]
fn members_over_tcp_make_the_same_bits_as_those_of_one_process() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        let train = train_config(0.5);
        let found = trained_in_group(rings(), &spec, &train);
        assert!(
            found == trained_in_group(Threads::group(2, Fault::Nothing), &spec, &train),
            "{}",
            about(&spec)
        );
        assert_near(&found, &trained(whole(&spec, 0.5)), &about(&spec));
    }
}

/// More values than are sent at a time, over threads and over TCP.
#[test]
fn the_first_member_hands_its_values_on() {
    let value = |index: usize, at: usize| (index * 7 + at) as f32;
    for members in [Threads::group(2, Fault::Nothing), rings()] {
        each(members, &tiny_gpt2(), &train_config(0.0), |index, engine| {
            let mut values: Vec<f32> = (0..5_000_000).map(|at| value(index, at)).collect();
            engine.hand_on(&mut values).unwrap();
            assert!(values.iter().enumerate().all(|(at, found)| *found == value(0, at)));
        });
    }
}

#[test]
fn members_that_are_at_different_places_are_interrupted_and_others_go_on() {
    each(Threads::group(2, Fault::Nothing), &tiny_gpt2(), &train_config(0.0), |index, engine| {
        assert!(engine.is_member() && engine.meet(1 << 40).is_ok());
        assert_eq!(engine.tell_members(index as u64 + 5).unwrap(), [5, 6]);
        let apart = engine.meet(index as u64).unwrap_err();
        assert!(matches!(apart, EngineError::Interrupted(_)) && apart.is_of_others());
    });
    let alone = engine(&tiny_gpt2(), &train_config(0.0));
    let mut values = vec![3.0];
    assert!(!alone.is_member() && alone.meet(7).is_ok() && alone.hand_on(&mut values).is_ok());
    assert_eq!((alone.tell_members(9).unwrap(), values), (vec![9], vec![3.0]));
}

#[test]
fn activations_that_are_computed_again_give_the_same_bits_in_a_group() {
    for spec in models() {
        let run = |recompute| {
            let train = TrainConfig { recompute, ..train_config(0.5) };
            trained_in_group(Threads::group(2, Fault::Nothing), &spec, &train)
        };
        assert!(run(true) == run(false), "{}", about(&spec));
    }
}

/// Without biases no sum is in another order.
#[test]
fn a_group_of_one_makes_the_same_bits_as_an_engine_alone() {
    let spec = tiny_llama();
    let found = trained_in_group(Threads::group(1, Fault::Nothing), &spec, &train_config(0.0));
    assert!(found == trained(whole(&spec, 0.0)));
}

/// The tests above are valid only if they detect this.
#[test]
fn sums_that_leave_a_member_out_or_count_it_twice_are_seen() {
    let expected = trained(whole(&tiny_gpt2(), 0.0));
    for fault in [Fault::LeavesOutForwards, Fault::LeavesOutBackwards, Fault::CountsTwiceBackwards] {
        let found = trained_in_group(Threads::group(2, fault), &tiny_gpt2(), &train_config(0.0));
        let apart = distance(&found, &expected);
        assert!((0..2).all(|at| apart[at] > 100.0 * TOLERANCE[at]), "{fault:?}: {apart:?}");
    }
}

/// Four sequences of 16 tokens.
fn batch(first: u32) -> Batch {
    let mut batch = Batch::new(16);
    (0..4u32).for_each(|row| batch.push((0..17).map(|i| (first + i * i + row * 7) % 64)));
    batch
}

/// A flat vector cut up by name.
fn named(spec: &ModelSpec, mut flat: &[f32]) -> HashMap<String, Vec<f32>> {
    let mut cut = |count: u64| {
        let (values, rest) = flat.split_at(count as usize);
        flat = rest;
        values.to_vec()
    };
    spec.parameters().into_iter().map(|tensor| (tensor.name.clone(), cut(tensor.count()))).collect()
}

fn clipped_gradient(engine: &mut Engine, clip: f64) -> HashMap<String, Vec<f32>> {
    let mut gradient = Vec::new();
    engine.clipped_gradient(&batch(0), clip, &mut gradient).unwrap();
    named(engine.spec(), &gradient)
}

#[test]
fn gradients_and_losses_of_sequences_are_those_of_the_whole_model_in_both_precisions() {
    for spec in models() {
        // Some bits of f32 differ, and of the eight of bf16.
        for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Bf16, 3e-2)] {
            let train = TrainConfig { precision, ..train_config(0.0) };
            let mut alone = engine(&spec, &train);
            let (expected, losses) =
                (clipped_gradient(&mut alone, 0.0), alone.sample_losses(&batch(0)).unwrap());
            let all = each(Threads::group(2, Fault::Nothing), &spec, &train, |_, mut engine| {
                (clipped_gradient(&mut engine, 0.0), engine.sample_losses(&batch(0)).unwrap())
            });
            let (gradients, of_members): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            assert_eq!(of_members[0], of_members[1]);
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance * b;
            assert!(of_members[0].iter().zip(&losses).all(near), "{of_members:?}, {losses:?}");
            for (name, values) in put_together(&spec, &gradients) {
                let largest =
                    expected[&name].iter().fold(1e-3, |largest: f32, value| largest.max(value.abs()));
                let apart = values.iter().zip(&expected[&name]).map(|(a, b)| (a - b).abs() / largest);
                let apart = apart.fold(0.0, f32::max);
                assert!(apart <= tolerance, "{}, {precision:?}, {name}: {apart}", about(&spec));
            }
        }
    }
}

#[test]
fn a_clipped_norm_is_that_of_the_whole_model_and_counts_each_value_once() {
    for spec in models() {
        let members = Threads::group(2, Fault::Nothing);
        let all =
            each(members, &spec, &train_config(0.0), |_, mut engine| clipped_gradient(&mut engine, 0.01));
        let gradient = put_together(&spec, &all);
        let squares = gradient.values().flatten().map(|value| f64::from(*value).powi(2));
        let norm = squares.sum::<f64>().sqrt();
        assert!((norm - 0.01).abs() < 1e-6, "{}: {norm}", about(&spec));
    }
}

/// Clipped or not: without clipping, no communication is needed.
#[test]
fn the_norms_that_members_tell_add_up_to_that_of_the_whole_model() {
    for spec in models() {
        let mut gradient = Vec::new();
        engine(&spec, &train_config(0.0)).gradient(&batch(0), &mut gradient).unwrap();
        let expected = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        for clip in [0.0, 0.01] {
            let members = Threads::group(2, Fault::Nothing);
            let norms = each(members, &spec, &train_config(clip), |_, mut engine| {
                engine.train_step(0, &batch(0)).unwrap().gradient_norm.unwrap()
            });
            let squares = norms.iter().map(|norm| f64::from(*norm).powi(2)).sum::<f64>();
            assert!((squares / expected - 1.0).abs() < 1e-4, "{}: {norms:?} and {expected}", about(&spec));
        }
    }
}

fn parameters(engine: &Engine) -> Vec<f32> {
    let mut values = Vec::new();
    engine.parameters_to_host(&mut values).unwrap();
    values
}

/// The norm of a gradient that has been through the host is clipped like any other.
#[test]
fn members_look_ahead_as_far_as_their_step_goes() {
    let train = TrainConfig { warmup_steps: 0, ..train_config(0.01) };
    let apart = each(Threads::group(2, Fault::Nothing), &tiny_gpt2(), &train, |_, mut engine| {
        let (before, mut gradient) = (parameters(&engine), Vec::new());
        engine.gradient(&batch(0), &mut gradient).unwrap();
        engine.look_ahead(0, &gradient).unwrap();
        let ahead = parameters(&engine);
        engine.step_back().unwrap();
        assert_eq!(parameters(&engine), before);
        engine.apply_gradient(0, &gradient).unwrap();
        assert_ne!(ahead, before);
        ahead.iter().zip(parameters(&engine)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    });
    assert!(apart.iter().all(|apart| *apart < 1e-6), "{apart:?}");
}

#[test]
fn members_whose_replicated_gradients_differ_are_told_so_and_change_nothing() {
    let errors =
        each(Threads::group(2, Fault::Nothing), &tiny_llama(), &train_config(0.5), |index, mut engine| {
            let before = parameters(&engine);
            engine.train_step(0, &batch(0)).unwrap();
            let after = parameters(&engine);
            assert_ne!(before, after);
            let error = engine.train_step(1, &batch(index as u32)).unwrap_err();
            assert_eq!(parameters(&engine), after);
            error
        });
    assert!(errors.iter().all(|error| matches!(error, EngineError::Apart { index: 1 })), "{errors:?}");
}

/// Forwards and backwards.
#[test]
fn a_sum_that_fails_is_an_error_in_the_collectives_words_and_changes_nothing() {
    for call in [0, 5] {
        let members = Threads::group(2, Fault::FailsAt(call));
        let errors = each(members, &tiny_gpt2(), &train_config(0.5), |_, mut engine| {
            let before = parameters(&engine);
            let error = engine.train_step(0, &batch(0)).unwrap_err();
            assert_eq!(parameters(&engine), before);
            assert!(matches!(engine.evaluate([&batch(0)]), Err(EngineError::Group(_))));
            error
        });
        let is_said = |error: &EngineError| matches!(error, EngineError::Group(CollectiveError::Stopped));
        assert!(errors.iter().all(is_said), "{errors:?}");
    }
}

#[test]
fn members_with_batches_of_other_shapes_name_each_other() {
    let errors = each(rings(), &tiny_gpt2(), &train_config(0.5), |index, mut engine| {
        let mut batch = Batch::new(8 + index);
        batch.push((0..9 + index as u32).map(|i| i % 64));
        engine.train_step(0, &batch).unwrap_err()
    });
    for (index, error) in errors.iter().enumerate() {
        let EngineError::Group(CollectiveError::Disagree { peer, .. }) = error else { panic!("{error}") };
        assert_eq!(peer.rank, 1 - index);
    }
}

#[test]
fn a_share_computes_with_its_group_only_and_at_its_own_place() {
    let spec = tiny_gpt2();
    let shards = spec.shards(2).unwrap();
    let group = |size: usize, rank: usize| {
        TensorGroup::new(Threads::group(size, Fault::Nothing).swap_remove(rank)).unwrap()
    };
    let mut share = engine(&shards[1], &train_config(0.0));
    for (size, rank) in [(2, 0), (3, 1), (1, 0)] {
        let joined = share.join_group(group(size, rank));
        assert!(matches!(joined, Err(EngineError::Share { index: 1, ways: 2 })), "{rank} of {size}");
    }
    assert!(matches!(share.train_step(0, &batch(0)), Err(EngineError::Part)));
    assert!(matches!(share.evaluate([&batch(0)]), Err(EngineError::Part)));
    assert!(Generator::new(&shards[1], &parameters(&share), test_device(), None).is_err());
}
