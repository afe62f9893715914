use std::ffi::{c_char, c_int, c_void};

use super::*;
use crate::testing::test_device;
use longhaul_common::config::{ModelKind, Precision, SparseBackwardConfig, SparseMode};
use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};
use tch::Kind;

mod adapters;
mod documents;
mod dropout;
mod images;
mod masked;
mod narrow;
mod objective;

fn engine(spec: &ModelSpec, train: &TrainConfig) -> Engine {
    Engine::new(spec, train, 100, 1, test_device(), NonZeroU32::new(1)).unwrap()
}

/// Counting upwards modulo the vocabulary, from different starts.
fn batch(sequences: u32, length: usize) -> Batch {
    let mut batch = Batch::new(length);
    for start in 0..sequences {
        batch.push((0..=length as u32).map(|i| (start * 11 + i) % 64));
    }
    batch
}

fn parameters(engine: &Engine) -> Vec<f32> {
    let mut values = Vec::new();
    engine.parameters_to_host(&mut values).unwrap();
    values
}

#[test]
fn both_families_learn_to_count_in_both_precisions() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        for precision in [Precision::F32, Precision::Bf16] {
            let train =
                TrainConfig { learning_rate: 1e-2, precision, warmup_steps: 5, ..TrainConfig::default() };
            let mut engine = engine(&spec, &train);
            let batch = batch(16, 16);
            let first = engine.train_step(0, &batch).unwrap();
            // An untrained model is about uniform over 64 tokens.
            assert!((first.loss - 64f32.ln()).abs() < 0.1, "{:?}: {first:?}", spec.kind);
            assert_eq!(first.tokens, 256);
            for step in 1..60 {
                engine.train_step(step, &batch).unwrap();
            }
            let last = engine.evaluate([&batch]).unwrap().unwrap().loss;
            assert!(last < 0.2, "{:?} in {precision:?} ends at {last}", spec.kind);
            let prompt = [5, 6, 7, 8];
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            if spec.kind == ModelKind::Gpt2 && precision == Precision::F32 {
                let generator = Generator::new(&spec, &parameters(&engine), test_device(), None).unwrap();
                let continuation = generator.continuation(&prompt, greedy).unwrap();
                let tokens: Result<Vec<u32>, EngineError> = continuation.take(6).collect();
                assert_eq!(tokens.unwrap(), [9, 10, 11, 12, 13, 14]);
            }
        }
    }
}

#[test]
fn the_same_steps_give_the_same_bits() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        let run = || {
            let mut engine = engine(&spec, &TrainConfig::default());
            let losses: Vec<f32> =
                (0..5).map(|step| engine.train_step(step, &batch(12, 9)).unwrap().loss).collect();
            (losses, parameters(&engine), engine.moments_to_host().unwrap())
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn micro_batches_accumulate_to_the_gradient_of_the_whole_batch() {
    let gradient = |micro_batch| {
        let mut engine = engine(&tiny_gpt2(), &TrainConfig { micro_batch, ..TrainConfig::default() });
        let mut gradient = Vec::new();
        let outcome = engine.gradient(&batch(7, 16), &mut gradient).unwrap();
        (outcome, gradient)
    };
    let (whole, whole_gradient) = gradient(7);
    // Two micro-batches of three and one of one: the parts weigh differently.
    let (parts, parts_gradient) = gradient(3);
    assert_eq!(whole.tokens, parts.tokens);
    assert!((whole.loss - parts.loss).abs() < 1e-6);
    let largest = whole_gradient.iter().fold(0f32, |max, g| max.max(g.abs()));
    for (one, sum) in whole_gradient.iter().zip(&parts_gradient) {
        assert!((one - sum).abs() < 1e-5 * largest, "{one} and {sum}");
    }
}

#[test]
fn activations_that_are_computed_again_give_the_same_bits() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        for sparse_backward in [None, sparse(0.25, SparseMode::Columns, "*")] {
            let run = |recompute| {
                let sparse_backward = sparse_backward.clone();
                let train =
                    TrainConfig { micro_batch: 3, recompute, sparse_backward, ..TrainConfig::default() };
                let mut engine = engine(&spec, &train);
                let losses: Vec<f32> =
                    (0..5).map(|step| engine.train_step(step, &batch(7, 16)).unwrap().loss).collect();
                (losses, parameters(&engine), engine.moments_to_host().unwrap())
            };
            assert_eq!(run(true), run(false), "{:?}, {sparse_backward:?}", spec.kind);
        }
    }
}

fn sparse(keep: f64, mode: SparseMode, layers: &str) -> Option<SparseBackwardConfig> {
    Some(SparseBackwardConfig { keep, mode, layers: vec![layers.to_owned()] })
}

#[test]
fn models_learn_to_count_from_a_tenth_of_their_gradients() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        for (mode, precision, recompute) in [
            (SparseMode::Columns, Precision::F32, false),
            (SparseMode::Columns, Precision::Bf16, true),
            (SparseMode::Rows, Precision::F32, true),
        ] {
            let sparse_backward = sparse(0.1, mode, "*");
            let train = TrainConfig {
                learning_rate: 1e-2,
                warmup_steps: 5,
                precision,
                recompute,
                sparse_backward,
                ..TrainConfig::default()
            };
            let mut engine = engine(&spec, &train);
            let batch = batch(16, 16);
            for step in 0..80 {
                engine.train_step(step, &batch).unwrap();
            }
            let last = engine.evaluate([&batch]).unwrap().unwrap().loss;
            assert!(last < 0.3, "{:?}, {mode:?} in {precision:?} ends at {last}", spec.kind);
        }
    }
}

/// Returns by name the number of columns of a product's output in the gradient of its weight.
fn columns_of_gradient(spec: &ModelSpec, train: &TrainConfig) -> Vec<(String, usize, usize)> {
    let mut engine = engine(spec, train);
    let mut flat = Vec::new();
    engine.gradient(&batch(6, 16), &mut flat).unwrap();
    let tensors = views_of(spec, &Tensor::from_slice(&flat)).unwrap();
    let products = spec.products().into_iter();
    let columns = products.map(|product| {
        let at = spec.parameters().iter().position(|tensor| tensor.name == product.weight).unwrap();
        let is_in_first = spec.kind == ModelKind::Gpt2 && product.weight != spec.output_projection();
        let inputs = i64::from(!is_in_first);
        let sizes = tensors[at].abs().sum_dim_intlist([inputs].as_slice(), false, Kind::Float);
        let count = sizes.count_nonzero(None::<i64>).int64_value(&[]) as usize;
        (product.weight, count, product.outputs as usize)
    });
    columns.collect()
}

#[test]
fn gradients_of_chosen_weights_have_as_many_columns_as_are_kept_and_those_of_others_all() {
    for (spec, pattern) in [(tiny_gpt2(), "*.0.mlp.c_*"), (tiny_llama(), "*.0.mlp.*")] {
        let sparse_backward = sparse(0.25, SparseMode::Columns, pattern);
        let train = TrainConfig { micro_batch: 6, sparse_backward, ..TrainConfig::default() };
        let mut chosen = 0;
        for (name, count, all) in columns_of_gradient(&spec, &train) {
            let is_chosen = name.contains(".0.mlp.");
            chosen += usize::from(is_chosen);
            assert!(if is_chosen { count <= all / 4 } else { count > all / 4 }, "{name}: {count} of {all}");
        }
        assert!(chosen >= 2);
        // Each micro-batch chooses its own columns.
        let several = TrainConfig { micro_batch: 2, ..train };
        let most =
            columns_of_gradient(&spec, &several).into_iter().filter(|(name, ..)| name.contains(".0.mlp."));
        assert!(most.clone().all(|(_, count, all)| count <= 3 * all / 4));
        assert!(most.clone().any(|(_, count, all)| count > all / 4));
    }
}

#[test]
fn who_keeps_all_columns_trains_with_the_same_bits() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        let run = |sparse_backward| {
            let mut engine = engine(&spec, &TrainConfig { sparse_backward, ..TrainConfig::default() });
            let losses: Vec<f32> =
                (0..5).map(|step| engine.train_step(step, &batch(12, 9)).unwrap().loss).collect();
            (losses, parameters(&engine))
        };
        assert_eq!(run(sparse(1.0, SparseMode::Columns, "*")), run(None), "{:?}", spec.kind);
    }
}

/// With one micro-batch, and several; also after a batch without samples, and after others.
#[test]
fn a_gradient_that_is_told_of_tensor_by_tensor_has_the_same_bits() {
    // On a GPU nothing arrives.
    if test_device().is_cuda() {
        return;
    }
    for spec in [tiny_gpt2(), tiny_llama()] {
        let mut engine = engine(&spec, &TrainConfig { micro_batch: 3, ..TrainConfig::default() });
        let sizes: Vec<usize> = engine.tensor_sizes().collect();
        let (mut whole, mut parts) = (Vec::new(), vec![f32::NAN; 3]);
        for sequences in [0, 2, 3, 7, 2] {
            let expected = engine.gradient(&batch(sequences, 16), &mut whole).unwrap();
            let mut told = Vec::new();
            let mut arrived = |tensor: usize, gradient: &[f32]| {
                let start: usize = sizes[..tensor].iter().sum();
                let range = start..start + sizes[tensor];
                assert_eq!(gradient[range.clone()], whole[range], "{sequences} sequences, tensor {tensor}");
                told.push(tensor);
            };
            let outcome = engine.gradient_by_tensor(&batch(sequences, 16), &mut parts, &mut arrived).unwrap();
            assert_eq!((outcome, &parts), (expected, &whole));
            if sequences > 0 {
                let last = told.last().copied();
                told.sort_unstable();
                assert_eq!(told, (0..sizes.len()).collect::<Vec<_>>());
                assert!(last < Some(2), "embeddings come last: {last:?}");
            }
        }
    }
}

#[test]
fn a_gradient_through_the_host_updates_as_a_local_step_does() {
    let train = TrainConfig { gradient_clip: 0.01, ..TrainConfig::default() };
    let (mut local, mut split) = (engine(&tiny_gpt2(), &train), engine(&tiny_gpt2(), &train));
    let mut gradient = Vec::new();
    for step in 0..3 {
        local.train_step(step, &batch(8, 16)).unwrap();
        split.gradient(&batch(8, 16), &mut gradient).unwrap();
        let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 0.01, "the clipping is not exercised");
        split.apply_gradient(step, &gradient).unwrap();
    }
    assert_eq!(parameters(&local), parameters(&split));
    // The first moment after one step is a tenth of the clipped gradient.
    let mut once = engine(&tiny_gpt2(), &train);
    once.apply_gradient(0, &gradient).unwrap();
    let moments = once.moments_to_host().unwrap();
    let norm = moments.first.iter().map(|m| f64::from(*m * 10.0).powi(2)).sum::<f64>().sqrt();
    assert!((norm - 0.01).abs() < 1e-6, "{norm}");
}

#[test]
fn state_that_is_taken_out_and_put_back_continues_bit_for_bit() {
    let spec = tiny_llama();
    let mut straight = engine(&spec, &TrainConfig::default());
    for step in 0..3 {
        straight.train_step(step, &batch(8, 16)).unwrap();
    }
    let (values, moments) = (parameters(&straight), straight.moments_to_host().unwrap());
    assert_eq!(moments.updates, 3);
    let mut resumed = Engine::new(&spec, &TrainConfig::default(), 100, 99, test_device(), None).unwrap();
    resumed.load_parameters(&values).unwrap();
    resumed.load_moments(&moments).unwrap();
    for step in 3..6 {
        let outcomes = [&mut straight, &mut resumed].map(|e| e.train_step(step, &batch(8, 16)).unwrap());
        assert_eq!(outcomes[0], outcomes[1]);
    }
    assert_eq!(parameters(&straight), parameters(&resumed));
}

#[test]
fn the_model_sees_what_is_added_to_the_flat_parameters() {
    let mut engine = engine(&tiny_gpt2(), &TrainConfig::default());
    let batch = batch(4, 16);
    let before = parameters(&engine);
    // Without weights, all logits are zero, and the loss is exactly uniform.
    let change: Vec<f32> = before.iter().map(|value| -value).collect();
    engine.mix_into_parameters(0, 1.0, &change).unwrap();
    let loss = engine.evaluate([&batch]).unwrap().unwrap().loss;
    assert!((loss - 64f32.ln()).abs() < 1e-6, "{loss}");
    engine.load_parameters(&before).unwrap();
    assert_eq!(parameters(&engine), before);
    engine.mix_into_parameters(5, 0.25, &[1.0, 2.0]).unwrap();
    let mut mixed = before.clone();
    (mixed[5], mixed[6]) = (0.25 * before[5] + 1.0, 0.25 * before[6] + 2.0);
    assert_eq!(parameters(&engine), mixed);
    let beyond = engine.mix_into_parameters(before.len() - 1, 1.0, &[1.0, 1.0]).unwrap_err().to_string();
    assert!(beyond.contains(&before.len().to_string()), "{beyond}");
}

#[test]
fn sample_losses_average_to_the_mean_loss() {
    let engine = engine(&tiny_gpt2(), &TrainConfig { micro_batch: 2, ..TrainConfig::default() });
    let batch = batch(5, 16);
    let losses = engine.sample_losses(&batch).unwrap();
    assert_eq!(losses.len(), 5);
    let mean = losses.iter().sum::<f32>() / 5.0;
    assert!((mean - engine.evaluate([&batch]).unwrap().unwrap().loss).abs() < 1e-6);
    assert!(losses.iter().any(|loss| (loss - mean).abs() > 1e-4));
}

#[test]
fn a_step_without_samples_changes_nothing() {
    let mut engine = engine(&tiny_gpt2(), &TrainConfig::default());
    let before = parameters(&engine);
    let outcome = engine.train_step(0, &Batch::new(16)).unwrap();
    assert_eq!(outcome, StepOutcome::default());
    assert_eq!((parameters(&engine), engine.moments_to_host().unwrap().updates), (before, 0));
    assert_eq!(engine.evaluate([&Batch::new(16)]).unwrap(), None);
    let mut gradient = vec![7.0; engine.parameter_count()];
    engine.gradient(&Batch::new(16), &mut gradient).unwrap();
    assert!(gradient.iter().all(|value| *value == 0.0));
}

/// The optimiser divides autograd's gradients of a single micro-batch in place.
#[test]
fn gradients_of_one_micro_batch_share_no_memory() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        let engine = engine(&spec, &TrainConfig::default());
        let (_, gradients) = engine.accumulate(&batch(4, 16)).unwrap();
        let places: std::collections::BTreeSet<_> =
            gradients.iter().map(|gradient| gradient.data_ptr() as usize).collect();
        assert_eq!(places.len(), spec.parameters().len(), "{:?}", spec.kind);
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut engine = engine(&tiny_gpt2(), &TrainConfig::default());
    let message = engine.load_parameters(&[0.0; 3]).unwrap_err().to_string();
    assert_eq!(
        message,
        format!("a vector of 3 values does not fit a model of {} parameters", engine.parameter_count())
    );
    // Longer than the context: libtorch refuses to cut so many positions.
    let mut long = Batch::new(17);
    long.push(0..18);
    assert!(engine.train_step(0, &long).is_err());
}

/// With MKL in libtorch, on another maker's processor, its own answer would be no.
#[test]
#[allow(unsafe_code, reason = "asks the dynamic linker")]
fn mkl_takes_the_kernels_that_the_processor_can_run() {
    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    }
    /// glibc's `RTLD_DEFAULT`: the first that the linker finds; `RTLD_NEXT`: the first after this executable.
    const FIRST: usize = 0;
    const NEXT: usize = usize::MAX;
    // SAFETY: both handles are glibc's own; the name ends with a zero.
    let find = |from: usize| unsafe { dlsym(from as *mut c_void, c"mkl_serv_intel_cpu_true".as_ptr()) };
    let found = find(FIRST);
    assert!(!found.is_null(), "nobody answers");
    assert!(!tch::utils::has_mkl() || !find(NEXT).is_null(), "libtorch's MKL has no such function any more");
    // SAFETY: every definition takes nothing and returns an int.
    let answer: extern "C" fn() -> c_int = unsafe { std::mem::transmute(found) };
    assert_eq!(answer(), 1);
}
