//! `worker evaluate` against lm-evaluation-harness: see `fixtures/make_evaluation.py`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use longhaul_checkpoint::open_model;
use longhaul_data::Tokenizer;
use longhaul_data::tasks::{Encoder, HeldOutFile, Pair, TaskFile};
use longhaul_engine::{Generator, Scored};
use longhaul_worker::evaluate::{Judge, Reading};
use serde::Deserialize;
use serde_json::Value;
use tch::Device;

#[derive(Deserialize)]
struct Expected {
    /// By case: measures under their names.
    scores: BTreeMap<String, BTreeMap<String, f64>>,
    likelihoods: Vec<Likelihood>,
    /// Log-likelihoods of all texts that are not empty.
    rolling: Vec<f64>,
}

#[derive(Deserialize)]
struct Likelihood {
    context: String,
    continuation: String,
    sum: f64,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/evaluation")
}

fn questions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tests/fixtures/tasks")
}

fn expected() -> Expected {
    serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap()
}

fn evaluate(checkpoint: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-torch"));
    command.args(["evaluate", "--device", "cpu", "--threads", "1", "--checkpoint"]).arg(checkpoint);
    command.args(arguments).current_dir(questions()).output().unwrap()
}

fn results(arguments: &[&str]) -> Vec<Value> {
    let output = evaluate(&folder(), &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn scores_are_those_of_the_harness() {
    let expected = expected();
    let plain =
        ["arc.parquet", "hellaswag.jsonl", "mmlu.parquet", "piqa.parquet", "winogrande.jsonl", "gsm8k.jsonl"];
    let mut found = results(&[&["--tokens", "40", "--task"], &plain[..]].concat());
    let two = ["--few-shot", "2", "--few-shot-from", "mmlu_dev.parquet", "winogrande_dev.jsonl"];
    found.extend(results(&[&["--task", "mmlu.parquet", "winogrande.jsonl"], &two[..]].concat()));
    let one = ["--few-shot", "1", "--few-shot-from", "gsm8k_dev.jsonl", "--tokens", "40"];
    found.extend(results(&[&["--task", "gsm8k.jsonl"], &one[..]].concat()));
    let cases =
        ["arc", "hellaswag", "mmlu", "piqa", "winogrande", "gsm8k", "mmlu-2", "winogrande-2", "gsm8k-1"];
    assert_eq!((found.len(), expected.scores.len()), (cases.len(), cases.len()));
    for (found, case) in found.iter().zip(cases) {
        assert_eq!(found["questions"], 12, "{case}");
        for (name, value) in &expected.scores[case] {
            let name = match name.as_str() {
                "exact_match,strict-match" => "exact_match_strict",
                "exact_match_stderr,strict-match" => "exact_match_strict_stderr",
                "exact_match,flexible-extract" => "exact_match_flexible",
                "exact_match_stderr,flexible-extract" => "exact_match_flexible_stderr",
                name => name.strip_suffix(",none").unwrap(),
            };
            let found = found[name].as_f64().unwrap();
            assert!((found - value).abs() < 1e-12, "{case}, {name}: {found}, expected {value}");
        }
    }
    // Long prompts are cut, and counted.
    assert_eq!(
        found.iter().map(|found| found["questions_cut"] != 0).collect::<Vec<_>>()[6..8],
        [true, false]
    );
}

#[test]
fn log_likelihoods_of_pairs_are_those_of_the_harness() {
    let (opened, expected) = (open_model(&folder(), None).unwrap(), expected());
    let generator = Generator::new(&opened.spec, &opened.parameters, Device::Cpu, None).unwrap();
    let tokenizer = Tokenizer::load(folder().join("tokenizer.json").to_str().unwrap()).unwrap();
    let encoder = Encoder::new(tokenizer, Some(0), generator.context());
    let pair =
        |one: &Likelihood| Pair { context: one.context.clone(), continuation: one.continuation.clone() };
    let all: Vec<_> = expected.likelihoods.iter().map(|one| encoder.pair("", &pair(one)).unwrap()).collect();
    let scored: Vec<_> = all.iter().map(|one| Scored { tokens: &one.tokens, from: one.from }).collect();
    let found = generator.log_likelihoods(&scored).unwrap();
    assert!(found.len() > 12);
    for (found, Likelihood { continuation, sum, .. }) in found.iter().zip(&expected.likelihoods) {
        assert!((found.sum - sum).abs() < 1e-4 * sum.abs(), "{continuation}: {}, expected {sum}", found.sum);
    }
}

#[test]
fn perplexity_is_that_of_the_rolling_log_likelihood() {
    let (found, expected) = (results(&["--text", "texts.jsonl"]).remove(0), expected());
    let tokens = found["tokens"].as_f64().unwrap();
    let nats = -expected.rolling.iter().sum::<f64>();
    let is_near = |name: &str, value: f64| (found[name].as_f64().unwrap() - value).abs() < 1e-5 * value;
    assert!(is_near("loss", nats / tokens), "{found}, expected {nats} nats");
    assert!(is_near("perplexity", (nats / tokens).exp()), "{found}");
    let text = std::fs::read_to_string(questions().join("texts.jsonl")).unwrap();
    let texts = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let bytes: usize = texts.map(|line| line["text"].as_str().unwrap().len()).sum();
    assert!(is_near("bits_per_byte", nats / std::f64::consts::LN_2 / bytes as f64), "{found}");
    assert_eq!((&found["texts"], &found["bytes"]), (&5.into(), &bytes.into()));
}

#[test]
fn results_are_lines_for_people_and_wrong_files_are_refused_before_the_model_is_opened() {
    let output = evaluate(&folder(), &["--task", "piqa.parquet", "valid.jsonl", "--limit", "4"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("piqa, piqa.parquet: 4 questions, acc 0."), "{text}");
    assert!(lines[2].starts_with("piqa, all 2 files: 8 questions, acc 0."), "{text}");
    let hollow = tempfile::tempdir().unwrap();
    std::fs::copy(folder().join("config.json"), hollow.path().join("config.json")).unwrap();
    std::fs::write(hollow.path().join("model.safetensors"), "").unwrap();
    let refused = |arguments: &[&str]| {
        let output = evaluate(hollow.path(), arguments);
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, cause) in [
        (&["--task", "none.jsonl"][..], "none.jsonl: there is no such file"),
        (&["--task", "arc=piqa.parquet"], "12 rows of 12 are not of the form of arc"),
        (
            &["--task", "gsm8k.jsonl", "--few-shot", "9", "--few-shot-from", "gsm8k_dev.jsonl"],
            "gsm8k.jsonl: 9 examples were asked for, and --few-shot-from has 3 of the kind gsm8k",
        ),
        (
            &["--task", "gsm8k.jsonl", "--few-shot", "1", "--few-shot-from", "mmlu_dev.parquet"],
            "gsm8k.jsonl: 1 example was asked for, and --few-shot-from has 0 of the kind gsm8k",
        ),
    ] {
        let found = refused(arguments);
        assert!(found.contains(cause), "{found}");
    }
}

#[test]
fn a_stop_leaves_the_results_of_what_was_done() {
    let opened = open_model(&folder(), None).unwrap();
    let generator = Generator::new(&opened.spec, &opened.parameters, Device::Cpu, None).unwrap();
    let tokenizer = Tokenizer::load(folder().join("tokenizer.json").to_str().unwrap()).unwrap();
    let encoder = Encoder::new(tokenizer, Some(0), generator.context());
    let reading = Reading { encoder, chat: None, ends: vec![1], answer_tokens: 2 };
    let judge = Judge { generator, reading: &reading, shows: true };
    let looks = Cell::new(0);
    let after = |most| {
        looks.set(0);
        let looks = &looks;
        move || looks.replace(looks.get() + 1) >= most
    };
    let file = TaskFile::read(&questions().join("gsm8k.jsonl"), None, None).unwrap();
    let outcome = judge.task(&file, &after(3)).unwrap();
    assert_eq!((outcome.done, outcome.all, outcome.is_whole()), (3, 12, false));
    assert!(outcome.to_string().ends_with("; stopped after 3 of 12 questions"), "{outcome}");
    assert!(outcome.json().contains(r#""stopped_before":9"#), "{}", outcome.json());
    let file = HeldOutFile::read(&questions().join("texts.jsonl"), "text", None).unwrap();
    let outcome = judge.text(&file, &after(3)).unwrap();
    assert!(
        outcome.to_string().contains("1 text, ")
            && outcome.to_string().ends_with("; stopped after 1 of 5 texts"),
        "{outcome}"
    );
    assert!(
        judge
            .text(&file, &|| true)
            .unwrap()
            .to_string()
            .ends_with("0 texts, 0 tokens; stopped after 0 of 5 texts")
    );
}
