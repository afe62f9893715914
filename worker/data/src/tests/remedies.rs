//! Refused files and records are reported with a remedy: each kind with its own cases.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;

use super::refused::{gz, zst};
use super::silent::read_as;
use super::*;

/// Returns the message for a refused file, without its folder.
fn refused(name: &str, keys: &str, content: &[u8]) -> String {
    let message = read_as(name, keys, content).unwrap_err();
    let at = message.find(&format!("/{name}")).unwrap_or_else(|| panic!("{name} is not named: {message}"));
    message[at + 1..].to_owned()
}

#[test]
fn a_table_with_another_delimiter_is_told_with_the_one_that_it_has() {
    for (name, keys, content, words) in [
        (
            "a.csv",
            "",
            "id;text\n1;one\n",
            "its columns are id;text: say delimiter = \";\", which stands between its names",
        ),
        ("a.csv", "", "\"id\";\"text\"\n1;\"one\"\n", "say delimiter = \";\""),
        ("a.csv", "", "id;text;a,b\n1;one;x\n", "its columns are id;text;a, b: say delimiter = \";\""),
        ("a.csv", "", "id\ttext\n1\tone\n", "its columns are id\\ttext: say delimiter = \"\\t\""),
        ("a.csv", "", "id|text\r\n1|one\r\n", "say delimiter = \"|\""),
        ("a.tsv", "", "id,text\n1,one\n", "say delimiter = \",\""),
        ("a.csv", ", delimiter = \";\"", "id,text\n1,one\n", "say delimiter = \",\""),
        (
            "a.csv",
            "",
            "id;content\n1;one\n",
            "if \";\" stands between its names, say delimiter = \";\"; then give the column with the texts by its name, as in column = \"content\"",
        ),
        (
            "a.csv",
            ", column = 2",
            "1;one\n2;two\n",
            "it has 1 column, and column 2 was asked for: if \";\" stands between its values, say delimiter = \";\"",
        ),
        (
            "a.csv",
            ", column = 3",
            "1\tone\tx\n",
            "if \"\\t\" stands between its values, say delimiter = \"\\t\"",
        ),
    ] {
        let message = refused(name, keys, content.as_bytes());
        assert!(message.contains(words), "{content:?}: {message}");
    }
    // No other delimiter gives so many values.
    let message = refused("a.csv", ", column = 2", b"one\n");
    assert!(message.ends_with("column 2 was asked for"), "{message}");
    let text = "id;text\n1;one\n";
    assert_eq!(read_as("a.csv", ", delimiter = \";\"", text.as_bytes()).as_deref(), Ok("one|"));
}

#[test]
fn a_line_for_excel_is_told_with_how_to_take_it_out() {
    let table = "sep=;\r\nid;text\r\n1;one\r\n";
    let take_out =
        "(line 1): it is a line for Excel (`sep=...`) and no row: take it out (`tail -n +2 IN > OUT.csv`)";
    for (keys, say) in [
        ("", ", and say delimiter = \";\""),
        (", column = 2", ", and say delimiter = \";\""),
        (", delimiter = \";\"", ""),
        (", delimiter = \";\", column = 2", ""),
    ] {
        let message = refused("a.csv", keys, table.as_bytes());
        assert!(message.ends_with(&format!("{take_out}{say}")), "{keys}: {message}");
    }
    let marked = refused("a.csv", "", format!("\u{feff}{table}").as_bytes());
    assert!(marked.contains(take_out), "{marked}");
    let packed = refused("a.csv.gz", "", &gz(table.as_bytes()));
    assert!(packed.contains("(`gzip -dc IN | tail -n +2 > OUT.csv`)"), "{packed}");
    let (tabs, out) = ("sep=\t\nid\ttext\n1\tone\n", "tail -n +2 IN > OUT.tsv`)");
    let message = refused("a.tsv", "", tabs.as_bytes());
    assert!(message.ends_with(out), "{message}");
    let message = refused("a.tsv", "", table.as_bytes());
    assert!(message.ends_with(&format!("{out}, and say delimiter = \";\"")), "{message}");
    let packed = refused("a.tsv.gz", "", &gz(tabs.as_bytes()));
    assert!(packed.ends_with("(`gzip -dc IN | tail -n +2 > OUT.tsv`)"), "{packed}");
    let (_, rest) = table.split_once('\n').unwrap();
    assert_eq!(read_as("a.csv", ", delimiter = \";\"", rest.as_bytes()).as_deref(), Ok("one|"));
}

#[test]
fn lines_before_a_head_are_told_with_what_leaves_them_out() {
    for (name, content, line) in [
        ("a.csv", "# exported 2024\nid,text\n1,one\n", 2),
        ("a.csv", "# exported 2024, by me\n\nid,text\n1,one\n", 3),
        ("a.tsv", "Report\t\nid\ttext\n1\tone\n", 2),
    ] {
        let message = refused(name, "", content.as_bytes());
        let tail = format!("its head is line {line}: leave out those before it (`tail -n +{line} IN > OUT.");
        assert!(message.contains(&tail), "{message}");
    }
}

#[test]
fn text_in_another_encoding_is_told_with_its_byte_and_what_converts_it() {
    let convert = "if it is in another encoding, convert it, and look at its letters afterwards: `iconv -f WINDOWS-1252 -t UTF-8 IN > OUT` does so";
    for (name, content, place) in [
        ("a.txt", &b"gr\xfc\xdfe\n"[..], "a.txt is not UTF-8 at byte 2 of its text (0xfc)"),
        (
            "a.csv",
            b"id,text\n1,plain\n2,caf\xe9\n",
            "a.csv, line 3: it is not UTF-8 at byte 3 of column 2 (0xe9)",
        ),
        ("a.csv", b"id,text\n\x93a\x94,b\n", "a.csv, line 2: it is not UTF-8 at byte 0 of column 1 (0x93)"),
        (
            "a.jsonl",
            b"{\"text\": \"caf\xe9\"}\n",
            "a.jsonl, line 1: it is not UTF-8 at byte 13 of the line (0xe9)",
        ),
    ] {
        let message = refused(name, "", content);
        assert!(message.starts_with(&format!("{place}: {convert}")), "{message}");
    }
    // In GBK, whose bytes may begin UTF-8 characters.
    for content in [
        &b"id,text\n1,\xe4\xbd\n2,two\n"[..],
        b"text,id\n\xe4\xbd,1\n",
        b"text,id\n\xe4\xbd,1",
        b"id,text\n1,\xe4\xbd\n",
    ] {
        let message = refused("a.csv", "", content);
        assert!(message.contains(convert) && !message.contains("cut off"), "{content:?}: {message}");
    }
    let head = refused("a.csv", "", b"id,\xe4\xbd\n1,one\n");
    assert!(head.contains(convert) && !head.contains("cut off"), "{head}");
    let packed = refused("a.txt.zst", "", &zst(b"gr\xfc\xdfe\n"));
    assert!(packed.contains("`zstd -dc IN | iconv -f WINDOWS-1252 -t UTF-8 > OUT`"), "{packed}");
    let head = refused("a.csv", ", column = \"größe\"", b"id,gr\xf6\xdfe\n1,one\n");
    assert!(
        head.contains("has no column `größe`; its columns are id, gr\u{fffd}\u{fffd}e: if it is in another"),
        "{head}"
    );
}

/// Converting the whole text would corrupt its valid letters.
#[test]
fn nothing_is_converted_where_other_characters_are_utf8_or_there_is_no_text() {
    for (name, content, words) in [
        (
            "a.txt",
            &b"\xc3\xa9t\xc3\xa9\ncaf\xe9 noir\n"[..],
            "other characters are UTF-8, so a part is damaged or in another encoding",
        ),
        (
            "a.csv",
            b"text\n\xc3\xa9t\xc3\xa9\ncaf\xe9 noir\n",
            "line 3: it is not UTF-8 at byte 3 of column 1 (0xe9): other characters are UTF-8",
        ),
        (
            "a.jsonl",
            b"{\"text\":\"\xc3\xa9\"}\n{\"text\":\"\xe9\"}\n",
            "line 2: it is not UTF-8 at byte 9 of the line (0xe9): other characters are UTF-8",
        ),
        ("a.csv", b"id,text\n1,one\n2,cut off \xe2\x82", "as if it was cut off: get it anew"),
        ("a.txt", b"cut off \xe2\x82", "it ends within a character, as if it was cut off: get it anew"),
        ("a.txt", b"abc\x01\x02\xff\xfe\x03\x04", "the bytes around it are binary data and no text"),
        ("a.csv", b"text\nabc\x01\x02\xff\xfe\x03\x04\n", "the bytes around it are binary data and no text"),
    ] {
        let message = refused(name, "", content);
        assert!(message.contains(words) && !message.contains("WINDOWS"), "{content:?}: {message}");
    }
}

#[test]
fn a_remedy_is_told_with_the_first_record_that_needs_it() {
    let message = refused("a.jsonl", "", "{\"body\": \"one\"}\n".repeat(3).as_bytes());
    assert_eq!(message.matches("say field = \"body\"").count(), 1, "{message}");
    let message = read_as("a.csv", "", b"text\ncaf\xe9 noir\nth\xe9 vert\n").unwrap_err();
    assert_eq!((message.matches("0xe9").count(), message.matches("iconv").count()), (2, 1), "{message}");
}

#[test]
fn an_object_over_several_lines_or_with_texts_elsewhere_is_told_with_what_makes_lines_of_it() {
    for (content, words) in [
        (
            "{\n  \"text\": \"one\"\n}\n",
            "line 1: it is no JSON: EOF while parsing an object at line 2 column 0: if objects go over several lines, `jq -c . IN > OUT.jsonl` puts each on one",
        ),
        ("{\"a\": 1,\n\"text\": \"one\"}\n", "`jq -c . IN > OUT.jsonl` puts each on one"),
        ("{\"text\": \"one\"}\n{\"text\": \"tw", "the file ends there, as if it was cut off: get it anew"),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}]}\n",
            "its fields are messages (a list): `jq -c '{text: ([.[\"messages\"][] | \"\\(.role): \\(.content // \"\")\"] | join(\"\\n\"))}' IN > OUT.jsonl` makes a text of its messages",
        ),
        ("{\"data\": {\"text\": \"one\"}}\n", "`jq -c '{text: .[\"data\"][\"text\"]}' IN > OUT.jsonl`"),
    ] {
        let message = refused("a.jsonl", "", content.as_bytes());
        assert!(message.contains(words), "{content:?}: {message}");
    }
    let message = refused("a.jsonl", ", field = \"it's\"", b"[\"one\", \"two\"]\n");
    assert!(
        message.contains("line: write each of its texts on a line, in an object's field `it's`"),
        "{message}"
    );
    let message = refused("a.jsonl", ", field = \"messages\"", b"{\"messages\": [\"one\", \"two\"]}\n");
    assert!(
        message.contains("its field `messages` is no text but a list: `jq -c '{text: (.[\"messages\"]"),
        "{message}"
    );
}

#[test]
fn a_line_with_comments_or_characters_that_json_has_not_is_told_with_what_takes_them_out() {
    const COMMENTS: &str =
        "`sed -E '/^[[:space:]]*(#|\\/\\/)/d' IN > OUT.jsonl` takes out the lines that are comments";
    const WITHIN: &str = "JSON has no comments: take them out, or write the objects with `json.dumps`";
    const NUL: &str = "`sed 's/\\x00//g' IN > OUT.jsonl` takes the NUL characters out";
    const RS: &str =
        "`sed 's/\\x1e//g' IN > OUT.jsonl` takes out the record separators of JSON text sequences (RFC 7464)";
    for (line, words) in [
        ("// one", COMMENTS),
        ("  # one", COMMENTS),
        ("{\"text\": \"one\"} // {\"two\"}", WITHIN),
        ("{\"text\": \"one\", /* {two} */ \"n\": 1}", WITHIN),
        ("{\"text\": \"\\\"one\"} # two", WITHIN),
        ("/* one */", WITHIN),
        ("{\"text\": \"o\0ne\"}", NUL),
        ("\0{\"text\": \"one\"}", NUL),
        ("{\"text\": \"one\"}\0", NUL),
        (
            "{\"text\": \"o\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0ne\"}",
            "it has zeros in a row, as in an incomplete download: fetch",
        ),
        ("\u{1e}{\"text\": \"one\"}", RS),
        ("{\"text\": \"o\tne\"}", "a tab or another control character stands in a text as it is"),
        ("{\"text\": \"http://one\"},", "takes the commas behind the objects out"),
        ("{\"text\": \"one # two\"} {}", "puts each object on a line of its own"),
        ("{'text': 'http://one'}", "it is as Python prints an object"),
    ] {
        for lines in [format!("{line}\n"), format!("{{\"text\": \"two\"}}\n{line}\n")] {
            let message = refused("a.jsonl", "", lines.as_bytes());
            assert!(message.contains(words), "{lines:?}: {message}");
        }
    }
}

/// Returns a table with a column of bytes.
fn binary() -> RecordBatch {
    let schema = Schema::new(vec![Field::new("text", DataType::Binary, false)]);
    let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&b"one"[..], b"two"]));
    RecordBatch::try_new(Arc::new(schema), vec![bytes]).unwrap()
}

fn parquet_of(table: &RecordBatch) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, table.schema(), None).unwrap();
    writer.write(table).unwrap();
    writer.close().unwrap();
    file
}

fn arrow_of(table: &RecordBatch) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = FileWriter::try_new(&mut file, &table.schema()).unwrap();
    writer.write(table).unwrap();
    writer.finish().unwrap();
    drop(writer);
    file
}

/// As `datasets` writes a column of unlike values: each text is the JSON of a value.
#[test]
fn a_column_of_json_values_is_refused_with_what_decodes_them() {
    let kind: HashMap<String, String> =
        HashMap::from([("ARROW:extension:name".to_owned(), "arrow.json".to_owned())]);
    let table = |is_json: bool| {
        let field = Field::new("text", DataType::Utf8, false);
        let field = if is_json { field.with_metadata(kind.clone()) } else { field };
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["\"one\"", "2"]));
        let other = Field::new("other", DataType::Utf8, false).with_metadata(kind.clone());
        RecordBatch::try_new(Arc::new(Schema::new(vec![field, other])), vec![texts.clone(), texts]).unwrap()
    };
    for (name, file) in [("a.parquet", parquet_of(&table(true))), ("a.arrow", arrow_of(&table(true)))] {
        let message = refused(name, "", &file);
        assert!(message.contains("`text` has the type JSON") && message.contains("to_json("), "{message}");
    }
    // A column that is not read may have it.
    for (name, file) in [("a.parquet", parquet_of(&table(false))), ("a.arrow", arrow_of(&table(false)))] {
        assert!(read_as(name, "", &file).is_ok(), "{name}");
    }
}

#[test]
fn a_table_that_is_cut_off_packed_encrypted_or_of_bytes_is_told_with_what_helps() {
    let (parquet, arrow) = (parquet_of(&binary()), arrow_of(&binary()));
    let encrypted = [&b"PARE\x2c\0\0\0"[..], &parquet[8..parquet.len() - 4], b"PARE"].concat();
    let cast = "column `text` of ";
    let bytes = "holds Binary and not text: if its bytes are UTF-8, `table.set_column(0, \"text\", table[\"text\"].cast(\"string\"))` of pyarrow makes text of them: write that table";
    for (name, content, words) in [
        (
            "a.parquet",
            parquet[..parquet.len() - 9].to_vec(),
            "its end): it does not end as Parquet does: it was cut off, or never closed",
        ),
        (
            "a.parquet",
            parquet[..7].to_vec(),
            "(byte 7, its end): it does not end as Parquet does: it is cut off: fetch it again",
        ),
        (
            "a.parquet",
            b"some letters and no table".to_vec(),
            "it does not begin as Parquet does either: name the format",
        ),
        (
            "a.parquet",
            encrypted.clone(),
            "a.parquet is an encrypted Parquet file, which is not read: write it without encryption",
        ),
        (
            "a.parquet",
            [&parquet[..parquet.len() - 1], b"E"].concat(),
            "a.parquet is an encrypted Parquet file",
        ),
        ("a.parquet.gz", gz(&parquet), "a.parquet.gz is packed with gzip: unpack it (`gzip -dc IN > OUT`)"),
        ("a.parquet", gz(&parquet), "a.parquet is packed with gzip: unpack it"),
        (
            "a.parquet.zst",
            zst(&parquet),
            "a.parquet.zst is packed with zstd: unpack it (`zstd -dc IN > OUT`)",
        ),
        ("a.arrow.gz", gz(&arrow), "a.arrow.gz is packed with gzip"),
        (
            "a.arrow",
            arrow[..arrow.len() - 3].to_vec(),
            "it does not end as an Arrow file does: it was cut off, or never closed",
        ),
        ("a.arrow", arrow[..7].to_vec(), "(its description): it is cut off: fetch it again"),
    ] {
        let message = refused(name, "", &content);
        assert!(message.contains(words), "{name}: {message}");
    }
    for (name, content) in [("a.parquet", &parquet), ("a.arrow", &arrow)] {
        let message = read_as(name, "", content).unwrap_err();
        assert!(message.starts_with(cast) && message.ends_with(bytes), "{message}");
    }
    // With a neutral name.
    assert!(refused("a", "", &encrypted).contains("a is an encrypted Parquet file"));
}

#[test]
fn tokens_beyond_the_vocabulary_are_told_with_the_tokenizer_that_is_missing() {
    let numbers = |width: usize| -> Vec<u8> {
        [70_u64, 50_000, 3].iter().flat_map(|number| number.to_le_bytes()[..width].to_vec()).collect()
    };
    for (keys, width, other) in [("", 2, "u32"), (", format = \"tokens-u32\"", 4, "u16")] {
        let message = refused("a.bin", keys, &numbers(width));
        let words = format!(
            "token 1): 50000 is beyond the tokenizer's vocabulary of 256: name in data.tokenizer (by default it is \"bytes\", which has no more) the one that these tokens were made with, as the model's vocabulary is its; or say format = \"tokens-{other}\""
        );
        assert!(message.contains(&words), "{message}");
    }
    let labels: Vec<u8> = [5_i32, -100, 3].iter().flat_map(|label| label.to_le_bytes()).collect();
    let message = refused("a.bin", ", format = \"tokens-u32\"", &labels);
    assert!(message.contains("token 1): 4294967196 is -100 as a signed number, and no token"), "{message}");
    let message = refused("a.bin", ", format = \"tokens-u16\"", b"a\0b");
    assert!(message.contains("it ends within a number of 2 bytes: it was cut off, or"), "{message}");
}

#[test]
fn files_of_other_programs_are_told_for_what_they_are() {
    let zip = |first: &str| {
        let length = u16::try_from(first.len()).unwrap().to_le_bytes();
        [&b"PK\x03\x04"[..], &[0; 22], &length, &[0; 2], first.as_bytes(), b"content"].concat()
    };
    for (name, content, words) in [
        ("a.xlsx", zip("[Content_Types].xml"), "a workbook: save it as CSV"),
        ("a.docx", zip("[Content_Types].xml"), "a document with its layout: write its text"),
        ("a.npz", zip("tokens.npy"), "an archive of numpy arrays: write tokens with"),
        ("a.pt", zip("archive/data.pkl"), "a file of PyTorch: write a tensor of tokens with"),
        ("a.bin", zip("archive/data.pkl"), "a file of PyTorch"),
        (
            "a.xls",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".to_vec(),
            "a file of old Office programs (.xls, .doc): save",
        ),
        (
            "a.pdf",
            b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n".to_vec(),
            "a PDF document: convert it to text (`pdftotext`)",
        ),
        (
            "a.pkl",
            b"\x80\x04\x95\x10\0\0\0".to_vec(),
            "a pickle of Python: load it in Python where you trust it",
        ),
        ("b.pkl", b"(dp0\n.".to_vec(), "a pickle of Python, as its name says: load it in Python"),
        ("a.h5", b"\x89HDF\r\n\x1a\n".to_vec(), "an HDF5 file: write its texts as JSON lines"),
        ("a.sqlite", b"SQLite format 3\0".to_vec(), "an SQLite database: write its table as CSV (`sqlite3"),
        (
            "a.tfrecord",
            b"\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3ehello".to_vec(),
            "a file of TensorFlow's records (TFRecord): write",
        ),
        ("a.tfrecord.gz", gz(b"\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3ehello"), "a file of TensorFlow's records"),
        (
            "shard.00000.mds",
            b"\x01\0\0\0text".to_vec(),
            "a shard of MosaicML's streaming format, as its name says: ",
        ),
        ("a.lance", b"data".to_vec(), "a Lance dataset, or a file of one, as its name says: write Parquet"),
        ("a.wav", b"RIFF\x24\0\0\0WAVEfmt ".to_vec(), "a sound recording: sound is not read"),
        ("a.mp3", b"ID3\x04\0\0\0".to_vec(), "a sound recording"),
        ("a.rtf", b"{\\rtf1\\ansi Text}".to_vec(), "text with its layout (RTF): write its text"),
    ] {
        let message = refused(name, "", &content);
        assert!(message.starts_with(&format!("{name} is {words}")), "{message}");
    }
    // With an explicit format.
    assert_eq!(read_as("b.pkl", ", format = \"text\"", b"(dp0\n.").as_deref(), Ok("(dp0\n."));
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("a.lance")).unwrap();
    let message =
        folder.open("sources = [{ path = \"a.lance\" }]\nsequence_length = 1").unwrap_err().to_string();
    assert!(message.contains("/a.lance: it is a Lance dataset, or a file of one"), "{message}");
}

#[test]
fn a_pattern_is_told_from_a_name() {
    let folder = Folder::new();
    folder.write("a[1].txt", "text");
    let open = |source: &str| {
        folder.open(&format!("sources = [{{ {source} }}]\nsequence_length = 1")).unwrap_err().to_string()
    };
    let message = open("glob = \"a[1].txt\"");
    assert!(
        message.contains("a[1].txt is there, but brackets in a pattern")
            && message.contains("write `a[[]1].txt`"),
        "{message}"
    );
    assert!(
        folder
            .open("sources = [{ glob = \"a[[]1].txt\" }]\nsequence_length = 1\nvalidation_share = 0.0")
            .is_ok()
    );
    let message = open("path = \"*.txt\"");
    assert!(
        message
            .contains("/*.txt: a path names one file, and none is called so: for all that match it say glob"),
        "{message}"
    );
}

#[test]
fn a_file_of_a_tokenizer_that_is_not_its_whole_is_told_with_what_makes_that() {
    let folder = tempfile::tempdir().unwrap();
    let load =
        |name: &str| Tokenizer::load(folder.path().join(name).to_str().unwrap()).unwrap_err().to_string();
    let command = "`python -c \"from transformers import AutoTokenizer as T; T.from_pretrained(";
    for (name, content, words) in [
        ("vocab.json", &br#"{"a": 0, "model": 1}"#[..], "it is a vocabulary alone (vocab.json): "),
        (
            "tokenizer_config.json",
            br#"{"tokenizer_class": "GPT2Tokenizer"}"#,
            "it is the settings of a tokenizer alone (tokenizer_config.json): ",
        ),
        ("merges.txt", b"#version: 0.2\na b\n", "it is a list of merges alone (merges.txt): "),
        ("a.model", b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02", "it is a model of SentencePiece: "),
        ("b.model", b"IQ== 0\nIg== 1\n", "it is a vocabulary of tiktoken: "),
    ] {
        std::fs::write(folder.path().join(name), content).unwrap();
        let message = load(name);
        assert!(
            message.contains(&format!("{name} is no tokenizer: {words}")) && message.contains(command),
            "{message}"
        );
    }
    let message = load("");
    assert!(message.contains("it is a folder: ") && message.contains(command), "{message}");
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    assert!(load("").contains("/tokenizer.json in data.tokenizer; it should be"), "{}", load(""));
    let message = load("gpt2");
    assert!(
        message.contains("read tokenizer ") && message.contains("T.from_pretrained('NAME')"),
        "{message}"
    );
}
