//! Columns beside the messages.

use super::*;

fn read(chat: &Chat, row: &str) -> Result<Conversation, String> {
    RowReader::new(chat, Path::new("a")).read(&value(row)).unwrap()
}

fn rendered(chat: &Chat, row: &str) -> Result<String, String> {
    let encoded = chat.encode(&read(chat, row)?, &Tokenizer::Bytes)?;
    Ok(Tokenizer::Bytes.decode(&encoded.tokens).unwrap())
}

fn notes(chat: &Chat, row: &str) -> String {
    chat.encode(&read(chat, row).unwrap(), &Tokenizer::Bytes).unwrap().notes.to_string()
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
fn preference_data_is_told_in_each_form() {
    let lists = format!(r#""prompt":{TURNS},"completion":{TURNS}"#);
    let (pair, messages) = (r#""prompt":"a","completion":"b""#, format!(r#""messages":{TURNS}"#));
    for (row, told) in [
        (format!(r#"{pair},"rejected":"c""#), "it has rejected, as preference data"),
        (format!(r#"{messages},"rejected":[{{"role":"assistant","content":"c"}}]"#), ""),
        (format!(r#"{pair},"label":false"#), "its label is a boolean, as in preference data (KTO)"),
        (format!(r#"{lists},"label":true"#), "its label is a boolean"),
        (format!(r#"{pair},"label":1,"rejected":null"#), ""),
        (format!(r#"{messages},"label":true,"rejected":[]"#), ""),
    ] {
        let reason = read(&with(CHATML), &format!("{{{row}}}")).err().unwrap_or_default();
        assert!(reason.starts_with(told) && reason.is_empty() == told.is_empty(), "{row}: {reason}");
    }
}

#[test]
fn columns_that_are_not_read_are_counted_by_name() {
    let mut reader = RowReader::new(&with(CHATML), Path::new("a"));
    for beside in [
        r#""id":1,"system":"s","tools":[],"label":true"#,
        r#""id":"","weight":0.0,"instruction":"i","input":"j""#,
        r#""id":[2],"history":["h"]"#,
        r#""id":0,"chat_template_kwargs":{"a":1},"images":[],"rejected":["r"]"#,
    ] {
        _ = reader.read(&value(&format!(r#"{{"messages":{TURNS},{beside}}}"#))).unwrap();
    }
    let told = "columns that are not read: `id` (2 records), `input` (1 record), `instruction` (1 record), `label` (1 record), `rejected` (1 record), `weight` (1 record)";
    assert_eq!(reader.take_notes().to_string(), told);
    assert!(reader.take_notes().are_none());
    for (row, told) in [
        (r#"{"instruction":"a","input":"i","output":"b","system_prompt":"s"}"#, "`system_prompt` (1 record)"),
        (
            r#"{"prompt":"a","completion":"b","label":1,"input":"i"}"#,
            "`input` (1 record), `label` (1 record)",
        ),
        (r#"{"prompt":"a","completion":"b"}"#, ""),
    ] {
        let mut reader = RowReader::new(&with(CHATML), Path::new("a"));
        reader.read(&value(row)).unwrap().unwrap();
        let notes = reader.take_notes().to_string();
        assert!(notes.ends_with(told) && notes.is_empty() == told.is_empty(), "{notes}");
    }
}

#[test]
fn calls_that_a_template_does_not_read_are_bad_records() {
    let row = |message: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":"b",{message}}}]}}"#
        )
    };
    let reads = with(&CHATML.replace("m.content", "m.content ~ (m.tool_calls|length if m.tool_calls)"));
    for (message, name) in [
        (r#""tool_calls":[{"name":"f"}]"#, "tool_calls"),
        (r#""function_call":{"name":"f"}"#, "function_call"),
    ] {
        let reason = rendered(&with(CHATML), &row(message)).unwrap_err();
        let told = format!(
            "it has {name}, and the chat template does not read `{name}`: name one that does in data.conv"
        );
        assert!(reason.starts_with(&told), "{reason}");
        assert_eq!(rendered(&reads, &row(message)).is_ok(), name == "tool_calls");
    }
    let names = with(&CHATML.replace("m.content", "m.content ~ (m.tool_calls[0].name if m.tool_calls)"));
    let reason = rendered(&names, &row(r#""tool_calls":[{"name":"f","arguments":{"x":1}}]"#)).unwrap_err();
    assert!(
        reason.starts_with("it has arguments, and the chat template does not read `arguments`"),
        "{reason}"
    );
    assert!(rendered(&names, &row(r#""tool_calls":[{"name":"f","arguments":{}}]"#)).is_ok());
    let call = |arguments: &str| row(&format!(r#""tool_calls":[{{"name":"f","arguments":{arguments}}}]"#));
    let printing =
        |what: &str| with(&CHATML.replace("m.content", &format!("m.content ~ ({what} if m.tool_calls)")));
    let some = "message 2: the chat template prints only some of its arguments";
    for (what, arguments, told) in [
        ("m.tool_calls[0].arguments.x", r#"{"x":"a","y":5}"#, some),
        ("m.tool_calls[0].arguments.x", r#"{"x":"a","y":null}"#, ""),
        ("m.tool_calls[0].arguments | join", r#"{"x":{"y":[1]}}"#, some),
        ("m.tool_calls[0].arguments | tojson", r#"{"x":{"y":["a",1.5,true]},"z":"é"}"#, ""),
        ("m.tool_calls[0] | tojson", r#"{"x":1}"#, ""),
        (
            "m.tool_calls[0].arguments | tojson",
            r#"{"a":false,"b":0,"c":-1,"d":1e300,"e":[true,2.0],"f":0.5}"#,
            "",
        ),
        ("m.tool_calls[0].arguments | tojson(ensure_ascii=True)", r#"{"city":"Oslo","x":"é"}"#, ""),
        ("m.tool_calls[0].arguments | join(',')", r#"{"dry_run":true,"force":false}"#, some),
        ("m.tool_calls[0].arguments.x", r#"{"x":true,"y":false}"#, some),
        ("m.tool_calls[0].arguments.x | int", r#"{"x":3.75}"#, some),
        ("m.tool_calls[0].arguments.x | int", r#"{"x":3}"#, ""),
        ("m.tool_calls[0].arguments | tojson", r#"{"x":3.0,"y":1.5,"z":73100000}"#, ""),
        ("'%.2f' | format(m.tool_calls[0].arguments.x)", r#"{"x":3.25}"#, ""),
        ("m.tool_calls[0].arguments.x", r#"{"x":1,"y":2}"#, some),
        ("(m.tool_calls[0].arguments.y or 'z') ~ m.tool_calls[0].arguments.x", r#"{"x":"a","y":0}"#, some),
        (
            "m.tool_calls[0].arguments.y ~ (m.tool_calls[0].arguments.x if m.tool_calls[0].arguments.x is not number)",
            r#"{"x":5,"y":"a"}"#,
            some,
        ),
    ] {
        let found = rendered(&printing(what), &call(arguments)).err().unwrap_or_default();
        assert_eq!(found.is_empty(), told.is_empty(), "{what}: {found}");
        assert!(found.starts_with(told), "{what}: {found}");
    }
    assert_eq!(
        rendered(&reads, &row(r#""tool_calls":[{"name":"f"}]"#)).unwrap(),
        "<user>a</><assistant>b1</>"
    );
    assert_eq!(
        rendered(&with(CHATML), &row(r#""tool_calls":[],"function_call":null"#)).unwrap(),
        "<user>a</><assistant>b</>"
    );
}

#[test]
fn message_keys_that_a_template_does_not_read_are_counted_by_name() {
    let thinks = CHATML.replace("{{ m.content }}", "{{ m.thinking }}{{ m.content }}");
    let own = |key: &str| format!("`{key}` (2 messages)");
    for (template, keys, expected) in [
        (
            CHATML,
            r#""name":"n","weight":1,"reasoning_content":"r""#,
            vec![own("name"), own("reasoning_content")],
        ),
        (CHATML, r#""thinking":"r","refusal":null,"images":[],"audio":{},"x y":"""#, vec![own("thinking")]),
        (CHATML, r#""reasoning":"r","x y":7"#, vec![own("reasoning"), own("x y")]),
        (&thinks, r#""reasoning_content":"r","refusal":"f""#, vec![own("refusal")]),
        (&thinks, r#""reasoning":"r""#, vec![]),
        (&thinks, r#""reasoning_content":"r","thinking":"s""#, vec![own("reasoning_content")]),
    ] {
        let (user, answer) =
            (r#"{"role":"user","content":"a"}"#, format!(r#"{{"role":"assistant","content":"b",{keys}}}"#));
        let row = format!(r#"{{"messages":[{user},{answer},{user},{answer}]}}"#);
        let chat = with(template);
        let notes = notes(&chat, &row);
        let told = |names: &[String], told: &str| {
            if names.is_empty() { None } else { Some(format!("{told}: {}", names.join(", "))) }
        };
        let is_reasoning = |text: &str| text.contains("reasoning") || text.contains("thinking");
        // A template that has none does not read it.
        let (omitted, unread): (Vec<_>, Vec<_>) =
            expected.into_iter().partition(|name: &String| is_reasoning(template) && is_reasoning(name));
        let expected = [
            told(&unread, "message keys that the chat template does not read"),
            told(&omitted, "reasoning that the chat template leaves out"),
        ];
        assert_eq!(notes, expected.into_iter().flatten().collect::<Vec<_>>().join("; "), "{keys}");
    }
}

/// Roles without a branch, reasoning that is cut off, and repeated or blank contents, which are there.
#[test]
fn contents_that_a_template_does_not_print_are_counted_by_role() {
    let cuts = "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</>{% endif %}{% endfor %}";
    let row = r#"{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":" a "},
        {"role":"assistant","content":"b</think>a"},{"role":"user","content":"a"},{"role":"assistant","content":""}]}"#;
    let told = "contents that the chat template leaves out or changes, by role: `assistant` (1 message), `system` (1 message)";
    // Contents that are part of others, and the same twice.
    let known = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}</>{% endif %}{% endfor %}";
    let result = r#"{"messages":[{"role":"system","content":"Os"},{"role":"user","content":"Oslo?"},
        {"role":"tool","content":"717,710"},{"role":"assistant","content":"It has 717,710 people."}]}"#;
    let of_result = "contents that the chat template leaves out or changes, by role: `system` (1 message), `tool` (1 message)";
    let last = "{% for m in messages[-2:] %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}";
    let twice = r#"{"messages":[{"role":"user","content":"go on"},{"role":"assistant","content":"a"},
        {"role":"user","content":"go on\n"},{"role":"assistant","content":"b a"}]}"#;
    let of_last = "contents that the chat template leaves out or changes, by role: `assistant` (1 message), `user` (1 message)";
    for (template, row, told) in [
        (cuts, row, told),
        (CHATML, row, ""),
        (known, result, of_result),
        (CHATML, result, ""),
        (last, twice, of_last),
        (CHATML, twice, ""),
    ] {
        let chat = Chat { train_on: TrainOn::All, ..with(template) };
        assert_eq!(notes(&chat, row), told, "{template}");
    }
}

#[test]
fn pairs_without_the_tokens_around_a_text_are_counted() {
    let [pair, turns] =
        [r#"{"prompt":"a","completion":"b"}"#.to_owned(), format!(r#"{{"messages":{TURNS}}}"#)];
    for (around, row, told) in [(1, &pair, "1 pair of texts gets none"), (0, &pair, ""), (1, &turns, "")] {
        let chat = Chat { around, end: Some("\n".to_owned()), ..with(CHATML) };
        let notes = notes(&chat, row);
        assert!(notes.starts_with(told) && notes.is_empty() == told.is_empty(), "{notes}");
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
        (r#""tools":"[{\"a\":1,\"a\":2}]""#, "in its tools, it has `a` twice"),
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
