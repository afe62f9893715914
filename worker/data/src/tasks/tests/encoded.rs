//! Texts and questions as scored tokens.

use super::*;
use crate::{HeldOutChat, Tokenizer};

fn pair(context: &str, continuation: &str) -> Pair {
    Pair { context: context.to_owned(), continuation: continuation.to_owned() }
}

#[test]
fn blanks_before_the_answer_belong_to_it_and_long_contexts_are_cut_on_the_left() {
    let encoder = |context| Encoder::new(Tokenizer::Bytes, Some(3), context);
    let whole = encoder(20).pair("b", &pair("ab \n", "cd")).unwrap();
    assert_eq!(whole, ScoredTokens { tokens: b"bab \ncd".map(u32::from).into(), from: 3, is_cut: false });
    let cut = encoder(4).pair("", &pair("abc", "de")).unwrap();
    assert_eq!((cut.tokens.len(), cut.from, cut.is_cut), (5, 3, false));
    let cut = encoder(3).pair("", &pair("abc", "de")).unwrap();
    assert_eq!(cut, ScoredTokens { tokens: b"bcde".map(u32::from).into(), from: 2, is_cut: true });
    assert!(
        encoder(1)
            .pair("", &pair("abc", "de"))
            .unwrap_err()
            .contains("its answer has 2 tokens, and the model sees 1")
    );
    assert!(encoder(9).pair("", &pair("abc", "")).unwrap_err().contains("no token of its own"));
    // Nothing before it but the token of a beginning.
    assert_eq!(encoder(9).pair("", &pair("", "a")).unwrap().tokens, [3, 97]);
    let bare = Encoder::new(Tokenizer::Bytes, None, 9).pair("", &pair("", "a"));
    assert!(bare.unwrap_err().contains("no token for its beginning"));
    let file = |context: &str, answer: &str| {
        let choice =
            Choice { pairs: vec![pair("abc", "d"), pair(context, answer)], characters: vec![1, 1], right: 0 };
        let question = Question { at: ("line", 7), description: String::new(), item: Item::Choice(choice) };
        TaskFile {
            path: "a.jsonl".into(),
            kind: TaskKind::Arc,
            questions: vec![question],
            notes: Default::default(),
            examples: Default::default(),
        }
    };
    assert!(encoder(4).check(&file("abc  ", "de")).is_ok());
    let message = encoder(4).check(&file("abc  ", "def")).unwrap_err().to_string();
    assert!(
        message.contains("a.jsonl, line 7: its answer has 5 tokens, and the model sees 4: leave"),
        "{message}"
    );
    let message = Encoder::new(Tokenizer::Bytes, None, 9).check(&file(" ", "de")).unwrap_err().to_string();
    assert!(message.contains("no token for its beginning"), "{message}");
    assert_eq!(encoder(4).prompt("abcdef", 2).unwrap(), (vec![101, 102], true));
    assert_eq!(encoder(9).prompt("abc", 2).unwrap(), (vec![97, 98, 99], false));
}

#[test]
fn each_byte_of_a_text_is_scored_but_the_first_token_that_nothing_predicts() {
    let scored = |first, text: &str| {
        let text = Content::Text(text.to_owned());
        let found = Encoder::new(Tokenizer::Bytes, first, 4).whole(&text, None).unwrap();
        let tokens: usize = found.windows.iter().map(|window| window.tokens.len() - window.from).sum();
        assert_eq!(found.counted, vec![true; tokens]);
        (found.windows.len(), tokens, found.bytes.unwrap())
    };
    assert_eq!(scored(Some(3), "abcdefghi"), (3, 9, 9));
    assert_eq!(scored(None, "abcdefghi"), (2, 8, 8));
    assert_eq!(scored(Some(3), ""), (0, 0, 0));
    assert_eq!(scored(None, "a"), (0, 0, 0));
}

/// A token that the tokenizer's file puts before each text is context, and is not scored.
#[cfg(feature = "tokenizers")]
#[test]
fn a_beginning_of_the_tokenizer_s_file_stands_before_each_text() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/evaluation/tokenizer.json");
    let tokenizer = Tokenizer::load(file.to_str().unwrap()).unwrap();
    assert_eq!(tokenizer.beginning(), [0]);
    let encoder = Encoder::new(tokenizer.clone(), Some(0), 50);
    let found = encoder.pair("", &pair("the river", " wind")).unwrap();
    let plain = tokenizer.encode("the river wind").unwrap();
    assert_eq!(found.tokens, [&[0], &plain[..]].concat());
    assert_eq!(found.from, 1 + tokenizer.encode("the river").unwrap().len());
    let found = encoder.whole(&Content::Text("the river".to_owned()), None).unwrap();
    assert_eq!((found.windows[0].tokens[0], found.windows[0].from, found.bytes), (0, 1, Some(9)));
}

/// With the template beside the tokenizer; windows divide long conversations.
#[test]
fn of_a_conversation_the_assistant_s_tokens_count() {
    let folder = tempfile::tempdir().unwrap();
    let row = r#"{"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}]}"#;
    std::fs::write(folder.path().join("a.jsonl"), row).unwrap();
    let file = HeldOutFile::read(&folder.path().join("a.jsonl"), "text", None).unwrap();
    let encoder = Encoder::new(Tokenizer::Bytes, None, 3);
    let whole = |chat: HeldOutChat| encoder.whole(&file.documents[0].content, Some(&chat));
    let open = || HeldOutChat::open(None, Some(folder.path()), None, &Tokenizer::Bytes).unwrap();
    let message = whole(open()).unwrap_err();
    assert!(message.contains("the model has no chat template: name one with --chat-template"), "{message}");
    let template = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let found = whole(open()).unwrap();
    // <abc><de>, of which the last message counts from where another answer would differ.
    let shown: Vec<(Vec<u32>, usize)> =
        found.windows.into_iter().map(|window| (window.tokens, window.from)).collect();
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert_eq!(shown, [(bytes("<abc"), 1), (bytes("c><d"), 1), (bytes("<de>"), 2)]);
    assert_eq!(found.counted, [false, false, false, false, false, true, true, true]);
}

#[test]
fn texts_and_conversations_have_the_notes_of_a_preparation() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("a.jinja");
    let source = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}";
    std::fs::write(&template, source).unwrap();
    let lacking = "control tokens of the chat template that the tokenizer does not have, and encodes in pieces: `<|im_start|>` (1 conversation); 1 conversation ends with the answer, and no end token";
    let columns = "columns that are not read: `id` (1 record)";
    for (row, told) in [
        (
            r#""text": "a<|im_end|>", "id": 7, "url": null"#,
            vec![columns, "other tokenizers, which this one encodes in pieces: `<|im_end|>` (1 text)"],
        ),
        (r#""text": "a", "url": """#, vec![]),
        (
            r#""id": 7, "system": "be brief", "messages": [{"role": "user", "content": "q", "name": "n"}, {"role": "assistant", "content": "</s> a"}]"#,
            vec![
                columns,
                "message keys that the chat template does not read: `name` (1 message)",
                "leaves out or changes, by role: `system` (1 message)",
                lacking,
                "`</s>` (1 text)",
            ],
        ),
        (
            r#""messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]}]"#,
            vec!["arguments of 1 tool call are JSON in a text, and taken as objects"],
        ),
    ] {
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, format!("{{{row}}}\n")).unwrap();
        let file = HeldOutFile::read(&path, "text", None).unwrap();
        let chat = HeldOutChat::open(Some(&template), None, None, &Tokenizer::Bytes).unwrap();
        let encoder = Encoder::new(Tokenizer::Bytes, None, 3);
        let mut notes = file.notes;
        notes.add(&encoder.whole(&file.documents[0].content, Some(&chat)).unwrap().notes);
        let notes = notes.to_string();
        assert!(told.iter().all(|words| notes.contains(words)), "{notes}");
        assert_eq!(notes.is_empty(), told.is_empty(), "{notes}");
    }
    let table = folder.path().join("a.csv");
    std::fs::write(&table, "text,n,n,id\na,1,2,\nb,3,4,5\n").unwrap();
    let notes = HeldOutFile::read(&table, "text", None).unwrap().notes.to_string();
    assert_eq!(notes, "columns that are not read: `n (two columns)` (2 records), `id` (1 record)");
}
