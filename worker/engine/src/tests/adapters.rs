//! Adapters and frozen tensors, against dense models with the adapters merged in.

use longhaul_common::config::{FrozenFormat, LoraConfig};
use longhaul_common::model::adapter_names;
use longhaul_common::model::draw_parameters;
use longhaul_common::model::tiny::tiny_decoders;

use longhaul_common::model::ParameterSpec;
use longhaul_common::pipeline::PipelineSchedule;
use std::collections::HashMap;

use super::*;
use crate::testing;

/// Parameters by name, with their shapes.
type Named = HashMap<String, (Vec<u64>, Vec<f32>)>;

fn named(parameters: Vec<ParameterSpec>, flat: &[f32]) -> Named {
    let mut rest = flat;
    let take = |tensor: ParameterSpec| {
        let (own, others) = rest.split_at(tensor.count() as usize);
        rest = others;
        (tensor.name, (tensor.shape, own.to_vec()))
    };
    parameters.into_iter().map(take).collect()
}

fn tuned(spec: &ModelSpec, base: FrozenFormat) -> ModelSpec {
    let targets: &[&str] = match spec.kind.usual_experts() {
        Some(_) => &["q_proj", "k_proj", "v_proj", "o_proj"],
        None => &["all-linear"],
    };
    let targets = targets.iter().map(|target| (*target).to_owned()).collect();
    let lora = Some(LoraConfig {
        rank: 3,
        alpha: Some(4.5),
        use_rslora: false,
        use_dora: false,
        dropout: 0.0,
        targets,
        base,
    });
    let norm = if spec.kind == ModelKind::Gpt2 { "transformer.ln_f.*" } else { "model.norm.*" };
    let unfrozen_parameters = Some(vec![norm.to_owned()]);
    spec.clone().tuned(&TrainConfig { lora, unfrozen_parameters, ..TrainConfig::default() }).unwrap()
}

/// Trained values, with an upper adapter that is not zero; and all values of the pretrained model.
fn values(of: &ModelSpec) -> (Vec<f32>, Vec<f32>) {
    let base = draw_parameters(&of.untuned(), 5);
    let whole = named(of.untuned().parameters(), &base);
    let mut trained = Vec::new();
    for (at, tensor) in of.parameters().into_iter().enumerate() {
        match whole.get(&tensor.name) {
            Some((_, values)) => trained.extend_from_slice(values),
            None => {
                trained.extend((0..tensor.count()).map(|i| ((i * 37 + at as u64) % 23) as f32 / 230.0 - 0.05))
            }
        }
    }
    (trained, base)
}

fn frozen(of: &ModelSpec, base: &[f32]) -> FrozenWeights {
    let whole = named(of.untuned().parameters(), base);
    let mut frozen = FrozenWeights::of(of, test_device());
    of.frozen().iter().for_each(|tensor| frozen.add(tensor, &whole[&tensor.name].1).unwrap());
    frozen
}

fn train(precision: Precision) -> TrainConfig {
    TrainConfig { precision, micro_batch: 4, ..TrainConfig::default() }
}

fn tuned_engine(of: &ModelSpec, train: &TrainConfig, part_of: &ModelSpec) -> Engine {
    let (all, base) = values(part_of);
    let all = named(part_of.parameters(), &all);
    let trained: Vec<f32> = of.parameters().iter().flat_map(|tensor| all[&tensor.name].1.clone()).collect();
    Engine::with_parameters(of, train, 100, &trained, frozen(of, &base), NonZeroU32::new(1)).unwrap()
}

fn frozen_of(engine: &Engine) -> Vec<(String, Vec<f32>)> {
    let flat = |tensor: &Tensor| Vec::try_from(tensor.to_kind(Kind::Float).contiguous().view(-1)).unwrap();
    let frozen = engine.parameters.frozen();
    let values = |name: &String| (name.clone(), flat(&frozen.values(name).unwrap().unwrap()));
    let mut all: Vec<_> = frozen.names().map(values).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// W + scale·B·A, in the weight's own layout, and the adapter's gradients from the weight's: dA = scale·Bᵀ·dW, dB = scale·dW·Aᵀ.
struct Merged {
    weights: Vec<f32>,
    scale: f64,
}

impl Merged {
    fn new(of: &ModelSpec, trained: &Named, base: &[f32]) -> Self {
        let mut all = named(of.untuned().parameters(), base);
        let scale = 1.5;
        for product in of.products() {
            if of.adapter_scale(&product.weight).is_none() {
                continue;
            }
            let [a, b] = adapter_names(&product.weight).map(|name| matrix(&trained[&name]));
            let (shape, weight) = all.get_mut(&product.weight).unwrap();
            let added = b.matmul(&a) * scale; // [out, in]
            let added = if of.kind == ModelKind::Gpt2 { added.transpose(0, 1) } else { added };
            let merged = matrix(&(shape.clone(), weight.clone())) + added;
            *weight = Vec::try_from(merged.to_kind(Kind::Float).contiguous().view(-1)).unwrap();
        }
        let weights =
            of.untuned().parameters().iter().flat_map(|tensor| all[&tensor.name].1.clone()).collect();
        Self { weights, scale }
    }
}

/// As f64, [rows, columns].
fn matrix((shape, values): &(Vec<u64>, Vec<f32>)) -> Tensor {
    let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    Tensor::from_slice(values).to_kind(Kind::Double).view(shape.as_slice())
}

fn families() -> impl Iterator<Item = ModelSpec> {
    tiny_decoders().into_iter().chain([tiny_gpt2()])
}

#[test]
fn loss_and_gradients_are_those_of_the_merged_model() {
    for spec in families() {
        let of = tuned(&spec, FrozenFormat::F32);
        let (trained, base) = values(&of);
        let merged = Merged::new(&of, &named(of.parameters(), &trained), &base);
        for recompute in [false, true] {
            let train = TrainConfig { recompute, ..train(Precision::F32) };
            let mut dense = Engine::with_parameters(
                &spec,
                &train,
                100,
                &merged.weights,
                FrozenWeights::of(&spec, test_device()),
                NonZeroU32::new(1),
            )
            .unwrap();
            let mut own = tuned_engine(&of, &train, &of);
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            let loss = dense.gradient(&batch(6, 12), &mut expected).unwrap().loss;
            let outcome = own.gradient(&batch(6, 12), &mut found).unwrap();
            assert!((outcome.loss - loss).abs() < 1e-5, "{:?}: {} is not {loss}", spec.kind, outcome.loss);
            let (expected, found) = (named(spec.parameters(), &expected), named(of.parameters(), &found));
            let adapters = named(of.parameters(), &trained);
            for product in of.products().iter().filter(|product| of.adapter_scale(&product.weight).is_some())
            {
                let [a, b] = adapter_names(&product.weight);
                let weight = matrix(&expected[&product.weight]);
                let weight = if spec.kind == ModelKind::Gpt2 { weight.transpose(0, 1) } else { weight };
                let (down, up) = (matrix(&adapters[&a]), matrix(&adapters[&b]));
                for (name, reference) in [
                    (&a, up.transpose(0, 1).matmul(&weight) * merged.scale),
                    (&b, weight.matmul(&down.transpose(0, 1)) * merged.scale),
                ] {
                    let apart = (matrix(&found[name]) - &reference).abs().max().double_value(&[]);
                    let most = reference.abs().max().double_value(&[]);
                    assert!(
                        most > 0.0 && apart < 1e-4 * most + 1e-7,
                        "{:?} {name}: {apart} of {most}",
                        spec.kind
                    );
                }
            }
        }
    }
}

#[test]
fn frozen_tensors_keep_their_bits_and_narrower_ones_compute_nearly_the_same() {
    const FORMATS: [(FrozenFormat, f32); 4] = [
        (FrozenFormat::F32, 0.0),
        (FrozenFormat::Bf16, 0.005),
        (FrozenFormat::Int8, 0.005),
        (FrozenFormat::Nf4, 0.03),
    ];
    for spec in [tiny_gpt2(), tiny_llama()] {
        let mut exact = None;
        for (base, apart) in FORMATS {
            let of = tuned(&spec, base);
            let mut engine = tuned_engine(&of, &train(Precision::F32), &of);
            let before = frozen_of(&engine);
            let first = engine.train_step(0, &batch(6, 12)).unwrap().loss;
            (1..12).for_each(|step| _ = engine.train_step(step, &batch(6, 12)).unwrap());
            assert_eq!(frozen_of(&engine), before, "{:?}", spec.kind);
            let last = engine.train_step(12, &batch(6, 12)).unwrap().loss;
            assert!(last < first - 0.003, "{:?}: adapters do not learn: {first}, then {last}", spec.kind);
            let exact = *exact.get_or_insert(first);
            let off = (first - exact).abs();
            assert!(
                off <= apart && (off > 0.0) == (apart > 0.0),
                "{:?} {base:?}: {first}, {exact}",
                spec.kind
            );
        }
    }
}

/// The gradients through narrow weights are those of the same values in f32.
#[test]
fn gradients_through_narrow_weights_are_those_of_their_values() {
    for spec in families() {
        // Experts have no codes.
        let formats = if spec.kind.usual_experts().is_some() { 1 } else { 3 };
        for base in [FrozenFormat::Bf16, FrozenFormat::Int8, FrozenFormat::Nf4].into_iter().take(formats) {
            let (narrow, wide) = (tuned(&spec, base), tuned(&spec, FrozenFormat::F32));
            let mut own = tuned_engine(&narrow, &train(Precision::F32), &narrow);
            let kept: HashMap<String, Vec<f32>> = frozen_of(&own).into_iter().collect();
            let mut frozen = FrozenWeights::of(&wide, test_device());
            wide.frozen().iter().for_each(|tensor| frozen.add(tensor, &kept[&tensor.name]).unwrap());
            let (trained, threads) = (values(&wide).0, NonZeroU32::new(1));
            let train = train(Precision::F32);
            let mut same = Engine::with_parameters(&wide, &train, 100, &trained, frozen, threads).unwrap();
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            own.gradient(&batch(6, 12), &mut found).unwrap();
            same.gradient(&batch(6, 12), &mut expected).unwrap();
            let most = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let apart = found.iter().zip(&expected).map(|(one, other)| (one - other).abs());
            assert!(apart.fold(0.0, f32::max) < 1e-5 * most, "{:?} {base:?}", spec.kind);
        }
    }
}

#[test]
fn stages_train_adapters_as_one_worker_does() {
    let mut tied = tiny_llama();
    tied.tied_embeddings = true;
    for spec in [tiny_gpt2(), tiny_llama(), tied] {
        let of = tuned(&spec, FrozenFormat::F32);
        let train = testing::train_config(1.0);
        let alone = testing::trained(testing::whole(&of, 1.0));
        for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble] {
            let pipeline = testing::pipeline(schedule, 2, 1);
            let through = testing::trained_through(testing::channels(&pipeline), &of, &train, &pipeline);
            assert!((alone.1 - through.1).abs() < 1e-4, "{:?}: {} and {}", spec.kind, alone.1, through.1);
            for (name, values) in &alone.2 {
                let apart = values.iter().zip(&through.2[name]).map(|(one, other)| (one - other).abs());
                assert!(apart.fold(0.0, f32::max) < 1e-3, "{:?} {name}", spec.kind);
            }
        }
    }
}
