use longhaul_common::config::{LoraConfig, TrainConfig};
use longhaul_common::model::tiny::tiny_llama;
use longhaul_proto::stored_values::ValueFormat;

use super::filling::largest;
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

const FORMATS: [FrozenFormat; 4] =
    [FrozenFormat::F32, FrozenFormat::Bf16, FrozenFormat::Int8, FrozenFormat::Nf4];

fn tensor(spec: &ModelSpec, name: &str) -> ParameterSpec {
    spec.frozen().into_iter().find(|tensor| tensor.name == name).unwrap()
}

/// Returns the values in f32, and their bytes in a file of another format, by libtorch's own conversion.
fn in_file(given: &[f32], format: ValueFormat) -> (Vec<f32>, Vec<u8>) {
    let kind = match format {
        ValueFormat::F32 => Kind::Float,
        ValueFormat::F16 => Kind::Half,
        ValueFormat::Bf16 => Kind::BFloat16,
    };
    let stored = Tensor::from_slice(given).to_kind(kind);
    let mut bytes = vec![0; given.len() * format.bytes()];
    stored.copy_data_u8(&mut bytes, given.len());
    (Vec::try_from(stored.to_kind(Kind::Float)).unwrap(), bytes)
}

/// Pieces of odd sizes, which end within rows and blocks, against the whole tensor in f32 at once.
#[test]
fn pieces_of_a_file_give_the_same_weights_as_all_values_in_f32() {
    for format in FORMATS {
        let spec = spec(format);
        for name in [PRODUCT, "model.embed_tokens.weight", "model.norm.weight"] {
            let tensor = tensor(&spec, name);
            let given = values(tensor.count() as usize);
            for of_file in [ValueFormat::F32, ValueFormat::F16, ValueFormat::Bf16] {
                let (wide, bytes) = in_file(&given, of_file);
                let mut at_once = FrozenWeights::of(&spec, Device::Cpu);
                at_once.add(&tensor, &wide).unwrap();
                let mut pieces = FrozenWeights::of(&spec, Device::Cpu);
                let stored = StoredValues::new(of_file, &bytes);
                for start in (0..stored.len()).step_by(37) {
                    let part = stored.part(start..stored.len().min(start + 37));
                    pieces.write(&tensor, start, part).unwrap();
                }
                let [one, other] = [&at_once, &pieces].map(|weights| weights.values(name).unwrap().unwrap());
                assert!(one.equal(&other), "{format:?} {name} {of_file:?}");
            }
        }
    }
}

#[test]
fn bf16_of_a_file_is_kept_and_f32_is_rounded_as_libtorch_rounds() {
    let spec = spec(FrozenFormat::Bf16);
    let tensor = tensor(&spec, PRODUCT);
    let given = values(tensor.count() as usize);
    let (rounded, bytes) = in_file(&given, ValueFormat::Bf16);
    let expected = Tensor::from_slice(&rounded).view([-1]);
    for stored in [StoredValues::new(ValueFormat::Bf16, &bytes), StoredValues::of(&given)] {
        let mut frozen = FrozenWeights::of(&spec, Device::Cpu);
        frozen.write(&tensor, 0, stored).unwrap();
        let Some(Frozen::Plain(found)) = frozen.get(PRODUCT) else { panic!("it has no codes") };
        assert_eq!(found.kind(), Kind::BFloat16);
        assert!(found.to_kind(Kind::Float).view([-1]).equal(&expected));
    }
}

#[test]
fn a_tensor_that_is_not_complete_or_not_in_order_is_refused() {
    for format in FORMATS {
        let spec = spec(format);
        let tensor = tensor(&spec, PRODUCT);
        let given = values(tensor.count() as usize);
        let mut frozen = FrozenWeights::of(&spec, Device::Cpu);
        frozen.write(&tensor, 0, StoredValues::of(&given[1..])).unwrap();
        let refused = frozen.check(&spec).unwrap_err().to_string();
        assert!(refused.contains(&format!("{PRODUCT} has not all of its values")), "{refused}");
        assert!(frozen.write(&tensor, given.len() - 1, StoredValues::of(&given[..2])).is_err());
        assert!(frozen.write(&tensor, given.len() - 1, StoredValues::of(&[f32::NAN])).is_err());
        if matches!(format, FrozenFormat::Int8 | FrozenFormat::Nf4) {
            let refused = frozen.write(&tensor, 0, StoredValues::of(&given[..1])).unwrap_err().to_string();
            assert!(refused.contains("out of order"), "{refused}");
        }
        frozen.write(&tensor, given.len() - 1, StoredValues::of(&given[..1])).unwrap();
        assert!(!frozen.check(&spec).unwrap_err().to_string().contains(PRODUCT));
        assert!(frozen.add(&tensor, &given[1..]).is_err());
    }
}
