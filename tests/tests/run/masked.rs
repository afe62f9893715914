//! Masked language modelling as a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_checkpoint::{BaseModel, describe_model, open_model};
use longhaul_common::model::ModelSpec;
use longhaul_tests::cluster::binary;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scenario::Setup;

/// Entries of the fixture's vocabulary.
const VOCABULARY: usize = 40;

/// BERT with a tokenizer of words, and a text in which each word tells its neighbours.
fn bert() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/tests/fixtures/encoders/bert");
    fs::copy(fixture.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
    for dropout in ["hidden_dropout_prob", "attention_probs_dropout_prob"] {
        config[dropout] = json!(0.0);
    }
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let special = ["[UNK]", "[SEP]", "[MASK]"].map(str::to_owned);
    let words: Vec<String> = (0..VOCABULARY - special.len()).map(|word| format!("w{word}")).collect();
    let all = special.iter().chain(&words).zip(0..);
    let vocabulary: serde_json::Map<String, Value> =
        all.map(|(word, id)| (word.clone(), json!(id))).collect();
    let added = special.iter().zip(0..).map(|(content, id)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let text: Vec<&str> = (0..20_000).map(|at| words[at % words.len()].as_str()).collect();
    let path = folder.path().join("text.txt");
    fs::write(&path, text.join(" ")).unwrap();
    (folder, path)
}

/// Words are equally frequent: without their neighbours the loss would be ln 37 = 3.6 at best. The second worker has neither model nor text, and draws the
/// same masks.
#[test]
fn an_encoder_learns_masked_words_from_both_sides_and_is_exported() {
    let (folder, text) = bert();
    let model = format!("from = {:?}", folder.path());
    let sources = format!("path = {text:?}");
    let setup = Setup {
        model: Some(&model),
        sources: &sources,
        data: "masking = { share = 0.3 }",
        sites: vec![1, 1],
        steps: 80,
        learning_rate: 2e-2,
        sync: "preset = \"dense\"",
        ..Setup::default()
    };
    let mut scenario = setup.start_coordinator();
    scenario.cluster.start_worker_with(1, &["--model", "remote", "--data", "remote"]).unwrap();
    scenario.cluster.start_worker(0).unwrap();
    let status = scenario.finish();
    let loss = status["validation_loss"].as_f64().unwrap();
    assert!(loss < 3.45, "{loss}");
    let checkpoints = scenario.cluster.folder().join("checkpoints");
    let out = scenario.cluster.folder().join("exported");
    let mut export = Command::new(binary("coordinator").unwrap());
    let output =
        export.args(["checkpoints", "export"]).arg(&out).arg("--dir").arg(&checkpoints).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let spec = ModelSpec::resolve(&describe_model(folder.path()).unwrap().model, 0).unwrap();
    let exported = BaseModel::open(&out, |_, _| {}).unwrap();
    exported.check(&spec).unwrap();
    assert_eq!(
        exported.parameters(&spec, &spec).unwrap(),
        open_model(&checkpoints, None).unwrap().parameters
    );
    let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["architectures"], json!(["BertForMaskedLM"]));
    let [own, given] =
        [out.as_path(), folder.path()].map(|folder: &Path| fs::read(folder.join("tokenizer.json")).unwrap());
    assert!(own == given);
}
