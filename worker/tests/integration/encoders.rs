//! Encoders of every family against transformers: see `fixtures/make_encoders.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_checkpoint::{OpenedModel, open_model};
use longhaul_common::config::Precision;
use longhaul_engine::models::{Model, Parameters};
use serde::Deserialize;
use tch::{Device, Kind, Reduction, Tensor};

pub const CASES: [&str; 4] = ["bert", "electra", "roberta", "xlm-roberta"];

/// Label of a token that counts nothing.
const IGNORED: i64 = -100;

/// What transformers computes in f32, for the stored weights.
#[derive(Deserialize)]
pub struct Expected {
    pub tokens: Vec<i64>,
    labels: Vec<i64>,
    /// `[T, V]`
    pub logits: Vec<f32>,
    loss: f64,
    /// Of the logits in bf16: the norm of their difference over their norm.
    bf16_error: f64,
    /// By parameter: the norm of its gradient, and its first three values.
    gradients: BTreeMap<String, Vec<f64>>,
}

pub fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoders").join(case)
}

pub fn expected(case: &str) -> Expected {
    serde_json::from_slice(&std::fs::read(folder(case).join("expected.json")).unwrap()).unwrap()
}

fn model(opened: &OpenedModel, precision: Precision) -> (Model, Parameters) {
    let parameters = Parameters::new(&opened.spec, &opened.parameters, Device::Cpu).unwrap();
    (Model::of_all(&opened.spec, &parameters, precision).unwrap(), parameters)
}

#[test]
fn every_fixture_is_compared() {
    let found = std::fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut found: Vec<String> = found.map(|name| name.into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, CASES);
}

#[test]
fn logits_losses_and_gradients_are_those_of_transformers() {
    for case in CASES {
        let (opened, expected) = (open_model(&folder(case), None).unwrap(), expected(case));
        let (model, parameters) = model(&opened, Precision::F32);
        let tokens = Tensor::from_slice(&expected.tokens).unsqueeze(0); // [1, T]
        let reference = Tensor::from_slice(&expected.logits).view([tokens.size()[1], -1]);
        let logits = model.logits(&tokens).unwrap().squeeze_dim(0); // [T, V]
        let largest = reference.abs().max().double_value(&[]);
        let off = (&logits - &reference).abs().max().double_value(&[]) / largest;
        assert!(off < 1e-5, "{case}: logits are off by {off}");
        let labels = Tensor::from_slice(&expected.labels);
        let loss = logits.cross_entropy_loss::<Tensor>(&labels, None, Reduction::Mean, IGNORED, 0.0);
        let difference = (loss.double_value(&[]) - expected.loss).abs() / expected.loss;
        assert!(difference < 1e-5, "{case}: the loss is off by {difference}");
        loss.backward();
        let specs = opened.spec.parameters();
        assert_eq!(expected.gradients.len(), specs.len(), "{case}");
        for (spec, view) in specs.iter().zip(parameters.views()) {
            let (reference, gradient) = (&expected.gradients[&spec.name], view.grad().flatten(0, -1));
            // The gradient of the keys' bias is zero but for rounding.
            let (norm, scale) = (gradient.norm().double_value(&[]), reference[0].max(1e-2));
            assert!((norm - reference[0]).abs() < 1e-4 * scale, "{case}, {}: norm {norm}", spec.name);
            for (at, value) in reference[1..].iter().enumerate() {
                let found = gradient.double_value(&[at as i64]);
                let off = (found - value).abs();
                assert!(off < 1e-4 * scale, "{case}, {} [{at}]: {found}, expected {value}", spec.name);
            }
        }
    }
}

#[test]
fn in_bf16_the_logits_are_as_near_to_those_of_f32_as_in_transformers() {
    for case in CASES {
        let (opened, expected) = (open_model(&folder(case), None).unwrap(), expected(case));
        let (model, _) = model(&opened, Precision::Bf16);
        let tokens = Tensor::from_slice(&expected.tokens).unsqueeze(0);
        let reference = Tensor::from_slice(&expected.logits).view([tokens.size()[1], -1]);
        let logits = tch::no_grad(|| model.logits(&tokens)).unwrap().squeeze_dim(0).to_kind(Kind::Float);
        let (difference, usual) =
            (((logits - &reference).norm() / reference.norm()).double_value(&[]), expected.bf16_error);
        assert!(difference < 1.5 * usual, "{case}: {difference}, and {usual} in transformers");
    }
}
