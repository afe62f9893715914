//! Optimisers against PyTorch's and transformers': see `fixtures/make_optimisers.py`.

use std::path::Path;

use longhaul_common::config::{
    AdafactorConfig, ImageConfig, ModelConfig, ModelKind, MuonConfig, MuonScale, Optimiser, Precision,
    SgdConfig, TrainConfig,
};
use longhaul_common::model::ModelSpec;
use longhaul_engine::{Engine, choose_device};
use safetensors::SafeTensors;

use super::pytorch::noise;

const IMAGE: ImageConfig =
    ImageConfig { channels: 3, height: 6, width: 7, classes: 5, shift: 0, flip: false };
const STEPS: i64 = 4;

fn spec() -> ModelSpec {
    let model = ModelConfig { hidden: Some(vec![16, 12]), ..ModelConfig::of(ModelKind::Mlp) };
    ModelSpec::of_images(&model, &IMAGE).unwrap()
}

/// The script's `tensor`, for all of them.
fn values(stream: i64) -> Vec<f32> {
    (0..)
        .zip(spec().parameters())
        .flat_map(|(at, tensor)| noise(tensor.count() as usize, stream + at))
        .collect()
}

/// Returns our values after the script's steps.
fn trained(train: &TrainConfig) -> Vec<f32> {
    let device = choose_device(&std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned()));
    let mut engine = Engine::new(&spec(), train, STEPS as u64, 1, device.unwrap(), None).unwrap();
    engine.load_parameters(&values(0)).unwrap();
    for step in 0..STEPS {
        engine.apply_gradient(step as u64, &values(100 * (step + 1))).unwrap();
    }
    let mut after = Vec::new();
    engine.parameters_to_host(&mut after).unwrap();
    after
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn four_steps_of_each_optimiser_end_where_pytorchs_do() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/optimisers.safetensors");
    let bytes = std::fs::read(file).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    let base = TrainConfig {
        learning_rate: 3e-3,
        final_learning_rate_share: 1.0,
        warmup_steps: 0,
        gradient_clip: 0.0,
        ..TrainConfig::default()
    };
    // PyTorch's decay of SGD is part of the gradient.
    let sgd = |nesterov| TrainConfig {
        optimiser: Optimiser::Sgd,
        sgd: Some(SgdConfig { momentum: 0.9, nesterov }),
        weight_decay: 0.0,
        ..base.clone()
    };
    let muon = |scale| TrainConfig {
        optimiser: Optimiser::Muon,
        muon: Some(MuonConfig { scale, precision: Some(Precision::F32), ..MuonConfig::default() }),
        ..base.clone()
    };
    let adafactor = |beta1| TrainConfig {
        optimiser: Optimiser::Adafactor,
        adafactor: Some(AdafactorConfig { beta1, ..AdafactorConfig::default() }),
        ..base.clone()
    };
    // PyTorch's Muon iterates in bf16.
    for (name, train, tolerance) in [
        ("sgd", sgd(false), 1e-5),
        ("sgd_nesterov", sgd(true), 1e-5),
        ("muon", muon(MuonScale::MatchRmsAdamw), 2e-2),
        ("muon_original", muon(MuonScale::Original), 2e-2),
        ("adafactor", adafactor(0.0), 1e-4),
        ("adafactor_with_momentum", adafactor(0.9), 1e-4),
    ] {
        let (after, before, mut start) = (trained(&train), values(0), 0);
        for tensor in spec().parameters() {
            let place = start..start + tensor.count() as usize;
            start = place.end;
            let data = reference.tensor(&format!("{name}/{}", tensor.name)).unwrap().data();
            let theirs: Vec<f32> =
                data.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
            let moved = norm(theirs.iter().zip(&before[place.clone()]).map(|(a, b)| a - b));
            let apart = norm(theirs.iter().zip(&after[place]).map(|(a, b)| a - b));
            assert!(moved > 1e-4 && apart < tolerance * moved, "{name}, {}: {}", tensor.name, apart / moved);
        }
    }
}
