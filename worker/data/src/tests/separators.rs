//! Separators beside added tokens with `single_word`, `lstrip` and `rstrip`.

use serde_json::{Value, json};

use super::*;

/// Returns a tokenizer of words, blanks and signs, with these added tokens from 7 on, each with a flag or none.
fn tokenizer(added: &[(&str, &str)], normalizer: &Value) -> Tokenizer {
    let added = added.iter().zip(7..).map(|((content, flag), id)| {
        let mut token = json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true });
        if !flag.is_empty() {
            token[*flag] = true.into();
        }
        token
    });
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(), "normalizer": normalizer,
        "pre_tokenizer": { "type": "Split", "pattern": { "Regex": "\\w+|[^\\w]" }, "behavior": "Isolated", "invert": false },
        "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "unk_token": "?", "vocab": { "?": 0, "one": 1, "two": 2, "\n": 3, " ": 4, "-": 5, "a": 6 } }
    });
    Tokenizer::of_json(json.to_string().into_bytes(), Path::new("tokenizer.json")).unwrap()
}

const ADDED: [(&str, &str); 4] = [("<eot>", "rstrip"), ("<bos>", "lstrip"), ("<end>", ""), ("<w>", "rstrip")];

/// Returns the tokens of texts in files of each kind that has separators.
fn of_each_kind(texts: [&str; 2], separator: &str, tokenizer: &Tokenizer) -> Vec<Vec<u32>> {
    let folder = Folder::new();
    for (name, text) in ["a.txt", "b.txt"].iter().zip(texts) {
        folder.write(name, text);
    }
    folder.write("a.jsonl", texts.map(|text| json!({ "text": text }).to_string()).join("\n"));
    folder.write("a.csv", format!("text\n\"{}\"\n\"{}\"\n", texts[0], texts[1]));
    let read = |source: &str| {
        let lines = format!(
            "sequence_length = 1\nvalidation_share = 0.0\nseparator = {separator:?}\nsources = [{{ {source} }}]"
        );
        let data = folder.open_with(&lines, tokenizer, 1000, &Work::default()).unwrap();
        data.peek(0, u64::MAX).unwrap()
    };
    ["glob = \"*.txt\"", "path = \"a.jsonl\"", "path = \"a.csv\""].map(read).to_vec()
}

#[test]
fn a_token_that_takes_blanks_leaves_the_separator_behind_it_whole() {
    let tokenizer = tokenizer(&ADDED, &Value::Null);
    for (texts, separator, expected) in [
        (["one", "two"], "\n", &[1, 3, 2, 3][..]),
        (["one<eot>", "two"], "\n", &[1, 7, 3, 2, 3]),
        // The blanks of the text itself are taken.
        (["one<eot> \n", "two"], "\n", &[1, 7, 3, 2, 3]),
        (["one<eot>\ntwo", "<eot>"], "\n", &[1, 7, 2, 3, 7, 3]),
        (["<eot><w>", "two<w>"], "\n", &[7, 10, 3, 2, 10, 3]),
        (["one", "<bos>two"], "\n", &[1, 3, 8, 2, 3]),
        (["one", " <bos>two"], "\n", &[1, 3, 8, 2, 3]),
        (["one<eot>", "<bos>two"], "\n\n", &[1, 7, 3, 3, 8, 2, 3, 3]),
        (["one<eot>", "two"], "\n-", &[1, 7, 3, 5, 2, 3, 5]),
        (["one<eot>", "two"], "\n<end>", &[1, 7, 3, 9, 2, 3, 9]),
        (["one<eot>", "two"], "<end>\n", &[1, 7, 9, 3, 2, 9, 3]),
        (["one<eot>", "two"], "<end>", &[1, 7, 9, 2, 9]),
        // A separator that takes the blanks after it takes those of no other text.
        (["one", " two"], "<eot>", &[1, 7, 4, 2, 7]),
        (["one<eot>", "two"], "", &[1, 7, 2]),
    ] {
        for found in of_each_kind(texts, separator, &tokenizer) {
            assert_eq!(found, expected, "{texts:?}, {separator:?}");
        }
    }
}

#[test]
fn a_separator_that_is_no_token_behind_some_texts_is_refused() {
    let prepended = json!({ "type": "Sequence", "normalizers": [
        { "type": "Prepend", "prepend": "-" }, { "type": "Strip", "strip_left": false, "strip_right": true }] });
    let plain = Value::Null;
    for (flag, normalizer, separator, words) in [
        (
            "single_word",
            &plain,
            "<end>",
            "its token <end> is none where a letter or a digit stands beside it",
        ),
        ("single_word", &plain, "<end>\n", "`single_word` in the tokenizer's file"),
        ("single_word", &plain, "<end><end>", "its token <end> is none"),
        ("single_word", &plain, "one<end>", "its token <end> is none"),
        ("single_word", &plain, "\n<end>one", "its token <end> is none"),
        ("single_word", &plain, "\n<end>", ""),
        ("single_word", &plain, "-<end>\n<end>", ""),
        ("single_word", &plain, "\n", ""),
        ("", &plain, "<end>", ""),
        ("rstrip", &plain, "<end>", ""),
        ("lstrip", &plain, "<end>", "takes the blanks before it"),
        ("", &prepended, "\n", "the tokenizer makes no token of it behind a text (\"a\"), so that records"),
        ("", &prepended, "-", ""),
    ] {
        let tokenizer = tokenizer(&[("<end>", flag)], normalizer);
        let told =
            tokenizer.check_separator(separator).map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(told.is_empty(), words.is_empty(), "{flag}, {separator:?}: {told}");
        assert!(told.contains(words), "{flag}, {separator:?}: {told}");
        if words.is_empty() && normalizer.is_null() && !separator.is_empty() {
            let [alone, behind] =
                ["", "one"].map(|text| tokenizer.encode(&format!("{text}{separator}")).unwrap());
            assert_eq!([vec![1], alone].concat(), behind, "{flag}, {separator:?}");
        }
    }
}
