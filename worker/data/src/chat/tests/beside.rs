//! Columns beside the messages.

use super::*;

fn read(chat: &Chat, row: &str) -> Result<Conversation, String> {
    RowReader::new(chat, Path::new("a")).read(&value(row)).unwrap()
}

fn rendered(chat: &Chat, row: &str) -> Result<String, String> {
    let encoded = chat.encode(&read(chat, row)?, &Tokenizer::Bytes)?;
    Ok(Tokenizer::Bytes.decode(&encoded.tokens).unwrap())
}

const TURNS: &str = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;

#[test]
fn a_system_column_is_a_turn_in_front_unless_the_first_is_one() {
    let named =
        Chat { column: Some("dialog".to_owned()), kind: Some(ConversationKind::Messages), ..with(CHATML) };
    let own = r#"[{"from":"system","value":"S1"},{"from":"human","value":"a"},{"from":"gpt","value":"b"}]"#;
    let all = "<system>S0</><user>a</><assistant>b</>";
    for (chat, row, expected) in [
        (&with(CHATML), format!(r#"{{"messages":{TURNS},"system":"S0"}}"#), all),
        (&named, format!(r#"{{"dialog":{TURNS},"system":"S0"}}"#), all),
        (&with(CHATML), r#"{"instruction":"a","output":"b","system":"S0"}"#.to_owned(), all),
        (&with(CHATML), r#"{"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"b"}],"system":"S0"}"#.to_owned(), all),
        (&with(CHATML), format!(r#"{{"messages":{TURNS},"system":""}}"#), "<user>a</><assistant>b</>"),
        (&with(CHATML), format!(r#"{{"messages":{TURNS},"system":null}}"#), "<user>a</><assistant>b</>"),
        (&with(CHATML), format!(r#"{{"conversations":{own},"system":"S0"}}"#), "<system>S1</><user>a</><assistant>b</>"),
        (&named, format!(r#"{{"dialog":{own},"system":"S0"}}"#), "<system>S1</><user>a</><assistant>b</>"),
    ] {
        assert_eq!(rendered(chat, &row).unwrap(), expected, "{row}");
    }
    for system in [r#"["S0"]"#, r#"{"text":"S0"}"#, "7", "false"] {
        for row in [
            format!(r#"{{"messages":{TURNS},"system":{system}}}"#),
            format!(r#"{{"conversations":{own},"system":{system}}}"#),
            format!(r#"{{"instruction":"a","output":"b","system":{system}}}"#),
        ] {
            let reason = read(&with(CHATML), &row).unwrap_err();
            assert!(reason.starts_with("its `system` is ") && reason.ends_with(", and no text"), "{reason}");
        }
    }
    let pair = r#"{"prompt":"a","completion":"b","system":"S0"}"#;
    assert!(
        read(&with(CHATML), pair)
            .unwrap_err()
            .starts_with("it has system, and a prompt and completion of texts")
    );
}

#[test]
fn media_and_other_columns_that_are_not_read_are_bad_records() {
    for name in ["image", "images", "video", "videos", "audio", "audios", "documents", "functions", "history"]
    {
        for filled in [r#""x.png""#, r#"["x.png"]"#, r#"{"path":"x.png"}"#] {
            let row = format!(r#"{{"messages":{TURNS},"{name}":{filled}}}"#);
            let reason = read(&with(CHATML), &row).unwrap_err();
            assert!(
                reason.starts_with(&format!("it has {name}, and conversations of texts alone")),
                "{reason}"
            );
        }
        for empty in ["null", "[]", "{}", r#""""#] {
            read(&with(CHATML), &format!(r#"{{"messages":{TURNS},"{name}":{empty}}}"#)).unwrap();
        }
    }
}

#[test]
fn tools_and_variables_that_cannot_be_passed_are_bad_records() {
    let reads = with(&format!("{{{{ tools|length if tools }}}}{CHATML}"));
    for (row, words) in [
        (r#""tools":{"name":"f"}"#, "its tools are an object, and no list of objects"),
        (r#""tools":"find""#, "its tools are a text that is no JSON: "),
        (r#""tools":"{}1""#, "its tools are a text that is no JSON: "),
        (r#""tools":[{},"f"]"#, "tool 2 of its tools is a text, and no object"),
        (r#""tools":"[[]]""#, "tool 1 of its tools is a list, and no object"),
        (r#""tools":[{"a":"\ufdd0"}]"#, "its `tools` has U+FDD0"),
        (r#""chat_template_kwargs":"{}""#, "its chat_template_kwargs are a text, and no object"),
        (
            r#""chat_template_kwargs":{"add_generation_prompt":true}"#,
            "have add_generation_prompt, which is no variable",
        ),
        (r#""chat_template_kwargs":{"tools":[]}"#, "have tools, which is no variable"),
        (r#""chat_template_kwargs":{"a":["\ufdd1"]}"#, "its `a` has U+FDD0"),
    ] {
        let reason = read(&reads, &format!(r#"{{"messages":{TURNS},{row}}}"#)).unwrap_err();
        assert!(reason.contains(words), "{row}: {reason}");
        let pair = format!(r#"{{"prompt":"a","completion":"b",{row}}}"#);
        assert!(read(&reads, &pair).is_err(), "{row}");
    }
    let row = format!(r#"{{"messages":{TURNS},"tools":[{{"name":"f"}}]}}"#);
    assert_eq!(rendered(&reads, &row).unwrap(), "1<user>a</><assistant>b</>");
    let reason = rendered(&with(CHATML), &row).unwrap_err();
    assert!(
        reason.starts_with("it has tools, and the chat template does not read `tools`: name one"),
        "{reason}"
    );
    for pair in [r#""tools":[{}]"#, r#""chat_template_kwargs":{"a":1}"#] {
        let reason = read(&reads, &format!(r#"{{"prompt":"a","completion":"b",{pair}}}"#)).unwrap_err();
        assert!(reason.contains("have no chat template: leave the column out"), "{reason}");
    }
    // What makes other tokens is told apart.
    let hash = |row: &str| {
        let mut hasher = blake3::Hasher::new();
        read(&reads, row).unwrap().hash_into(&mut hasher);
        hasher.finalize()
    };
    let plain = format!(r#"{{"messages":{TURNS}}}"#);
    let variable = |value: &str| format!(r#"{{"messages":{TURNS},"chat_template_kwargs":{{"a":{value}}}}}"#);
    let hashes = [&plain, &row, &variable("1"), &variable("\"1\"")].map(|row| hash(row));
    assert!((0..hashes.len()).all(|at| !hashes[..at].contains(&hashes[at])));
}

#[test]
fn a_tokenizer_with_a_template_for_tools_has_two() {
    let chat = chat(ChatTemplate::new(CHATML, Vec::new(), None).unwrap().with_tools(
        ChatTemplate::new(&format!("{{{{ tools|length }}}}{CHATML}"), Vec::new(), None).unwrap(),
    ));
    assert_eq!(rendered(&chat, &format!(r#"{{"messages":{TURNS}}}"#)).unwrap(), "<user>a</><assistant>b</>");
    let row = format!(r#"{{"messages":{TURNS},"tools":[{{}},{{}}]}}"#);
    assert_eq!(rendered(&chat, &row).unwrap(), "2<user>a</><assistant>b</>");
}

#[test]
fn a_text_that_ends_as_pairs_do_is_ended_once() {
    let chat = Chat { end: Some("</s>".to_owned()), ..with(CHATML) };
    for (completion, expected) in
        [("b", "b</s>"), ("b</s>", "b</s>"), ("b</s> ", "b</s> </s>"), ("b</s></s>", "b</s></s>")]
    {
        let pair = read(&chat, &format!(r#"{{"prompt":"Q","completion":"{completion}"}}"#)).unwrap();
        assert_eq!(trained(&chat, &pair).unwrap(), [expected]);
    }
}

/// A template may mark several texts of a message, or none.
#[test]
fn blocks_belong_to_the_message_that_they_come_with() {
    let last = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}{% generation %}{{ m.thinking }}{% endgeneration %}{% generation %}{{ m.content }}</>{% endgeneration %}{% else %}{{ m.content }}</>{% endif %}{% endfor %}";
    let each = last.replace(" and loop.last", "");
    let list = |of_first: &str| {
        let list = format!(
            r#"[{{"role":"user","content":"a"}},{{"role":"assistant","content":"b","thinking":"T"{of_first}}},{{"role":"user","content":"c"}},{{"role":"assistant","content":"d","thinking":"U"}}]"#
        );
        messages(value(&list)).unwrap()
    };
    assert_eq!(trained(&with(last), &list("")).unwrap(), ["Ud</>"]);
    let reason = trained(&with(last), &list(r#","weight":0"#)).unwrap_err();
    assert!(
        reason.contains("marks 2 texts for 2 messages, so that it is unknown whose they are"),
        "{reason}"
    );
    assert_eq!(trained(&with(&each), &list("")).unwrap(), ["Tb</>", "Ud</>"]);
    assert_eq!(trained(&with(&each), &list(r#","weight":0"#)).unwrap(), ["Ud</>"]);
    // A block whose text changes later, one a message.
    let changes = each
        .replace("{% generation %}{{ m.thinking }}{% endgeneration %}", "")
        .replace("{{ m.content }}</>{% endg", "{{ m.content if loop.last else '-' }}</>{% endg");
    assert_eq!(trained(&with(&changes), &list(r#","train":false"#)).unwrap(), ["d</>"]);
}

#[test]
fn filters_that_python_computes_otherwise_are_refused_with_the_template() {
    for source in
        ["{{ m|attr('a') }}", "{% if a | pprint %}{% endif %}", "x{# |a #}{%- set b = c|trim|attr('d') %}"]
    {
        assert!(
            ChatTemplate::new(source, Vec::new(), None).unwrap_err().contains("is not honoured: it "),
            "{source}"
        );
    }
    for source in
        ["{# {{ a|attr('b') }} #}", "|pprint {{ 1 }} |attr", "{{ attr|trim }}", "{{ a|attributes }}"]
    {
        assert!(ChatTemplate::new(source, Vec::new(), None).is_ok(), "{source}");
    }
}

#[test]
fn a_file_of_messages_is_told_with_what_makes_records_of_them() {
    for row in [r#"{"role":"user","content":"a"}"#, r#"{"from":"human","value":"a","weight":1}"#] {
        let told =
            RowReader::new(&with(CHATML), Path::new("a.jsonl")).read(&value(row)).unwrap_err().to_string();
        assert!(told.contains("each list of them is a conversation: `jq -c '{messages: .}' IN"), "{told}");
        let named = Chat { kind: Some(ConversationKind::Messages), ..with(CHATML) };
        assert!(read(&named, row).unwrap_err().contains("each list of them is a conversation"));
    }
}
