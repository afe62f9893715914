//! Columns of questions that no prompt has.

use longhaul_common::config::TaskKind;
use serde_json::Value;

use crate::json::is_filled;
use crate::notes::{Note, Notes};
use crate::records::whole_rows::Row;

/// Columns of other data sets without which a question asks something else.
const NEEDED: [&str; 20] = [
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
    "instruction",
    "image",
    "images",
    "background",
    "premise",
    "evidence",
    "table",
    "options",
    "choices",
];
/// A column of the files of any kind, which tells a question from others.
const ID: &str = "id";

/// Adds the filled columns of a row that its question is made without to the notes.
///
/// # Errors
/// The question needs one of them.
pub(super) fn note(kind: TaskKind, row: &Row, unread: &[String], notes: &mut Notes) -> Result<(), String> {
    let own = own(kind, row);
    let is_unread =
        |(name, value): &(&String, &Value)| **name != ID && !own.contains(&name.as_str()) && is_filled(value);
    let found: Vec<&String> = row.iter().filter(is_unread).map(|(name, _)| name).collect();
    if let Some(name) = found.iter().find(|name| NEEDED.contains(&name.as_str())) {
        let asked = asked(kind, row);
        return Err(format!(
            "its `{name}` is in no prompt: write it into `{asked}`, or leave the column out if the question stands without it"
        ));
    }
    found.into_iter().chain(unread).for_each(|name| notes.name(Note::UnreadColumns, name));
    Ok(())
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
        ] {
            assert_eq!(read(row, beside).as_deref(), Ok(told));
        }
        for (row, name, asked) in [
            (asked, "context", "question"),
            (asked, "passage", "question"),
            (prompted, "choices", "prompt"),
            (asked, "evidence", "question"),
            (arc, "background", "question"),
            (prompted, "system", "prompt"),
            (arc, "support", "question"),
            (r#""goal": "g", "sol1": "a", "sol2": "b", "label": 1"#, "hint", "goal"),
        ] {
            let told = read(row, &format!(r#""{name}": "x""#)).unwrap_err();
            let words =
                format!("line 2: its `{name}` is in no prompt: write it into `{asked}`, or leave the column");
            assert!(told.contains(&words), "{told}");
        }
    }
}
