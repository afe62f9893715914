//! A small BERT with a tokenizer of words.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Entries of the fixture's vocabulary.
const VOCABULARY: usize = 40;

/// Writes the model into a folder, without dropout, with a tokenizer that divides texts at blanks. Returns its words: the vocabulary behind the special tokens.
pub(super) fn write(folder: &Path, special: &[&str], post_processor: &Value) -> Vec<String> {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/tests/fixtures/encoders/bert");
    fs::copy(fixture.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
    for dropout in ["hidden_dropout_prob", "attention_probs_dropout_prob"] {
        config[dropout] = json!(0.0);
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let words: Vec<String> = (0..VOCABULARY - special.len()).map(|word| format!("w{word}")).collect();
    let all = special.iter().copied().chain(words.iter().map(String::as_str)).zip(0..);
    let vocabulary: Map<String, Value> = all.map(|(word, id)| (word.to_owned(), json!(id))).collect();
    let added = special.iter().zip(0..).map(|(content, id)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": post_processor,
        "decoder": null, "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    words
}
