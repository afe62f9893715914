//! Columns of questions that no prompt has.

use longhaul_common::config::TaskKind;
use serde_json::Value;

use crate::json::is_filled;
use crate::notes::{Note, Notes};
use crate::records::whole_rows::{Row, UnreadColumn};

/// Columns of other data sets without which a question asks something else.
const NEEDED: [&str; 19] = [
    "context",
    "contexts",
    "passage",
    "paragraph",
    "article",
    "story",
    "document",
    "support",
    "hint",
    "system",
    "system_prompt",
    "image",
    "images",
    "background",
    "premise",
    "evidence",
    "table",
    "options",
    "choices",
];
/// Those that list answers.
const CHOICES: [&str; 2] = ["choices", "options"];
/// A column of the files of any kind, which tells a question from others.
const ID: &str = "id";

/// Adds the filled columns of a row that its question is made without to the notes.
///
/// # Errors
/// The question needs one of them: it has a text, or an image.
pub(super) fn note(
    kind: TaskKind,
    row: &Row,
    unread: &[UnreadColumn],
    notes: &mut Notes,
) -> Result<(), String> {
    let own = own(kind, row);
    let is_unread =
        |(name, value): &(&String, &Value)| **name != ID && !own.contains(&name.as_str()) && is_filled(value);
    let found: Vec<(&String, &Value)> = row.iter().filter(is_unread).collect();
    // What the question has already is in the prompt.
    let asks = row.get(asked(kind, row)).and_then(Value::as_str).unwrap_or_default();
    let is_missing = |(name, value): &&(&String, &Value)| {
        let texts = if CHOICES.contains(&name.to_ascii_lowercase().as_str()) {
            choices_of(value)
        } else {
            Vec::new()
        };
        [texts, texts_of(value)].concat().iter().any(|text| !asks.contains(text))
    };
    let missing = found.iter().filter(is_missing).map(|(name, _)| *name);
    let needed = missing.chain(unread.iter().map(|column| &column.name));
    if let Some(name) = needed.into_iter().find(|name| NEEDED.contains(&name.to_ascii_lowercase().as_str())) {
        let asked = asked(kind, row);
        return Err(format!(
            "its `{name}` is in no prompt: write it into `{asked}`, or leave the column out if the question stands without it"
        ));
    }
    found.iter().for_each(|(name, _)| notes.name(Note::UnreadColumns, name));
    unread.iter().for_each(|column| notes.name(Note::UnreadColumns, &column.to_string()));
    Ok(())
}

/// Returns the texts in a value, as that of an image's file; tables without types write numbers and booleans as texts.
fn texts_of(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            let text = text.trim();
            let is_word = text.parse::<f64>().is_err() && text.to_ascii_lowercase().parse::<bool>().is_err();
            Some(text.to_owned()).filter(|text| !text.is_empty() && is_word).into_iter().collect()
        }
        Value::Array(values) => values.iter().flat_map(texts_of).collect(),
        Value::Object(values) => values.values().flat_map(texts_of).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

/// Returns a list of choices as texts, also if they are numbers.
fn choices_of(value: &Value) -> Vec<String> {
    let text =
        |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned());
    value.as_array().map(|values| values.iter().map(text).collect()).unwrap_or_default()
}

/// Returns the columns of a kind in its published files, but for [`ID`].
fn own(kind: TaskKind, row: &Row) -> &'static [&'static str] {
    match kind {
        TaskKind::Arc => &["question", "choices", "answerKey"],
        TaskKind::HellaSwag => &[
            "activity_label",
            "ctx",
            "ctx_a",
            "ctx_b",
            "endings",
            "label",
            "ind",
            "source_id",
            "split",
            "split_type",
        ],
        TaskKind::Mmlu => &["question", "choices", "A", "B", "C", "D", "answer", "subject"],
        TaskKind::Piqa => &["goal", "sol1", "sol2", "label"],
        TaskKind::WinoGrande => &["sentence", "option1", "option2", "answer", "qID"],
        TaskKind::ExactMatch if row.contains_key("prompt") => &["prompt", "completion"],
        TaskKind::Gsm8k | TaskKind::ExactMatch => &["question", "answer"],
    }
}

/// Returns the column of a question's own text.
fn asked(kind: TaskKind, row: &Row) -> &'static str {
    match kind {
        TaskKind::HellaSwag if row.contains_key("ctx_a") => "ctx_a",
        TaskKind::HellaSwag => "ctx",
        TaskKind::Piqa => "goal",
        TaskKind::WinoGrande => "sentence",
        TaskKind::ExactMatch if row.contains_key("prompt") => "prompt",
        TaskKind::Arc | TaskKind::Mmlu | TaskKind::Gsm8k | TaskKind::ExactMatch => "question",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::tasks::TaskFile;

    #[test]
    fn columns_in_no_prompt_are_counted_and_those_that_a_question_needs_are_refused() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tasks");
        for name in
            ["arc.jsonl", "gsm8k.jsonl", "hellaswag.jsonl", "us_foreign_policy_test.csv", "valid.jsonl"]
        {
            let notes = TaskFile::read(&fixtures.join(name), None, None).unwrap().notes;
            assert!(notes.are_none(), "{name}: {notes}");
        }
        let folder = tempfile::tempdir().unwrap();
        let read = |row: &str, beside: &str| {
            let path = folder.path().join("a.jsonl");
            std::fs::write(&path, format!("{{{row}, {beside}}}\n").repeat(2)).unwrap();
            TaskFile::read(&path, None, None).map(|file| file.notes.to_string()).map_err(|it| it.to_string())
        };
        let arc =
            r#""question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A""#;
        let (asked, prompted) = (r#""question": "q", "answer": "a""#, r#""prompt": "p", "completion": "c""#);
        for (row, beside, told) in [
            (arc, r#""id": 1, "fact": "f", "context": """#, "columns that are not read: `fact` (2 records)"),
            (asked, r#""level": 0, "tags": [], "id": "x""#, "columns that are not read: `level` (2 records)"),
            (
                prompted,
                r#""answer": "a", "question": "q""#,
                "columns that are not read: `answer` (2 records), `question` (2 records)",
            ),
            (
                asked,
                r#""support": 3, "image": false, "hint": "2.5", "context": [7], "instruction": "x""#,
                "columns that are not read: `context` (2 records), `hint` (2 records), `image` (2 records), `instruction` (2 records), `support` (2 records)",
            ),
            // They are in the prompt.
            (
                r#""prompt": "2+2?\nA. three\nB. four", "completion": " B""#,
                r#""choices": ["three", "four"]"#,
                "columns that are not read: `choices` (2 records)",
            ),
        ] {
            assert_eq!(read(row, beside).as_deref(), Ok(told));
        }
        for (row, name, value, asked) in [
            (asked, "context", r#"{"titles": [], "texts": [["x"]]}"#, "question"),
            (asked, "Passage", r#""x""#, "question"),
            (prompted, "system", r#""x""#, "prompt"),
            (arc, "support", r#"["x"]"#, "question"),
            (r#""goal": "g", "sol1": "a", "sol2": "b", "label": 1"#, "hint", r#""x""#, "goal"),
            (prompted, "choices", r#"["x", "y"]"#, "prompt"),
            (prompted, "options", "[4, 7]", "prompt"),
            (asked, "evidence", r#""x""#, "question"),
            (arc, "background", r#""x""#, "question"),
        ] {
            let told = read(row, &format!(r#""{name}": {value}"#)).unwrap_err();
            let words =
                format!("line 2: its `{name}` is in no prompt: write it into `{asked}`, or leave the column");
            assert!(told.contains(&words), "{told}");
        }
    }

    /// `datasets` writes images so.
    #[cfg(feature = "parquet")]
    #[test]
    fn questions_with_images_in_tables_are_refused() {
        use std::sync::Arc;

        use arrow_array::{ArrayRef, BinaryArray, RecordBatch, StringArray, StructArray};
        use arrow_schema::{DataType, Field};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let texts = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
        let bytes = Arc::new(BinaryArray::from(vec![&b"x"[..]])) as ArrayRef;
        let field = |name: &str, kind| Arc::new(Field::new(name, kind, true));
        for (name, is_refused) in [("image", true), ("audio", false)] {
            let image = StructArray::from(vec![
                (field("bytes", DataType::Binary), Arc::clone(&bytes)),
                (field("path", DataType::Utf8), texts("a.png")),
            ]);
            let columns =
                [("question", texts("q")), ("answer", texts("a")), (name, Arc::new(image) as ArrayRef)];
            let batch = RecordBatch::try_from_iter(columns).unwrap();
            let file = std::fs::File::create(&path).unwrap();
            let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            match TaskFile::read(&path, None, None) {
                Ok(file) => {
                    let told = file.notes.to_string();
                    assert!(
                        !is_refused && told.starts_with("columns that are not read: `audio (Struct"),
                        "{told}"
                    );
                }
                Err(error) => {
                    let told = error.to_string();
                    assert!(is_refused && told.contains("row 1: its `image` is in no prompt"), "{told}");
                }
            }
        }
    }
}
