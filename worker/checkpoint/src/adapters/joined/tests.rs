use longhaul_common::config::{FrozenFormat, TrainConfig};
use longhaul_common::model::draw_parameters;
use longhaul_common::model::tiny::tiny_decoders;

use super::*;

fn lora(targets: &[&str], use_rslora: bool) -> LoraConfig {
    LoraConfig {
        rank: 2,
        alpha: Some(6.0),
        use_rslora,
        use_dora: true,
        dropout: 0.0,
        targets: targets.iter().map(|target| (*target).to_owned()).collect(),
        base: FrozenFormat::F32,
    }
}

fn phi3(targets: &[&str]) -> ModelSpec {
    let spec = tiny_decoders().into_iter().find(|spec| spec.kind == ModelKind::Phi3).unwrap();
    spec.tuned(&TrainConfig { lora: Some(lora(targets, false)), ..TrainConfig::default() }).unwrap()
}

/// The product of a file's B and A, row by row.
fn product(spec: &ModelSpec, form: Form, values: &[f32], module: &str) -> Vec<f32> {
    let (mut rest, mut found) = (values, std::collections::BTreeMap::new());
    for tensor in stored(spec, form) {
        let (own, after) = rest.split_at(tensor.count() as usize);
        rest = after;
        found.insert(tensor.name, (tensor.shape, own));
    }
    let [(a_shape, a), (b_shape, b)] = ["A", "B"].map(|part| &found[&format!("{module}.lora_{part}.weight")]);
    let (rank, inputs) = (a_shape[0] as usize, a_shape[1] as usize);
    assert_eq!(b_shape[1] as usize, rank);
    let row = |b: &[f32]| -> Vec<f32> {
        (0..inputs).map(|at| (0..rank).map(|r| b[r] * a[r * inputs + at]).sum()).collect()
    };
    b.chunks(rank).flat_map(row).collect()
}

#[test]
fn files_have_one_adapter_of_joined_modules_and_lead_back_to_each() {
    let spec = phi3(&["all-linear"]);
    let flat: Vec<f32> =
        draw_parameters(&spec, 3).iter().zip(1..).map(|(value, at)| value + at as f32).collect();
    let file = to_file(&spec, &flat).into_owned();
    assert_eq!(from_file(&spec, Form::Blocks, file.clone()), Ok(flat));
    let blocks = stored(&spec, Form::Blocks);
    let shape = |name: &str| blocks.iter().find(|tensor| tensor.name.ends_with(name)).unwrap().shape.clone();
    let inputs = u64::from(spec.width);
    assert_eq!(shape("layers.0.self_attn.qkv_proj.lora_A.weight"), [6, inputs]);
    assert_eq!(shape("layers.0.mlp.gate_up_proj.lora_A.weight"), [4, inputs]);
    assert_eq!(shape("layers.0.self_attn.o_proj.lora_A.weight"), [2, inputs]);
    let rows = shape("layers.0.self_attn.qkv_proj.lora_magnitude_vector")[0];
    assert_eq!(shape("layers.0.self_attn.qkv_proj.lora_B.weight"), [rows, 6]);
    // PEFT's own form: a shared A in each module, with the same product.
    let values: Vec<f32> = (0..stored(&spec, Form::Shared).iter().map(ParameterSpec::count).sum::<u64>())
        .map(|at| (at % 17) as f32 - 8.0)
        .collect();
    let apart = from_file(&spec, Form::Shared, values.clone()).unwrap();
    let again = to_file(&spec, &apart);
    for module in ["model.layers.0.self_attn.qkv_proj", "model.layers.1.mlp.gate_up_proj"] {
        let [expected, found] = [(Form::Shared, &values[..]), (Form::Blocks, &again[..])]
            .map(|(form, values)| product(&spec, form, values, module));
        assert_eq!(found, expected, "{module}");
    }
    // Trained on in PEFT, blocks fill what was zero.
    let filled: Vec<f32> = file.iter().map(|value| if *value == 0.0 { 1.0 } else { *value }).collect();
    let error = from_file(&spec, Form::Blocks, filled).unwrap_err();
    assert!(error.contains("self_attn.qkv_proj.lora_B.weight has values outside the blocks"), "{error}");
}

#[test]
fn ranks_and_alphas_of_joined_modules_keep_the_scale_of_each() {
    let names = |targets: &[&str]| targets.iter().map(|target| (*target).to_owned()).collect::<Vec<_>>();
    let targets = ["model.layers.0.self_attn.qkv_proj", "gate_up_proj", "o_proj"];
    let [ranks, alphas] = patterns(ModelKind::Phi3, &names(&targets), (2, 6.0, false));
    assert_eq!(json!(ranks), json!({ "model.layers.0.self_attn.qkv_proj": 6, "gate_up_proj": 4 }));
    assert_eq!(json!(alphas), json!({ "model.layers.0.self_attn.qkv_proj": 18.0, "gate_up_proj": 12.0 }));
    let [_, alphas] = patterns(ModelKind::Phi3, &names(&targets), (2, 6.0, true));
    let scale = alphas["gate_up_proj"].as_f64().unwrap() / 4.0_f64.sqrt();
    assert!((scale - 6.0 / 2.0_f64.sqrt()).abs() < 1e-12);
    assert!(patterns(ModelKind::Llama, &names(&targets), (2, 6.0, false)).iter().all(Map::is_empty));

    let of = |ranks: Value, alphas: Value| {
        let json = json!({ "rank_pattern": ranks, "alpha_pattern": alphas });
        let json = json.as_object().unwrap().clone();
        unfit(&json, ModelKind::Phi3, &lora(&["qkv_proj", "o_proj"], false))
    };
    for (ranks, alphas, key) in [
        (json!({}), Value::Null, None),
        (json!({ "qkv_proj": 6 }), json!({ "qkv_proj": 18.0 }), None),
        (json!({ "qkv_proj": 4 }), json!({ "qkv_proj": 18.0 }), Some("rank_pattern")),
        (json!({ "qkv_proj": 6 }), json!({ "qkv_proj": 6.0 }), Some("alpha_pattern")),
        (json!({ "qkv_proj": 6 }), json!({}), Some("alpha_pattern")),
        (json!({}), json!({ "qkv_proj": 18.0 }), Some("rank_pattern")),
        (json!({ "qkv_proj": 6, "o_proj": 4 }), json!({ "qkv_proj": 18.0 }), Some("rank_pattern")),
    ] {
        assert_eq!(of(ranks.clone(), alphas.clone()), key, "{ranks}, {alphas}");
    }
}
