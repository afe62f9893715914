//! Notes on what templates read and write.

use super::super::noted::TRIED_MAX;
use super::*;
use crate::control_tokens::{MARKERS_MAX, markers};
use crate::notes::Note;

/// Returns the text of a conversation, and the notes on it.
fn encoded(chat: &Chat, list: &str) -> Result<(String, String), String> {
    let encoded = chat.encode(&messages(value(list))?, &Tokenizer::Bytes)?;
    Ok((Tokenizer::Bytes.decode(&encoded.tokens).unwrap(), encoded.notes.to_string()))
}

/// Answers with these keys, behind questions with a name.
fn turns(keys: [&str; 2]) -> String {
    let turn = |keys| {
        format!(r#"{{"role":"user","content":"a","name":"Ann"}},{{"role":"assistant","content":"b",{keys}}}"#)
    };
    format!("[{}]", keys.map(turn).join(","))
}

const CALLED: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}</>{% endfor %}";

#[test]
fn a_key_is_read_if_the_text_depends_on_it() {
    let whole = "{% for m in messages %}{{ m | tojson }}</>{% endfor %}";
    let last = "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content if loop.last }}{{ m.content }}</>{% endfor %}";
    let call = r#""tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]"#;
    let reasoning = r#""reasoning":"r""#;
    let unread = "message keys that the chat template does not read: `name` (2 messages)";
    let omitted = format!("{unread}; reasoning that the chat template leaves out: ");
    for (template, keys, told) in [
        // The name of a function is another one than that of a speaker.
        (CALLED, [call, call], unread.to_owned()),
        (whole, [call, r#""reasoning":"r""#], String::new()),
        (last, [reasoning, r#""reasoning":"s""#], format!("{omitted}`reasoning` (1 message)")),
        (CALLED, [reasoning, reasoning], format!("{unread}, `reasoning` (2 messages)")),
    ] {
        let chat = Chat { train_on: TrainOn::All, ..with(template) };
        let (_, notes) = encoded(&chat, &turns(keys)).unwrap();
        assert_eq!(notes, told, "{template}");
    }
    let named = CALLED
        .replace("m.tool_calls or []", "[]")
        .replace("{{ m.content }}", "{{ m.content }}{# tool_calls #}");
    let alone = CALLED.replace("m.tool_calls or []", "((m.tool_calls or []) if not m.content else [])");
    let first = CALLED.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]");
    let bare = call.replace(r#""arguments""#, r#""other":"o","arguments""#);
    let several =
        r#""tool_calls":[{"function":{"name":"f","arguments":{}}},{"function":{"name":"f","arguments":{}}}]"#;
    let nameless = CALLED.replace("{{ c.function.name }}", "");
    let printed = turns([call, &bare]).replacen(r#""b""#, r#""""#, 1);
    for (template, list, words) in [
        (&named, turns([call, call]), "it has tool_calls, and the chat template does not read"),
        (&alone, printed.clone(), "it has tool_calls, and the chat template does not read"),
        (&first, turns([call, several]), "message 4: the chat template prints only some of its tool_calls"),
        (&first, printed.clone(), ""),
        (&nameless, printed, ""),
    ] {
        match encoded(&with(template), &list) {
            Ok(_) => assert_eq!(words, "", "{template}"),
            Err(reason) => assert!(!words.is_empty() && reason.starts_with(words), "{reason}"),
        }
    }
}

#[test]
fn each_message_and_key_counts_however_many_there_are() {
    let keys: Vec<String> = (0..TRIED_MAX + 16).map(|at| format!(r#""k{at:02}":1"#)).collect();
    let many = turns([&keys.join(","), r#""reasoning":"a thought that is longer than an answer's tail""#]);
    let thoughts = vec![turns([r#""reasoning":"r""#; 2]); TRIED_MAX].join(",").replace("],[", ",");
    let asking = CHATML.replace("</>", "{{ 'x' if m | length > 5 }}{{ m.reasoning_content }}</>");
    let (unread, untried) = (Note::UnreadKeys, Note::UntriedKeys);
    for (template, list, count, left) in [
        // The names of the speakers too.
        (CHATML, &many, TRIED_MAX + 16 + 3, 0),
        (CHATML, &thoughts, 4 * TRIED_MAX, 0),
        // The text has the reasoning.
        (&asking, &many, TRIED_MAX, 16 + 2),
    ] {
        let chat = Chat { train_on: TrainOn::All, ..with(template) };
        let notes = chat.encode(&messages(value(list)).unwrap(), &Tokenizer::Bytes).unwrap().notes;
        assert_eq!((notes.count(unread), notes.count(untried)), (count as u64, left), "{notes}");
    }
}

#[test]
fn arguments_in_texts_are_taken_as_objects_where_the_template_writes_json() {
    let call = |arguments: &str| {
        format!(r#""tool_calls":[{{"type":"function","function":{{"name":"f","arguments":{arguments}}}}}]"#)
    };
    let (text, object) = (call(r#""{\"x\": 1, \"y\": \"z\"}""#), call(r#"{"x": 1, "y": "z"}"#));
    let (broken, list) = (call(r#""{\"x\": ""#), call(r#""[1]""#));
    let verbatim = CALLED.replace(" | tojson", "");
    let (nothing, empty) = (call(r#""""#), call(r#""{}""#));
    let of_objects = CALLED.replace(
        "{{ c.function.arguments | tojson }}",
        "{% if c.function.arguments is mapping %}{{ c.function.arguments | tojson }}{% endif %}",
    );
    let quoting = verbatim.replace("</>", "\"\"</>");
    let iterated = CALLED.replace(
        "{{ c.function.arguments | tojson }}",
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }} {% endfor %}",
    );
    let (one, left) = (
        "arguments of 1 tool call are JSON in a text, and taken as objects, since the chat template does not print the text as it is",
        "arguments of 1 tool call are a text that is no JSON object, and stay so",
    );
    for (template, calls, words, told) in [
        (
            CALLED,
            [&text, &object],
            [r#"bf {"x": 1, "y": "z"}</>"#, r#"bf {"x": 1, "y": "z"}</>"#],
            one.to_owned(),
        ),
        (
            CALLED,
            [&object, &object],
            [r#"bf {"x": 1, "y": "z"}</>"#, r#"bf {"x": 1, "y": "z"}</>"#],
            String::new(),
        ),
        (
            CALLED,
            [&text, &broken],
            [r#"bf {"x": 1, "y": "z"}</>"#, r#"bf "{\"x\": "</>"#],
            format!("{one}; {left}"),
        ),
        (CALLED, [&object, &list], [r#"bf {"x": 1, "y": "z"}</>"#, r#"bf "[1]"</>"#], left.to_owned()),
        (
            &verbatim,
            [&text, &text],
            [r#"bf {"x": 1, "y": "z"}</>"#, r#"bf {"x": 1, "y": "z"}</>"#],
            String::new(),
        ),
        (
            &of_objects,
            [&text, &object],
            [r#"bf {"x": 1, "y": "z"}</>"#, r#"bf {"x": 1, "y": "z"}</>"#],
            one.to_owned(),
        ),
        (CALLED, [&empty, &object], ["bf {}</>", r#"bf {"x": 1, "y": "z"}</>"#], one.to_owned()),
        (&verbatim, [&empty, &empty], ["bf {}</>", "bf {}</>"], String::new()),
        (&iterated, [&text, &object], ["bf x=1 y=z </>", "bf x=1 y=z </>"], one.to_owned()),
    ] {
        let row = turns(calls.map(String::as_str)).replace(r#","name":"Ann""#, "");
        let (found, notes) = encoded(&with(template), &row).unwrap();
        assert_eq!(found, words.map(|words| format!("<user>a</><assistant>{words}")).concat());
        assert_eq!(notes, told, "{template}");
    }
    // Quotes of the template are no arguments.
    let row = turns([&text, &nothing]).replace(r#","name":"Ann""#, "");
    let (found, notes) = encoded(&with(&quoting), &row).unwrap();
    assert!(found.contains(r#"bf {"x": 1, "y": "z"}""</>"#) && notes.is_empty(), "{found}: {notes}");
}

#[test]
fn answers_without_an_end_that_is_trained_on_are_counted() {
    let marked = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}</>{% endfor %}";
    let bare = CHATML.replace("</>", "\n");
    let outside = marked.replace("{% endgeneration %}", "</>{% endgeneration %}");
    let told = "1 conversation ends with the answer, and no end token behind it is trained on";
    for (template, answer, is_told) in [
        (CHATML, "b", false),
        (bare.as_str(), "b", true),
        (&bare, "b<|im_end|>", false),
        (&bare, " ", false),
        (marked, "a long answer, of more than so many characters", true),
        (&outside, "b", false),
    ] {
        let list =
            format!(r#"[{{"role":"user","content":"a"}},{{"role":"assistant","content":"{answer}"}}]"#);
        let (_, notes) = encoded(&with(template), &list).unwrap();
        assert_eq!((notes.starts_with(told), notes.is_empty()), (is_told, !is_told), "{template}: {notes}");
    }
}

#[cfg(feature = "tokenizers")]
#[test]
fn an_end_that_is_no_token_is_none() {
    let tokenizer = Fixture::read().tokenizer();
    let list = |answer: &str| {
        format!(r#"[{{"role":"user","content":"a"}},{{"role":"assistant","content":"{answer}"}}]"#)
    };
    for (end, is_told) in [
        ("<|im_end|>", false),
        ("<|im_end|></s>\n", false),
        ("\n### End", true),
        ("</turn>", true),
        (" a", true),
    ] {
        let chat = Chat { added: tokenizer.added_names(), ..with(&CHATML.replace("</>", end)) };
        let repetitive = ["word"; 20].join(" ");
        for answer in ["an answer", "d", "end", "e", repetitive.as_str()] {
            let list = messages(value(&list(answer))).unwrap();
            let notes = chat.encode(&list, &tokenizer).unwrap().notes.to_string();
            assert_eq!(notes.contains("no end token behind it"), is_told, "{answer}{end}: {notes}");
        }
    }
}

#[test]
fn what_looks_like_a_control_token_in_a_template_is_found() {
    for (template, expected) in [
        ("{{ '<|im_start|>' + m.role }}<|im_end|>{{ '<|im_start|>' }}", &["<|im_start|>", "<|im_end|>"][..]),
        ("<start_of_turn>{% if a < 1 %}</s>{% endif %}<s>", &["<start_of_turn>", "</s>", "<s>"]),
        ("<｜User｜>[/INST]<tool_call><||>{{ '<|' + role + '|>' }}[SEP]", &["<｜User｜>", "[SEP]"]),
        ("[gMASK]<sop>{{ '<BOS_TOKEN>' }}<b>", &["[gMASK]", "<sop>", "<BOS_TOKEN>"]),
        ("{% if a <b %}{{ messages[0] }}", &[]),
    ] {
        assert_eq!(markers(template), expected, "{template}");
    }
    assert_eq!(markers(&("<|".repeat(500_000) + ">")).len(), 30);
    let many: String = (0..2 * MARKERS_MAX).map(|at| format!("<|{at}|>")).collect();
    assert_eq!(markers(&many).len(), MARKERS_MAX);
    let lacking = vec!["<|im_end|>".to_owned(), "<|eot_id|>".to_owned()];
    let chat = Chat { lacking, ..with(&CHATML.replace("</>", "<|im_end|>")) };
    let (_, notes) =
        encoded(&chat, r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#).unwrap();
    let told = "control tokens of the chat template that the tokenizer does not have, and encodes in pieces: `<|im_end|>` (1 conversation)";
    assert_eq!(notes, told);
}

/// Returns the notes on a row.
fn notes_of(chat: &Chat, row: &str, tokenizer: &Tokenizer) -> String {
    let row = RowReader::new(chat, Path::new("a")).read(&value(row)).unwrap().unwrap();
    chat.encode(&row, tokenizer).unwrap().notes.to_string()
}

#[cfg(feature = "tokenizers")]
#[test]
fn completions_that_begin_within_a_token_or_of_which_the_end_alone_is_trained_on_are_counted() {
    let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,
        "model":{"type":"BPE","vocab":{"t":0,"h":1,"e":2," ":3,".":4,"th":5,"the":6},"merges":["t h","th e"]}}"#;
    let tokenizer = Tokenizer::of_json(json.as_bytes().to_vec(), Path::new("tokenizer.json")).unwrap();
    let chat = Chat { end: Some(".".to_owned()), template: None, ..with(CHATML) };
    let (joined, lost) =
        ("1 completion begins within a token of the prompt", "of 1 completion nothing is trained on but");
    for (prompt, completion, told) in [
        ("th", "e", vec![joined, lost]),
        ("th", "e.", vec![joined, lost]),
        ("th", "e e", vec![joined]),
        ("e th", "e", vec![joined]),
        ("", "the", vec![lost]),
        ("e", "the", vec![]),
        ("e", "", vec![]),
        ("the", " the", vec![]),
    ] {
        let row = format!(r#"{{"prompt":"{prompt}","completion":"{completion}"}}"#);
        let notes = notes_of(&chat, &row, &tokenizer);
        assert!(told.iter().all(|words| notes.contains(words)), "{row}: {notes}");
        assert_eq!(notes.split("; ").filter(|note| !note.is_empty()).count(), told.len(), "{row}: {notes}");
    }
}

#[test]
fn templates_and_variables_that_are_not_used_are_told() {
    let reads = "{% if a is defined and not b is defined %}{% set b = 1 %}{% endif %}{{ b }}\
                 {%- set d = d if d is defined else 2 %}{% for one in (e or [])[:1] %}{{ one }}{% endfor %}{{ e[:1] | length if e }}";
    let of = |variables: &str| {
        format!(r#"{{"messages":[{{"role":"assistant","content":"b"}}],"chat_template_kwargs":{variables}}}"#)
    };
    let told = "variables (chat_template_kwargs) that the chat template does not read: ";
    for (row, expected) in [
        (of(r#"{"a":1,"b":2}"#), String::new()),
        (
            of(r#"{"c":1,"a":1,"messages_":0}"#),
            format!("{told}`c` (1 conversation), `messages_` (1 conversation)"),
        ),
        (of(r#"{"d":1,"e":[1,2]}"#), String::new()),
        (of("null"), String::new()),
    ] {
        assert_eq!(notes_of(&with(&format!("{reads}{CHATML}")), &row, &Tokenizer::Bytes), expected);
    }
    let pair = r#"{"prompt":"a","completion":"b"}"#;
    let told = "the chat template that is named is not used for 1 pair of texts: write it as lists of";
    for (is_named, row) in [(true, pair), (false, pair), (true, &of("null"))] {
        let chat = Chat { is_named, end: Some("\n".to_owned()), ..with(CHATML) };
        let notes = notes_of(&chat, row, &Tokenizer::Bytes);
        assert_eq!(notes.starts_with(told), is_named && row == pair, "{notes}");
        assert_eq!(notes.is_empty(), !is_named || row != pair, "{notes}");
    }
}
