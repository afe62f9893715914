//! Classes of texts as a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_checkpoint::{BaseModel, describe_model, open_model};
use longhaul_common::model::ModelSpec;
use longhaul_tests::cluster::binary;
use longhaul_tests::tools::skipped;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scenario::Setup;

const SPECIAL: [&str; 4] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
/// Entries of the fixture's vocabulary.
const VOCABULARY: usize = 40;

/// A masked BERT with a tokenizer of words, and pairs of texts: the answer is right if it has the question's word.
fn bert() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/tests/fixtures/encoders/bert");
    fs::copy(fixture.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
    for dropout in ["hidden_dropout_prob", "attention_probs_dropout_prob"] {
        config[dropout] = json!(0.0);
    }
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let words: Vec<String> = (0..VOCABULARY - SPECIAL.len()).map(|word| format!("w{word}")).collect();
    let all = SPECIAL.iter().map(ToString::to_string).chain(words).zip(0..);
    let vocabulary: serde_json::Map<String, Value> = all.map(|(word, id)| (word, json!(id))).collect();
    let added = SPECIAL.iter().zip(0..).map(|(content, id)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    let special = |id: &str, kind: u32| json!({"SpecialToken": {"id": id, "type_id": kind}});
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let of = |token: &str, id: u32| json!({"id": token, "ids": [id], "tokens": [token]});
    let single = [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)];
    let pair = [&single[..], &[text("B", 1), special("[SEP]", 1)]].concat();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {"[CLS]": of("[CLS]", 2), "[SEP]": of("[SEP]", 3)},
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let row = |at: usize| {
        let (word, is_right) = (at * 7 % 31, at % 2 == 1);
        let answer = if is_right { 33 } else { 34 };
        json!({"question": format!("w{word} ").repeat(1 + at % 3), "answer": format!("w{answer}"), "label": if is_right { "right" } else { "wrong" }})
    };
    let rows: Vec<String> = (0..600).map(|at| row(at).to_string()).collect();
    let path = folder.path().join("pairs.jsonl");
    fs::write(&path, rows.join("\n")).unwrap();
    (folder, path)
}

/// The second worker has neither model nor texts, and draws the same head.
#[test]
fn an_encoder_learns_classes_of_pairs_across_sites_and_is_exported() {
    let (folder, pairs) = bert();
    let model = format!("from = {:?}", folder.path());
    let sources = format!("sources = [{{ path = {pairs:?} }}]");
    let setup = Setup {
        model: Some(&model),
        sources: &sources,
        data: "classification = { text = \"question\", text_pair = \"answer\", labels = [\"wrong\", \"right\"] }",
        sites: vec![1, 1],
        steps: 40,
        learning_rate: 1e-2,
        evaluate_batches: 7,
        sync: "preset = \"dense\"",
        ..Setup::default()
    };
    let mut scenario = setup.start_coordinator();
    scenario.cluster.start_worker_with(1, &["--model", "remote", "--data", "remote"]).unwrap();
    scenario.cluster.start_worker(0).unwrap();
    let status = scenario.finish();
    let [loss, accuracy] =
        ["validation_loss", "validation_accuracy"].map(|key| status[key].as_f64().unwrap());
    assert!(loss < 0.3 && accuracy > 0.9, "{loss}, {accuracy}");
    let checkpoints = scenario.cluster.folder().join("checkpoints");
    let out = scenario.cluster.folder().join("exported");
    let mut export = Command::new(binary("coordinator").unwrap());
    let output =
        export.args(["checkpoints", "export"]).arg(&out).arg("--dir").arg(&checkpoints).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let described = describe_model(&out).unwrap();
    assert_eq!(described.labels, ["wrong", "right"]);
    let spec = ModelSpec::resolve(&described.model, 0).unwrap();
    let exported = BaseModel::open(&out, |_, _| {}).unwrap();
    assert_eq!(
        exported.parameters(&spec, &spec).unwrap(),
        open_model(&checkpoints, None).unwrap().parameters
    );
    let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["architectures"], json!(["BertForSequenceClassification"]));
    told_by_transformers(&out, &pairs);
}

/// Opens the folder as its users do, and asks for the classes of some pairs.
fn told_by_transformers(out: &Path, pairs: &Path) {
    const SCRIPT: &str = "
import json, sys, torch, transformers as t
out, pairs = sys.argv[1:]
rows = [json.loads(line) for line in open(pairs)][:64]
model = t.AutoModelForSequenceClassification.from_pretrained(out).eval()
tokenizer = t.PreTrainedTokenizerFast(tokenizer_file=out + '/tokenizer.json', pad_token='[PAD]')
both = tokenizer([r['question'] for r in rows], [r['answer'] for r in rows], padding=True, return_tensors='pt', return_token_type_ids=True)
with torch.no_grad():
    told = [model.config.id2label[c] for c in model(**both).logits.argmax(-1).tolist()]
print(sum(a == r['label'] for a, r in zip(told, rows)) / len(rows))
";
    let Some(python) = std::env::var_os("LONGHAUL_PYTHON") else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers");
    };
    let told = Command::new(python)
        .args(["-c", SCRIPT])
        .args([out, pairs])
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let share: f64 = String::from_utf8_lossy(&told.stdout).trim().parse().unwrap();
    assert!(share > 0.9, "{share} are told right");
}
