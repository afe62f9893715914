//! Encoders with heads for classes against transformers, on padded batches of texts and pairs: see `fixtures/make_encoders.py`.

use std::collections::BTreeMap;

use longhaul_checkpoint::{BaseModel, OpenedModel, describe_model, open_model};
use longhaul_common::config::TrainConfig;
use longhaul_common::model::{Encoder, Head, ModelSpec, draw_parameters};
use longhaul_data::{HostBatch, PAD, SECOND};
use longhaul_engine::models::FrozenWeights;
use longhaul_engine::{Batch, Engine};
use serde::Deserialize;
use tch::{Device, Tensor};

use crate::encoders::{folder, head};

const CASES: [&str; 4] = ["bert-classes", "electra-classes", "roberta-classes", "xlm-roberta-classes"];

/// What transformers computes in f32, for the stored weights.
#[derive(Deserialize)]
pub struct Expected {
    tokens: Vec<Vec<u32>>,
    types: Vec<Vec<u32>>,
    labels: Vec<u32>,
    /// `[B, K]`
    logits: Vec<f64>,
    pub loss: f64,
    /// By parameter: the norm of its gradient, and its first three values.
    gradients: BTreeMap<String, Vec<f64>>,
}

impl Expected {
    fn of(case: &str) -> Self {
        serde_json::from_slice(&std::fs::read(head(case).join("classification.json")).unwrap()).unwrap()
    }

    /// Returns the texts in sequences of this length.
    pub fn batch(&self, length: usize) -> HostBatch {
        let mut batch = HostBatch::of_labelled(length);
        for ((tokens, types), label) in self.tokens.iter().zip(&self.types).zip(&self.labels) {
            let words = tokens.iter().zip(types).map(|(token, second)| token | (second * SECOND));
            let padding = std::iter::repeat_n(PAD, length - tokens.len());
            batch.push_labelled(words.chain(padding).chain([*label]));
        }
        batch
    }

    /// Returns the losses of the texts and whether each is told right, by its logits in f64.
    pub fn judged(&self) -> Vec<(f64, bool)> {
        let classes = self.logits.len() / self.labels.len();
        let of = |(logits, label): (&[f64], &u32)| {
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            let own = logits[*label as usize];
            (sum.ln() - own, logits.iter().all(|logit| *logit <= own))
        };
        self.logits.chunks(classes).zip(&self.labels).map(of).collect()
    }
}

fn engine(opened: &OpenedModel, train: &TrainConfig) -> Engine {
    let frozen = FrozenWeights::of(&opened.spec, Device::Cpu);
    Engine::with_parameters(&opened.spec, train, 1, &opened.parameters, frozen, None).unwrap()
}

#[test]
fn losses_accuracy_and_gradients_of_padded_pairs_are_those_of_transformers() {
    for case in CASES {
        let (opened, expected) = (open_model(&head(case), None).unwrap(), Expected::of(case));
        let judged = expected.judged();
        let right = judged.iter().filter(|(_, is_right)| *is_right).count();
        // In sequences of more tokens than needed, at once and one by one, with and without recomputation.
        for (length, micro_batch, recompute) in [(20, 3, false), (28, 2, true), (31, 1, false)] {
            let at = format!("{case}, {length}, {micro_batch}");
            let train = TrainConfig { micro_batch, recompute, ..TrainConfig::default() };
            let mut engine = engine(&opened, &train);
            let batch = Batch::from(expected.batch(length));
            assert_eq!((batch.losses(), batch.tokens()), (3, 40), "{at}");
            let mut gradient = Vec::new();
            let loss = engine.gradient(&batch, &mut gradient).unwrap().loss;
            assert!((f64::from(loss) - expected.loss).abs() < 1e-5 * expected.loss, "{at}: {loss}");
            let found = engine.evaluate([&batch]).unwrap().unwrap();
            assert!((f64::from(found.loss) - expected.loss).abs() < 1e-5 * expected.loss, "{at}: {found:?}");
            assert_eq!(found.accuracy, Some(right as f32 / 3.0), "{at}");
            for (found, (loss, _)) in engine.sample_losses(&batch).unwrap().iter().zip(&judged) {
                assert!((f64::from(*found) - loss).abs() < 1e-4 * loss.max(0.1), "{at}: {found} for {loss}");
            }
            compare(&opened.spec, &gradient, &expected, &at);
        }
    }
}

/// Compares a gradient with that of transformers or PEFT.
pub fn compare(spec: &ModelSpec, gradient: &[f32], expected: &Expected, at: &str) {
    let mut rest = gradient;
    let specs = spec.parameters();
    assert_eq!(expected.gradients.len(), specs.len(), "{at}");
    for spec in &specs {
        let (gradient, after) = rest.split_at(spec.count() as usize);
        rest = after;
        let (reference, gradient) = (&expected.gradients[&spec.name], Tensor::from_slice(gradient));
        // The gradient of the keys' bias is zero but for rounding.
        let (norm, scale) = (gradient.norm().double_value(&[]), reference[0].max(1e-2));
        assert!((norm - reference[0]).abs() < 1e-4 * scale, "{at}, {}: {norm}", spec.name);
        for (place, value) in reference[1..].iter().enumerate() {
            let found = gradient.double_value(&[place as i64]);
            assert!(
                (found - value).abs() < 1e-4 * scale,
                "{at}, {} [{place}]: {found} for {value}",
                spec.name
            );
        }
    }
}

/// At a rate of 1 − 2⁻³² nothing passes but the biases of the last product: BERT drops before that alone, the others before both products.
#[test]
fn dropout_is_before_the_products_of_the_head() {
    for case in CASES {
        let (opened, expected) = (open_model(&head(case), None).unwrap(), Expected::of(case));
        let loss = |classifier_dropout, dropout| {
            let train = TrainConfig { micro_batch: 3, classifier_dropout, dropout, ..TrainConfig::default() };
            let batch = Batch::from(expected.batch(20).seeded(vec![5, 6, 7]));
            f64::from(engine(&opened, &train).gradient(&batch, &mut Vec::new()).unwrap().loss)
        };
        assert_eq!(loss(None, None), loss(Some(0.0), None), "{case}");
        assert_ne!(
            loss(None, Some(0.2)),
            loss(Some(0.0), Some(0.2)),
            "{case}: the rate is that of the model"
        );
        let classes = expected.logits.len() / 3;
        let biases = &opened.parameters[opened.parameters.len() - classes..];
        let sum: f64 = biases.iter().map(|bias| f64::from(*bias).exp()).sum();
        let of = |label: &u32| sum.ln() - f64::from(biases[*label as usize]);
        let constant = expected.labels.iter().map(of).sum::<f64>() / 3.0;
        let dropped = loss(Some(1.0 - 2f64.powi(-32)), None);
        assert!((dropped - constant).abs() < 1e-5, "{case}: {dropped} for {constant}");
    }
}

/// A masked model has no head for classes: it is drawn, but for a pooler of the files.
#[test]
fn a_model_without_a_head_for_classes_gives_all_but_the_head() {
    for (base, with_head) in [
        ("bert", "bert-classes"),
        ("roberta", "roberta-classes"),
        ("xlm-roberta", "xlm-roberta-classes"),
        ("electra", "electra-classes"),
    ] {
        let model = BaseModel::open(&folder(base), |_, _| {}).unwrap();
        let of = |folder| ModelSpec::resolve(&describe_model(folder).unwrap().model, 0).unwrap();
        let (own, classes) = (of(&folder(base)), of(&head(with_head)));
        let whole = own.with_classes_of(&classes);
        assert!(matches!(whole.encoder.as_ref().unwrap().head, Head::Classes(_)), "{base}");
        model.check(&whole).unwrap();
        let missing: Vec<String> = model.missing(&whole).unwrap().into_iter().collect();
        let of_head = whole.part(std::iter::once(whole.head()..whole.head() + 1).collect()).parameters();
        let mut names: Vec<String> = of_head.into_iter().map(|tensor| tensor.name).collect();
        names.sort();
        assert_eq!(missing, names, "{base}");
        let mut given = BTreeMap::new();
        let is_there = |name: &str| !missing.iter().any(|of| of == name);
        model
            .for_each(&whole, is_there, |tensor, _, values| {
                let (count, all) = given.entry(tensor.name.clone()).or_insert((0, tensor.count()));
                *count += values.len() as u64;
                assert!(*count <= *all, "{}", tensor.name);
                Ok(())
            })
            .unwrap();
        assert!(given.values().all(|(count, all)| count == all), "{given:?}");
        assert_eq!(given.len() + missing.len(), whole.parameters().len(), "{base}");
        assert_eq!(draw_parameters(&whole, 1).len() as u64, whole.parameter_count());
        // A head of its own is taken as it is, and no other number of classes.
        let taken = BaseModel::open(&head(with_head), |_, _| {}).unwrap();
        assert!(taken.missing(&classes).unwrap().is_empty());
        taken.check(&classes).unwrap();
        let encoder = Encoder { head: Head::Classes(7), ..Encoder::clone(classes.encoder.as_ref().unwrap()) };
        let other = ModelSpec { encoder: Some(encoder.into()), ..classes };
        assert!(taken.check(&other).is_err(), "{base}");
    }
}
