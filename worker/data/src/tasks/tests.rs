//! Against lm-evaluation-harness: see `worker/tests/fixtures/make_evaluation.py`.

mod encoded;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Expected {
    /// Contexts and continuations.
    pairs: Option<Vec<[String; 2]>>,
    right: Option<usize>,
    prompt: Option<String>,
    expected: Option<String>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tasks").join(name)
}

fn read(name: &str) -> TaskFile {
    TaskFile::read(&fixture(name), None, None).unwrap()
}

fn with_examples(name: &str, of: &str, count: usize) -> TaskFile {
    read(name).with_examples(&[read(of)], count).unwrap()
}

#[test]
fn prompts_and_answers_are_those_of_the_harness() {
    let expected: BTreeMap<String, Vec<Expected>> =
        serde_json::from_slice(&std::fs::read(fixture("expected.json")).unwrap()).unwrap();
    let cases = [
        ("hellaswag", TaskKind::HellaSwag, read("hellaswag.jsonl")),
        ("winogrande", TaskKind::WinoGrande, read("winogrande.jsonl")),
        ("winogrande-2", TaskKind::WinoGrande, with_examples("winogrande.jsonl", "winogrande_dev.jsonl", 2)),
        ("gsm8k", TaskKind::Gsm8k, read("gsm8k.jsonl")),
        ("gsm8k-1", TaskKind::Gsm8k, with_examples("gsm8k.jsonl", "gsm8k_dev.jsonl", 1)),
        // The original forms.
        ("arc", TaskKind::Arc, read("arc.jsonl")),
        ("mmlu", TaskKind::Mmlu, read("us_foreign_policy_test.csv")),
        ("piqa", TaskKind::Piqa, read("valid.jsonl")),
    ];
    #[cfg(feature = "parquet")]
    let cases = cases.into_iter().chain([
        ("arc", TaskKind::Arc, read("arc.parquet")),
        ("mmlu", TaskKind::Mmlu, read("mmlu.parquet")),
        ("mmlu-2", TaskKind::Mmlu, with_examples("us_foreign_policy_test.csv", "mmlu_dev.parquet", 2)),
        ("piqa", TaskKind::Piqa, read("piqa.parquet")),
    ]);
    for (name, kind, file) in cases {
        assert_eq!((file.kind, file.questions.len()), (kind, expected[name].len()), "{name}");
        for (question, expected) in file.questions.iter().zip(&expected[name]) {
            let before = file.before(question);
            match &question.item {
                Item::Choice(choice) => {
                    let pairs = choice.pairs.iter();
                    let pairs: Vec<[String; 2]> = pairs
                        .map(|pair| [before.clone() + &pair.context, pair.continuation.clone()])
                        .collect();
                    assert_eq!(Some(pairs), expected.pairs, "{name}");
                    assert_eq!(Some(choice.right), expected.right, "{name}");
                }
                Item::Answer(answer) => {
                    assert_eq!(Some(before + &answer.prompt), expected.prompt, "{name}");
                    assert_eq!(Some(&answer.expected), expected.expected.as_ref(), "{name}");
                }
            }
        }
    }
}

/// Writes a file, and returns the error of reading it.
fn refused(name: &str, content: &str, kind: Option<TaskKind>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    let error = TaskFile::read(&path, kind, None).unwrap_err().to_string();
    error.replace(folder.path().to_str().unwrap(), "")
}

#[test]
fn wrong_rows_are_counted_and_named_with_the_cause() {
    let piqa = r#"{"goal": "g", "sol1": "a", "sol2": "b", "label": "#;
    for (name, content, kind, causes) in [
        (
            "a.jsonl",
            format!("{piqa}1}}\n\n{piqa}2}}\n{piqa}0}}\n{piqa}\"\"}}\nx\n"),
            None,
            &[
                "/a.jsonl: 3 rows of 5 are not of the form of piqa (goal, sol1, sol2, label)",
                "line 3: its `label` is 2, and must be 0 to 1; line 5: its `label` is \"\", and must be 0 to 1: the answers of some test splits are not published",
                "line 6: it is no JSON",
            ][..],
        ),
        (
            "a.json",
            format!("[{piqa}1}}, 3]"),
            None,
            &["1 row of 2 is not", "element 2: it is no JSON object"],
        ),
        (
            "a.json",
            format!("[{piqa}1}}, {piqa}0,\"label\":1}}]"),
            None,
            &["1 row of 2 is not", "element 2: it has `label` twice"],
        ),
        (
            "a.jsonl",
            r#"{"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"}"#
                .to_owned(),
            None,
            &["its `answerKey` is \"C\", and its labels are A, B"],
        ),
        (
            "a.jsonl",
            r#"{"question": "q", "choices": ["a", "b", "c"], "answer": 1}"#.to_owned(),
            None,
            &["mmlu", "it has 3 choices, and questions of this kind have 4"],
        ),
        (
            "a.jsonl",
            r#"{"question": "q", "choices": ["a", 2, "c", "d"], "answer": 1}"#.to_owned(),
            None,
            &["entry 2 of its `choices` is a number, and no text"],
        ),
        (
            "a.csv",
            "question,choices,answer\nq,\"['a', 'b']\",1\n".to_owned(),
            None,
            &["line 2: its `choices` is a text, and no list: write the file as JSON lines or Parquet"],
        ),
        (
            "a.csv",
            "sentence,option1,option2,answer\nx _ y,a,b,3\nx y,a,b,1\nx,a\n".to_owned(),
            None,
            &[
                "3 rows of 3",
                "line 2: its `answer` is \"3\", and must be 1 to 2",
                "line 3: its `sentence` has no blank `_`",
                "line 4: it has 2 values, and the first row has 4",
            ],
        ),
        (
            "a.jsonl",
            r#"{"prompt": "p", "completion": " "}"#.to_owned(),
            None,
            &["its prompt or its answer is empty"],
        ),
        (
            "a.jsonl",
            r#"{"question": "q", "answer": "5"}"#.to_owned(),
            Some(TaskKind::Gsm8k),
            &["its `answer` has no `#### ` before a result"],
        ),
        (
            "a.jsonl",
            r#"{"text": "t"}"#.to_owned(),
            None,
            &[
                "its columns are text: for the perplexity of its texts say --text; those of tasks are arc (question",
            ],
        ),
        (
            "a.jsonl",
            r#"{"text": "t"}"#.to_owned(),
            Some(TaskKind::HellaSwag),
            &["its `ctx` is missing, and no text"],
        ),
        ("a.jsonl", "\n".to_owned(), None, &["/a.jsonl has no rows"]),
        ("a.txt", "x".to_owned(), None, &["has no known ending: rows are in JSON lines"]),
    ] {
        let found = refused(name, &content, kind);
        for cause in causes {
            assert!(found.contains(cause), "{found}\n{cause}");
        }
    }
    let message = TaskFile::read(Path::new("/none/a.jsonl"), None, None).unwrap_err().to_string();
    assert!(message.contains("/none/a.jsonl: there is no such file"), "{message}");
    assert!(
        TaskFile::read(&fixture(""), None, None)
            .unwrap_err()
            .to_string()
            .contains("is a folder: name its files")
    );
}

#[test]
fn labels_beside_the_questions_are_as_many_as_these() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("valid.jsonl");
    std::fs::copy(fixture("valid.jsonl"), &path).unwrap();
    let read = |limit| {
        TaskFile::read(&path, None, limit).map(|file| file.questions.len()).map_err(|error| error.to_string())
    };
    assert!(read(None).unwrap_err().contains("its `label` is missing"));
    let labels = std::fs::read_to_string(fixture("valid-labels.lst")).unwrap();
    std::fs::write(folder.path().join("valid-labels.lst"), &labels).unwrap();
    assert_eq!((read(None), read(Some(5))), (Ok(12), Ok(5)));
    std::fs::write(folder.path().join("valid-labels.lst"), labels.clone() + "\n \n").unwrap();
    assert_eq!(read(None), Ok(12));
    // Only the damaged row is told, also if it is the first.
    let questions = std::fs::read_to_string(&path).unwrap();
    let rest = questions.split_once('\n').unwrap().1;
    std::fs::write(&path, format!("{{\n{rest}")).unwrap();
    let message = read(None).unwrap_err();
    assert!(message.contains("1 row of 12 is not of the form of piqa"), "{message}");
    std::fs::write(&path, questions).unwrap();
    std::fs::write(folder.path().join("valid-labels.lst"), labels + "1\n").unwrap();
    let message = read(None).unwrap_err();
    assert!(message.contains("it has 13 labels, and the questions beside it are 12"), "{message}");
}

#[test]
fn texts_are_the_whole_file_or_one_a_row() {
    let read = |name: &str, content: &str, column| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        HeldOutFile::read(&path, column, None)
            .map(|file| {
                file.documents
                    .into_iter()
                    .map(|document| match document.content {
                        Content::Text(text) => text,
                        Content::Conversation(conversation) => {
                            format!("{} bytes of a conversation", conversation.bytes())
                        }
                    })
                    .collect::<Vec<_>>()
            })
            .map_err(|error| error.to_string())
    };
    assert_eq!(read("a.txt", "\u{feff}one\n\ntwo\n", "text"), Ok(vec!["one\n\ntwo\n".to_owned()]));
    assert_eq!(read("a.md", "x", "text"), Ok(vec!["x".to_owned()]));
    assert_eq!(
        read("a.csv", "body,n\n\"a, b\",1\nc,2\n", "body"),
        Ok(vec!["a, b".to_owned(), "c".to_owned()])
    );
    // Rows that a quote joins are not one text.
    let message = read("a.csv", "id,body\n1,\"a\n2,b\n3,c\n", "body").unwrap_err();
    assert!(message.contains("line 2: a quote is opened in it and never closed"), "{message}");
    assert!(!message.contains("say quote"), "{message}");
    let message = read("a.csv", "body,n,body\na,1,b\n", "body").unwrap_err();
    assert!(
        message.contains("its columns are n, and not read are body (two columns): there is no text `body`"),
        "{message}"
    );
    assert_eq!(read("a.csv", "n,body,n\n1,a,2\n", "body"), Ok(vec!["a".to_owned()]));
    let message = read("a.csv", "body\na\n\"b\nc\n", "body").unwrap_err();
    assert!(message.contains("line 3: a quote is opened"), "{message}");
    assert_eq!(read("a.json", "\u{feff}[\n{\"text\": \"a\"}]", "text"), Ok(vec!["a".to_owned()]));
    let chat =
        r#"{"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}]}"#;
    assert_eq!(read("a.jsonl", chat, "text"), Ok(vec!["5 bytes of a conversation".to_owned()]));
    let message =
        read("a.jsonl", r#"{"messages": [{"role": "nobody", "content": "abc"}]}"#, "text").unwrap_err();
    assert!(message.contains("line 1: message 1 of `messages`: its role is \"nobody\""), "{message}");
    let message = read("a.jsonl", "{\"text\": \"a\", \"text\": \"b\"}", "text").unwrap_err();
    assert!(message.contains("line 1: it has `text` twice: leave one of them out"), "{message}");
    let lines = "{\"text\": \"a\"}\n{\"text\": null}\n{\"body\": \"b\"}\n";
    let message = read("a.jsonl", lines, "text").unwrap_err();
    for cause in [
        "2 rows of 3 are not of the form of texts (column `text`)",
        "line 2: its `text` is null",
        "line 3: it has no `text`",
    ] {
        assert!(message.contains(cause), "{message}");
    }
    let message = read("a.jsonl", "{\"body\": \"b\"}", "text").unwrap_err();
    assert!(
        message.contains("its columns are body: there is no text `text` among them: name the one"),
        "{message}"
    );
    assert!(
        read("a.txt", "PAR1\u{0}\u{0}", "text")
            .unwrap_err()
            .contains("a Parquet file: its name must end as its format does")
    );
    assert!(read("a.txt", "", "text").unwrap_err().contains("has no rows"));
    let archive = read("a.wet", "WARC/1.0\r\nWARC-Type: conversion\r\n", "text").unwrap_err();
    assert!(archive.contains("an archive of the web (WARC): write its texts as JSON lines"), "{archive}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "n,text\n1,one\n2, \n3,[deleted]\n").unwrap();
    let odd = HeldOutFile::read(&folder.path().join("a.csv"), "text", None).unwrap().odd.to_string();
    assert!(odd.starts_with("of 3 texts, 1 is blank, 1 "), "{odd}");
    std::fs::write(folder.path().join("a.txt"), b"caf\xe9").unwrap();
    let message = HeldOutFile::read(&folder.path().join("a.txt"), "text", None).unwrap_err().to_string();
    assert!(message.contains("is not UTF-8 at byte 3"), "{message}");
    assert_eq!(HeldOutFile::read(&fixture("texts.jsonl"), "text", Some(2)).unwrap().documents.len(), 2);
}

#[test]
fn examples_are_of_the_question_s_kind_and_subject() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, rows: &[(&str, &str)]| {
        let rows = rows.iter().map(|(subject, question)| {
            format!(r#"{{"question": "{question}", "subject": "{subject}", "choices": ["1", "2", "3", "4"], "answer": 0}}"#)
        });
        let path = folder.path().join(name);
        std::fs::write(&path, rows.collect::<Vec<_>>().join("\n")).unwrap();
        TaskFile::read(&path, None, None).unwrap()
    };
    let asked = write("test.jsonl", &[("law", "L"), ("art", "A")]);
    let solved =
        write("dev.jsonl", &[("art", "a1"), ("law", "l1"), ("art", "a2"), ("law", "l2"), ("law", "l3")]);
    let solved_file = || solved.clone();
    let files = [read("gsm8k_dev.jsonl"), solved.clone()];
    let found = asked.clone().with_examples(&files, 2).unwrap();
    let shown = |of: &str| format!("{of}\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: A\n\n");
    let about = "The following are multiple choice questions (with answers) about art.\n\n";
    assert_eq!(found.before(&found.questions[1]), [about, &shown("a1"), &shown("a2")].concat());
    assert!(found.before(&found.questions[0]).ends_with(&[shown("l1"), shown("l2")].concat()));
    // No example stands there twice.
    let twice =
        write("twice.jsonl", &[("art", "A"), ("art", "A"), ("art", "a1"), ("law", "l1"), ("law", "l1")]);
    let found = asked.clone().with_examples(std::slice::from_ref(&twice), 1).unwrap();
    assert!(found.before(&found.questions[1]).ends_with(&[about, &shown("a1")].concat()));
    assert!(asked.clone().with_examples(&[twice], 2).is_err());
    // No question sees its own answer.
    let among = solved_file().with_examples(&files, 1).unwrap();
    let before: Vec<String> = among.questions.iter().map(|question| among.before(question)).collect();
    assert!(before[0].ends_with(&shown("a2")) && before[2].ends_with(&shown("a1")), "{before:?}");
    assert!(
        solved_file().with_examples(&files, 2).unwrap_err().to_string().contains("has 1 of the kind mmlu")
    );
    let message = asked.with_examples(&files, 3).unwrap_err().to_string();
    assert!(
        message.contains(
            "3 examples were asked for, and --few-shot-from has 2 of the kind mmlu with the subject in"
        ),
        "{message}"
    );
}

/// A file cut off, or with other bytes, is read or refused.
#[test]
fn damaged_files_end_in_questions_or_errors() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["arc.jsonl", "hellaswag.jsonl", "us_foreign_policy_test.csv"];
    #[cfg(feature = "parquet")]
    let names = names.into_iter().chain(["arc.parquet"]);
    for name in names {
        let whole = std::fs::read(fixture(name)).unwrap();
        let path = folder.path().join(name);
        let mut refused = 0;
        for damage in 0..24 {
            let at = damage * whole.len() / 24;
            let mut bytes = whole.clone();
            match damage % 3 {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 0x55,
                _ => bytes[at] = b'"',
            }
            std::fs::write(&path, bytes).unwrap();
            refused += usize::from(TaskFile::read(&path, None, None).is_err());
            let _ = HeldOutFile::read(&path, "question", None);
        }
        assert!(refused > 3, "{name}: {refused}");
    }
}
