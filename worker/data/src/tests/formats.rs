//! Each format is read as Python, pyarrow and tokenizers read it: `tests/fixtures/make_data.py`.

use super::*;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data")
}

fn expected() -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(fixtures().join("expected.json")).unwrap()).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(fixtures().join("tokenizer.json").to_str().unwrap()).unwrap()
}

/// Returns the data, and the folder of its cache.
fn open(source: &str, tokenizer: &Tokenizer) -> Result<(Folder, Dataset), DataError> {
    let folder = Folder::new();
    let separator = expected()["separator"].clone();
    let lines =
        format!("sequence_length = 8\nvalidation_share = 0.0\nseparator = {separator}\nsources = [{source}]");
    let data = config(&lines).found_at(&fixtures());
    let cache = Cache::open(folder.path(), None).unwrap();
    let work = Work::default();
    let data =
        Dataset::prepared_by(&data, Maker { cache: &cache, tokenizer, work: &work, piece_bytes: 1000 })?;
    Ok((folder, data))
}

#[test]
fn every_format_becomes_the_tokens_that_tokenizers_makes_of_what_pyarrow_reads() {
    let expected: Vec<u32> = serde_json::from_value(expected()["tokens"].clone()).unwrap();
    let tokenizer = tokenizer();
    let column = ["snappy.parquet", "zstd.parquet", "lz4.parquet", "gzip.parquet", "dictionary.parquet"];
    let arrow = ["large.arrow", "view.arrow", "dictionary.arrow", "stream.arrow", "records.feather"];
    let lines = ["records.jsonl", "records.jsonl.gz", "records.jsonl.zst", "marked.jsonl"];
    let delimited = ["records.csv", "records.tsv", "marked.csv", "marked.tsv"];
    let tables = column.iter().chain(&arrow).chain(&delimited);
    let sources = tables
        .map(|name| format!("{{ path = \"{name}\", column = \"body\" }}"))
        .chain(lines.map(|name| format!("{{ path = \"{name}\", field = \"body\" }}")))
        .chain(["{ path = \"snappy.parquet\", column = \"body\" }".to_owned()])
        .chain(["{ path = \"tokens.bin\" }".to_owned()])
        .chain(["{ path = \"tokens32.bin\", format = \"tokens-u32\" }".to_owned()]);
    for source in sources {
        let (_folder, data) = open(&source, &tokenizer).unwrap_or_else(|error| panic!("{source}: {error}"));
        assert_eq!(data.peek(0, u64::MAX).unwrap(), expected, "{source}");
    }
}

#[test]
fn a_text_becomes_the_tokens_that_tokenizers_makes_of_what_python_reads() {
    let expected: Vec<u32> = serde_json::from_value(expected()["text_tokens"].clone()).unwrap();
    let tokenizer = tokenizer();
    for name in ["records.txt", "records.txt.gz", "records.txt.zst", "marked.txt", "marked.txt.gz"] {
        let (_folder, data) = open(&format!("{{ path = \"{name}\" }}"), &tokenizer).unwrap();
        assert_eq!(data.peek(0, u64::MAX).unwrap(), expected, "{name}");
    }
}

/// A mark at the start belongs neither to the first column's name nor, in a numbered column, to its text.
#[test]
fn a_byte_order_mark_is_left_out_at_the_beginning_of_a_file_and_is_text_elsewhere() {
    for (name, key, content) in [
        ("a.txt", "", "\u{feff}one\n\u{feff}two\n"),
        ("a.jsonl", "", "\u{feff}{\"text\": \"one\"}\n{\"text\": \"\u{feff}two\"}\n"),
        ("a.csv", "", "\u{feff}\"text\",n\none,1\n\u{feff}two,2\n"),
        ("a.tsv", ", column = 1", "\u{feff}one\t1\n\u{feff}two\t2\n"),
    ] {
        let folder = Folder::new();
        folder.write(name, content);
        let data = folder.open(&format!(
            "sources = [{{ path = \"{name}\"{key} }}]\nsequence_length = 2\nvalidation_share = 0.0"
        ));
        assert_eq!(text(&data.unwrap()), "one\n\u{feff}two\n", "{name}");
    }
    let folder = Folder::new();
    folder.write("a.jsonl", "\u{feff}{\"text\": \"one\"}\n\u{feff}{\"text\": \"two\"}\n");
    let message =
        folder.open("sources = [{ path = \"a.jsonl\" }]\nsequence_length = 1").unwrap_err().to_string();
    assert!(message.contains("a.jsonl, line 2: it is no JSON"), "{message}");
}

#[test]
fn a_numbered_column_has_no_header_above_it() {
    let folder = Folder::new();
    folder.write("a.tsv", "1\teins\n2\tzwei\n");
    let data = folder.open("sources = [{ path = \"a.tsv\", column = 2 }]\nsequence_length = 2").unwrap();
    assert_eq!(text(&data), "eins\nzwei\n");
}

#[test]
fn a_column_that_does_not_exist_is_named_beside_those_that_do() {
    let cases = ["snappy.parquet", "stream.arrow", "large.arrow", "records.csv", "records.tsv"];
    for name in cases {
        let message = open(&format!("{{ path = \"{name}\" }}"), &tokenizer()).unwrap_err().to_string();
        let (columns, remedy) = match name.ends_with("sv") {
            true => ("id, body", "give the column with the texts by its name, as in column = \"body\""),
            false => ("id (Int64), body (text)", "say column = \"body\" if that is the text"),
        };
        let words = format!("has no column `text`; its columns are {columns}: {remedy}");
        assert!(message.ends_with(&words), "{name}: {message}");
    }
    let message = open("{ path = \"snappy.parquet\", column = 3 }", &tokenizer()).unwrap_err().to_string();
    let words = "has no column 3; its columns are id (Int64), body (text): say a number from 1 to 2, or";
    assert!(message.contains(words), "{message}");
    let message =
        open("{ path = \"snappy.parquet\", column = \"id\" }", &tokenizer()).unwrap_err().to_string();
    let words = "holds Int64 and not text: say column = \"body\" if that is the text";
    assert!(message.contains("column `id` of ") && message.ends_with(words), "{message}");
    let message = open("{ path = \"records.jsonl\" }", &tokenizer()).unwrap_err().to_string();
    assert!(
        message.contains(
            "records.jsonl, line 1: it has no field `text`; its fields are body (text), id (a number): say field = \"body\" if that is the text"
        ),
        "{message}"
    );
}

#[test]
fn a_file_that_is_not_what_its_name_says_is_refused_by_name() {
    let folder = Folder::new();
    for (name, content) in [
        ("a.parquet", &b"no Parquet at all, and long enough"[..]),
        ("a.arrow", b"no Arrow at all, and long enough"),
        ("b.arrow", b"ARROW1\0\0 and no more"),
        ("a.gz", b"no gzip"),
        ("a.zst", b"no zstd"),
        ("a.bin", b"abc"),
    ] {
        folder.write(name, content);
        let message = folder
            .open(&format!("sources = [{{ path = \"{name}\" }}]\nsequence_length = 1"))
            .unwrap_err()
            .to_string();
        assert!(message.contains(name), "{name}: {message}");
    }
}

/// Output of downloads and of tools that append.
#[test]
fn what_follows_the_end_of_gzip_is_named_and_further_members_are_read() {
    let whole = std::fs::read(fixtures().join("records.txt.gz")).unwrap();
    let folder = Folder::new();
    let open = |rest: &[u8]| {
        folder.write("a.txt.gz", [&whole[..], rest].concat());
        let data =
            folder.open("sources = [{ path = \"a.txt.gz\" }]\nsequence_length = 2\nvalidation_share = 0.0");
        data.map(|data| text(&data)).map_err(|error| error.to_string())
    };
    let once = open(b"").unwrap();
    assert_eq!(open(&whole).unwrap(), once.repeat(2));
    for rest in [&b"\n"[..], b"some more text than a header has", &[0; 512], &whole[..5]] {
        let message = open(rest).unwrap_err();
        assert!(
            message.contains("a.txt.gz: behind the end of its gzip data there is something else"),
            "{message}"
        );
        assert!(message.contains("`gzip -dc`"), "{message}");
    }
    let cut = open(&whole[..whole.len() - 3]).unwrap_err();
    assert!(!cut.contains("something else"), "{cut}");
}

#[test]
fn tokens_beyond_the_vocabulary_are_refused_with_their_place() {
    let folder = Folder::new();
    folder.write("a.bin", [1, 0, 255, 0, 0, 1]);
    let message =
        folder.open("sources = [{ path = \"a.bin\" }]\nsequence_length = 1").unwrap_err().to_string();
    assert!(message.contains("token 2): 256 is beyond the tokenizer's vocabulary of 256"), "{message}");
}

#[test]
fn records_that_cannot_be_read_are_left_out_and_counted_up_to_the_limit() {
    let folder = Folder::new();
    folder.write("a.jsonl", "{\"text\": \"one\"}\nnonsense\n\n{\"text\": 5}\n[]\n{\"text\": \"two\"}\n");
    folder.write("b.jsonl", "{\"txt\": \"three\"}\n{\"text\": \"fo\\u0000ur\"}\n");
    let open = |max| {
        folder.open(&format!(
            "sources = [{{ glob = \"*.jsonl\" }}]\nsequence_length = 2\nbad_records_max = {max}"
        ))
    };
    let message = open(3).unwrap_err().to_string();
    for words in [
        "4 records of a source cannot be read",
        "data.bad_records_max = 3",
        "a.jsonl, line 2: it is no JSON",
        "a.jsonl, line 4: its field `text` is no text",
        "a.jsonl, line 5: it is no JSON object",
        "b.jsonl, line 1: it has no field `text`; its fields are txt",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let data = open(4).unwrap();
    assert_eq!(text(&data), "one\ntwo\nfo\0ur\n");
    assert_eq!((data.sources()[0].size.records, data.sources()[0].size.bad.count), (3, 4));
    assert!(open(3).is_err(), "what is prepared is held to the limit, too");
    folder.write("c.csv", b"text,n\nfine,1\n\xff\xfe,2\n");
    let second = |folder: &Folder| {
        let asked = folder.open("sources = [{ path = \"c.csv\", column = 2 }]\nsequence_length = 1");
        asked.unwrap_err().to_string()
    };
    let message = second(&folder);
    assert!(
        message.contains("c.csv, line 3: it is not UTF-8 at byte 0 of column 1 (0xff)"),
        "beside the text: {message}"
    );
    folder.write("c.csv", b"text,n\nfine,1\nshort\n");
    let message = second(&folder);
    assert!(message.contains("c.csv, line 3: it has 1 column, and column 2 was asked for"), "{message}");
    folder.write("c.csv", b"text,n\nfine,1\n\xff\xfe,2\n");
    let message =
        folder.open("sources = [{ path = \"c.csv\" }]\nsequence_length = 1").unwrap_err().to_string();
    assert!(message.contains("c.csv, line 3: it is not UTF-8"), "{message}");
}
