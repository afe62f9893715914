//! Adapters that PEFT wrote, against what PEFT computes with them: see `fixtures/make_adapters.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_checkpoint::{BaseModel, OpenedModel, open_model};
use longhaul_common::config::Precision;
use longhaul_common::model::ModelSpec;
use longhaul_engine::models::{FrozenWeights, Model, Parameters};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

pub const CASES: [&str; 8] =
    ["gemma2", "gpt2", "gpt2-dora", "llama", "phi3", "phi3-dora", "qwen3", "qwen3-dora"];

/// What PEFT computes in f32.
#[derive(Deserialize)]
pub struct Expected {
    /// Folder of the pretrained model among the fixtures.
    base: String,
    pub tokens: Vec<i64>,
    /// `[T, V]`
    pub logits: Vec<f32>,
    loss: f64,
    /// By trained tensor: the norm of its gradient, and its first three values.
    gradients: BTreeMap<String, Vec<f64>>,
    /// The same of the merged weights.
    merged: BTreeMap<String, Vec<f64>>,
}

pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

pub fn case(name: &str) -> (OpenedModel, PathBuf, Expected) {
    let folder = fixture("adapters").join(name);
    let expected: Expected =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let base = fixture(&expected.base);
    (open_model(&folder, Some(&base)).unwrap(), base, expected)
}

/// Returns the frozen weights of a model.
pub fn frozen(spec: &ModelSpec, base: &Path) -> FrozenWeights {
    let frozen_of: Vec<String> = spec.frozen().into_iter().map(|tensor| tensor.name).collect();
    let mut frozen = FrozenWeights::of(spec, Device::Cpu);
    let base = BaseModel::open(base, |_, _| {}).unwrap();
    let wanted = |name: &str| frozen_of.iter().any(|of| of == name);
    base.for_each(spec, wanted, |tensor, first, values| Ok(frozen.write(tensor, first, values)?)).unwrap();
    frozen
}

/// Compares a tensor with the norm and the first values of a reference.
fn assert_near(what: &str, found: &Tensor, reference: &[f64], tolerance: f64) {
    let found = found.flatten(0, -1);
    let (norm, scale) = (found.norm().double_value(&[]), reference[0]);
    assert!((norm - scale).abs() <= tolerance * scale, "{what}: norm {norm}, expected {scale}");
    for (at, value) in reference[1..].iter().enumerate() {
        let own = found.double_value(&[at as i64]);
        assert!((own - value).abs() <= tolerance * scale, "{what} [{at}]: {own}, expected {value}");
    }
}

#[test]
fn logits_losses_gradients_and_merged_weights_are_those_of_peft() {
    for name in CASES {
        let (opened, base, expected) = case(name);
        let parameters =
            Parameters::beside(&opened.spec, &opened.parameters, frozen(&opened.spec, &base)).unwrap();
        let model = Model::of_all(&opened.spec, &parameters, Precision::F32).unwrap();
        let tokens = Tensor::from_slice(&expected.tokens).unsqueeze(0); // [1, T + 1]
        let length = tokens.size()[1] - 1;
        let reference = Tensor::from_slice(&expected.logits).view([length, -1]);
        let found = tch::no_grad(|| model.logits(&tokens.narrow(1, 0, length))).unwrap().squeeze_dim(0);
        let largest = reference.abs().max().double_value(&[]);
        let off = (found.to_kind(Kind::Float) - &reference).abs().max().double_value(&[]) / largest;
        assert!(off < 1e-5, "{name}: logits are off by {off}");
        let loss = model.mean_loss(&tokens).unwrap();
        let difference = (loss.double_value(&[]) - expected.loss).abs() / expected.loss;
        assert!(difference < 1e-5, "{name}: the loss is off by {difference}");
        loss.backward();
        let gradients = in_file(&opened.spec, &parameters);
        assert_eq!(expected.gradients.len(), gradients.len(), "{name}");
        for (tensor, gradient) in &gradients {
            let what = format!("{name}, {tensor}");
            assert_near(&what, gradient, &expected.gradients[tensor], 1e-4);
        }
        check_merged(name, opened, &base, &expected.merged);
    }
}

/// Returns the gradients of PEFT's tensors: modules that it joins have the same A, whose gradient is the sum of theirs, and rows of one B.
fn in_file(spec: &ModelSpec, parameters: &Parameters) -> BTreeMap<String, Tensor> {
    let mut gradients = BTreeMap::<String, Tensor>::new();
    for (tensor, view) in spec.parameters().into_iter().zip(parameters.views()) {
        let name = spec.kind.joined_name(&tensor.name).unwrap_or(tensor.name);
        let joined = match gradients.remove(&name) {
            None => view.grad(),
            Some(others) if name.contains(".lora_A.") => others + view.grad(),
            Some(others) => Tensor::cat(&[others, view.grad()], 0),
        };
        gradients.insert(name, joined);
    }
    gradients
}

/// Compares merged weights with the norms and the first values of a reference.
pub fn check_merged(name: &str, opened: OpenedModel, base: &Path, expected: &BTreeMap<String, Vec<f64>>) {
    let merged = opened.merged(Some(base)).unwrap();
    let (mut rest, mut tensors) = (merged.parameters.as_slice(), BTreeMap::<String, Vec<f32>>::new());
    for tensor in merged.spec.parameters() {
        let (own, others) = rest.split_at(tensor.count() as usize);
        rest = others;
        let name = merged.spec.kind.joined_name(&tensor.name).unwrap_or(tensor.name);
        tensors.entry(name).or_default().extend_from_slice(own);
    }
    for (tensor, values) in &tensors {
        let what = format!("{name}, merged {tensor}");
        assert_near(&what, &Tensor::from_slice(values), &expected[tensor], 1e-6);
    }
}
