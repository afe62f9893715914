use longhaul_common::config::Column;

use super::*;
#[cfg(feature = "tokenizers")]
use crate::Values;

fn read(name: &str, content: &str, columns: [&str; 2], limit: Option<usize>) -> Result<LabelledFile, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    let [text, label] =
        columns.map(|name| name.parse().map_or_else(|_| Column::Name(name.to_owned()), Column::Number));
    let labels = ["bad", "good"].map(str::to_owned).to_vec();
    let settings = ClassificationConfig { text, label, labels, ..ClassificationConfig::default() };
    LabelledFile::read(&path, &settings, 8, limit).map_err(|error| error.to_string())
}

#[test]
fn labelled_texts_are_those_of_training_and_remedies_are_options() {
    let named = ["text", "label"];
    for (name, content, columns) in [
        ("a.csv", "label,text\ngood,a\n0,b\n", named),
        ("a.json", "[{\"text\": \"a\", \"label\": 1}, {\"text\": \"b\", \"label\": \"bad\"}]", named),
        ("a.tsv", "x\t1\ta\nx\t0\tb\n", ["3", "2"]),
    ] {
        let file = read(name, content, columns, None).unwrap();
        let found: Vec<_> = file.texts.iter().map(|text| (text.text.as_str(), text.class)).collect();
        assert_eq!(found, [("a", 1), ("b", 0)], "{name}");
        assert_eq!(read(name, content, columns, Some(1)).unwrap().count(), 1);
    }
    for (name, content, columns, words) in [
        (
            "a.csv",
            "text,label\na,good\nb,best\nc\n",
            named,
            "a.csv: 2 rows of 3 are not of the form of labelled texts, and leaving them out would change the result: mend them. line 3: its `label` is \"best\", and the classes are \"bad\", \"good\"; line 4: it has 1 value, and the head has 2",
        ),
        ("a.csv", "text,label\n", named, "a.csv has no rows"),
        ("a.csv", "text;label\na;good\n", named, "write it anew with commas in place of \";\""),
        (
            "a.csv",
            "a,good\nb,bad\n",
            named,
            "give all of them by number, as in --text-column 1 --label-column 2",
        ),
        (
            "a.csv",
            "text,label\n\"a,good\nb,bad\n",
            named,
            "where quotes are text as any other, write it as JSON lines",
        ),
        (
            "a.jsonl",
            "{\"text\": \"a\"}\n",
            ["1", "2"],
            "a.jsonl: its columns have names: give them, as numbers are",
        ),
        (
            "a.jsonl",
            "{\"text\": \"a\"}\n",
            ["1", "label"],
            "--label-column = `label`: and another column differ",
        ),
        ("a.jsonl", "PAR1\u{15}\u{4}", named, "a Parquet file: its name must end as its format does"),
        ("a.txt", "a", named, "has no known ending: rows are in JSON lines"),
    ] {
        let found = read(name, content, columns, None).unwrap_err();
        assert!(found.contains(words) && !found.contains("say "), "{found}");
    }
}

/// Against transformers (`tests/fixtures/make_labelled.py`).
#[cfg(feature = "tokenizers")]
#[test]
fn texts_are_padded_to_the_longest_of_a_batch_and_odd_ones_are_counted() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/labelled");
    let tokenizer = Tokenizer::load(fixtures.join("tokenizer.json").to_str().unwrap()).unwrap();
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixtures.join("expected.json")).unwrap()).unwrap();
    let number = |value: &serde_json::Value| value.as_i64().unwrap();
    let [text, label] = ["question", "verdict"].map(|name| Column::Name(name.to_owned()));
    let labels = ["no", "perhaps", "yes"].map(str::to_owned).to_vec();
    let settings = ClassificationConfig { text, label, labels, ..ClassificationConfig::default() };
    let file = LabelledFile::read(&fixtures.join("rows.csv"), &settings, 12, None).unwrap();
    let mut all = LabelledCounts::default();
    for (range, width) in [(0..3, 8), (3..4, 12), (4..5, 2), (5..7, 12)] {
        let found = file.batch(range.clone(), &tokenizer).unwrap();
        all.add(&found.counts);
        let values = found.batch.micro_batches(9).next().unwrap();
        let Values::Labelled(words) = values.values() else { panic!("no labelled texts") };
        let expected: Vec<i64> = range
            .flat_map(|at| {
                let row = &expected[at];
                let tokens = row["alone"].as_array().unwrap().iter().map(number);
                let padded = tokens.chain(std::iter::repeat(PAD.into())).take(width);
                padded.chain([number(&row["label"])]).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(words, expected);
    }
    let told = "of 7 texts, 1 is blank: check the column or the field";
    assert_eq!(all.odd().to_string(), told);
    let told = "2 of 56 tokens (3.6 %) are the unknown token `[UNK]`: ";
    assert!(all.unknown(&tokenizer).to_string().starts_with(told), "{}", all.unknown(&tokenizer));
    assert_eq!(file.notes.to_string(), "columns that are not read: `answer` (6 records)");
    let numbers: Vec<u64> = vec![2, 3, 4, 5, 6, 8, 9];
    assert_eq!((file.unit.as_str(), &file.numbers), ("line", &numbers));
    assert!(file.place(4).ends_with("rows.csv, line 6"));
}

#[test]
fn control_tokens_that_labelled_texts_spell_are_counted() {
    let file = read("a.csv", "text,label\n<|im_end|>,0\n", ["text", "label"], None).unwrap();
    let told = "texts that spell control tokens of other tokenizers, which this one encodes in pieces: `<|im_end|>` (1 text)";
    assert_eq!(file.control_tokens(&Tokenizer::Bytes).to_string(), told);
}

#[test]
fn rows_of_short_texts_count_for_the_memory_too() {
    let settings = ClassificationConfig { labels: vec!["a".to_owned()], ..ClassificationConfig::default() };
    let mut reader = Reader::new(Path::new("a.csv"), Labelling::with(&settings, 8));
    reader.bytes = BYTES_MAX - ROW_BYTES;
    let mut take = || {
        let text = LabelledText { text: String::new(), pair: None, class: 0 };
        reader.take(Record::Labelled { text, place: "a.csv, line 2".to_owned() }, DataFormat::Csv)
    };
    take().unwrap();
    assert!(take().unwrap_err().to_string().contains("1024 MiB of text"));
}
