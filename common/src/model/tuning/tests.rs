use super::*;
use crate::config::{EncoderConfig, EncoderHead, ModelConfig, ModelKind, ParallelConfig, Precision};
use crate::model::tiny::{tiny_decoders, tiny_gpt2, tiny_llama};

fn config(targets: &[&str]) -> LoraConfig {
    let targets = targets.iter().map(|target| (*target).to_owned()).collect();
    LoraConfig {
        rank: 2,
        alpha: Some(6.0),
        use_rslora: false,
        targets,
        use_dora: false,
        dropout: 0.0,
        base: FrozenFormat::F32,
    }
}

fn tuned(spec: ModelSpec, lora: Option<LoraConfig>, unfrozen: Option<&[&str]>) -> Result<ModelSpec, String> {
    let unfrozen_parameters = unfrozen.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let train = TrainConfig { lora, unfrozen_parameters, ..TrainConfig::default() };
    spec.tuned(&train).map_err(|error| error.to_string())
}

fn names(parameters: Vec<ParameterSpec>) -> Vec<String> {
    parameters.into_iter().map(|tensor| tensor.name).collect()
}

#[test]
fn adapters_are_trained_and_everything_else_is_frozen() {
    for spec in tiny_decoders().into_iter().chain([tiny_gpt2()]) {
        let targets: &[&str] = match spec.kind.usual_experts() {
            Some(_) => &["q_proj", "k_proj", "v_proj", "o_proj"],
            None => &["all-linear"],
        };
        let of = tuned(spec.clone(), Some(config(targets)), None).unwrap();
        let trained = of.parameters();
        let is_adapted = |weight: &str| {
            weight != spec.output_projection()
                && (spec.kind.usual_experts().is_none() || weight.contains("self_attn"))
        };
        let linear = spec.products().iter().filter(|product| is_adapted(&product.weight)).count();
        assert_eq!(trained.len(), 2 * linear, "{:?}", spec.kind);
        assert!(trained.iter().all(|tensor| tensor.name.contains(".lora_")));
        let mut frozen = names(of.frozen());
        let mut all = names(spec.parameters());
        frozen.sort_unstable();
        all.sort_unstable();
        assert_eq!(frozen, all);
        assert_eq!(of.untuned(), spec);
        let blocks = of.blocks(8, Precision::F32);
        assert_eq!(blocks.iter().map(|block| block.parameters).sum::<u64>(), of.parameter_count());
        assert_eq!(blocks.iter().map(|block| block.frozen_bytes).sum::<u64>(), 4 * spec.parameter_count());
    }
}

#[test]
fn chosen_modules_and_tensors_are_trained_with_the_scale_that_was_asked_for() {
    let spec =
        tuned(tiny_llama(), Some(config(&["q_proj", "v_proj"])), Some(&["model.norm.weight"])).unwrap();
    let trained = names(spec.parameters());
    assert_eq!(trained.len(), 4 * spec.layers as usize + 1);
    assert!(trained.contains(&"model.layers.1.self_attn.v_proj.lora_B.weight".to_owned()));
    assert_eq!(trained.last().map(String::as_str), Some("model.norm.weight"));
    assert_eq!(spec.adapter_scale("model.layers.0.self_attn.q_proj.weight"), Some(3.0));
    assert_eq!(spec.adapter_scale("model.layers.0.self_attn.k_proj.weight"), None);
    let root = LoraConfig { use_rslora: true, ..config(&["q_proj"]) };
    let of_root = tuned(tiny_llama(), Some(root), None).unwrap();
    let scale = of_root.adapter_scale("model.layers.0.self_attn.q_proj.weight").unwrap();
    assert!((scale - 6.0 / 2.0_f64.sqrt()).abs() < 1e-12);
    assert_eq!(LoraConfig { alpha: None, ..config(&["q_proj"]) }.alpha(), 4.0);
    // BitFit (Ben Zaken et al. 2021).
    let biases = tuned(tiny_gpt2(), None, Some(&["*.bias"])).unwrap();
    assert!(biases.parameters().iter().all(|tensor| tensor.name.ends_with(".bias")));
    assert_eq!(biases.parameters().len() + biases.frozen().len(), tiny_gpt2().parameters().len());
}

/// Phi-3's files join modules, and PEFT adapts what files have.
#[test]
fn targets_are_modules_of_files_and_joined_ones_stay_frozen_beside_adapters() {
    let phi3 = || tiny_decoders().into_iter().find(|spec| spec.kind == ModelKind::Phi3).unwrap();
    let trained = names(tuned(phi3(), Some(config(&["qkv_proj"])), None).unwrap().parameters());
    assert_eq!(trained.len(), 3 * 2 * phi3().layers as usize);
    assert!(trained.contains(&"model.layers.1.self_attn.k_proj.lora_A.weight".to_owned()));
    let error = tuned(phi3(), Some(config(&["q_proj"])), None).unwrap_err();
    assert!(error.contains("modules are self_attn.qkv_proj, self_attn.o_proj, mlp.gate_up_proj"), "{error}");
    let error = tuned(phi3(), Some(config(&["qkv_proj"])), Some(&["*.mlp.up_proj.*"])).unwrap_err();
    assert!(error.contains("mlp.gate_up_proj in files: beside adapters, leave it frozen"), "{error}");
    assert!(tuned(phi3(), None, Some(&["*.mlp.up_proj.*"])).is_ok());
}

/// PEFT 0.21 takes these for the experts as well (`target_parameters`).
#[test]
fn adapters_of_experts_are_refused_by_name() {
    for spec in tiny_decoders().into_iter().filter(|spec| spec.kind.usual_experts().is_some()) {
        for target in ["all-linear", "gate", "mlp.gate_proj", "w1", "experts"] {
            let error = tuned(spec.clone(), Some(config(&["q_proj", target])), None).unwrap_err();
            let told = format!("train.lora.targets = {target}: means experts and routers as well");
            assert!(error.starts_with(&told), "{error}");
        }
        for base in [FrozenFormat::Int8, FrozenFormat::Nf4] {
            let error = tuned(spec.clone(), Some(LoraConfig { base, ..config(&["q_proj"]) }), None);
            assert!(error.unwrap_err().contains("has no codes for experts"), "{base:?}");
        }
        let beside = tuned(spec.clone(), Some(config(&["q_proj"])), Some(&["*.experts.*"])).unwrap_err();
        assert!(beside.contains("gate_up_proj: experts cannot be trained beside"), "{beside}");
        let routers = tuned(spec, None, Some(&["*.mlp.gate.weight"])).unwrap();
        assert!(routers.parameters().iter().all(|tensor| tensor.shape.len() == 2));
    }
}

#[test]
fn stages_have_the_frozen_tensors_that_they_compute_with() {
    let mut whole = tiny_gpt2();
    whole.tied_embeddings = true;
    let of = tuned(whole, Some(config(&["all-linear"])), None).unwrap();
    let parts = [0..2, 2..of.head() + 1].map(|chunk| of.part(std::iter::once(chunk).collect()));
    let embedding = of.output_projection().to_owned();
    assert!(parts.iter().all(|part| names(part.frozen()).contains(&embedding) && part.borrowed().is_none()));
    let mut both = parts.each_ref().map(|part| names(part.parameters())).concat();
    let mut all = names(of.parameters());
    both.sort_unstable();
    all.sort_unstable();
    assert_eq!(both, all);
}

#[test]
fn a_stage_with_nothing_to_train_is_no_stage() {
    let parallel = |stages| ParallelConfig { stages, ..ParallelConfig::default() };
    let norm = tuned(tiny_llama(), None, Some(&["model.norm.weight"])).unwrap();
    assert!(norm.parts(&parallel(1), 8).is_some() && norm.parts(&parallel(2), 8).is_none());
    // Neither the embedding nor the head has an adapter.
    let lora = tuned(tiny_llama(), Some(config(&["all-linear"])), None).unwrap();
    for stages in 2..=tiny_llama().layers {
        let parts = lora.parts(&parallel(stages), 8).unwrap();
        assert!(parts.iter().all(|part| part.parameter_count() > 0), "{stages}");
    }
    assert!(lora.parts(&parallel(tiny_llama().layers + 1), 8).is_none());
}

#[test]
fn a_head_for_classes_is_trained_whole_and_no_target_means_it() {
    for (kind, modules) in [
        (ModelKind::Bert, ["bert.pooler.dense", "classifier"]),
        (ModelKind::Roberta, ["classifier.dense", "classifier.out_proj"]),
        (ModelKind::Electra, ["classifier.dense", "classifier.out_proj"]),
    ] {
        let encoder = EncoderConfig { head: Some(EncoderHead::Classes), ..EncoderConfig::default() };
        let sizes = ModelConfig { layers: 2, width: 8, heads: 2, context: 8, ..ModelConfig::of(kind) };
        let model = ModelConfig { encoder: Some(encoder), ..sizes };
        let spec = ModelSpec::resolve(&model, 9).unwrap();
        let of_head: BTreeSet<String> = modules
            .iter()
            .flat_map(|module| ["weight", "bias"].map(|part| format!("{module}.{part}")))
            .collect();
        for (targets, per_layer) in [(&["all-linear"][..], 6), (&["dense"], 3), (&["query", "value"], 2)] {
            let train = TrainConfig { lora: Some(config(targets)), ..TrainConfig::default() };
            let of = spec.clone().tuned_with_head(&train).unwrap();
            let trained = names(of.parameters());
            let (adapters, others): (Vec<&String>, Vec<&String>) =
                trained.iter().partition(|name| is_adapter(name));
            assert_eq!(adapters.len(), 2 * 2 * per_layer, "{kind:?}, {targets:?}: {adapters:?}");
            assert_eq!(others.into_iter().cloned().collect::<BTreeSet<_>>(), of_head, "{kind:?}");
            assert!(names(of.frozen()).iter().all(|name| !of_head.contains(name)), "{kind:?}");
        }
        let biases = Some(vec!["*.query.bias".to_owned()]);
        let train = TrainConfig { unfrozen_parameters: biases, ..TrainConfig::default() };
        let of = spec.clone().tuned_with_head(&train).unwrap();
        assert_eq!(of.parameters().len(), 2 + 4, "{kind:?}");
        let all = spec.clone().tuned_with_head(&TrainConfig::default()).unwrap();
        assert_eq!(all, spec);
        let train = TrainConfig { lora: Some(config(&modules[1..])), ..TrainConfig::default() };
        let error = spec.tuned_with_head(&train).unwrap_err().to_string();
        assert!(error.contains("no linear module has such a name"), "{error}");
    }
}

#[test]
fn a_tied_embedding_beside_adapters_stays_frozen() {
    let mut tied = tiny_llama();
    tied.tied_embeddings = true;
    let error = tuned(tied, Some(config(&["q_proj"])), Some(&["model.embed_tokens.*"])).unwrap_err();
    assert!(error.contains("output projection as well"), "{error}");
    assert!(tuned(tiny_llama(), Some(config(&["q_proj"])), Some(&["model.embed_tokens.*"])).is_ok());
}

#[test]
fn frozen_weights_are_not_kept_as_casts() {
    let of = tuned(tiny_llama(), Some(config(&["all-linear"])), None).unwrap();
    let casts = of.blocks(8, Precision::Bf16).iter().map(|block| block.cast_bytes).sum::<u64>();
    assert!(casts > 0 && casts <= 2 * of.parameter_count(), "{casts}");
}

#[test]
fn names_that_nothing_has_are_refused_with_those_that_there_are() {
    let error = tuned(tiny_llama(), Some(config(&["c_attn"])), None).unwrap_err();
    assert!(error.contains("train.lora.targets = c_attn") && error.contains("self_attn.q_proj"), "{error}");
    let error = tuned(tiny_gpt2(), None, Some(&["*.biass"])).unwrap_err();
    assert!(error.contains("train.unfrozen_parameters = *.biass") && error.contains("ln_1.bias"), "{error}");
    for bad in [
        LoraConfig { rank: 0, ..config(&["q"]) },
        LoraConfig { alpha: Some(0.0), ..config(&["q"]) },
        config(&[]),
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}
