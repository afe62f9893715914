//! Decoders of every family against transformers: see `fixtures/make_decoders.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_checkpoint::{OpenedModel, open_model};
use longhaul_common::config::{Precision, TrainConfig};
use longhaul_engine::models::{Cache, FrozenWeights, Model, Parameters};
use longhaul_engine::{Batch, Engine, Generator, Scored};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

/// Families with their variants, and whether they have to be here.
pub const CASES: [&str; 18] = [
    "gemma2",
    "gemma3",
    "llama",
    "llama-biases",
    "llama-linear",
    "llama-llama3",
    "llama-yarn",
    "mistral",
    "mixtral",
    "olmo2",
    "olmoe",
    "phi3",
    "phi3-longrope",
    "phi3-partial",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "smollm3",
];

/// What transformers computes in f32, for the stored weights.
#[derive(Deserialize)]
pub struct Expected {
    pub tokens: Vec<i64>,
    /// `[T, V]`
    pub logits: Vec<f32>,
    loss: f64,
    /// Of the logits in bf16: the norm of their difference over their norm.
    bf16_error: f64,
    /// By parameter: the norm of its gradient, and its first three values.
    gradients: BTreeMap<String, Vec<f64>>,
    /// The same with the loss that balances experts.
    balanced: Option<BTreeMap<String, Vec<f64>>>,
}

pub fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoders").join(case)
}

pub fn expected(case: &str) -> Expected {
    serde_json::from_slice(&std::fs::read(folder(case).join("expected.json")).unwrap()).unwrap()
}

fn model(opened: &OpenedModel, precision: Precision) -> (Model, Parameters) {
    let parameters = Parameters::new(&opened.spec, &opened.parameters, Device::Cpu).unwrap();
    (Model::of_all(&opened.spec, &parameters, precision).unwrap(), parameters)
}

fn logits(model: &Model, tokens: &Tensor) -> Tensor {
    tch::no_grad(|| model.logits(tokens)).unwrap().squeeze_dim(0).to_kind(Kind::Float)
}

/// Whether shorter sequences have other rotary frequencies.
fn is_longrope(case: &str) -> bool {
    ["phi3-longrope", "phi3-partial"].contains(&case)
}

/// The largest difference, over the largest value.
fn off(found: &Tensor, expected: &Tensor) -> f64 {
    let largest = expected.abs().max().double_value(&[]);
    (found - expected).abs().max().double_value(&[]) / largest
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
        let tokens = Tensor::from_slice(&expected.tokens).unsqueeze(0); // [1, T + 1]
        let length = tokens.size()[1] - 1;
        let reference = Tensor::from_slice(&expected.logits).view([length, -1]);
        let found = logits(&model, &tokens.narrow(1, 0, length));
        assert!(off(&found, &reference) < 1e-5, "{case}: logits are off by {}", off(&found, &reference));
        let loss = model.mean_loss(&tokens).unwrap();
        let difference = (loss.double_value(&[]) - expected.loss).abs() / expected.loss;
        assert!(difference < 1e-5, "{case}: the loss is off by {difference}");
        loss.backward();
        let found = parameters.views().iter().map(Tensor::grad);
        check_gradients(case, &opened, found, &expected.gradients);
    }
}

fn check_gradients(
    case: &str,
    opened: &OpenedModel,
    found: impl Iterator<Item = Tensor>,
    expected: &BTreeMap<String, Vec<f64>>,
) {
    let specs = opened.spec.parameters();
    assert_eq!(expected.len(), specs.len(), "{case}");
    for (spec, gradient) in specs.iter().zip(found) {
        let reference = &expected[&spec.name];
        let gradient = gradient.flatten(0, -1);
        let (norm, scale) = (gradient.norm().double_value(&[]), reference[0]);
        assert!((norm - scale).abs() < 1e-4 * scale, "{case}, {}: norm {norm}, expected {scale}", spec.name);
        for (at, value) in reference[1..].iter().enumerate() {
            let found = gradient.double_value(&[at as i64]);
            let off = (found - value).abs();
            assert!(off < 1e-4 * scale, "{case}, {} [{at}]: {found}, expected {value}", spec.name);
        }
    }
}

/// Hooks deliver gradients one by one; the reported loss is without the balance.
#[test]
fn gradients_with_the_balance_of_experts_are_those_of_transformers() {
    let case = "olmoe";
    let (opened, expected) = (open_model(&folder(case), None).unwrap(), expected(case));
    let mut batch = Batch::new(expected.tokens.len() - 1);
    batch.push(expected.tokens.iter().map(|token| *token as u32));
    let balanced = expected.balanced.unwrap();
    assert!(balanced != expected.gradients);
    for recompute in [false, true] {
        let train = TrainConfig { recompute, micro_batch: 1, ..TrainConfig::default() };
        let frozen = FrozenWeights::of(&opened.spec, Device::Cpu);
        let mut engine =
            Engine::with_parameters(&opened.spec, &train, 1, &opened.parameters, frozen, None).unwrap();
        let mut flat = Vec::new();
        let outcome = engine.gradient_by_tensor(&batch, &mut flat, &mut |_, _| {}).unwrap();
        assert!((f64::from(outcome.loss) - expected.loss).abs() < 1e-5 * expected.loss);
        let mut rest = flat.as_slice();
        let found = opened.spec.parameters().into_iter().map(|tensor| {
            let (own, others) = rest.split_at(tensor.count() as usize);
            rest = others;
            Tensor::from_slice(own)
        });
        check_gradients(case, &opened, found, &balanced);
    }
}

#[test]
fn in_bf16_the_logits_are_as_near_to_those_of_f32_as_in_transformers() {
    for case in CASES {
        let (opened, expected) = (open_model(&folder(case), None).unwrap(), expected(case));
        let (model, _) = model(&opened, Precision::Bf16);
        let length = expected.tokens.len() as i64 - 1;
        let tokens = Tensor::from_slice(&expected.tokens).narrow(0, 0, length).unsqueeze(0);
        let reference = Tensor::from_slice(&expected.logits).view([length, -1]);
        let difference = (logits(&model, &tokens) - &reference).norm() / reference.norm();
        let (difference, usual) = (difference.double_value(&[]), expected.bf16_error);
        assert!(difference < 1.5 * usual, "{case}: {difference}, and {usual} in transformers");
    }
}

/// Generation reads keys and values from a cache, with windows and without.
#[test]
fn with_a_cache_the_logits_are_those_of_the_whole_pass() {
    for case in CASES {
        let (opened, expected) = (open_model(&folder(case), None).unwrap(), expected(case));
        let (model, _) = model(&opened, Precision::F32);
        // Longer sequences have other frequencies there.
        let length = if ["phi3-longrope", "phi3-partial"].contains(&case) {
            16
        } else {
            expected.tokens.len() as i64 - 1
        };
        let tokens = Tensor::from_slice(&expected.tokens).narrow(0, 0, length).unsqueeze(0);
        let whole = logits(&model, &tokens);
        let mut cache = Cache::new(&opened.spec, 1, Precision::F32, Device::Cpu).unwrap();
        for piece in [9, 1, 1, 4, 1] {
            let next = tokens.narrow(1, cache.len() as i64, piece);
            let found = model.next_logits(&next, &mut cache).unwrap().squeeze_dim(0);
            let reference = whole.get(cache.len() as i64 - 1);
            assert!(off(&found, &reference) < 1e-5, "{case} at {}: {}", cache.len(), off(&found, &reference));
        }
    }
}

/// Log-likelihoods of ends of sequences of unlike lengths, in batches, against transformers' logits.
#[test]
fn log_likelihoods_are_those_of_the_logits_of_transformers() {
    for case in CASES {
        let (opened, expected) = (open_model(&folder(case), None).unwrap(), expected(case));
        let generator = Generator::new(&opened.spec, &opened.parameters, Device::Cpu, None).unwrap();
        let tokens: Vec<u32> = expected.tokens.iter().map(|token| *token as u32).collect();
        // Shorter sequences have other frequencies there.
        let shortest = if is_longrope(case) { 18 } else { 3 };
        let ends = [tokens.len(), tokens.len() - 6, shortest, tokens.len() - 1, tokens.len() - 3];
        let all: Vec<Scored<'_>> = ends
            .iter()
            .enumerate()
            .map(|(at, end)| Scored { tokens: &tokens[..*end], from: 1 + at % (end - 1) })
            .collect();
        let found = generator.log_likelihoods(&all).unwrap();
        let rows: Vec<&[f32]> = expected.logits.chunks(opened.spec.vocabulary as usize).collect();
        for (scored, found) in all.iter().zip(found) {
            let (mut sum, mut is_greedy) = (0.0, true);
            for at in scored.from..scored.tokens.len() {
                let (row, own) = (rows[at - 1], rows[at - 1][scored.tokens[at] as usize]);
                let largest = row.iter().copied().fold(f32::MIN, f32::max);
                let total: f64 = row.iter().map(|logit| f64::from(logit - largest).exp()).sum();
                sum += f64::from(own - largest) - total.ln();
                is_greedy &= own == largest;
            }
            assert!((found.sum - sum).abs() < 1e-4 * sum.abs().max(1.0), "{case}: {found:?}, expected {sum}");
            assert_eq!(found.is_greedy, is_greedy, "{case}");
        }
    }
}
