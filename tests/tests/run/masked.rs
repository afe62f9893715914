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
use crate::word_bert;

/// BERT with a tokenizer of words, and a text in which each word tells its neighbours.
fn bert() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let words = word_bert::write(folder.path(), &["[UNK]", "[SEP]", "[MASK]"], &Value::Null);
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
