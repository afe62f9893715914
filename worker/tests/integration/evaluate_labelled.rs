//! `worker evaluate --labelled` against transformers: see `fixtures/judge_classes.py`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use longhaul_checkpoint::describe_stored;
use longhaul_tests::tools::skipped;
use serde_json::{Value, json};

use crate::adapters::fixture;
use crate::class_adapters::{LABELS, written};
use crate::pytorch::transformers::python;

/// Columns of the labelled pairs.
const PAIRS: [&str; 6] =
    ["--text-column", "question", "--text-pair-column", "answer", "--label-column", "verdict"];
/// Tokens of a sequence: the context of one model, and of cut texts.
const LENGTHS: [&str; 2] = ["32", "10"];

fn labelled(name: &str) -> PathBuf {
    fixture("../../data/tests/fixtures/labelled").join(name)
}

fn evaluate(checkpoint: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-torch"));
    command.args(["evaluate", "--device", "cpu", "--threads", "1", "--checkpoint"]).arg(checkpoint);
    command.args(arguments).current_dir(labelled("")).output().unwrap()
}

fn results(checkpoint: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = evaluate(checkpoint, &[arguments, &PAIRS, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Of a folder that transformers wrote, and of a run's: its checkpoint of adapters, the export of that, and the merged model.
#[test]
fn accuracies_and_losses_are_those_of_transformers() {
    let Some(python) = python() else {
        return skipped("LONGHAUL_PYTHON names no Python that has transformers");
    };
    let folder = tempfile::tempdir().unwrap();
    let run = written("bert", folder.path());
    let made = folder.path().join("made");
    for folder in [&run.opened.path, &run.exported, &run.merged] {
        std::fs::copy(labelled("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    }
    let case = json!({
        "tokenizer": labelled("tokenizer.json"), "made": made, "labels": ["yes", "perhaps", "no"],
        "folders": [run.merged], "pairs": labelled("rows.csv"),
        "lengths": LENGTHS.map(|length| length.parse::<u32>().unwrap()),
    });
    let expected = judged(&python, &case);
    assert_eq!(expected.len(), 2 * LENGTHS.len());
    // The run's adapters are judged as the merged model.
    let [whole, cut] = LENGTHS;
    for (folder, length, at) in [
        (&made, whole, 0),
        (&made, cut, 1),
        (&run.merged, whole, 2),
        (&run.opened.path, cut, 3),
        (&run.exported, cut, 3),
    ] {
        let found = results(folder, &["--labelled", "rows.csv", "rows.arrow", "--sequence-length", length]);
        let expected = &expected[at];
        let told = format!("{}, {length}: {found:?}, expected {expected}", folder.display());
        assert_eq!(found.len(), 2, "{told}");
        for found in &found {
            let off = |name: &str| (found[name].as_f64().unwrap() - expected[name].as_f64().unwrap()).abs();
            assert!(off("loss") < 1e-5 && off("accuracy") < 1e-9, "{told}");
            assert_eq!((&found["texts"], &found["task"]), (&7.into(), &"labelled".into()), "{told}");
            assert_eq!(found["texts_cut"] != 0, length == cut, "{told}");
        }
    }
    // Both models are wrong somewhere, and not everywhere.
    assert!(expected.iter().any(|of| of["accuracy"] != 0.0 && of["accuracy"] != 1.0), "{expected:?}");
    let single = ["--labelled", "rows.csv", "--text-column", "question", "--label-column", "verdict"];
    let output = evaluate(&made, &single);
    let log = String::from_utf8(output.stderr).unwrap();
    for (level, words) in [
        ("INFO", "columns that are not read: `answer` (6 records)"),
        ("WARN", "of 7 texts, 1 is blank: check the column"),
        ("WARN", "2 of 62 tokens (3.2 %) are the unknown token `[UNK]`: "),
    ] {
        assert!(log.lines().any(|line| line.contains(level) && line.contains(words)), "{words}: {log}");
    }
    let output = evaluate(&made, &[&["--labelled", "rows.csv", "--limit", "2"], &PAIRS[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("labelled, rows.csv: 2 texts, loss ") && text.contains(" nats a text, accuracy "),
        "{text}"
    );
}

fn judged(python: &std::ffi::OsStr, case: &Value) -> Vec<Value> {
    let mut child = Command::new(python)
        .arg(fixture("judge_classes.py"))
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(case.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A model's `config.json`, and no weights.
fn hollow(model: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture(model).join("config.json"), folder.path().join("config.json")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), "").unwrap();
    folder
}

#[test]
fn files_that_do_not_fit_the_model_are_refused_before_its_weights_are_read() {
    let (decoder, classes, masked) = ("decoders/llama", "encoder_heads/bert-classes", "encoders/bert");
    let rows = ["--labelled", "rows.jsonl"];
    let with = |more: &[&'static str]| [&rows[..], more].concat();
    for (model, arguments, words) in [
        (decoder, rows.to_vec(), "continues text and has no head for classes, as --labelled needs: ask it"),
        (classes, vec!["--text", "rows.csv"], "classifies texts, and --text and --task are for"),
        (classes, vec!["--task", "rows.csv"], "give labelled texts with --labelled"),
        (masked, vec!["--task", "rows.csv"], "is an encoder without a head for classes, which neither"),
        (masked, rows.to_vec(), "or train such a head with [data.classification]"),
        (classes, rows.to_vec(), "7 rows of 7 are not of the form of labelled texts"),
        (classes, with(&["--sequence-length", "40"]), "the model takes 32 tokens at most"),
        (classes, with(&["--text-column", "1"]), "--label-column = `label`: and another column differ"),
        (classes, with(&["--text-column", "label"]), "--label-column = `label`: is the column of a text"),
        (
            classes,
            vec!["--labelled", "rows.parquet"],
            "has no column `text`, or two of them; its columns are `question`, `answer`, `verdict`: --text-column, --text-pair-column and --label-column name the columns",
        ),
        (
            classes,
            [&["--labelled", "rows.csv"], &PAIRS[..]].concat(),
            "line 2: its `verdict` is \"yes\", and the classes are \"LABEL_0\", \"LABEL_1\", \"LABEL_2\"",
        ),
    ] {
        let folder = hollow(model);
        let output = evaluate(folder.path(), &arguments);
        let found = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{model}, {arguments:?}");
        assert!(found.contains(words), "{model}, {arguments:?}: {found}");
    }
    let folder = hollow(classes);
    let config = folder.path().join("config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    (json["id2label"], json["label2id"]) = (json!({ "0": "LABEL_0" }), json!({ "LABEL_0": 0 }));
    std::fs::write(&config, json.to_string()).unwrap();
    let found = String::from_utf8(evaluate(folder.path(), &rows).stderr).unwrap();
    assert!(found.contains("has a head of one output, a regression"), "{found}");
}

#[test]
fn classes_of_a_stored_model_are_named_without_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let run = written("electra", folder.path());
    let numbered = |count: u32| (0..count).map(|class| format!("LABEL_{class}")).collect::<Vec<_>>();
    let (of_peft, masked) = (fixture("class_adapters/electra"), fixture("encoders/electra"));
    for (path, base, labels) in [
        (&run.opened.path, None, LABELS.map(str::to_owned).to_vec()),
        (&run.exported, None, LABELS.map(str::to_owned).to_vec()),
        (&of_peft, Some(masked.as_path()), numbered(4)),
        (&masked, None, numbered(0)),
    ] {
        let found = describe_stored(path, base).unwrap();
        assert_eq!((&found.labels, &found.path), (&labels, path));
        assert_eq!(found.spec.classes().unwrap_or_default() as usize, labels.len());
    }
}
