use longhaul_common::config::Column;

use super::*;

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
