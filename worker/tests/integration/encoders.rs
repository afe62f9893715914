//! Encoders of every family against transformers: see `fixtures/make_encoders.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_checkpoint::{OpenedModel, open_model};
use longhaul_common::config::{Precision, TrainConfig};
use longhaul_common::model::Head;
use longhaul_data::LABEL_BIT;
use longhaul_engine::models::{FrozenWeights, Model, Parameters};
use longhaul_engine::{Batch, Engine};
use longhaul_tests::tools::skipped;
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

pub const CASES: [&str; 4] = ["bert", "electra", "roberta", "xlm-roberta"];

/// Encoders with each other head, and the class of transformers that opens them.
pub const HEADS: [(&str, &str); 7] = [
    ("bert-classes", "AutoModelForSequenceClassification"),
    ("bert-none", "AutoModel"),
    ("electra-classes", "AutoModelForSequenceClassification"),
    ("electra-none", "AutoModel"),
    ("electra-replaced", "AutoModelForPreTraining"),
    ("roberta-classes", "AutoModelForSequenceClassification"),
    ("xlm-roberta-classes", "AutoModelForSequenceClassification"),
];

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

/// What transformers computes in f32 with another head.
#[derive(Deserialize)]
pub struct ExpectedOfHead {
    /// `[B, T]`
    pub tokens: Vec<Vec<i64>>,
    /// Logits `[B, K]` or `[B, T]`, or hidden states `[B, T, D]`.
    pub output: Vec<f32>,
}

pub fn head(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/encoder_heads").join(case)
}

pub fn expected_of(case: &str) -> ExpectedOfHead {
    serde_json::from_slice(&std::fs::read(head(case).join("expected.json")).unwrap()).unwrap()
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
    for (folder, cases) in [(folder(""), CASES.to_vec()), (head(""), HEADS.map(|(case, _)| case).to_vec())] {
        let found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut found: Vec<String> = found.map(|name| name.into_string().unwrap()).collect();
        found.sort();
        assert_eq!(found, cases);
    }
}

/// Returns logits, or hidden states where there is no head, of sequences of equal length.
fn output(opened: &OpenedModel, tokens: &[Vec<i64>]) -> Vec<f32> {
    let (model, _) = model(opened, Precision::F32);
    let tokens = Tensor::from_slice2(tokens);
    let has_head = opened.spec.encoder.as_ref().is_some_and(|encoder| encoder.head != Head::None);
    let output =
        tch::no_grad(|| if has_head { model.logits(&tokens) } else { model.forward(&tokens) }).unwrap();
    Vec::try_from(output.flatten(0, -1)).unwrap()
}

/// Returns the largest difference over the largest value.
fn apart(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

#[test]
fn classes_replaced_tokens_and_hidden_states_are_those_of_transformers() {
    for (case, _) in HEADS {
        let (opened, expected) = (open_model(&head(case), None).unwrap(), expected_of(case));
        let off = apart(&output(&opened, &expected.tokens), &expected.output);
        assert!(off < 1e-5, "{case}: off by {off}");
    }
}

/// A published model: the folder that `LONGHAUL_MINILM` names, with what `fixtures/describe_encoder.py` says of it.
#[test]
#[ignore = "nightly: takes a model of 90 MB"]
fn a_published_model_has_the_hidden_states_of_transformers() {
    let Some(folder) = std::env::var_os("LONGHAUL_MINILM").map(PathBuf::from) else {
        return skipped("LONGHAUL_MINILM names no folder of all-MiniLM-L6-v2");
    };
    let Some(python) = std::env::var_os("LONGHAUL_PYTHON") else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/describe_encoder.py");
    let told = std::process::Command::new(python).arg(script).arg(&folder).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let expected: ExpectedOfHead = serde_json::from_slice(&told.stdout).unwrap();
    let opened = open_model(&folder, None).unwrap();
    let off = apart(&output(&opened, &expected.tokens), &expected.output);
    eprintln!("hidden states are off by {off:.1e} of the largest");
    assert!(off < 1e-5, "off by {off}");
    // The tokenizer makes the same tokens of the texts.
    let tokenizer = longhaul_data::Tokenizer::load(folder.join("tokenizer.json").to_str().unwrap()).unwrap();
    let inner = &expected.tokens[0][1..expected.tokens[0].len() - 1];
    let own: Vec<i64> = tokenizer.encode(TEXT).unwrap().into_iter().map(i64::from).collect();
    assert_eq!(own, inner);
}

/// Published models of 2020: those of the package that `fixtures/describe_published.py` names.
#[test]
fn old_published_models_have_the_logits_of_transformers() {
    let Some(python) = std::env::var_os("LONGHAUL_PYTHON") else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/describe_published.py");
    let folder = tempfile::tempdir().unwrap();
    let told = std::process::Command::new(python).arg(script).arg(folder.path()).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told: Option<BTreeMap<String, ExpectedOfHead>> = serde_json::from_slice(&told.stdout).unwrap();
    let Some(told) = told else { return skipped("the Python of LONGHAUL_PYTHON has no rxnfp") };
    assert_eq!(told.len(), 2);
    for (case, expected) in told {
        let opened = open_model(&folder.path().join(&case), None).unwrap();
        let off = apart(&output(&opened, &expected.tokens), &expected.output);
        assert!(off < 1e-5, "{case}: off by {off}");
    }
}

/// The text of `fixtures/describe_encoder.py`.
const TEXT: &str = "The quick brown fox jumps over the lazy dog, and naïve façades cost 3,50 € each.";

#[test]
fn logits_losses_and_gradients_are_those_of_transformers() {
    for case in CASES {
        let (opened, expected) = (open_model(&folder(case), None).unwrap(), expected(case));
        let (model, _) = model(&opened, Precision::F32);
        let tokens = Tensor::from_slice(&expected.tokens).unsqueeze(0); // [1, T]
        let reference = Tensor::from_slice(&expected.logits).view([tokens.size()[1], -1]);
        let logits = tch::no_grad(|| model.logits(&tokens)).unwrap().squeeze_dim(0); // [T, V]
        let largest = reference.abs().max().double_value(&[]);
        let off = (&logits - &reference).abs().max().double_value(&[]) / largest;
        assert!(off < 1e-5, "{case}: logits are off by {off}");
        let (loss, gradient) = of_masked(&opened, &expected);
        let difference = (f64::from(loss) - expected.loss).abs() / expected.loss;
        assert!(difference < 1e-5, "{case}: the loss is off by {difference}");
        let specs = opened.spec.parameters();
        assert_eq!(expected.gradients.len(), specs.len(), "{case}");
        let mut rest = gradient.as_slice();
        for spec in &specs {
            let (gradient, after) = rest.split_at(spec.count() as usize);
            rest = after;
            let (reference, gradient) = (&expected.gradients[&spec.name], Tensor::from_slice(gradient));
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

/// Returns loss and gradient of a training step on the masked sequence.
fn of_masked(opened: &OpenedModel, expected: &Expected) -> (f32, Vec<f32>) {
    let frozen = FrozenWeights::of(&opened.spec, Device::Cpu);
    let (train, parameters) = (TrainConfig::default(), &opened.parameters);
    let mut engine = Engine::with_parameters(&opened.spec, &train, 1, parameters, frozen, None).unwrap();
    let mut batch = Batch::of_masked(expected.tokens.len());
    let label = |label: &i64| if *label == IGNORED { 0 } else { label + 1 };
    let words = expected.tokens.iter().zip(&expected.labels);
    batch.push_masked_words(words.map(|(token, of)| token | label(of) << LABEL_BIT));
    let mut gradient = Vec::new();
    let outcome = engine.gradient(&batch, &mut gradient).unwrap();
    (outcome.loss, gradient)
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
