//! Against what transformers renders, tokenises and masks (`tests/fixtures/make_chats.py`), and wrong inputs.

mod beside;
mod kinds;
mod noted;

use std::collections::BTreeMap;
use std::path::Path;

use longhaul_common::config::{ConversationKind, TooLong, TrainOn};
use minijinja::Value;
use serde::Deserialize;

use super::conversation::Conversation;
use super::rows::{PAD, START, TOKEN_MASK, TRAINED};
use super::table::RowReader;
use super::template::ChatTemplate;
use super::{Chat, ConversationCounts, Tokenizer};

#[derive(Deserialize)]
struct Fixture {
    date: String,
    names: BTreeMap<String, Option<String>>,
    #[cfg(feature = "tokenizers")]
    tokenizer: serde_json::Value,
    templates: BTreeMap<String, String>,
    conversations: BTreeMap<String, Value>,
    #[cfg(feature = "tokenizers")]
    cases: Vec<Case>,
}

#[cfg(feature = "tokenizers")]
#[derive(Deserialize)]
struct Case {
    template: String,
    conversation: String,
    raised: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    ids: Vec<u32>,
    #[serde(default)]
    mask: Vec<u8>,
}

impl Fixture {
    fn read() -> Self {
        serde_json::from_str(include_str!("../../tests/fixtures/chats.json")).unwrap()
    }

    #[cfg(feature = "tokenizers")]
    fn tokenizer(&self) -> Tokenizer {
        Tokenizer::of_json(self.tokenizer.to_string().into_bytes(), Path::new("tokenizer.json")).unwrap()
    }

    fn template(&self, source: &str) -> ChatTemplate {
        let specials = self.names.iter().filter_map(|(name, text)| Some((name.clone(), text.clone()?)));
        ChatTemplate::new(source, specials.collect(), self.date.parse().ok()).unwrap()
    }

    fn conversation(&self, name: &str) -> Conversation {
        messages(self.conversations[name].clone()).unwrap()
    }
}

fn chat(template: ChatTemplate) -> Chat {
    Chat { template: Some(template), length: 400, end: None, ..Chat::plain() }
}

fn messages(list: Value) -> Result<Conversation, String> {
    Conversation::read(&Value::from_pairs([("messages", list)]), ConversationKind::Messages, None)
}

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

/// Returns the trained texts of a conversation, with bytes as tokens.
fn trained(chat: &Chat, conversation: &Conversation) -> Result<Vec<String>, String> {
    let encoded = chat.encode(conversation, &Tokenizer::Bytes)?;
    let mut texts = vec![Vec::new()];
    for (token, is_trained) in encoded.tokens.iter().zip(encoded.trained) {
        match is_trained {
            true => texts.last_mut().unwrap().push(*token as u8),
            false if texts.last().unwrap().is_empty() => {}
            false => texts.push(Vec::new()),
        }
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.into_iter().map(|text| String::from_utf8(text).unwrap()).collect())
}

#[cfg(feature = "tokenizers")]
#[test]
fn texts_tokens_and_masks_are_those_of_transformers() {
    let (fixture, mut raised, mut unread) = (Fixture::read(), 0, 0);
    let (tokenizer, none) = (fixture.tokenizer(), super::extras::Extras::default());
    for case in &fixture.cases {
        let at = format!("{}, {}", case.template, case.conversation);
        let chat = chat(fixture.template(&fixture.templates[&case.template]));
        let conversation = fixture.conversation(&case.conversation);
        let encoded = chat.encode(&conversation, &tokenizer);
        // transformers drops them.
        if case.conversation.contains("call") && !fixture.templates[&case.template].contains("tool_calls") {
            assert!(
                encoded.unwrap_err().starts_with("it has tool_calls, and the chat template does not read")
            );
            unread += 1;
            continue;
        }
        if let Some(reason) = &case.raised {
            assert_eq!(encoded.unwrap_err(), format!("the chat template refuses it: {reason}"), "{at}");
            raised += 1;
            continue;
        }
        let Conversation::Messages(list, _) = &conversation else { panic!("{at}") };
        let template = chat.template.as_ref().unwrap();
        assert_eq!(template.render(list, &none, false).unwrap().text, case.text, "{at}");
        assert_eq!(template.render(list, &none, true).unwrap().text, case.prompt, "{at}");
        let encoded = encoded.unwrap_or_else(|reason| panic!("{at}: {reason}"));
        assert_eq!(encoded.tokens, case.ids, "{at}");
        assert_eq!(encoded.trained.iter().copied().map(u8::from).collect::<Vec<_>>(), case.mask, "{at}");
    }
    assert_eq!((fixture.cases.len(), raised, unread), (49, 2, 5));
}

/// The same templates without their generation blocks.
#[test]
fn without_generation_blocks_the_answers_are_the_differences_of_prefixes() {
    let fixture = Fixture::read();
    let conversation = fixture.conversation("system and two turns");
    for (form, expected) in [
        ("chatml", [" Lima <|im_end|>\n\n", "Sucre 🙂, ü\n\n<|im_end|>\n\n"]),
        ("llama3", ["Lima<|eot_id|>", "Sucre 🙂, ü<|eot_id|>"]),
        ("gemma", ["Lima<end_of_turn>\n", "Sucre 🙂, ü<end_of_turn>\n"]),
        ("zephyr", [" Lima </s>\n", "Sucre 🙂, ü\n\n</s>\n"]),
    ] {
        let source = fixture.templates[form]
            .replace("generation", "with")
            .replace("add_with_prompt", "add_generation_prompt");
        let template = fixture.template(&source);
        assert!(!template.has_generation());
        let found = trained(&chat(template), &conversation);
        assert_eq!(found.unwrap(), expected, "{form}");
    }
    // The first answer loses its reasoning.
    let source =
        fixture.templates["qwen3"].replace("{%- generation %}", "").replace("{%- endgeneration %}", "");
    let reason =
        trained(&chat(fixture.template(&source)), &fixture.conversation("reasoning within")).unwrap_err();
    assert!(reason.contains("where message 2 ends: its text depends on later messages"), "{reason}");
    // The system's text moves to the last turn: the end of the prompt tells the place. Where prompts are part of it, nothing does.
    let source = fixture.templates["mistral"].replace("generation", "with");
    assert_eq!(
        trained(&chat(fixture.template(&source)), &conversation).unwrap(),
        [" Lima</s>", " Sucre 🙂, ü</s>"]
    );
    let source = source + "{{ ' ' if add_generation_prompt }}";
    let reason = trained(&chat(fixture.template(&source)), &conversation).unwrap_err();
    assert!(reason.contains("where message 3 begins") && reason.contains("{% generation %}"), "{reason}");
}

const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
const MARKED: &str = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</>{% endgeneration %}{% else %}{{ m.content }}</>{% endif %}{% endfor %}";

fn with(source: &str) -> Chat {
    chat(ChatTemplate::new(source, Vec::new(), None).unwrap())
}

#[test]
fn messages_say_themselves_whether_they_are_trained_on() {
    let list = r#"[{"role":"user","content":"a","weight":0},{"role":"assistant","content":"b","train":false},
        {"role":"assistant","content":"b","loss":false},
        {"role":"user","content":"c"},{"role":"assistant","content":"d","weight":1.0},{"role":"assistant","content":"e","training":true}]"#;
    let conversation = messages(value(list)).unwrap();
    for source in [CHATML, MARKED] {
        assert_eq!(trained(&with(source), &conversation).unwrap(), ["d</>", "e</>"]);
        let all = Chat { train_on: TrainOn::All, ..with(source) };
        let expected = ["<assistant>", "<assistant>", "<user>c</><assistant>d</><assistant>e</>"];
        assert_eq!(trained(&all, &conversation).unwrap(), expected);
    }
    for (message, words) in [
        (
            r#"{"role":"assistant","content":"a","weight":0.5}"#,
            "its weight is 0.5: 0 or 1 is wanted, without quotes",
        ),
        (
            r#"{"role":"assistant","content":"a","train":"no"}"#,
            "its train is the text \"no\": false or true, or 0 or 1, is wanted",
        ),
        (r#"{"role":"assistant","content":"a","weight":false}"#, "its weight is false: 0 or 1 is wanted"),
        (r#"{"role":"assistant","content":"a","training":[]}"#, "its training is a list: false or true,"),
        (
            r#"{"role":"assistant","content":"a","train":true,"training":false}"#,
            "its fields train and training contradict",
        ),
        (r#"{"role":"user","content":"a","train":true}"#, "it is to be trained on, and of the role \"user\""),
        (
            r#"{"role":"assistant","content":"a","train":true,"weight":0}"#,
            "its fields train and weight contradict each other: leave one out",
        ),
        (r#"{"role":"assistant","content":"a","train_detail":[]}"#, "train_detail, which is not read"),
    ] {
        let reason = messages(value(&format!("[{message}]"))).unwrap_err();
        assert!(reason.starts_with("message 1 of `messages`: ") && reason.contains(words), "{reason}");
    }
}

/// As in Mistral's templates, which have no header of answers.
#[test]
fn blanks_between_a_prompt_and_its_answer_are_trained_on() {
    let list = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]"#;
    for (before, expected) in [(" ", " b</s>"), ("", "b</s>"), ("<header> ", "b</s>")] {
        let template = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}HEADER{{ m.content }}</s>{% endif %}{% endfor %}";
        let found = trained(&with(&template.replace("HEADER", before)), &messages(value(list)).unwrap());
        assert_eq!(found.unwrap(), [expected.to_owned(), expected.replace('b', "d")], "{before:?}");
    }
    // A system text in the last turn alone, as Mistral's v0.3 has it.
    let template = "{% for m in messages %}{% if m.role == 'user' %}[INST] {% if loop.last %}{{ messages[0].content }} {% endif %}{{ m.content }}[/INST]{% elif m.role == 'assistant' %} {{ m.content }}</s>{% endif %}{% endfor %}";
    let list = r#"[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
    assert_eq!(trained(&with(template), &messages(value(list)).unwrap()).unwrap(), [" b</s>"]);
}

#[test]
fn all_forms_of_records_are_the_same_conversation() {
    let rows = [
        r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"q\nr"},{"role":"assistant","content":"a"}],"id":7}"#,
        r#"{"conversations":[{"from":"system","value":"s"},{"from":"human","value":"q\nr"},{"from":"gpt","value":"a"}]}"#,
        r#"{"system":"s","conversations":[{"from":"human","value":"q\nr"},{"from":"gpt","value":"a","weight":null}],"tools":[]}"#,
        r#"{"system":"s","instruction":"q","input":"r","output":"a","history":[]}"#,
        r#"{"prompt":[{"role":"system","content":"s"},{"role":"user","content":"q\nr"}],"completion":[{"role":"assistant","content":"a"}]}"#,
    ];
    let chat = with(CHATML);
    for row in rows {
        let conversation = RowReader::new(&chat, Path::new("a")).read(&value(row)).unwrap().unwrap();
        let encoded = chat.encode(&conversation, &Tokenizer::Bytes).unwrap();
        let text = Tokenizer::Bytes.decode(&encoded.tokens).unwrap();
        assert_eq!(text, "<system>s</><user>q\nr</><assistant>a</>", "{row}");
        assert_eq!(trained(&chat, &conversation).unwrap(), ["a</>"], "{row}");
    }
    let pair = value(r#"{"prompt":"2+2=","completion":"4"}"#);
    let conversation = RowReader::new(&chat, Path::new("a")).read(&pair).unwrap().unwrap();
    assert!(
        trained(&chat, &conversation)
            .unwrap_err()
            .contains("eos_token to end its completion: say data.separator")
    );
    let chat = Chat { end: Some("</s>".to_owned()), template: None, ..chat };
    assert_eq!(trained(&chat, &conversation).unwrap(), ["4</s>"]);
    let of_answers = value(
        r#"{"prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"r"}],"completion":[{"role":"assistant","content":"b"}]}"#,
    );
    let conversation = RowReader::new(&chat, Path::new("a")).read(&of_answers).unwrap().unwrap();
    assert_eq!(trained(&with(CHATML), &conversation).unwrap(), ["b</>"]);
}

#[test]
fn what_is_no_conversation_is_refused_with_the_cause() {
    let list = |list: &str| format!(r#"{{"messages":{list}}}"#);
    for (row, words) in [
        (list("[]"), "it has no messages"),
        (list("7"), "its `messages` is a number, and no list of messages"),
        (list("[\"hello\"]"), "message 1 of `messages`: it is a text, and no object"),
        (
            list(r#"[{"role":"user","content":"a"},{"role":"narrator","content":"b"}]"#),
            "message 2 of `messages`: its role is \"narrator\", and known ones are system",
        ),
        (
            list(r#"[{"role":"user","content":[{"type":"text","text":"a"}]}]"#),
            "its `content` is a list, and no text: join the texts of its parts",
        ),
        (list(r#"[{"role":"assistant","content":null}]"#), "its `content` is null, and no text"),
        (
            list(r#"[{"role":"assistant","content":null,"tool_calls":[]}]"#),
            "it has `tool_calls` and no `content`: write an empty text",
        ),
        (list(r#"[{"content":"a"}]"#), "its `role` is missing, and no text"),
        (list(r#"[{"role":"user","content":"\ufdd0"}]"#), "U+FDD0 or U+FDD1"),
        (r#"{"conversations":[{"from":"bing","value":"a"}]}"#.to_owned(), "its role is \"bing\""),
        (
            r#"{"conversations":[{"from":"gpt","value":"a","content":"b"}]}"#.to_owned(),
            "it has `value` and `content`: leave one of them out",
        ),
        (r#"{"instruction":"a","input":[],"output":"b"}"#.to_owned(), "its input is a list"),
        (r#"{"prompt":"","completion":""}"#.to_owned(), "it is empty"),
        (r#"{"prompt":"a","completion":[]}"#.to_owned(), "its `prompt` is a text, and no list"),
        (r#"{"prompt":"a","completion":null}"#.to_owned(), "its `completion` is null, and no text"),
        (
            r#"{"prompt":"a","completion":7,"system":"s"}"#.to_owned(),
            "its `completion` is a number, and no text",
        ),
        (r#"{"prompt":[],"completion":null}"#.to_owned(), "its `completion` is null, and no list"),
    ] {
        let reason = RowReader::new(&with(CHATML), Path::new("a")).read(&value(&row)).unwrap().unwrap_err();
        assert!(reason.contains(words), "{row}: {reason}");
    }
    let mut reader = RowReader::new(&with(CHATML), Path::new("a"));
    reader.read(&value(&list("[]"))).unwrap().unwrap_err();
    let reason = reader.read(&value(r#"{"text":"a"}"#)).unwrap().unwrap_err();
    assert_eq!(reason, "it has no field `messages`; its columns are `text`");
    let only = messages(value(r#"[{"role":"user","content":"a"}]"#)).unwrap();
    assert!(trained(&with(CHATML), &only).unwrap_err().contains("no message of the assistant to train on"));
    let (one, unmarked) =
        (Fixture::read().conversation("one turn"), MARKED.replace("'assistant'", "'model'"));
    assert!(trained(&with(&unmarked), &one).unwrap_err().contains("mark nothing of it"));
}

#[test]
fn columns_that_are_of_no_form_or_of_several_are_refused_with_their_names() {
    let told = |row: &str, chat: &Chat| {
        RowReader::new(chat, Path::new("a.jsonl")).read(&value(row)).unwrap_err().to_string()
    };
    let unknown = told(r#"{"chosen":"a","rejected":"b"}"#, &with(CHATML));
    assert!(unknown.starts_with("a.jsonl: its columns are of no known form of conversations; its columns are `chosen`, `rejected`; known are messages (messages); "), "{unknown}");
    let several = told(r#"{"messages":[],"prompt":"a","completion":"b"}"#, &with(CHATML));
    assert!(several.contains("several forms, messages (messages); prompt-completion (prompt, completion): say one in data.conversations.kind; its columns are `messages`,"), "{several}");
    let none = Chat { template: None, ..with(CHATML) };
    assert!(told(r#"{"messages":[]}"#, &none).contains("need a chat template, and there is none"));
}

#[cfg(feature = "parquet")]
#[test]
fn of_a_table_the_columns_of_its_form_are_read() {
    let named = Chat { kind: Some(ConversationKind::Alpaca), ..with(CHATML) };
    let reason =
        RowReader::new(&named, Path::new("a")).columns(&["messages", "output"]).unwrap_err().to_string();
    assert_eq!(reason, "a: it has no column `instruction`; its columns are `messages`, `output`");
    let mut reader = RowReader::new(&with(CHATML), Path::new("a"));
    assert_eq!(reader.columns(&["id", "system", "conversations", "source"]).unwrap(), [1, 2]);
    let row = value(r#"{"system":null,"conversations":[{"from":"gpt","value":"a"}]}"#);
    (0..2).for_each(|_| _ = reader.read(&row).unwrap().unwrap());
    let told = "columns that are not read: `id` (2 records), `source` (2 records)";
    assert_eq!(reader.take_notes().to_string(), told);
    let mut reader = RowReader::new(&with(CHATML), Path::new("a"));
    let of_preferences = ["input", "label", "prompt", "rejected", "completion"];
    assert_eq!(reader.columns(&of_preferences).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn templates_that_fail_are_told_with_their_place_and_endless_ones_end() {
    let one = Fixture::read().conversation("one turn");
    for (source, words) in [
        (
            "{{ raise_exception('roles must alternate') }}",
            "the chat template refuses it: roles must alternate",
        ),
        ("\n{{ messages[0].content.frobnicate() }}", "the chat template fails in line 2: "),
        ("{{ messages }}", "print it with `tojson`"),
        ("{{ strftime_now('%d') }}", "it asks for the date: say data.conversations.date"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}", "fuel"),
    ] {
        let reason = trained(&with(source), &one).unwrap_err();
        assert!(reason.contains(words), "{source}: {reason}");
    }
    for source in ["{% for %}", "{{ 'a' ", "{% generation %}"] {
        let reason = ChatTemplate::new(source, Vec::new(), None).unwrap_err();
        assert!(reason.starts_with("the chat template fails"), "{source}: {reason}");
    }
}

/// Words of rows as text: `|` before a start, `*` before a trained token, `_` for padding.
fn shown(chat: &Chat, conversations: &[Conversation]) -> (Vec<String>, ConversationCounts, usize) {
    let packed = chat.pack::<()>(conversations.iter(), &Tokenizer::Bytes, || Ok(())).unwrap();
    let row = |row: &[u8]| {
        let words = row.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let word = |word: u32| match word {
            PAD => "_".to_owned(),
            word => format!(
                "{}{}{}",
                if word & START > 0 { "|" } else { "" },
                if word & TRAINED > 0 { "*" } else { "" },
                char::from((word & TOKEN_MASK) as u8)
            ),
        };
        words.map(word).collect::<String>()
    };
    (packed.bytes.chunks(chat.row_bytes()).map(row).collect(), packed.counts, packed.bad.len())
}

#[test]
fn rows_hold_whole_conversations_and_longer_ones_are_cut_or_left_out_and_counted() {
    let source = "{% for m in messages %}{{ m.role[0] }}{% generation %}{{ m.content if m.role == 'assistant' }}{% endgeneration %}{% endfor %}";
    let chat = Chat { length: 7, ..with(source) };
    let conversation = |answers: &[&str]| {
        let entry = |content: &&str| Value::from_pairs([("role", "assistant"), ("content", *content)]);
        messages(answers.iter().map(entry).collect::<Vec<_>>().into()).unwrap()
    };
    let all = [
        conversation(&["bc"]),
        conversation(&["wxyz"]),
        conversation(&["123456789"]),
        conversation(&["d"]),
        messages(value(r#"[{"role":"user","content":"q"}]"#)).unwrap(),
    ];
    let (rows, counts, bad) = shown(&chat, &all);
    assert_eq!(rows, ["|a*w*x*y*z|a*b*c", "|a*1*2*3*4*5*6*7", "|a*d______"]);
    let expected = ConversationCounts {
        conversations: 4,
        turns: 4,
        answers: 4,
        tokens: 18,
        trained: 14,
        cut: 1,
        left_out: 0,
    };
    assert_eq!((counts, bad), (expected, 1));
    let (rows, counts, _) =
        shown(&Chat { packing: false, too_long: TooLong::LeaveOut, ..chat.clone() }, &all);
    assert_eq!(rows, ["|a*b*c_____", "|a*w*x*y*z___", "|a*d______"]);
    assert_eq!((counts.cut, counts.left_out, counts.trained), (0, 1, 7));
    // Nothing is left to train on.
    let late = conversation(&["", "", "", "", "", "", "", "", "b"]);
    let (rows, counts, _) = shown(&chat, &[late]);
    assert_eq!((rows.len(), counts.left_out, counts.cut), (0, 1, 0));
    // The first token of a conversation is no target, here the only one.
    let (rows, counts, _) = shown(&Chat { train_on: TrainOn::All, ..chat }, &all[3..]);
    assert_eq!((rows, counts.left_out), (vec!["|a*d______".to_owned()], 1));
}
