//! Unknown tokens, the text under them, and byte order marks within a text are counted and reported.

use serde_json::{Value, json};

use super::*;
use crate::SourceSize;
use crate::cache::{document, files, read_document};
use crate::prepared::PieceList;
use crate::text_counts::TextCounts;

/// Small enough that records of a few words make several pieces.
const PIECE_BYTES: u64 = 30;

/// Returns a tokenizer with this model; the names are special tokens, with their ids in its vocabulary.
fn tokenizer(model: &Value, special: &[(&str, u32)]) -> Tokenizer {
    let added = |(content, id): &(&str, u32)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true
        })
    };
    let added: Vec<Value> = special.iter().map(added).collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null, "model": model
    });
    Tokenizer::of_json(json.to_string().into_bytes(), Path::new("tokenizer.json")).unwrap()
}

fn words() -> Value {
    json!({
        "type": "WordLevel", "unk_token": "<unk>",
        "vocab": { "red": 0, "green": 1, "<unk>": 2, "blue": 3, "|": 4 }
    })
}

/// Returns a BPE model of these letters and bytes, without merges.
fn letters(unknown: Option<&str>, names: impl IntoIterator<Item = String>) -> Value {
    let vocab: serde_json::Map<String, Value> =
        names.into_iter().enumerate().map(|(number, name)| (name, json!(number))).collect();
    json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocab, "merges": []
    })
}

fn lines(separator: &str) -> String {
    format!(
        "sequence_length = 2\nvalidation_share = 0.0\nseparator = {separator:?}\nsources = [{{ glob = \"*.jsonl\" }}]"
    )
}

fn size(folder: &Folder, tokenizer: &Tokenizer, separator: &str) -> SourceSize {
    let lines = lines(separator);
    let data = folder.open_with(&lines, tokenizer, PIECE_BYTES, &Work::default()).unwrap();
    data.sources().remove(0).size
}

fn folder(texts: &[&str]) -> Folder {
    let folder = Folder::new();
    let lines = texts.iter().map(|text| json!({ "text": text }).to_string() + "\n");
    folder.write("a.jsonl", lines.collect::<String>());
    folder
}

#[test]
fn tokens_are_unknown_where_a_tokenizer_has_none_and_not_where_a_text_or_a_separator_names_it() {
    let unknown = tokenizer(&words(), &[("<unk>", 2)]);
    let folder_of_texts = folder(&["red pink", "green <unk> red", "grey grey grey blue", "<unk>"]);
    let told = |separator: &str| {
        let size = size(&folder_of_texts, &unknown, separator);
        (size.unknown.count(), size.items, size.unknown.are_many())
    };
    assert_eq!(told("|"), (4, 14, true));
    assert_eq!(told("<unk>"), (4, 14, true));
    let size = size(&folder_of_texts, &unknown, "|");
    let words =
        "4 of 14 tokens (28.6 %) are the unknown token `<unk>`, for 16 of 51 counted characters (31.4 %): ";
    assert!(size.unknown.to_string().starts_with(words), "{}", size.unknown);
}

/// The setting of models trained with `fuse_unk`.
#[test]
fn one_unknown_token_may_stand_for_many_characters_and_these_are_counted() {
    let mut model = letters(Some("<unk>"), ["<unk>", "o", "n", "e", "|"].map(str::to_owned));
    model["byte_fallback"] = json!(false);
    let folder = folder(&["one 汉字汉字 n"]);
    for (is_fused, words) in [
        (
            true,
            "1 of 6 tokens (16.7 %) is the unknown token `<unk>`, for 4 of 11 counted characters (36.4 %): ",
        ),
        (
            false,
            "4 of 9 tokens (44.4 %) are the unknown token `<unk>`, for 4 of 11 counted characters (36.4 %): ",
        ),
    ] {
        model["fuse_unk"] = json!(is_fused);
        let size = size(&folder, &tokenizer(&model, &[]), "|");
        assert!(size.unknown.to_string().starts_with(words), "{}", size.unknown);
    }
}

#[test]
fn a_separator_that_the_tokenizer_does_not_know_is_refused_and_one_that_runs_into_a_text_is_named() {
    let unknown = tokenizer(&words(), &[("<unk>", 2)]);
    let folder = folder(&["red", "green."]);
    for separator in [" yellow", "|?", "."] {
        let lines = lines(separator);
        let words = format!(
            "data.separator = {separator:?}: the tokenizer does not know it, or a part of it, and would put its unknown token `<unk>` there"
        );
        let error = folder.open_with(&lines, &unknown, PIECE_BYTES, &Work::default()).unwrap_err();
        let looked = Dataset::look(&config(&lines), &unknown, &folder.path().join("cache")).unwrap_err();
        for message in [error.to_string(), looked.to_string()] {
            assert!(message.starts_with(&words) && message.contains("special tokens: none"), "{message}");
        }
    }
    // It has a token for the separator, but none for `.|`.
    let size = size(&folder, &unknown, "|");
    let words = "1 of 4 tokens (25.0 %) is the unknown token `<unk>`, for 2 of 11 counted characters (18.2 %); 1 of them is where the separator \"|\" stands: name one";
    assert!(size.unknown.to_string().starts_with(words), "{}", size.unknown);
}

#[test]
fn what_falls_back_to_bytes_is_not_unknown_and_what_has_no_bytes_is() {
    let all = || (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let pieces = json!([["<unk>", 0.0], ["o", -1.0], ["n", -1.5], ["e", -2.0], ["|", -3.0]]);
    for (name, model, count) in [
        ("all bytes", letters(Some("<unk>"), all().chain(names(&["<unk>", "o", "n", "e"]))), 0),
        ("all bytes, none unknown", letters(None, all().chain(names(&["o", "n", "e"]))), 0),
        ("two bytes", letters(Some("<unk>"), names(&["<unk>", "o", "n", "e", "|", "<0xC3>", "<0xA9>"])), 1),
        ("no byte", letters(Some("<unk>"), names(&["<unk>", "o", "n", "e", "|"])), 2),
        ("Unigram", json!({ "type": "Unigram", "unk_id": 0, "vocab": pieces }), 2),
    ] {
        // Both letters begin with the same byte in UTF-8.
        let size = size(&folder(&["one é", "nü"]), &tokenizer(&model, &[]), "|");
        assert_eq!(size.unknown.count(), count, "{name}: {}", size.unknown);
    }
}

/// From the file, from its list, from shards of an interrupted preparation, and from a damaged shard.
#[test]
fn counts_are_the_same_however_much_of_the_data_was_there() {
    let unknown = tokenizer(&words(), &[]);
    let folder =
        folder(&["red pink \u{feff} green", "blue grey", "\u{feff}red", "green black", "blue white"]);
    let first = size(&folder, &unknown, "|");
    assert_eq!((first.unknown.count(), first.marks.count(), first.shards > 2), (6, 2, true));
    let lists = folder.path().join("cache/data/lists");
    let told = |size: &SourceSize| (size.unknown.count(), size.marks, size.items, size.records, size.shards);
    // Only characters of texts tokenised for the list are counted.
    let check = |what: &str, characters: &str, change: &dyn Fn()| {
        change();
        let again = size(&folder, &unknown, "|");
        assert_eq!(told(&again), told(&first), "{what}");
        assert!(again.unknown.to_string().contains(characters), "{what}: {}", again.unknown);
    };
    let all = "`<unk>`, for 20 of 55 counted characters";
    check("all", all, &|| ());
    check("shards alone", "are the unknown token `<unk>`: ", &|| std::fs::remove_dir_all(&lists).unwrap());
    check("some shards, one of them damaged", "counted characters", &|| {
        std::fs::remove_dir_all(&lists).unwrap();
        let shards = folder.shards();
        std::fs::remove_file(&shards[0]).unwrap();
        let mut bytes = std::fs::read(&shards[1]).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::remove_file(&shards[1]).unwrap();
        std::fs::write(&shards[1], bytes).unwrap();
    });
    check("a list of an earlier version, and then another file", "`<unk>`", &|| {
        let path = files(&lists).unwrap().remove(0);
        let mut list: PieceList = read_document(&path).unwrap().unwrap();
        assert_ne!(list.counts, TextCounts::default());
        list.counts = TextCounts::default();
        let written = document(&list, &path).unwrap();
        assert!(!String::from_utf8_lossy(&written).contains("counts"));
        std::fs::write(&path, written).unwrap();
        // It is accepted: nothing is known, so nothing is reported.
        let old = size(&folder, &unknown, "|");
        assert_eq!((old.items, old.unknown.count(), old.marks.count()), (first.items, 0, 0));
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn tokens_that_were_made_elsewhere_are_not_asked_whether_they_are_known() {
    let unknown = tokenizer(&words(), &[]);
    let folder = Folder::new();
    folder.write("a.bin", [2_u8, 0, 2, 0, 2, 0, 1, 0]);
    let lines = "sequence_length = 2\nvalidation_share = 0.0\nsources = [{ path = \"a.bin\" }]";
    let data = folder.open_with(lines, &unknown, PIECE_BYTES, &Work::default()).unwrap();
    assert_eq!(data.sources().remove(0).size.unknown.count(), 0);
}

/// All but the one at a file's start, in any format.
#[test]
fn byte_order_marks_within_a_text_are_counted_and_stay() {
    for (name, content, count) in [
        ("a.txt", "\u{feff}one\n\u{feff}two\nth\u{feff}ree", 2),
        ("b.txt", "\u{feff}\u{feff}one two", 1),
        ("c.txt", "one two three", 0),
        ("d.jsonl", "{\"text\": \"\u{feff}one\"}\n{\"text\": \"\\uFEFFtwo\"}\n", 2),
        ("e.csv", "\u{feff}text,n\none,1\n\u{feff}two,2\n", 1),
        ("f.tsv", "text\tn\none\t\u{feff}\ntwo\t2\n", 0),
    ] {
        let folder = Folder::new();
        folder.write(name, content);
        let lines =
            format!("sequence_length = 2\nvalidation_share = 0.0\nsources = [{{ path = \"{name}\" }}]");
        for _ in 0..2 {
            let data = folder.open(&lines).unwrap();
            let marks = data.sources().remove(0).size.marks;
            let kept = text(&data).matches('\u{feff}').count() as u64;
            assert_eq!((marks.count(), kept), (count, count), "{name}");
        }
    }
}

/// From the file, and from its list.
#[test]
fn texts_that_are_hardly_meant_are_told_of_every_format() {
    let all = "of 4 texts, 1 is blank, 1 is numbers alone, 1 is words for a missing value (such as `nan` or `null`)";
    for (name, content, told) in [
        ("a.csv", "id,text\n1,\n2,7\n3,NaN\n4,one\n", all),
        ("b.tsv", "id\ttext\n1\t \n2\t1e5\n3\tNULL\n4\tone\n", all),
        ("c.jsonl", "{\"text\": \"\"}\n{\"text\": \"0\"}\n{\"text\": \"N/A\"}\n{\"text\": \"one\"}\n", all),
        ("d.csv", "text\ncaf\u{c3}\u{a9}\n", "of 1 text, 1 is decoded twice (the first: `caf\u{c3}\u{a9}`)"),
        ("e.txt", "one, and 7 are nan\n", ""),
        ("f.txt", "Gru\u{c3}\u{9f}, it\u{e2}\u{20ac}\u{2122}s\n", "of 1 text, 1 is decoded twice"),
    ] {
        let folder = Folder::new();
        folder.write(name, content);
        let lines =
            format!("sequence_length = 2\nvalidation_share = 0.0\nsources = [{{ path = \"{name}\" }}]");
        for _ in 0..2 {
            let odd = folder.open(&lines).unwrap().sources().remove(0).size.odd;
            assert!(
                odd.to_string().starts_with(told) && (odd.count() > 0) != told.is_empty(),
                "{name}: {odd}"
            );
        }
    }
}

#[test]
fn lines_of_plain_texts_that_end_with_cr_lf_are_counted_and_stay() {
    for (name, content, count) in [
        ("a.txt", "one\r\ntwo\r\nthree\r\n", 3),
        ("b.txt", "one\ntwo\rthree\n", 0),
        // Within a record they belong to it.
        ("c.jsonl", "{\"text\": \"one\\r\\ntwo\"}\r\n", 0),
        ("d.csv", "text\r\n\"one\r\ntwo\"\r\n", 0),
    ] {
        let folder = Folder::new();
        folder.write(name, content);
        let lines =
            format!("sequence_length = 2\nvalidation_share = 0.0\nsources = [{{ path = \"{name}\" }}]");
        for _ in 0..2 {
            let data = folder.open(&lines).unwrap();
            let told = data.sources().remove(0).size.carriage_returns;
            assert_eq!(told.count(), count, "{name}: {told}");
            assert!(text(&data).matches("\r\n").count() as u64 >= count, "{name}");
        }
    }
}
