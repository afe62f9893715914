use longhaul_common::config::{LoraConfig, TrainConfig};
use longhaul_common::model::tiny::tiny_llama;

use super::*;

fn spec(base: FrozenFormat) -> ModelSpec {
    let targets = vec!["all-linear".to_owned()];
    let lora =
        LoraConfig { rank: 1, alpha: None, use_rslora: false, use_dora: false, dropout: 0.0, targets, base };
    tiny_llama().tuned(&TrainConfig { lora: Some(lora), ..TrainConfig::default() }).unwrap()
}

/// Values of all sizes, one of each block of 64 being the largest.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 % 1013) as f32 / 506.5 - 1.0) * (1.0 + (at / 64) as f32)).collect()
}

fn stored(base: FrozenFormat, name: &str) -> (Vec<f32>, Vec<f32>, usize) {
    let spec = spec(base);
    let tensor = spec.frozen().into_iter().find(|tensor| tensor.name == name).unwrap();
    let given = values(tensor.count() as usize);
    let mut frozen = FrozenWeights::of(&spec, Device::Cpu);
    frozen.add(&tensor, &given).unwrap();
    let found = frozen.values(name).unwrap().unwrap();
    (given, Vec::try_from(found.contiguous().view(-1)).unwrap(), *tensor.shape.last().unwrap() as usize)
}

const PRODUCT: &str = "model.layers.0.mlp.down_proj.weight";

#[test]
fn int8_is_off_by_half_a_step_of_its_row() {
    let (given, found, columns) = stored(FrozenFormat::Int8, PRODUCT);
    for (given, found) in given.chunks(columns).zip(found.chunks(columns)) {
        let step = largest(given) / 127.0;
        let apart = given.iter().zip(found).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(apart > 0.0 && apart <= 0.5001 * step, "{apart} of {step}");
    }
}

/// The nearest of the format's sixteen values, found by trying all, in blocks that do not end with the rows.
#[test]
fn nf4_is_the_nearest_of_sixteen_values_of_its_block() {
    const NF4: [f32; 16] = [
        -1.0,
        -0.696_192_8,
        -0.525_073_05,
        -0.394_917_5,
        -0.284_441_38,
        -0.184_773_43,
        -0.091_050_036,
        0.0,
        0.079_580_3,
        0.160_930_2,
        0.246_112_3,
        0.337_915_24,
        0.440_709_83,
        0.562_617,
        0.722_956_84,
        1.0,
    ];
    let (given, found, _) = stored(FrozenFormat::Nf4, PRODUCT);
    for (given, found) in given.chunks(64).zip(found.chunks(64)) {
        let scale = largest(given);
        for (given, found) in given.iter().zip(found) {
            let apart = NF4.iter().map(|value| (value * scale - given).abs()).fold(f32::INFINITY, f32::min);
            assert!((found - given).abs() <= apart + 1e-5 * scale, "{given} became {found}");
        }
    }
}

#[test]
fn embeddings_and_vectors_are_no_codes() {
    let (given, found, _) = stored(FrozenFormat::Nf4, "model.embed_tokens.weight");
    let apart = given.iter().zip(&found).map(|(one, other)| (one - other).abs() / one.abs().max(1e-9));
    assert!(apart.fold(0.0, f32::max) <= 1.0 / 256.0);
    let (given, found, _) = stored(FrozenFormat::Nf4, "model.norm.weight");
    assert_eq!(given, found);
}
