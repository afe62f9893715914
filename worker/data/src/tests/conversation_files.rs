//! Files of conversations that are refused as a whole, and what stands beside them.

use super::conversations::{lines, one_of, texts};
use super::*;

/// Opens one file; returns the conversations, or the error.
fn opened(folder: &Folder, name: &str, content: impl AsRef<[u8]>, more: &str) -> Result<Vec<String>, String> {
    folder.write(name, content);
    let lines = lines(folder, &format!("{{ path = {name:?} }}"), 60, more);
    folder.open(&lines).map(|data| texts(&data)).map_err(|error| error.to_string())
}

/// Elements behind such a place could not be counted.
#[test]
fn a_file_with_something_else_than_one_array_is_refused_with_the_place() {
    let folder = Folder::new();
    let all: Vec<String> = (1..=5).map(one_of).collect();
    let [one, two, three, four, five] = [0, 1, 2, 3, 4].map(|at| all[at].as_str());
    let lines_of_it =
        "`jq -c 'if type == \"array\" then .[] else . end' IN > OUT.jsonl` makes lines of all of it";
    let mend = "mend it there, for elements from there on are not counted";
    for (content, place, words, remedy) in [
        (format!("[{one}]\n[{two},{three}]\n"), "line 2, behind element 1", "more follows", lines_of_it),
        (
            format!("[{one},{two}]\n{three}\n{four}\n"),
            "line 2, behind element 2",
            "more follows",
            lines_of_it,
        ),
        (format!("\n[{one}]x"), "line 2, behind element 1", "more follows", lines_of_it),
        (format!("[{one}\n{two},\n{three},{four}]"), "line 2, behind element 0", "a comma is missing", mend),
        (format!("[{one},\n{two} {three},{four}]"), "line 2, behind element 1", "a comma is missing", mend),
        (
            format!("[{one},\n{},{five}]", two.replace("}]}", "}}")),
            "line 2, behind element 1",
            "a bracket is missing",
            mend,
        ),
        (
            format!("[{one},\n{},\n{five}]", two.replace("\"}]}", "}]}")),
            "line 2, behind element 1",
            "a line ends within a text",
            mend,
        ),
        (
            format!("[{one},\n{two},\n{{"),
            "line 3, behind element 2",
            "the array is not closed",
            "fetch it again",
        ),
    ] {
        let told = opened(&folder, "a.json", &content, "bad_records_max = 9").unwrap_err();
        assert!(
            told.contains(&format!("a.json cannot be read as a JSON array ({place}): {words}")),
            "{told}"
        );
        assert!(told.ends_with(remedy), "{told}");
    }
    let packed = zstd::encode_all(format!("[{one}][{two}]").as_bytes(), 1).unwrap();
    assert!(opened(&folder, "b.json", packed, "").unwrap_err().contains("`zstd -dc IN | jq -c 'if type"));
    for content in [
        format!("{one}\n[{two},{three}]\n"),
        format!("{one}\n{two}{three}\n"),
        format!("{one}\n{two} [{three}]"),
    ] {
        let told = opened(&folder, "a.jsonl", &content, "bad_records_max = 9").unwrap_err();
        assert!(
            told.contains("a.jsonl cannot be read as JSON lines (line 2): it is an array or several objects"),
            "{told}"
        );
        assert!(told.ends_with(lines_of_it), "{told}");
    }
    let one_bad =
        opened(&folder, "a.jsonl", format!("{one}\n{two}}}\n\"[\"\n{three} x"), "bad_records_max = 3");
    assert_eq!(one_bad.unwrap().len(), 1);
    // A record that is none is counted where the next one is known.
    let one_bad =
        opened(&folder, "a.json", format!("[{one}, 7,\n{two}, [{three}]]\n \n"), "bad_records_max = 2");
    assert_eq!(one_bad.unwrap().len(), 2);
}

#[test]
fn a_record_with_a_repeated_key_is_bad_and_names_it() {
    let folder = Folder::new();
    let [one, two] = [1, 2].map(one_of);
    for (record, key) in [
        (one.replace("\"content\":\"1\"", "\"content\":\"1\",\"content\":\"c\""), "content"),
        (one.replace("\"role\":\"user\"", "\"role\":\"system\",\"role\":\"user\""), "role"),
        (one.replace("{\"messages\"", "{\"messages\":[],\"messages\""), "messages"),
        (r#"{"prompt":"a","completion":"b","n":NaN,"completion":"c"}"#.to_owned(), "completion"),
    ] {
        let told = format!("1: it has `{key}` twice: leave one of them out");
        for (name, content) in
            [("a.jsonl", format!("{record}\n{two}")), ("a.json", format!("[{record},{two}]"))]
        {
            let refused = opened(&folder, name, &content, "").unwrap_err();
            assert!(refused.contains(&told), "{refused}");
            assert_eq!(opened(&folder, name, &content, "bad_records_max = 1").unwrap(), ["<u>qq.<a>[2."]);
        }
    }
}

#[test]
fn peculiarities_of_conversations_are_counted_and_stay_with_the_prepared_data() {
    let folder = Folder::new();
    let record = |at: usize, answer: &str| {
        let call = if at == 6 { r#","refusal":"x""# } else { "" };
        format!(
            r#"{{"id":{at},"messages":[{{"role":"user","content":""}},{{"role":"assistant","content":"{answer}"{call}}}]}}"#
        )
    };
    let answers = ["a", "", "nan", " NULL ", "7", "le cafÃ© noir", "b"];
    let all: Vec<String> = answers.iter().enumerate().map(|(at, answer)| record(at, answer)).collect();
    folder.write("a.jsonl", all.join("\n"));
    let of_turns = lines(&folder, "{ path = \"a.jsonl\" }", 60, "");
    let pairs = answers.map(|answer| format!(r#"{{"prompt":"q","completion":"{answer}","id":7}}"#));
    folder.write("b.jsonl", pairs.join("\n"));
    let of_pairs = lines(&folder, "{ path = \"b.jsonl\" }", 60, "separator = \"\\n\"");
    let keys = "; message keys that the chat template does not read: `refusal` (1 message)";
    let named = "the chat template that is named is not used for 7 pairs of texts: write them as lists of messages where they are to have it; ";
    for (lines, named, keys) in [(&of_turns, "", keys), (&of_pairs, named, "")] {
        // From the file, then from the prepared data.
        for _ in 0..2 {
            let size = folder.open(lines).unwrap().sources().remove(0).size;
            let odd = "of 7 texts, 1 is blank, 2 are words for a missing value (such as `nan` or `null`), 1 is decoded twice (the first: `cafÃ©`): ";
            assert!(size.odd.to_string().starts_with(odd) && size.odd.are_many(), "{}", size.odd);
            let told = format!("{named}columns that are not read: `id` (7 records){keys}");
            assert_eq!(size.notes.to_string(), told);
        }
    }
    let all = of_turns.replace("{ chat_template", "{ train_on = \"all\", chat_template");
    let odd = folder.open(&all).unwrap().sources().remove(0).size.odd.to_string();
    assert!(odd.starts_with("of 14 texts, 8 are blank, 2 are words"), "{odd}");
}

/// By transformers 5.24: `AutoTokenizer.from_pretrained(…).special_tokens_map` of the same files.
#[cfg(feature = "tokenizers")]
#[test]
fn special_tokens_are_those_of_the_file_that_transformers_takes() {
    let folder = Folder::new();
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/fixtures/chats.json")).unwrap();
    folder.write("tokenizer.json", fixture["tokenizer"].to_string());
    let path = folder.path().join("tokenizer.json");
    let template = |turn: &str| {
        let text =
            format!("{{% for m in messages %}}{turn}{{{{ m.content }}}}{{{{ eos_token }}}}{{% endfor %}}");
        folder.write("chat_template.jinja", text);
    };
    let decoded = |record: &str| {
        folder.write("a.jsonl", record);
        let lines = "sequence_length = 20\nvalidation_share = 0.0\nsources = [{ path = \"a.jsonl\" }]\nconversations = {}";
        let tokenizer = Tokenizer::load(path.to_str().unwrap()).map_err(|error| error.to_string())?;
        let data = folder.open_with(lines, &tokenizer, 1 << 20, &Work::default());
        let sample = data.map_err(|error| error.to_string())?.sample(0, 1).unwrap().content;
        let super::super::Content::Row(row) = sample else { panic!("no row") };
        let tokens: Vec<u32> =
            row.iter().filter(|token| !token.is_padding).map(|token| token.token).collect();
        Ok::<_, String>(tokenizer.decode(&tokens).unwrap())
    };
    let (pair, turns) = (
        r#"{"prompt":"q","completion":"a"}"#,
        r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}"#,
    );
    let token = r#"{"content":"[INST]","lstrip":false,"rstrip":false,"normalized":false,"single_word":false,"special":true}"#;
    let added = r#""added_tokens_decoder":{"1":{"content":"</s>","special":true}}"#;
    for (config, map, end, turn) in [
        (r#""eos_token":"</s>""#, r#""eos_token":"<s>""#, "<s>", None),
        (&format!(r#""eos_token":"</s>",{added}"#), r#""eos_token":"<s>""#, "</s>", None),
        (r#""eos_token":"</s>""#, &format!(r#""eos_token":{token}"#), "[INST]", None),
        (r#""eos_token":"</s>","extra_special_tokens":{"turn_token":"[INST]"}"#, "", "</s>", Some("[INST]")),
        (
            r#""eos_token":"</s>","model_specific_special_tokens":{"turn_token":"[INST]"}"#,
            "",
            "</s>",
            Some("[INST]"),
        ),
        (r#""eos_token":"</s>","turn_token":"[INST]""#, "", "</s>", Some("[INST]")),
        (r#""eos_token":"</s>""#, r#""turn_token":"[INST]""#, "</s>", Some("[INST]")),
        (r#""eos_token":"</s>","turn_token":"<s>""#, r#""turn_token":"[INST]""#, "</s>", Some("<s>")),
        (
            r#""eos_token":"</s>","turn_token":"[INST]","model_specific_special_tokens":{"turn_token":"<s>"}"#,
            "",
            "</s>",
            Some("[INST]"),
        ),
        (
            r#""eos_token":"</s>","extra_special_tokens":{"turn_token":"<s>"}"#,
            r#""extra_special_tokens":{"turn_token":"[INST]"}"#,
            "</s>",
            Some("[INST]"),
        ),
    ] {
        folder.write("tokenizer_config.json", format!("{{{config}}}"));
        folder.write("special_tokens_map.json", format!("{{{map}}}"));
        template("");
        assert_eq!(decoded(pair).unwrap(), format!("qa{end}"), "{config}, {map}");
        assert_eq!(decoded(turns).unwrap(), format!("q{end}a{end}"), "{config}, {map}");
        template("{{ turn_token }}");
        match turn {
            Some(turn) => {
                assert_eq!(decoded(turns).unwrap(), format!("{turn}q{end}{turn}a{end}"), "{config}, {map}")
            }
            None => assert!(
                decoded(turns).unwrap_err().contains("it uses `turn_token`, which no tokenizer_config.json")
            ),
        }
        template("{{ turn_token if turn_token is defined }}");
        assert!(decoded(turns).is_ok(), "{config}, {map}");
    }
    template("");
    folder.write("tokenizer_config.json", r#"{"eos_token":"</s>"}"#);
    folder.write("special_tokens_map.json", r#"{"eos_token":null}"#);
    assert!(decoded(pair).unwrap_err().contains("eos_token to end its completion"));
}

#[test]
fn pairs_end_with_the_separator_that_is_written_whatever_it_is() {
    let folder = Folder::new();
    let pair = r#"{"prompt":"q","completion":"a"}"#;
    for (more, expected) in
        [("separator = \"\\n\"", "q[a\n"), ("separator = \"###\"", "q[a###"), ("separator = \"\"", "q[a")]
    {
        assert_eq!(opened(&folder, "a.jsonl", pair, more).unwrap(), [expected]);
    }
    assert!(opened(&folder, "a.jsonl", pair, "").unwrap_err().contains("say data.separator"));
}

#[cfg(feature = "parquet")]
#[test]
fn columns_of_a_table_beside_its_conversations_are_read_too() {
    use std::sync::Arc;

    use arrow_array::{Array, ArrayRef, BinaryArray, Float64Array, RecordBatch, StringArray, StructArray};
    use arrow_ipc::writer::FileWriter;
    use arrow_schema::{DataType, Field};

    let folder = Folder::new();
    let text = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    let read = |beside: Vec<(&str, ArrayRef)>| {
        let columns = [("instruction", text("q")), ("output", text("a"))].into_iter().chain(beside);
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        folder.write("a.arrow", writer.into_inner().unwrap());
        let given = folder.path().join("beside.jinja");
        std::fs::write(&given, "{{ tools|tojson if tools }}{% if keys is defined %}{{ keys|tojson }}{% endif %}{{ n }}{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}").unwrap();
        let lines = format!(
            "sequence_length = 60\nvalidation_share = 0.0\nsources = [{{ path = \"a.arrow\" }}]\nconversations = {{ chat_template = {given:?} }}"
        );
        folder
            .open(&lines)
            .map(|data| texts(&data).concat().replace('[', ""))
            .map_err(|error| error.to_string())
    };
    assert_eq!(read(vec![("system", text("s")), ("id", text("7"))]).unwrap(), "<s>s<u>q<a>a");
    assert_eq!(read(vec![("tools", text("[{\"n\":null}]"))]).unwrap(), "{\"n\": null}]<u>q<a>a");
    // Null is what another row may have.
    let absent = Arc::new(StringArray::from(vec![None::<&str>])) as ArrayRef;
    let inner = StructArray::from(vec![
        (Arc::new(Field::new("absent", DataType::Utf8, true)), Arc::clone(&absent)),
        (
            Arc::new(Field::new("x", DataType::Float64, true)),
            Arc::new(Float64Array::from(vec![1e-5])) as ArrayRef,
        ),
    ]);
    let named = StructArray::from(vec![
        (Arc::new(Field::new("keys", inner.data_type().clone(), true)), Arc::new(inner.clone()) as ArrayRef),
        (
            Arc::new(Field::new("n", DataType::Float64, true)),
            Arc::new(Float64Array::from(vec![1e16])) as ArrayRef,
        ),
    ]);
    let variables = Arc::new(named) as ArrayRef;
    assert_eq!(read(vec![("chat_template_kwargs", variables)]).unwrap(), "{\"x\": 1e-05}1e+16<u>q<a>a");
    let told = read(vec![("image", text("x.png"))]).unwrap_err();
    assert!(told.contains("a.arrow, row 1: it has image, and conversations of texts alone"), "{told}");
    let told = read(vec![("video", Arc::new(BinaryArray::from_vec(vec![b"x"])) as ArrayRef)]).unwrap_err();
    assert!(told.contains("row 1: in its `video`, there is a value of the type Binary"), "{told}");
    assert_eq!(read(vec![("audio", absent)]).unwrap(), "<u>q<a>a");
}
