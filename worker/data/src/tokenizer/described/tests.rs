use serde_json::{Value, json};
use tokenizers::Normalizer;

use super::*;

fn read(model: &Value, special: Option<(&str, u32)>) -> Described {
    let added = special.map(|(content, id)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true
        })
    });
    let added: Vec<Value> = added.into_iter().collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model
    });
    Described::read(json.to_string().as_bytes(), Path::new("t.json")).unwrap()
}

#[derive(Deserialize)]
struct Patterns {
    texts: Vec<String>,
    patterns: Vec<Pattern>,
    refused: Vec<String>,
}

#[derive(Deserialize)]
struct Pattern {
    pattern: String,
    replaced: Vec<String>,
    split: Vec<Vec<String>>,
}

/// Returns a tokenizer that replaces matches, and one that splits at them.
fn with_pattern(pattern: &str) -> [Result<Described, DataError>; 2] {
    let pattern = json!({ "Regex": pattern });
    let replace = json!({ "type": "Replace", "pattern": pattern, "content": "¶" });
    let split = json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false });
    [(replace, Value::Null), (Value::Null, split)].map(|(normalizer, pre_tokenizer)| {
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null, "model": word_level("<unk>")
        });
        Described::read(json.to_string().as_bytes(), Path::new("t.json"))
    })
}

/// The reference is `tests/fixtures/make_patterns.py`.
#[test]
fn regular_expressions_match_where_they_do_for_the_reference_and_the_same_ones_are_refused() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/patterns.json");
    let Patterns { texts, patterns, refused } =
        serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
    assert!(patterns.len() > 30 && refused.len() > 4);
    for Pattern { pattern, replaced, split } in &patterns {
        let [replacing, splitting] = with_pattern(pattern).map(Result::unwrap);
        for (index, text) in texts.iter().enumerate() {
            let mut normalized = tokenizers::NormalizedString::from(text.as_str());
            replacing.tokenizer.get_normalizer().unwrap().normalize(&mut normalized).unwrap();
            assert_eq!(normalized.get(), replaced[index], "{pattern}: {text:?}");
            let mut pieces = tokenizers::PreTokenizedString::from(text.as_str());
            splitting.tokenizer.get_pre_tokenizer().unwrap().pre_tokenize(&mut pieces).unwrap();
            let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let pieces: Vec<&str> = pieces.into_iter().map(|(piece, ..)| piece).collect();
            assert_eq!(pieces, split[index], "{pattern}: {text:?}");
        }
    }
    for pattern in refused {
        for read in with_pattern(&pattern) {
            assert!(matches!(read, Err(DataError::Tokenizer { .. })), "{pattern}");
        }
    }
}

/// The library panics.
#[test]
fn a_pattern_that_gives_up_on_a_text_is_an_error_of_that_text() {
    let [replacing, splitting] = with_pattern("(a+a+)+b").map(Result::unwrap);
    for described in [replacing, splitting] {
        assert!(described.encode("aab").is_ok());
        let message = described.encode(&"a".repeat(40)).unwrap_err();
        assert!(message.contains("gives up on a text") && message.contains("retry-limit"), "{message}");
    }
}

fn bpe(unknown: Option<&str>, byte_fallback: bool, vocab: &Value) -> Value {
    json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": byte_fallback, "ignore_merges": false,
        "vocab": vocab, "merges": []
    })
}

fn word_piece(unknown: &str) -> Value {
    json!({
        "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": { "[PAD]": 0, "a": 1, "[UNK]": 7 }
    })
}

fn word_level(unknown: &str) -> Value {
    json!({ "type": "WordLevel", "unk_token": unknown, "vocab": { "<unk>": 4, "a": 2 } })
}

fn unigram(unknown: Option<u32>) -> Value {
    json!({ "type": "Unigram", "unk_id": unknown, "vocab": [["a", -1.0], ["b", -2.0], ["<none>", 0.0]] })
}

#[test]
fn special_tokens_around_a_text_are_counted_and_not_made() {
    let around = json!({
        "type": "TemplateProcessing", "special_tokens": { "</s>": { "id": "</s>", "ids": [5], "tokens": ["</s>"] } },
        "single": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "SpecialToken": { "id": "</s>", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }]
    });
    for (post_processor, count) in [(around, 1), (Value::Null, 0)] {
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": post_processor, "decoder": null, "model": word_level("<unk>")
        });
        let read = Described::read(json.to_string().as_bytes(), Path::new("t.json")).unwrap();
        assert_eq!((read.around(), read.encode("a").unwrap()), (count, vec![2]));
    }
}

#[test]
fn each_kind_of_model_has_the_unknown_token_that_its_file_names() {
    let token = |number, name: &str, is_added| Some(UnknownToken { number, name: name.to_owned(), is_added });
    let letters = json!({ "a": 0, "?": 5 });
    let bytes = (0..=255_u32).map(|byte| (format!("<0x{byte:02X}>"), json!(byte + 9)));
    let bytes: Value = bytes.chain([("a".to_owned(), json!(0)), ("?".to_owned(), json!(1))]).collect();
    for (model, special, expected) in [
        (word_level("<unk>"), None, token(4, "<unk>", false)),
        (word_level("<unk>"), Some(("<unk>", 4)), token(4, "<unk>", true)),
        (word_level("<unk>"), Some(("</s>", 5)), token(4, "<unk>", false)),
        (word_level("[UNK]"), None, None),
        (word_piece("[UNK]"), Some(("[UNK]", 7)), token(7, "[UNK]", true)),
        (word_piece("<unk>"), None, None),
        (unigram(Some(2)), None, token(2, "<none>", false)),
        (unigram(None), None, None),
        (bpe(Some("?"), false, &letters), None, token(5, "?", false)),
        (bpe(Some("?"), true, &letters), None, token(5, "?", false)),
        (bpe(None, false, &letters), None, None),
        (bpe(Some("!"), false, &letters), None, None),
        (bpe(Some("?"), true, &bytes), None, None),
        (bpe(Some("?"), false, &bytes), None, token(1, "?", false)),
    ] {
        assert_eq!(read(&model, special).unknown(), expected.as_ref(), "{model}");
    }
}

#[test]
fn a_text_that_needs_an_unknown_token_where_there_is_none_is_refused_with_its_name() {
    let not_there = "the unknown token `gone` that its model names is not in its vocabulary";
    for (model, words) in [
        (word_level("gone"), not_there),
        (word_piece("gone"), not_there),
        (bpe(Some("gone"), false, &json!({ "a": 0 })), not_there),
        (
            json!({ "type": "WordLevel", "unk_token": "<unk>", "vocab": { "a": 2 } }),
            "token `<unk>`, which the library writes where none is named, is not in",
        ),
        (
            json!({
                "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": { "[PAD]": 0, "a": 1 }
            }),
            "token `[UNK]`, which the library writes where none is named, is not in",
        ),
        (unigram(None), "its model names no unknown token: give it an `unk_id`"),
    ] {
        let described = read(&model, None);
        assert_eq!(described.encode("a").map(|tokens| tokens.len()), Ok(1), "{model}");
        let message = described.encode("é").unwrap_err();
        assert!(message.starts_with("t.json has no token for some of the text, and "), "{message}");
        assert!(message.contains(words), "{message}");
    }
}
