//! Unusable texts and tokenizers.

use super::{assert_says, join_scenario, refusal};
use crate::scenario::{RUN_MAX, Scenario, Setup};

const TOKENIZER: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,
    "truncation":null,"padding":null,"pre_tokenizer":{"type":"Whitespace"},
    "model":{"type":"WordLevel","vocab":{"[unk]":0,"one":1,"two":2},"unk_token":"[unk]"}}"#;

/// Requires more workers than any test here starts, so that training never begins.
fn gathering(data: &'static str) -> Scenario {
    Setup { sites: vec![4, 4], data, ..Setup::default() }.gather()
}

/// Three unusable texts, each through its own worker.
fn assert_texts_are_refused(mut scenario: Scenario) {
    let (folder, token) = (scenario.cluster.folder().to_owned(), scenario.cluster.token().unwrap());
    std::fs::write(folder.join("empty.txt"), "").unwrap();
    std::fs::write(folder.join("latin1.txt"), b"gr\xfc\xdfe\n".repeat(1000)).unwrap();
    let cases: [(&str, &[&str]); 3] = [
        ("missing.txt", &["missing.txt", "`--data` names another file"]),
        ("empty.txt", &["empty.txt has nothing to train on", "its file is empty (0 bytes)"]),
        ("latin1.txt", &["latin1.txt is not UTF-8 at byte 2", "iconv -f WINDOWS-1252 -t UTF-8"]),
    ];
    let started = cases.map(|(text, words)| {
        (join_scenario(&scenario, &format!("worker-{text}"), &token, &["--data", text]), words)
    });
    for (process, words) in started {
        assert_says(&refusal(process), words);
    }
    let heard = |status: &serde_json::Value| cases.iter().all(|(text, _)| has_heard(status, text));
    let status = scenario.cluster.wait_for("the coordinator to have heard", RUN_MAX, heard).unwrap();
    assert_eq!(status["phase"], "gathering", "{status:#}");
}

fn has_heard(status: &serde_json::Value, text: &str) -> bool {
    let events = status["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    let told = |event: &serde_json::Value| {
        event["text"].as_str().is_some_and(|words| words.contains("cannot go on") && words.contains(text))
    };
    events.iter().any(told)
}

#[test]
fn a_text_that_cannot_be_trained_on_is_refused_by_name() {
    assert_texts_are_refused(gathering(""));
}

#[test]
fn a_tokenizer_file_that_is_missing_or_none_is_refused_by_name_and_a_good_one_still_wants_utf8() {
    let scenario = gathering("tokenizer = \"tokenizer.json\"");
    let (file, token) = (scenario.cluster.folder().join("tokenizer.json"), scenario.cluster.token().unwrap());
    let missing = refusal(join_scenario(&scenario, "missing", &token, &[]));
    assert_says(&missing, &["read tokenizer tokenizer.json", "the run's data.tokenizer names it"]);
    assert!(!missing.contains("--data"), "{missing}");
    std::fs::write(&file, "{}").unwrap();
    let none = refusal(join_scenario(&scenario, "none", &token, &[]));
    assert_says(&none, &["tokenizer.json is no tokenizer", "as Hugging Face writes it"]);
    std::fs::write(&file, TOKENIZER).unwrap();
    assert_texts_are_refused(scenario);
}
