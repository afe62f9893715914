//! Conversations from a file to batches.

use std::sync::{Arc, Mutex};

use super::super::lent::{BlockName, BlockStore, Supply};
use super::super::shard::BLOCK_BYTES;
use super::super::{BlockProvider, Content, ConversationCounts, RowToken, Values};
use super::*;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}.{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";

/// The lines of `[data]` for these sources, with the template of the folder.
pub(super) fn lines(folder: &Folder, sources: &str, length: u32, more: &str) -> String {
    let template = folder.path().join("chat.jinja");
    std::fs::write(&template, TEMPLATE).unwrap();
    format!(
        "sequence_length = {length}\nvalidation_share = 0.0\nsources = [{sources}]\n{more}\nconversations = {{ chat_template = {template:?} }}",
    )
}

/// Returns the conversations of all rows as text, trained parts in brackets, sorted.
pub(super) fn texts(data: &Dataset) -> Vec<String> {
    let mut all = Vec::new();
    for position in 0..data.samples() {
        let Content::Row(row) = data.sample(position, 1).unwrap().content else { panic!("no row") };
        let mut was_trained = false;
        for RowToken { token, is_trained, is_start, is_padding } in row {
            if is_start {
                all.push(Vec::new());
            }
            let last: &mut Vec<u8> = all.last_mut().unwrap();
            if is_trained != was_trained && !is_start {
                last.push(if is_trained { b'[' } else { b']' });
            }
            was_trained = is_trained;
            if !is_padding {
                last.push(token as u8);
            }
        }
    }
    all.sort();
    all.into_iter().map(|text| String::from_utf8(text).unwrap().trim_end_matches(']').to_owned()).collect()
}

pub(super) fn one_of(number: usize) -> String {
    let (question, answer) = ("q".repeat(number % 7), number.to_string());
    format!(
        r#"{{"messages":[{{"role":"user","content":"{question}"}},{{"role":"assistant","content":"{answer}"}}]}}"#
    )
}

#[cfg(feature = "parquet")]
#[test]
fn lines_arrays_and_tables_are_the_same_conversations() {
    let folder = Folder::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let fixture: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixtures.join("chats.json")).unwrap()).unwrap();
    let all = fixture["conversations"].as_object().unwrap().iter();
    let plain: Vec<_> = all.filter(|(name, _)| !name.contains("call")).map(|(_, list)| list).collect();
    let rows: Vec<serde_json::Value> =
        plain.iter().map(|list| serde_json::json!({ "id": 1, "messages": list })).collect();
    let written: Vec<String> = rows.iter().map(ToString::to_string).collect();
    folder.write("lines.jsonl", written.join("\n\n"));
    folder.write("array.json", serde_json::to_string_pretty(&rows).unwrap());
    folder.write(
        "chats.json.zst",
        zstd::encode_all(format!(" [{}]", written.join(" ,")).as_bytes(), 1).unwrap(),
    );
    for name in ["chats.parquet", "chats.arrow"] {
        std::fs::copy(fixtures.join(name), folder.path().join(name)).unwrap();
    }
    let read = |name: &str| {
        let data = folder.open(&lines(&folder, &format!("{{ path = \"{name}\" }}"), 300, "")).unwrap();
        let counts = data.sources()[0].size.conversations;
        assert_eq!((counts.conversations, counts.turns, counts.left_out), (6, 17, 0), "{name}: {counts}");
        texts(&data)
    };
    let expected = read("lines.jsonl");
    assert!(
        expected.contains(&"<u>What is two and two?.<a>[Two and two make four..".to_owned()),
        "{expected:?}"
    );
    for name in ["array.json", "chats.json.zst", "chats.parquet", "chats.arrow"] {
        assert_eq!(read(name), expected, "{name}");
    }
}

#[test]
fn a_source_is_prepared_once_held_out_by_rows_and_changes_with_the_template() {
    let folder = Folder::new();
    folder.write("a.jsonl", (0..400).map(one_of).collect::<Vec<_>>().join("\n"));
    let lines = lines(&folder, "{ path = \"a.jsonl\" }", 20, "");
    let open = |lines: &str| {
        let work = Work::default();
        (folder.open_with(lines, &Tokenizer::Bytes, 1 << 10, &work).unwrap(), work.done())
    };
    let (whole, first) = open(&lines);
    assert!(first.made > 2 && first.found == 0, "several pieces: {first:?}");
    let counts = whole.sources()[0].size.conversations;
    assert_eq!((counts.conversations, counts.turns, counts.cut), (400, 800, 0));
    assert_eq!(texts(&whole).len(), 400);
    let (again, second) = open(&lines);
    assert_eq!((second.made, again.data_hash()), (0, whole.data_hash()));
    assert_eq!(again.sources(), whole.sources(), "counts are listed");
    // The last rows are held out.
    let (part, _) = open(&lines.replace("validation_share = 0.0", "validation_share = 0.25"));
    let held: usize = held_out(&part, 100, 8).iter().map(HostBatch::sequences).sum();
    assert_eq!(part.samples() + held as u64, whole.samples());
    assert_eq!(held as u64, whole.samples() / 4);
    // A damaged shard is made again.
    let shard = &folder.shards()[0];
    let mut bytes = std::fs::read(shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(shard, bytes).unwrap();
    let (mended, _) = open(&lines);
    assert_eq!(mended.verify(|_| ()).unwrap(), 1);
    assert_eq!(texts(&mended), texts(&whole));
    std::fs::write(folder.path().join("chat.jinja"), TEMPLATE.replace('<', "<<")).unwrap();
    let (other, third) = open(&lines);
    assert!(third.made > 2 && other.data_hash() != whole.data_hash());
    let unpacked = lines.replace("{ chat_template", "{ packing = false, chat_template");
    let (alone, fourth) = open(&unpacked);
    assert_eq!(alone.samples(), 400);
    assert!(fourth.made > third.made, "padding counts in a piece: {fourth:?}");
}

/// Fetches from a worker in the same process.
#[derive(Debug)]
struct Neighbour {
    provider: BlockProvider,
    stock: Arc<BlockStore>,
    fetched: Mutex<usize>,
}

impl Supply for Neighbour {
    fn expect(&self, _: BlockName) -> bool {
        true
    }

    fn bring(&self, block: BlockName) -> Result<(), DataError> {
        let lent = self.provider.block(block)?.unwrap();
        self.stock.check(block, &lent.head, &lent.bytes).unwrap();
        *self.fetched.lock().unwrap() += 1;
        self.stock.keep(block, &lent.head, &lent.bytes)
    }
}

/// Rows span blocks.
#[test]
fn rows_are_lent_to_workers_without_the_files() {
    let (here, there) = (Folder::new(), Folder::new());
    here.write("a.jsonl", (0..2000).map(one_of).collect::<Vec<_>>().join("\n"));
    let lines = lines(&here, "{ path = \"a.jsonl\" }", 1000, "")
        .replace("{ chat_template", "{ packing = false, chat_template");
    let whole = Arc::new(here.open(&lines).unwrap());
    let provider = BlockProvider::new(Arc::clone(&whole), &Tokenizer::Bytes).unwrap();
    let (config, catalogue) = (config(&lines), whole.catalogue(&Tokenizer::Bytes));
    let cache = there.path().join("cache");
    let stock = BlockStore::open(&config, &catalogue, &Tokenizer::Bytes, (&cache, None)).unwrap();
    let supply = Arc::new(Neighbour { provider, stock: Arc::clone(&stock), fetched: Mutex::default() });
    let data =
        Dataset::elsewhere(&config, &Tokenizer::Bytes, &catalogue, &stock, &(Arc::clone(&supply) as _))
            .unwrap();
    assert_eq!((data.data_hash(), data.samples()), (whole.data_hash(), 2000));
    let some: Vec<u64> = (0..2000).step_by(40).collect();
    assert_eq!(data.batch(some.clone(), 7).unwrap(), whole.batch(some, 7).unwrap());
    let blocks = (2000 * 1001 * 4_usize).div_ceil(BLOCK_BYTES);
    assert_eq!(*supply.fetched.lock().unwrap(), blocks);
}

#[test]
fn conversations_that_a_template_refuses_are_bad_records_with_their_places() {
    let folder = Folder::new();
    let bad = r#"{"messages":[{"role":"user","content":"only"}]}"#;
    folder.write("a.jsonl", [&one_of(1), bad, "{\"messages\": 7}", &one_of(2)].join("\n"));
    let lines = |max: u32| lines(&folder, "{ path = \"a.jsonl\" }", 20, &format!("bad_records_max = {max}"));
    let refused = folder.open(&lines(1)).unwrap_err().to_string();
    for words in [
        "2 records of a source cannot be read",
        "a.jsonl, line 3: its `messages` is a number, and no list",
        "a.jsonl, line 2: it has no message of the assistant to train on",
    ] {
        assert!(refused.contains(words), "{refused}");
    }
    let data = folder.open(&lines(2)).unwrap();
    let size = &data.sources()[0].size;
    assert_eq!((size.records, size.bad.count), (2, 2));
    let expected = ConversationCounts {
        conversations: 2,
        turns: 4,
        answers: 2,
        tokens: 21,
        trained: 4,
        cut: 0,
        left_out: 0,
    };
    assert_eq!(size.conversations, expected);
    let batch = data.batch([0], 1).unwrap();
    let micro = batch.micro_batches(1).next().unwrap();
    assert!(matches!(micro.values(), Values::Rows(words) if words.len() == 21) && micro.has_documents());
    assert_eq!((batch.losses(), micro.losses(), batch.tokens()), (4, 4, 20));
}

#[test]
fn files_without_a_use_are_refused_before_they_are_prepared() {
    let folder = Folder::new();
    folder.write("a.jsonl", "{\"chosen\": \"a\"}\n");
    folder.write("b.jsonl", one_of(1));
    folder.write("cut.json", "[{\"messages\": [");
    let source = |name: &str| format!("{{ path = \"{name}\" }}");
    let refused = |lines: &str| folder.open(lines).unwrap_err().to_string();
    let told = refused(&lines(&folder, &source("a.jsonl"), 20, ""));
    assert!(
        told.contains("a.jsonl: its columns are of no known form of conversations; its columns are `chosen`"),
        "{told}"
    );
    let short = lines(&folder, &source("b.jsonl"), 4, "")
        .replace("{ chat_template", "{ too_long = \"leave-out\", chat_template");
    let told = refused(&short);
    assert!(
        told.contains("nothing to train on: 1 conversation was left out, longer than a sequence"),
        "{told}"
    );
    let told = refused(&lines(&folder, &source("cut.json"), 20, ""));
    assert!(told.contains("the array is not closed"), "{told}");
    let without = "sequence_length = 20\nsources = [{ path = \"b.jsonl\" }]\nconversations = {}";
    assert!(refused(without).contains("b.jsonl: conversations need a chat template, and there is none"));
    let told = refused(&without.replace("{}", "{ chat_template = \"none.jinja\" }"));
    assert!(
        told.starts_with("read chat template none.jinja: ")
            && told.contains("data.conversations.chat_template names it"),
        "{told}"
    );
    std::fs::write(folder.path().join("bos.jinja"), "{{ bos_token }}").unwrap();
    let given = format!("{{ chat_template = {:?} }}", folder.path().join("bos.jinja"));
    assert!(
        refused(&without.replace("{}", &given))
            .contains("bos.jinja: it uses `bos_token`, which no tokenizer_config.json")
    );
    let dated = format!("{{ date = \"2023-02-29\", chat_template = {:?} }}", folder.path().join("bos.jinja"));
    assert!(refused(&without.replace("{}", &dated)).contains("2023-02-29 is no day of the calendar"));
}

/// As transformers finds it.
#[cfg(feature = "tokenizers")]
#[test]
fn the_template_and_the_special_tokens_are_those_beside_the_tokenizer() {
    let folder = Folder::new();
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/fixtures/chats.json")).unwrap();
    folder.write("tokenizer.json", fixture["tokenizer"].to_string());
    folder.write("a.jsonl", one_of(3));
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}";
    let lines = "sequence_length = 20\nvalidation_share = 0.0\nsources = [{ path = \"a.jsonl\" }]\nconversations = {}";
    let path = folder.path().join("tokenizer.json");
    let decoded = || {
        let tokenizer = Tokenizer::load(path.to_str().unwrap()).unwrap();
        let data = folder
            .open_with(lines, &tokenizer, 1 << 20, &Work::default())
            .map_err(|error| error.to_string())?;
        let Content::Row(row) = data.sample(0, 1).unwrap().content else { panic!("no row") };
        let tokens: Vec<u32> =
            row.iter().filter(|token| !token.is_padding).map(|token| token.token).collect();
        Ok::<_, String>(tokenizer.decode(&tokens).unwrap())
    };
    let config = |template: serde_json::Value| {
        serde_json::json!({ "chat_template": template, "eos_token": { "content": "</s>" }, "bos_token": "<s>" }).to_string()
    };
    folder.write("tokenizer_config.json", config(template.into()));
    assert_eq!(decoded().unwrap(), "<s>qqq</s>3</s>");
    let named = serde_json::json!([{ "name": "tool_use", "template": "no" }, { "name": "default", "template": template }]);
    folder.write("tokenizer_config.json", config(named));
    assert_eq!(decoded().unwrap(), "<s>qqq</s>3</s>");
    folder.write(
        "tokenizer_config.json",
        config(serde_json::json!([{ "name": "tool_use", "template": "no" }])),
    );
    assert!(decoded().unwrap_err().contains("none is called `default`"));
    folder.write("chat_template.jinja", template.replace("eos_token", "'[INST]'"));
    assert_eq!(decoded().unwrap(), "<s>qqq[INST]3[INST]");
    // As `save_pretrained` writes several.
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    folder.write(
        "additional_chat_templates/tool_use.jinja",
        "{{ tools[0].name }}</s>{% for m in messages %}{{ m.content }}{% endfor %}",
    );
    assert_eq!(decoded().unwrap(), "<s>qqq[INST]3[INST]");
    let without_tools = std::fs::read(folder.path().join("a.jsonl")).unwrap();
    folder.write("a.jsonl", r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "tools": [{"name": "t"}]}"#);
    assert_eq!(decoded().unwrap(), "t</s>qa");
    std::fs::write(folder.path().join("a.jsonl"), without_tools).unwrap();
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    assert!(decoded().unwrap_err().contains("has no `chat_template.jinja` beside it"));
    std::fs::remove_dir_all(folder.path().join("additional_chat_templates")).unwrap();
    folder.write("chat_template.jinja", template);
    folder.write("a.jsonl", "{\"prompt\": \"q\", \"completion\": \"a\"}");
    assert_eq!(decoded().unwrap(), "qa</s>", "pairs end with the token for it");
}
