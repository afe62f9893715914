//! Tokenizers of each class make the same tokens as `tokenizers` in Python, regardless of their files' last use: `tests/fixtures/make_tokenizers.py`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;

#[derive(Deserialize)]
struct Made {
    name: String,
    tokenizer: Value,
    /// Settings of its file after calls with them.
    settings: Map<String, Value>,
    texts: Vec<String>,
    tokens: Vec<Vec<u32>>,
}

impl Made {
    /// Returns the tokenizer of its file after calls with the settings whose bits are set, and their number.
    fn after_calls(&self, which: usize) -> (Tokenizer, usize) {
        let mut json = self.tokenizer.clone();
        let chosen = self.settings.iter().enumerate().filter(|(index, _)| which >> index & 1 == 1);
        let mut count = 0;
        for (_, (name, setting)) in chosen {
            let place = if name == "dropout" { &mut json["model"][name] } else { &mut json[name] };
            *place = setting.clone();
            count += 1;
        }
        let json = serde_json::to_vec(&json).unwrap();
        (Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap(), count)
    }
}

#[test]
fn every_class_makes_the_tokens_of_the_reference_and_no_setting_changes_one() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers.json");
    let all: Vec<Made> = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
    let kinds: std::collections::BTreeSet<&str> =
        all.iter().filter_map(|made| made.tokenizer["model"]["type"].as_str()).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["BPE", "Unigram", "WordLevel", "WordPiece"]);
    for made in &all {
        for which in 0..1 << made.settings.len() {
            let (tokenizer, count) = made.after_calls(which);
            assert_eq!(tokenizer.settings().len(), count, "{}: {:?}", made.name, tokenizer.settings());
            for (text, expected) in made.texts.iter().zip(&made.tokens) {
                assert_eq!(tokenizer.encode(text).as_ref(), Ok(expected), "{}: {text:?}", made.name);
            }
        }
    }
}

/// From a file of records to training samples, with a tokenizer file last used with truncation to four tokens.
#[test]
fn all_of_a_text_is_trained_on_with_a_file_that_was_last_used_for_less() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers.json");
    let all: Vec<Made> = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
    for made in &all {
        let (tokenizer, _) = made.after_calls((1 << made.settings.len()) - 1);
        let folder = Folder::new();
        let lines = made.texts.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n");
        folder.write("a.jsonl", lines.collect::<String>());
        let data = "sequence_length = 2\nvalidation_share = 0.0\nseparator = \"</s>\"\nsources = [{ path = \"a.jsonl\" }]";
        let data = folder.open_with(data, &tokenizer, 1 << 20, &Work::default()).unwrap();
        let (plain, _) = made.after_calls(0);
        let expected = made.texts.iter().flat_map(|text| plain.encode(&format!("{text}</s>")).unwrap());
        assert_eq!(data.peek(0, u64::MAX).unwrap(), expected.collect::<Vec<_>>(), "{}", made.name);
        let kept = made.tokens.iter().map(Vec::len).sum::<usize>();
        assert!(data.peek(0, u64::MAX).unwrap().len() >= kept, "{}", made.name);
    }
}

/// `BPE()` of the library as trained in many tutorials: it encodes `né` as `[1]`.
#[test]
fn a_character_that_is_in_no_token_is_refused_by_its_name_and_its_file() {
    let json = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,"truncation":null,"padding":null,
        "pre_tokenizer":{"type":"Whitespace"},"model":{"type":"BPE","unk_token":null,"vocab":{"o":0,"n":1,"e":2},"merges":[]}}"#;
    let open = |json: &str, text: &str, more: &str| {
        let tokenizer = Tokenizer::of_json(json.as_bytes().to_vec(), Path::new("tokenizer.json")).unwrap();
        let folder = Folder::new();
        folder.write("a.jsonl", serde_json::json!({ "text": text }).to_string());
        let lines = format!(
            "sequence_length = 2\nvalidation_share = 0.0{more}\nsources = [{{ path = \"a.jsonl\" }}]"
        );
        let data = folder.open_with(&lines, &tokenizer, 1 << 20, &Work::default());
        data.map(|data| data.peek(0, u64::MAX).unwrap()).map_err(|error| error.to_string())
    };
    let none = "\nseparator = \"\"";
    assert_eq!(open(json, "on one", none), Ok(vec![0, 1, 0, 1, 2]));
    let message = open(json, "on one", "").unwrap_err();
    assert!(message.contains("data.separator = \"\\n\": the tokenizer makes no token of it"), "{message}");
    let message = open(json, "one né", none).unwrap_err();
    assert!(message.contains("/a.jsonl: the tokenizer has no token for 'é' (U+00E9), and"), "{message}");
    assert!(message.contains("`unk_token` or `byte_fallback`"), "{message}");
    let message = open(json, "  ", none).unwrap_err();
    assert!(message.contains("there is no token in the 1 record that was read"), "{message}");
    // Without words, the separator is ordinary text.
    let bare = json.replace(r#"{"type":"Whitespace"}"#, "null");
    let message = open(&bare, "one", "").unwrap_err();
    assert!(
        message.contains("data.separator = \"\\n\": the tokenizer has no token for '\\n' (U+000A)"),
        "{message}"
    );
}

/// The library reports only `WordPiece error: Missing [UNK] token from the vocabulary`.
#[test]
fn an_unknown_token_that_a_text_needs_and_a_tokenizer_has_not_is_told_with_both_files() {
    let json = r###"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,"truncation":null,"padding":null,
        "pre_tokenizer":{"type":"Whitespace"},"model":{"type":"WordPiece","unk_token":"[GONE]","continuing_subword_prefix":"##",
        "max_input_chars_per_word":100,"vocab":{"one":0,"two":1,"##s":2}}}"###;
    let tokenizer = Tokenizer::of_json(json.as_bytes().to_vec(), Path::new("some/tokenizer.json")).unwrap();
    let open = |text: &str| {
        let folder = Folder::new();
        folder.write("a.txt", text);
        let lines = "path = \"a.txt\"\nsequence_length = 2\nvalidation_share = 0.0";
        let data = folder.open_with(lines, &tokenizer, 1 << 20, &Work::default());
        data.map(|data| data.peek(0, u64::MAX).unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(open("ones two one"), Ok(vec![0, 2, 1, 0]));
    let message = open("ones three").unwrap_err();
    for words in [
        "tokenize ",
        "/a.txt: some/tokenizer.json has no token for some of the text",
        "the unknown token `[GONE]` that its model names is not in its vocabulary",
        "(`unk_token`)",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
}
