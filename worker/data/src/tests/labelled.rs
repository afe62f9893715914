//! Labelled texts from files to batches.

use serde_json::Value;

use super::super::{Content, PAD, SECOND, Values};
use super::*;

/// Tokens of a sequence in `fixtures/make_labelled.py`.
const LENGTH: usize = 12;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/labelled")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(fixtures().join("tokenizer.json").to_str().unwrap()).unwrap()
}

/// The lines of `[data]` for a file, with further ones, and with those of `[data.classification]`.
fn lines(name: &str, more: &str, classification: &str) -> String {
    format!(
        "sequence_length = {LENGTH}\nvalidation_share = 0.0\nsources = [{{ path = {name:?} }}]\n{more}\n[classification]\n{classification}"
    )
}

const PAIRS: &str = "text = \"question\"\ntext_pair = \"answer\"\nlabel = \"verdict\"\nlabels = [\"no\", \"perhaps\", \"yes\"]";

fn opened(folder: &Folder, lines: &str) -> Result<Dataset, String> {
    folder.open_with(lines, &tokenizer(), 1 << 20, &Work::default()).map_err(|error| error.to_string())
}

/// Returns the words of all samples, sorted.
fn samples(data: &Dataset) -> Vec<Vec<i64>> {
    let batch = data.batch(0..data.samples(), 1).unwrap();
    let micro = batch.micro_batches(1000).next().unwrap();
    let Values::Labelled(words) = micro.values() else { panic!("no labelled texts") };
    let mut all: Vec<Vec<i64>> = words.chunks(LENGTH + 1).map(<[i64]>::to_vec).collect();
    all.sort();
    all
}

/// Returns the words that transformers' tokens mean.
fn expected(are_pairs: bool) -> Vec<Vec<i64>> {
    let all: Vec<Value> =
        serde_json::from_slice(&std::fs::read(fixtures().join("expected.json")).unwrap()).unwrap();
    let numbers = |row: &Value, name: &str| {
        row[name].as_array().unwrap().iter().map(|it| it.as_i64().unwrap()).collect()
    };
    let words = |row: &Value| {
        let tokens: Vec<i64> = numbers(row, if are_pairs { "tokens" } else { "alone" });
        let types: Vec<i64> = if are_pairs { numbers(row, "types") } else { vec![0; tokens.len()] };
        let mut words: Vec<i64> =
            tokens.iter().zip(types).map(|(token, second)| token | (second * i64::from(SECOND))).collect();
        words.resize(LENGTH, PAD.into());
        words.push(row["label"].as_i64().unwrap());
        words
    };
    let mut all: Vec<Vec<i64>> = all.iter().map(words).collect();
    all.sort();
    all
}

#[test]
fn every_format_has_the_tokens_of_transformers_and_the_classes() {
    let folder = Folder::new();
    for name in ["rows.jsonl", "rows.json", "rows.csv", "rows.tsv", "rows.parquet", "rows.arrow"] {
        std::fs::copy(fixtures().join(name), folder.path().join(name)).unwrap();
        let format = if name == "rows.json" { "format = \"jsonl\", " } else { "" };
        let path = format!("path = {name:?}");
        let lines = lines(name, "", PAIRS).replace(&path, &format!("{format}{path}"));
        let data = opened(&folder, &lines).unwrap();
        assert_eq!(samples(&data), expected(true), "{name}");
        let size = &data.sources()[0].size;
        assert_eq!(
            size.conversations.to_string(),
            "7 labelled texts (4 cut off, 0 left out), 74 tokens",
            "{name}"
        );
        assert_eq!(size.classes.values().copied().collect::<Vec<_>>(), [2, 2, 3], "{name}");
    }
    let single = PAIRS.replace("text_pair = \"answer\"\n", "");
    let data = opened(&folder, &lines("rows.csv", "", &single)).unwrap();
    assert_eq!(samples(&data), expected(false));
    let content = data.sample(0, 1).unwrap().content;
    assert!(
        matches!(&content, Content::Labelled { tokens, class } if tokens[0] == 2 && *class < 3),
        "{content:?}"
    );
    // Texts that do not fit may be left out.
    let data =
        opened(&folder, &lines("rows.csv", "", &format!("{PAIRS}\ntoo_long = \"leave-out\""))).unwrap();
    let counts = data.sources()[0].size.conversations;
    assert_eq!((data.samples(), counts.cut, counts.left_out), (3, 0, 4));
}

#[test]
fn columns_that_are_not_read_and_control_tokens_in_texts_are_counted() {
    let folder = Folder::new();
    let single = PAIRS.replace("text_pair = \"answer\"\n", "");
    // One answer is empty, which a reader of tables does not see.
    for (name, answers) in
        [("rows.jsonl", 6), ("rows.csv", 6), ("rows.tsv", 6), ("rows.parquet", 7), ("rows.arrow", 7)]
    {
        std::fs::copy(fixtures().join(name), folder.path().join(name)).unwrap();
        let told = format!("columns that are not read: `answer` ({answers} records)");
        for (classification, told) in [(&*single, &*told), (PAIRS, "")] {
            let data = opened(&folder, &lines(name, "", classification)).unwrap();
            let notes = data.sources()[0].size.notes.to_string();
            assert!(
                notes.ends_with(told) && notes.contains("not read") != told.is_empty(),
                "{name}: {notes}"
            );
        }
    }
    let row = |question: &str| format!("yes,{question},It is. [SEP]\n");
    folder.write("a.csv", format!("verdict,question,answer\n{}{}", row("[MASK] [SEP] [SEP]?"), row("</s>")));
    let told = "texts that spell control tokens of the tokenizer, which they become: `[SEP]` (3 texts), `[MASK]` (1 text); texts that spell control tokens of other tokenizers, which this one encodes in pieces: `</s>` (1 text)";
    let data = opened(&folder, &lines("a.csv", "", PAIRS)).unwrap();
    assert_eq!(data.sources()[0].size.notes.to_string(), told);
}

/// Columns of tables without a head, as CoLA's, are given by number.
#[test]
fn tables_without_a_head_have_their_columns_by_number() {
    let folder = Folder::new();
    let table = std::fs::read_to_string(fixtures().join("rows.tsv")).unwrap();
    let (head, rows) = table.split_once('\n').unwrap();
    let number = |name: &str| head.split('\t').position(|column| column == name).unwrap() + 1;
    let [first, second, label] = ["question", "answer", "verdict"].map(number);
    let by_number = format!(
        "text = {first}\ntext_pair = {second}\nlabel = {label}\nlabels = [\"no\", \"perhaps\", \"yes\"]"
    );
    folder.write("a.tsv", rows);
    let data = opened(&folder, &lines("a.tsv", "", &by_number)).unwrap();
    assert_eq!(samples(&data), expected(true));
    let far = by_number.replace(&format!("label = {label}"), "label = 9");
    let message = opened(&folder, &lines("a.tsv", "", &far)).unwrap_err();
    assert!(message.contains("a.tsv, line 1: it has "), "{message}");
    assert!(message.contains("columns, and column 9 was asked for"), "{message}");
    let wrong = by_number.replace("\"perhaps\", ", "");
    let message = opened(&folder, &lines("a.tsv", "", &wrong)).unwrap_err();
    assert!(message.contains(&format!("its column {label} is 2, and")), "{message}");
    // The remedies of tables with names lead here.
    folder.write("a.csv", "gj04\t1\t\tA text.\n");
    let message = opened(&folder, &lines("a.csv", "", PAIRS)).unwrap_err();
    assert!(message.contains("give all of them by number, as in text = 1 and label = 2"), "{message}");
    folder.write("a.csv", "question,answer,verdict,verdict\na,b,1,2\n");
    let message = opened(&folder, &lines("a.csv", "", PAIRS)).unwrap_err();
    assert!(message.contains("give all columns by number, that one as 3 or 4"), "{message}");
}

#[test]
fn a_bad_label_or_text_is_told_with_its_place_and_counted() {
    let folder = Folder::new();
    let classification = "labels = [\"bad\", \"good\"]";
    for (name, content, words) in [
        (
            "a.jsonl",
            "{\"text\":\"a\",\"label\":2}\n",
            "a.jsonl, line 1: its `label` is 2, and the classes are \"bad\", \"good\"",
        ),
        (
            "a.jsonl",
            "{\"text\":\"a\"}\n",
            "a.jsonl, line 1: its `label` is missing (its columns are `text`), and no class",
        ),
        ("a.jsonl", "{\"text\":\"a\",\"label\":null}\n", "line 1: its `label` is null, and no class"),
        ("a.jsonl", "{\"text\":\"a\",\"label\":0.5}\n", "line 1: its `label` is 0.5, and no class"),
        ("a.jsonl", "{\"text\":\"a\",\"label\":NaN}\n", "line 1: its `label` is NaN, and no class"),
        (
            "a.jsonl",
            "{\"text\":\"a\",\"label\":18446744073709551617}\n",
            "line 1: its `label` is 18446744073709551617, and no class",
        ),
        (
            "a.jsonl",
            "{\"text\":\"a\",\"label\":0,\"label\":1}\n",
            "line 1: it has `label` twice: leave one of them out",
        ),
        ("a.json", "[{\"text\":\"a\",\"text\":\"b\",\"label\":0}]", "element 1: it has `text` twice"),
        ("a.jsonl", "{\"text\":\"a\",\"label\":[1]}\n", "line 1: its `label` is a list, and no class"),
        ("a.jsonl", "{\"text\":7,\"label\":1}\n", "line 1: its `text` is a number, and no text"),
        (
            "a.jsonl",
            "{\"content\":\"a\",\"label\":1}\n",
            "line 1: its `text` is missing, and no text (its columns are `content`, `label`)",
        ),
        (
            "a.csv",
            "text,label\na,good\n\"b\n\",ugly\n",
            "a.csv, lines 3 to 4: its `label` is \"ugly\", and the classes",
        ),
        ("a.csv", "text,label\na,\n", "a.csv, line 2: its `label` is empty"),
        ("a.csv", "text,label\na,-1\n", "take another split"),
    ] {
        folder.write(name, content);
        let message = opened(&folder, &lines(name, "", classification)).unwrap_err();
        assert!(message.contains(words), "{content}: {message}");
    }
    let content = "{\"text\":\"a\",\"label\":\"good\"}\n{\"text\":\"b\",\"label\":\"ugly\"}\n{\"text\":\"a\",\"label\":1.0}\n";
    folder.write("a.jsonl", content);
    let data = opened(&folder, &lines("a.jsonl", "bad_records_max = 1", classification)).unwrap();
    let size = &data.sources()[0].size;
    assert_eq!((data.samples(), size.records, size.bad.count), (2, 2, 1));
    assert_eq!(size.empty_classes.to_string(), "class 0 has no sample");
    for (head, words) in
        [("text,kind", "has no column `label`; its columns are"), ("body,label", "has no column `text`")]
    {
        folder.write("a.csv", format!("{head}\na,1\n"));
        let message = opened(&folder, &lines("a.csv", "", classification)).unwrap_err();
        assert!(message.contains(words), "{message}");
    }
    // Blank ones are counted, a pair once.
    folder.write("a.csv", "text,other,label\na b,c,1\n,c,1\nnan,c,0\n\"\",,0\nd,  ,0\ne,f,1\n");
    let pairs = format!("{classification}\ntext_pair = \"other\"");
    let odd = opened(&folder, &lines("a.csv", "", &pairs)).unwrap().sources()[0].size.odd;
    let told = odd.to_string();
    assert!(told.starts_with("of 6 texts, 3 are blank, 1 is words for a missing value"), "{told}");
    let short = lines("a.jsonl", "bad_records_max = 9", classification).replace("= 12", "= 2");
    let message = opened(&folder, &short).unwrap_err();
    assert!(message.contains("2 tokens have no room for a text beside 2 special ones"), "{message}");
}

/// A file sorted by class would otherwise hold out one class alone.
#[test]
fn each_class_is_held_out_in_its_share() {
    let folder = Folder::new();
    let row = |label: &str, count: usize| format!("{{\"text\":\"a\",\"label\":\"{label}\"}}\n").repeat(count);
    folder.write("a.jsonl", row("bad", 30) + &row("good", 10));
    let lines = lines("a.jsonl", "", "labels = [\"bad\", \"good\"]").replace("share = 0.0", "share = 0.2");
    let data = opened(&folder, &lines).unwrap();
    let [batch] = &held_out(&data, 1, 100)[..] else { panic!("one batch") };
    let micro = batch.micro_batches(100).next().unwrap();
    let Values::Labelled(words) = micro.values() else { panic!("no labelled texts") };
    let good = words.chunks(LENGTH + 1).filter(|text| text[LENGTH] == 1).count();
    assert_eq!((data.samples(), micro.sequences(), good), (32, 8, 2));
    // Three tokens each, of which no padding is computed.
    assert_eq!(
        (micro.length(), batch.tokens(), micro.has_padding(), micro.has_pairs()),
        (3, 24, false, false)
    );
}
