use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::checks::DropoutPlace;
use longhaul_common::config::{ParallelConfig, TrainConfig};
use longhaul_common::model::draw_parameters;
use longhaul_common::model::tiny::{tiny_decoders, tiny_gpt2};
use serde_json::{Value, json};

use super::*;
use crate::{ExportType, WholeModel, export, tensors};

/// Writes a model as a folder of weights alone, in f32.
fn write(folder: &Path, spec: &ModelSpec) {
    tensors::write_model(&folder.join("model.safetensors"), spec, &draw_parameters(spec, 3)).unwrap();
    let config = model_config::to_json(spec).to_string();
    std::fs::write(folder.join(MODEL_CONFIG), config).unwrap();
}

fn opened(folder: &Path) -> BaseModel {
    BaseModel::open(folder, |_, _| {}).unwrap()
}

/// Each part is drawn from the same seed by itself, independent of the code under test.
#[test]
fn each_part_of_a_model_has_its_own_values() {
    for whole in tiny_decoders().into_iter().chain([tiny_gpt2()]) {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &whole);
        let base = opened(folder.path());
        base.check(&whole).unwrap();
        let mut parts = vec![whole.clone()];
        for (stages, tensor) in [(2, 1), (1, 2), (2, 2)] {
            let parallel = ParallelConfig { stages, tensor, ..ParallelConfig::default() };
            parts.extend(whole.parts(&parallel, 8).into_iter().flatten());
        }
        // OLMo 2 has no tensor groups.
        assert!(parts.len() >= 3, "{:?}", whole.kind);
        for part in parts {
            let values = base.parameters(&whole, &part).unwrap();
            assert!(
                values == draw_parameters(&part, 3),
                "{:?} {:?} {:?}",
                whole.kind,
                part.chunks,
                part.shard
            );
        }
    }
}

#[test]
fn equal_models_are_one_wherever_they_are_and_any_other_byte_makes_another() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let hash = |folder: &Path| opened(folder).files().hash().unwrap();
    for folder in &folders {
        write(folder.path(), &tiny_gpt2());
        std::fs::write(folder.path().join("generation_config.json"), "{}").unwrap();
    }
    let first = hash(folders[0].path());
    assert_eq!(first, hash(folders[1].path()));
    let of_weights = |folder: &Path| opened(folder).files().weights_hash().unwrap();
    let before = of_weights(folders[0].path());
    // No part of a model.
    for name in ["README.md", "pytorch_model.bin", "longhaul.json"] {
        std::fs::write(folders[1].path().join(name), "x").unwrap();
    }
    assert_eq!(first, hash(folders[1].path()));
    assert_eq!(
        opened(folders[1].path()).passed_over().unwrap(),
        ["README.md", "longhaul.json", "pytorch_model.bin"]
    );
    let mut hashes = BTreeSet::from([first]);
    for (name, content) in
        [("generation_config.json", "{ }"), ("chat_template.jinja", "{{ messages }}"), ("vocab.txt", "")]
    {
        std::fs::write(folders[1].path().join(name), content).unwrap();
        assert!(hashes.insert(hash(folders[1].path())), "{name}");
        assert_eq!(of_weights(folders[1].path()), before, "{name}");
    }
    let weights = folders[0].path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    assert!(hashes.insert(hash(folders[0].path())));
    assert_ne!(of_weights(folders[0].path()), before);
}

#[test]
fn the_files_beside_the_weights_are_carried_with_the_original_description() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tiny_gpt2());
    for name in ["tokenizer.json", "chat_template.jinja", "LICENSE"] {
        std::fs::write(folder.path().join(name), name).unwrap();
    }
    let base = opened(folder.path());
    let companions = base.companions().unwrap();
    let names: Vec<&str> = companions.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["LICENSE", "chat_template.jinja", "config.json", "tokenizer.json"]);
    assert_eq!(**companions.get("LICENSE").unwrap(), *b"LICENSE");
    assert_eq!(base.tokenizer(), Some(folder.path().join("tokenizer.json")));
    // Not carried.
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    let refused = BaseModel::open(folder.path(), |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("save_jinja_files=False"), "{refused}");
}

#[test]
fn a_list_of_a_peer_names_only_files_of_a_model_of_this_size() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tiny_gpt2());
    let files = opened(folder.path()).files().clone();
    let bytes = files.to_bytes().unwrap();
    assert_eq!(ModelFiles::from_bytes(&bytes, &tiny_gpt2()).unwrap(), files);
    // A run that trains its biases alone fetches all of it.
    let unfrozen_parameters = Some(vec!["*.ln_1.bias".to_owned()]);
    let tuned = tiny_gpt2().tuned(&TrainConfig { unfrozen_parameters, ..TrainConfig::default() }).unwrap();
    assert_eq!(ModelFiles::from_bytes(&bytes, &tuned).unwrap(), files);
    assert!(ModelFiles::from_bytes(&[&bytes[..], &[0]].concat(), &tiny_gpt2()).is_err());
    assert!(ModelFiles::from_bytes(&bytes[..bytes.len() - 1], &tiny_gpt2()).is_err());
    let of = |name: &str, bytes: u64| ModelFile { name: name.to_owned(), bytes, hash: [0; 32] };
    let refused = |files: Vec<ModelFile>| {
        let bytes = ModelFiles(files).to_bytes().unwrap();
        format!("{:#}", ModelFiles::from_bytes(&bytes, &tiny_gpt2()).unwrap_err())
    };
    for name in [
        "../model.safetensors",
        "a/b.safetensors",
        ".safetensors",
        "x.sh",
        "",
        "private-w1.json",
        "tokenizer.json/",
    ] {
        assert!(refused(vec![of(name, 1)]).contains("is no file of a model"), "{name}");
    }
    assert!(refused(vec![of("tokenizer.json", 1 << 30)]).contains("tokenizer.json has"));
    assert!(refused(vec![of("model.safetensors", 1 << 40)]).contains("weights of"));
    assert!(refused(vec![of("b.safetensors", 1), of("a.safetensors", 1)]).contains("not sorted"));
    assert!(refused(vec![of("a.safetensors", 1), of("a.safetensors", 1)]).contains("not sorted"));
    assert!(refused(vec![of("a.safetensors", u64::MAX), of("b.safetensors", 2)]).contains("weights of"));
    assert!(
        refused(vec![of(&format!("{}.safetensors", "a".repeat(300)), 1)]).contains("a name of 312 bytes")
    );
}

#[test]
fn a_folder_that_a_run_cannot_start_from_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = || format!("{:#}", BaseModel::open(folder.path(), |_, _| {}).unwrap_err());
    assert!(refused().contains("has no config.json"), "{}", refused());
    write(folder.path(), &tiny_gpt2());
    let path = folder.path().join(MODEL_CONFIG);
    let original: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value, words) in [
        ("attn_pdrop", json!(1.0), "attn_pdrop = 1.0: it must be a probability below 1"),
        ("n_layer", json!(5), "has no tensor"),
        ("model_type", json!("mamba"), "model_type"),
    ] {
        let mut changed = original.clone();
        changed[key] = value;
        std::fs::write(&path, changed.to_string()).unwrap();
        assert!(refused().contains(words), "{}", refused());
    }
    // GPT-2's usual dropout, which files leave out.
    let mut without = original.clone();
    without.as_object_mut().unwrap().remove("resid_pdrop");
    std::fs::write(&path, without.to_string()).unwrap();
    let [dropout] = &describe_model(folder.path()).unwrap().dropout[..] else { panic!("one key has a rate") };
    assert_eq!((dropout.key, dropout.rate, dropout.place), ("resid_pdrop", 0.1, DropoutPlace::Hidden));
    std::fs::write(&path, original.to_string()).unwrap();
    let other = ModelSpec { width: 64, ..tiny_gpt2() };
    let error = opened(folder.path()).check(&other).unwrap_err().to_string();
    assert!(error.contains("describes another model"), "{error}");
    let gone = BaseModel::open(&folder.path().join("gone"), |_, _| {}).unwrap_err().to_string();
    assert!(gone.starts_with("there is no folder"), "{gone}");
}

#[test]
fn tensors_come_in_pieces_with_the_values_of_all_formats_from_one_file_and_from_shards() {
    let spec = tiny_gpt2();
    let folder = tempfile::tempdir().unwrap();
    let drawn = draw_parameters(&spec, 3);
    let (path, companions) = ("it".to_owned(), Companions::default());
    let model = WholeModel { path, spec: spec.clone(), parameters: drawn.clone(), companions };
    for (at, format) in [ExportType::F32, ExportType::F16, ExportType::Bf16].into_iter().enumerate() {
        let into = folder.path().join(at.to_string());
        let shard_bytes = if at == 0 { u64::MAX } else { 4096 };
        export(&model, &into, format, shard_bytes, |_, _| {}).unwrap();
        let base = opened(&into);
        assert_eq!(base.files().iter().len() > 3, at > 0, "{:?}", base.files());
        let expected = base.parameters(&spec, &spec).unwrap();
        let (mut found, mut starts, mut count) = (vec![f32::NAN; expected.len()], BTreeMap::new(), 0);
        for tensor in spec.parameters() {
            starts.insert(tensor.name.clone(), count);
            count += tensor.count() as usize;
        }
        let take = |tensor: &ParameterSpec, first: usize, values: StoredValues<'_>| {
            let start = starts[&tensor.name] + first;
            values.write_f32(&mut found[start..start + values.len()]);
            Ok(())
        };
        base.for_each(&spec, |name| name != "transformer.wte.weight", take).unwrap();
        let left_out = spec.parameters()[0].count() as usize;
        assert_eq!(spec.parameters()[0].name, "transformer.wte.weight");
        assert!(found[..left_out].iter().all(|value| value.is_nan()));
        assert!(found[left_out..] == expected[left_out..], "{format:?}");
        let rounded = |value: f32| match format {
            ExportType::F32 => value,
            ExportType::F16 => half::f16::from_f32(value).to_f32(),
            ExportType::Bf16 => half::bf16::from_f32(value).to_f32(),
        };
        assert!(expected.iter().zip(&drawn).all(|(one, other)| *one == rounded(*other)), "{format:?}");
    }
}

#[test]
fn a_file_that_is_cut_off_after_it_was_opened_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tiny_gpt2());
    let base = opened(folder.path());
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes - 1).unwrap();
    let refused = format!("{:#}", base.parameters(&tiny_gpt2(), &tiny_gpt2()).unwrap_err());
    assert!(refused.contains("model.safetensors is damaged or cut off"), "{refused}");
}

#[test]
fn values_other_than_the_hashed_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &tiny_gpt2());
    let base = opened(folder.path());
    let path = folder.path().join("model.safetensors");
    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let refused = base.parameters(&tiny_gpt2(), &tiny_gpt2()).unwrap_err().to_string();
    assert!(refused.contains("model.safetensors has changed since its hash was taken"), "{refused}");
    assert!(base.for_each(&tiny_gpt2(), |_| true, |_, _, _| Ok(())).is_err());
}
