//! Models, gradients and optimiser against Hugging Face's models and image classifiers in PyTorch: see `fixtures/make_reference.py`.

pub mod transformers;

use std::path::Path;

use longhaul_common::config::{
    BottleneckConfig, ImageConfig, ModelConfig, ModelKind, Precision, TrainConfig,
};
use longhaul_common::model::{Initial, ModelSpec};
use longhaul_engine::Batch;
use longhaul_engine::models::{Model, Parameters};
use longhaul_engine::{Engine, choose_device};
use safetensors::SafeTensors;
use tch::{Device, Tensor};

const VOCABULARY: u32 = 64;
const CONTEXT: usize = 16;
const SEQUENCES: usize = 3;
const IMAGE: ImageConfig =
    ImageConfig { channels: 3, height: 6, width: 7, classes: 5, shift: 0, flip: false };
/// The stream of the first batch's tokens; training uses the following streams.
const TOKEN_STREAM: i64 = 1000;

struct Reference(Vec<u8>);

impl Reference {
    fn read(name: &str) -> Self {
        let name = format!("{name}.safetensors");
        Self(std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap())
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = file.tensor(name).unwrap_or_else(|_| panic!("the reference has {name}")).data();
        bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// The tensors `<group>/<parameter>` as one flat vector.
    fn flat(&self, group: &str, spec: &ModelSpec) -> Vec<f32> {
        spec.parameters().iter().flat_map(|p| self.values(&format!("{group}/{}", p.name))).collect()
    }
}

/// The script's models, by their names.
fn models() -> [(&'static str, ModelSpec); 5] {
    let language = |config| ModelSpec::resolve(&config, VOCABULARY).unwrap();
    let classifier = |config| ModelSpec::of_images(&config, &IMAGE).unwrap();
    let (mlp, cnn) = (ModelConfig::of(ModelKind::Mlp), ModelConfig::of(ModelKind::Cnn));
    let bottleneck = Some(BottleneckConfig { width: 12, behind: vec![1] });
    [
        ("gpt2", language(language_model(ModelKind::Gpt2))),
        ("llama", language(language_model(ModelKind::Llama))),
        ("mlp", classifier(ModelConfig { hidden: Some(vec![16, 12]), ..mlp })),
        ("cnn", classifier(ModelConfig { channels: Some(vec![4, 6]), hidden: Some(vec![12]), ..cnn })),
        ("bottleneck", language(ModelConfig { bottleneck, ..language_model(ModelKind::Gpt2) })),
    ]
}

fn language_model(kind: ModelKind) -> ModelConfig {
    ModelConfig {
        layers: 2,
        width: 32,
        heads: 4,
        kv_heads: (kind == ModelKind::Llama).then_some(2),
        feed_forward_width: Some(64),
        context: CONTEXT as u32,
        ..ModelConfig::of(kind)
    }
}

/// The script's `noise`.
pub fn noise(count: usize, stream: i64) -> impl Iterator<Item = f32> {
    (0..count as i64).map(move |i| {
        let mut word = (i * 2_654_435_761 + stream * 40_503) & 0xffff_ffff;
        word ^= word >> 15;
        word = word.wrapping_mul(2_246_822_519) & 0xffff_ffff;
        word ^= word >> 13;
        (word as f64 / 4_294_967_296.0 - 0.5) as f32
    })
}

/// The script's `fill`.
fn parameters(spec: &ModelSpec) -> Vec<f32> {
    let list = spec.parameters();
    let mut names: Vec<&str> = list.iter().map(|p| p.name.as_str()).collect();
    names.sort_unstable();
    let values = list.iter().flat_map(|parameter| {
        let stream = names.binary_search(&parameter.name.as_str()).unwrap() as i64;
        let base = if parameter.initial == Initial::Ones { 1.0 } else { 0.0 };
        noise(parameter.count() as usize, stream).map(move |value| value * 0.5 + base)
    });
    values.collect()
}

/// The script's `images`, or its `tokens`.
fn batch(kind: ModelKind, stream: i64) -> Batch {
    if kind.is_of_images() {
        let values = IMAGE.values() as usize;
        let mut batch = Batch::of_images(values);
        images(stream).chunks(values).zip(classes(stream)).for_each(|(pixels, class)| {
            batch.push_image(&[pixels, &[class, 0]].concat());
        });
        return batch;
    }
    let tokens: Vec<u32> = noise(SEQUENCES * (CONTEXT + 1), stream)
        .map(|value| ((value + 0.5) * VOCABULARY as f32) as u32)
        .collect();
    let mut batch = Batch::new(CONTEXT);
    tokens.chunks(CONTEXT + 1).for_each(|sequence| batch.push(sequence.iter().copied()));
    batch
}

/// `[B, C·H·W]`
fn images(stream: i64) -> Vec<u8> {
    let pixels = noise(SEQUENCES * IMAGE.values() as usize, stream);
    pixels.map(|value| ((value + 0.5) * 256.0) as u8).collect()
}

/// `[B]`
fn classes(stream: i64) -> Vec<u8> {
    noise(SEQUENCES, stream + 500).map(|value| ((value + 0.5) * IMAGE.classes as f32) as u8).collect()
}

fn inputs(kind: ModelKind) -> Tensor {
    if kind.is_of_images() {
        return Tensor::from_slice(&images(TOKEN_STREAM)).view([SEQUENCES as i64, -1]).to_device(device());
    }
    let tokens: Vec<i64> = noise(SEQUENCES * (CONTEXT + 1), TOKEN_STREAM)
        .map(|value| ((value + 0.5) * VOCABULARY as f32) as i64)
        .collect();
    Tensor::from_slice(&tokens).view([SEQUENCES as i64, -1]).to_device(device()).narrow(1, 0, CONTEXT as i64)
}

/// The CPU, or the device of `LONGHAUL_TEST_DEVICE`.
fn device() -> Device {
    choose_device(&std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())).unwrap()
}

fn engine(spec: &ModelSpec, train: &TrainConfig) -> Engine {
    let mut engine = Engine::new(spec, train, 5, 1, device(), None).unwrap();
    engine.load_parameters(&parameters(spec)).unwrap();
    engine
}

/// The largest difference, relative to the largest reference value.
fn distance(values: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(values.len(), reference.len());
    let scale = reference.iter().fold(0.0, |max: f64, r| max.max(f64::from(r.abs())));
    let differences = values.iter().zip(reference).map(|(a, b)| f64::from((a - b).abs()));
    differences.fold(0.0, f64::max) / scale
}

#[test]
fn logits_are_those_of_pytorch() {
    for (name, spec) in models() {
        let reference = Reference::read(name).values("logits");
        let parameters = Parameters::new(&spec, &parameters(&spec), device()).unwrap();
        // bf16 has eight significant bits; the model is three products deep in each of two blocks.
        for (precision, tolerance) in [(Precision::F32, 2e-6), (Precision::Bf16, 3e-2)] {
            let model = Model::of_all(&spec, &parameters, precision).unwrap();
            let logits = tch::no_grad(|| model.logits(&inputs(spec.kind))).unwrap().to_kind(tch::Kind::Float);
            let off = distance(&Vec::try_from(logits.reshape([-1])).unwrap(), &reference);
            assert!(off < tolerance, "{name} in {precision:?}: {off}");
        }
    }
}

#[test]
fn loss_and_gradients_are_those_of_pytorch() {
    for (name, spec) in models() {
        let reference = Reference::read(name);
        for (precision, tolerance) in [(Precision::F32, 5e-6), (Precision::Bf16, 5e-2)] {
            let mut gradient = Vec::new();
            let train = TrainConfig { precision, ..TrainConfig::default() };
            let outcome =
                engine(&spec, &train).gradient(&batch(spec.kind, TOKEN_STREAM), &mut gradient).unwrap();
            let off = distance(&[outcome.loss], &reference.values("loss"));
            assert!(off < tolerance, "loss of {name} in {precision:?}: {off}");
            let mut start = 0;
            for parameter in spec.parameters() {
                let part = &gradient[start..start + parameter.count() as usize];
                start += part.len();
                let off = distance(part, &reference.values(&format!("gradient/{}", parameter.name)));
                assert!(off < tolerance, "{name}, {} in {precision:?}: {off}", parameter.name);
            }
        }
    }
}

#[test]
fn five_steps_of_training_end_where_pytorchs_do() {
    let train = TrainConfig {
        learning_rate: 3e-3,
        final_learning_rate_share: 1.0,
        warmup_steps: 0,
        gradient_clip: 0.5,
        epsilon: 1e-5,
        micro_batch: 2,
        ..TrainConfig::default()
    };
    for (name, spec) in models() {
        let reference = Reference::read(name);
        let mut engine = engine(&spec, &train);
        let losses: Vec<f32> = (0..5)
            .map(|step| {
                engine.train_step(step as u64, &batch(spec.kind, TOKEN_STREAM + 1 + step)).unwrap().loss
            })
            .collect();
        assert!(distance(&losses, &reference.values("losses")) < 1e-5, "{name}: {losses:?}");
        let mut trained = Vec::new();
        engine.parameters_to_host(&mut trained).unwrap();
        let before = parameters(&spec);
        let moved = |to: &[f32]| -> Vec<f32> { to.iter().zip(&before).map(|(t, b)| t - b).collect() };
        // Adam amplifies the rounding of gradients near epsilon, so norms are compared, not the largest values.
        let (ours, theirs) = (moved(&trained), moved(&reference.flat("trained", &spec)));
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let off = norm(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b)) / norm(&mut theirs.iter().copied());
        assert!(off < 1e-4, "{name} moved elsewhere: {off}");
    }
}
