use std::sync::Arc;

use longhaul_common::config::{FrozenFormat, LoraConfig, TrainConfig};
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::draw_parameters;
use longhaul_common::model::tiny::{tiny_decoders, tiny_gpt2, tiny_llama};

use super::*;
use crate::{
    CheckpointData, CheckpointStore, ExportType, ModelState, OpenedModel, PrivateState, WholeModel, export,
    model_config, open_model, tensors,
};

/// A folder with a pretrained model of random values.
fn pretrained(spec: &ModelSpec, seed: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), model_config::to_json(spec).to_string()).unwrap();
    tensors::write_model(&folder.path().join("model.safetensors"), spec, &draw_parameters(spec, seed))
        .unwrap();
    folder
}

fn tuned(spec: ModelSpec, lora: bool, unfrozen: &[&str]) -> ModelSpec {
    let lora = lora.then(|| LoraConfig {
        rank: 2,
        alpha: None,
        use_rslora: true,
        targets: vec!["q_proj".to_owned(), "mlp.down_proj".to_owned()],
        use_dora: false,
        dropout: 0.0,
        base: FrozenFormat::F32,
    });
    let unfrozen = unfrozen.iter().map(|pattern| (*pattern).to_owned()).collect();
    spec.tuned(&TrainConfig { lora, unfrozen_parameters: Some(unfrozen), ..TrainConfig::default() }).unwrap()
}

/// Writes a checkpoint of trained weights as a run does.
fn checkpoint(spec: &ModelSpec, base: &Path, folder: &Path) -> PathBuf {
    let model = BaseModel::open(base, |_, _| {}).unwrap();
    write(spec, beside_base(spec, base.to_str().unwrap(), &model).unwrap(), folder)
}

fn write(spec: &ModelSpec, companions: Companions, folder: &Path) -> PathBuf {
    let parameters: Arc<[f32]> = draw_parameters(spec, 9).into();
    let data = CheckpointData {
        next_round: Round(3),
        next_step: 3,
        generation: Generation(1),
        state_hash: [1; 32],
        private: PrivateState::default(),
        model: Some(ModelState { spec: spec.clone(), parameters, companions, shared: [].into() }),
    };
    CheckpointStore::new(folder, RunId([7; 16]), WorkerId(0), 1).write(&data).unwrap()
}

#[test]
fn a_checkpoint_of_adapters_leads_back_to_them_and_exports_as_peft_writes_them() {
    let (base, dir) = (pretrained(&tiny_llama(), 1), tempfile::tempdir().unwrap());
    let spec = tuned(tiny_llama(), true, &["model.norm.*"]);
    let path = checkpoint(&spec, base.path(), dir.path());
    assert!(path.join(ADAPTER).is_file() && !path.join(MODEL).exists());
    let opened = open_model(dir.path(), None).unwrap();
    assert_eq!((&opened.spec, &opened.parameters), (&spec, &draw_parameters(&spec, 9)));
    let merged = opened.merged(None).unwrap();
    assert_eq!(merged.spec, tiny_llama());

    let OpenedModel { path, spec: of, parameters, companions, .. } = open_model(&path, None).unwrap();
    let whole = WholeModel { path: path.display().to_string(), spec: of, parameters, companions };
    let out = dir.path().join("out");
    export(&whole, &out, ExportType::F32, 1, |_, _| {}).unwrap();
    let config: Value = serde_json::from_slice(&std::fs::read(out.join(ADAPTER_CONFIG)).unwrap()).unwrap();
    let wanted = [
        ("target_modules", json!(["down_proj", "q_proj"])),
        ("modules_to_save", json!(["model.norm"])),
        ("lora_alpha", json!(4.0)),
        ("use_rslora", json!(true)),
    ];
    wanted.iter().for_each(|(key, value)| assert_eq!(&config[*key], value));
    let again = open_model(&out, None).unwrap();
    assert_eq!((again.spec, again.parameters), (spec.clone(), draw_parameters(&spec, 9)));
}

#[test]
fn a_checkpoint_of_joined_modules_leads_back_to_the_adapters_of_each() {
    let phi3 = tiny_decoders().into_iter().find(|spec| spec.kind == ModelKind::Phi3).unwrap();
    let (base, dir) = (pretrained(&phi3, 1), tempfile::tempdir().unwrap());
    let lora = LoraConfig {
        rank: 2,
        alpha: None,
        use_rslora: true,
        targets: vec!["qkv_proj".to_owned(), "down_proj".to_owned()],
        use_dora: true,
        dropout: 0.0,
        base: FrozenFormat::F32,
    };
    let spec = phi3.tuned(&TrainConfig { lora: Some(lora), ..TrainConfig::default() }).unwrap();
    let path = checkpoint(&spec, base.path(), dir.path());
    let config: Value = serde_json::from_slice(&std::fs::read(path.join(ADAPTER_CONFIG)).unwrap()).unwrap();
    assert_eq!(config["target_modules"], json!(["down_proj", "qkv_proj"]));
    assert_eq!(config["rank_pattern"], json!({ "qkv_proj": 6 }));
    let opened = open_model(dir.path(), None).unwrap();
    assert_eq!((&opened.spec, &opened.parameters), (&spec, &draw_parameters(&spec, 9)));
    assert_eq!(opened.merged(None).unwrap().spec, spec.untuned());
}

#[test]
fn chosen_tensors_alone_are_a_file_that_only_merges() {
    let (base, dir) = (pretrained(&tiny_gpt2(), 1), tempfile::tempdir().unwrap());
    let spec = tuned(tiny_gpt2(), false, &["*.bias"]);
    let path = checkpoint(&spec, base.path(), dir.path());
    assert!(path.join(TRAINED).is_file() && !path.join(ADAPTER_CONFIG).exists());
    let merged = open_model(&path, None).unwrap().merged(Some(base.path())).unwrap();
    let (own, trained) = (draw_parameters(&tiny_gpt2(), 1), draw_parameters(&spec, 9));
    let (mut rest, mut at) = (trained.as_slice(), 0);
    for tensor in tiny_gpt2().parameters() {
        let values = &merged.parameters[at..at + tensor.count() as usize];
        if tensor.name.ends_with(".bias") {
            let (expected, others) = rest.split_at(values.len());
            assert_eq!(values, expected, "{}", tensor.name);
            rest = others;
        } else {
            assert_eq!(values, &own[at..at + values.len()], "{}", tensor.name);
        }
        at += values.len();
    }
    assert!(rest.is_empty() && at == merged.parameters.len());
}

#[test]
fn another_pretrained_model_or_none_is_refused_with_the_remedy() {
    let (base, dir) = (pretrained(&tiny_llama(), 1), tempfile::tempdir().unwrap());
    let path = checkpoint(&tuned(tiny_llama(), true, &[]), base.path(), dir.path());
    let refusal = |base: Option<&Path>| {
        let opened = open_model(&path, base).unwrap();
        format!("{:#}", opened.merged(base).unwrap_err())
    };
    let other = pretrained(&tiny_llama(), 2);
    assert!(refusal(Some(other.path())).contains("is not the model that"));
    let shown = base.path().display().to_string();
    drop(base);
    let text = refusal(None);
    assert!(text.contains(&shown) && text.contains("--base"), "{text}");
    // A whole model needs none.
    let whole = open_model(other.path(), None).unwrap();
    assert!(whole.merged(Some(other.path())).unwrap_err().to_string().contains("leave out --base"));
}

#[test]
fn adapters_that_cannot_be_honoured_are_refused_by_the_name_of_the_key() {
    let base = pretrained(&tiny_llama(), 1);
    let usual = json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none",
        "rank_pattern": {}, "layers_to_transform": null, "some_later_key": false, "base_model_name_or_path": "hub/name",
    });
    for (key, value, word) in [
        ("peft_type", json!("LOHA"), "peft_type"),
        ("use_dora", json!(true), "lora_magnitude_vector"),
        ("bias", json!("all"), "bias"),
        ("rank_pattern", json!({"q_proj": 4}), "rank_pattern"),
        ("layers_to_transform", json!([1]), "layers_to_transform"),
        ("init_lora_weights", json!("pissa"), "init_lora_weights"),
        ("target_modules", json!(["wq"]), "no linear module"),
        ("target_modules", json!(".*q_proj"), "target_modules"),
        ("modules_to_save", json!(["score"]), "modules_to_save"),
        ("r", json!(0), "r = 0"),
        ("use_rslora", json!(1), "use_rslora"),
        ("use_dora", json!("yes"), "use_dora"),
        ("lora_alpha", json!(1e300), "alpha"),
        ("lora_alpha", json!(0), "alpha"),
        ("lora_alpha", json!("x"), "lora_alpha"),
        ("some_later_key", json!(7), "some_later_key"),
        ("target_modules", json!(["k_proj"]), "has no tensor"),
        ("r", json!(3), "shape"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let spec = {
            let lora = Some(LoraConfig {
                rank: 2,
                alpha: None,
                use_rslora: false,
                targets: vec!["q_proj".to_owned()],
                use_dora: false,
                dropout: 0.0,
                base: FrozenFormat::F32,
            });
            tiny_llama().tuned(&TrainConfig { lora, ..TrainConfig::default() }).unwrap()
        };
        tensors::write_model(&folder.path().join(ADAPTER), &spec, &draw_parameters(&spec, 1)).unwrap();
        let write =
            |json: &Value| std::fs::write(folder.path().join(ADAPTER_CONFIG), json.to_string()).unwrap();
        write(&usual);
        open_model(folder.path(), Some(base.path())).unwrap();
        let mut changed = usual.clone();
        changed[key] = value;
        write(&changed);
        let error = format!("{:#}", open_model(folder.path(), Some(base.path())).unwrap_err());
        assert!(error.contains(word), "{key}: {error}");
    }
}

#[test]
fn a_checkpoint_is_loaded_beside_its_own_pretrained_model_alone() {
    let (base, dir) = (pretrained(&tiny_llama(), 1), tempfile::tempdir().unwrap());
    let spec = tuned(tiny_llama(), true, &[]);
    checkpoint(&spec, base.path(), dir.path());
    let beside = |seed: u64| {
        let folder = pretrained(&tiny_llama(), seed);
        let model = BaseModel::open(folder.path(), |_, _| {}).unwrap();
        let companions = beside_base(&spec, "another path", &model).unwrap();
        let store = CheckpointStore::new(dir.path(), RunId([7; 16]), WorkerId(0), 1).beside(&companions);
        store.load_model(Round(3), &spec).map(|loaded| loaded.parameters)
    };
    assert_eq!(beside(1).unwrap(), draw_parameters(&spec, 9));
    assert!(beside(2).unwrap_err().to_string().contains("give it that model again"));
}

/// `blake3` was the hash of all files, then that of the weights, and is the former again.
#[test]
fn a_checkpoint_of_an_earlier_release_is_loaded_beside_its_own_pretrained_model_alone() {
    let spec = tuned(tiny_llama(), true, &[]);
    let [own, other] = [1, 2].map(|seed| pretrained(&tiny_llama(), seed));
    std::fs::write(own.path().join("tokenizer.json"), "{}").unwrap();
    let open = |folder: &tempfile::TempDir| BaseModel::open(folder.path(), |_, _| {}).unwrap();
    let files = open(&own).files().clone();
    let of_all = blake3::Hash::from_bytes(files.hash().unwrap()).to_hex().to_string();
    let of_weights = files.weights_hash().unwrap();
    assert_ne!(of_all, of_weights);
    for hash in [of_all, of_weights] {
        let dir = tempfile::tempdir().unwrap();
        let record = json!({
            "base_model_name_or_path": own.path().to_str().unwrap(), "blake3": hash, "unfrozen_parameters": [],
        });
        let companions = beside_base(&spec, "any", &open(&own)).unwrap();
        let mut companions: BTreeMap<String, Arc<[u8]>> =
            companions.iter().map(|(name, content)| (name.to_owned(), Arc::clone(content))).collect();
        companions.insert(BASE.to_owned(), text_of(&record).into_bytes().into());
        let path = write(&spec, companions.into_iter().collect(), dir.path());
        let loaded = |base: &tempfile::TempDir| {
            let companions = beside_base(&spec, "any", &open(base)).unwrap();
            let store = CheckpointStore::new(dir.path(), RunId([7; 16]), WorkerId(0), 1).beside(&companions);
            store.load_model(Round(3), &spec).map(|loaded| loaded.parameters)
        };
        assert_eq!(loaded(&own).unwrap(), draw_parameters(&spec, 9));
        assert!(loaded(&other).unwrap_err().to_string().contains("give it that model again"));
        let merged = |base: &tempfile::TempDir| {
            open_model(&path, Some(base.path())).unwrap().merged(Some(base.path()))
        };
        merged(&own).unwrap();
        assert!(format!("{:#}", merged(&other).unwrap_err()).contains("is not the model that"));
    }
}

#[test]
fn a_folder_of_adapters_is_no_pretrained_model_and_says_how_it_becomes_one() {
    let (base, dir) = (pretrained(&tiny_llama(), 1), tempfile::tempdir().unwrap());
    let path = checkpoint(&tuned(tiny_llama(), true, &[]), base.path(), dir.path());
    let error = format!("{:#}", BaseModel::open(&path, |_, _| {}).unwrap_err());
    assert!(error.contains("--merge"), "{error}");
}
