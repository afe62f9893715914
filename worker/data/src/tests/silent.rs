//! Content that other tools accept or silently drop is accepted here or reported: each kind with its own cases.

use std::os::unix::fs::symlink;

use super::*;

pub(super) const LINES: &str = "sequence_length = 2\nvalidation_share = 0.0\nseparator = \"|\"";

/// Returns the text of a file with this name and content, or the reason for refusing it.
pub(super) fn read_as(name: &str, keys: &str, content: &[u8]) -> Result<String, String> {
    let folder = Folder::new();
    folder.write(name, content);
    let lines = format!("{LINES}\nsources = [{{ path = \"{name}\"{keys} }}]");
    folder.open(&lines).map(|data| text(&data)).map_err(|error| error.to_string())
}

/// A file of `numpy.memmap` whose writer was killed.
#[test]
fn tokens_without_end_that_are_zero_are_refused_unless_it_is_said_that_they_are_tokens() {
    let text: Vec<u8> = (0..40_000_u32).flat_map(|at| ((at % 200 + 1) as u16).to_le_bytes()).collect();
    for (name, content) in [
        ("tail", [&text[..], &vec![0; 1 << 20]].concat()),
        ("hole", [&text[..], &vec![0; 40_000], &text].concat()),
        ("all", vec![0; 100_000]),
    ] {
        let message = read_as("a.bin", "", &content).unwrap_err();
        assert!(message.contains("16385 zeros are in a row"), "{name}: {message}");
        assert!(read_as("a.bin", ", format = \"tokens-u16\"", &content).is_ok(), "{name}");
    }
    assert!(read_as("a.bin", "", &[&text[..], &vec![0; 2 << 13], &text].concat()).is_ok());
}

#[test]
fn a_separator_with_an_escape_that_was_not_one_is_refused() {
    for separator in ["\\\\n", "\\\\t|", "\\\\0"] {
        let folder = Folder::new();
        folder.write("a.txt", "one");
        let lines = format!(
            "sequence_length = 2\nvalidation_share = 0.0\nseparator = \"{separator}\"\nsources = [{{ glob = \"*.txt\" }}]"
        );
        let message = folder.open(&lines).unwrap_err().to_string();
        assert!(message.contains("a backslash and a letter"), "{message}");
    }
}

#[test]
fn a_quote_that_never_ends_counts_for_each_line_that_it_takes() {
    let folder = Folder::new();
    folder.write("a.tsv", "id\ttext\n1\tone\n2\t\"open\n3\tthree\n4\tfour\n5\tfive\n");
    let open = |max: u64| {
        folder.open(&format!("{LINES}\nbad_records_max = {max}\nsources = [{{ path = \"a.tsv\" }}]"))
    };
    let message = open(3).unwrap_err().to_string();
    assert!(
        message.contains("4 records of a source") && message.contains("a.tsv, lines 3 to 6: "),
        "{message}"
    );
    // From the file, then from the prepared data.
    for _ in 0..2 {
        let data = open(4).unwrap();
        let size = data.sources().remove(0).size;
        assert_eq!((text(&data).as_str(), size.records, size.bad.count), ("one|", 1, 4));
        assert_eq!(size.bad.examples.len(), 1);
        assert!(open(3).is_err(), "what is prepared is held to the limit, too");
    }
}

/// A text as one token per byte, in the formats of tools.
#[test]
fn tokens_of_four_or_eight_bytes_are_not_read_as_tokens_of_two() {
    let text = "it was the best of times, it was the worst of times";
    let wide = |width: usize| -> Vec<u8> {
        text.bytes().flat_map(|byte| u64::from(byte).to_le_bytes()[..width].to_vec()).collect()
    };
    assert_eq!(read_as("a.bin", "", &wide(2)).as_deref(), Ok(text));
    let message = read_as("a.bin", "", &wide(4)).unwrap_err();
    assert!(message.contains("a.bin is a file with numbers of four bytes, as it seems"), "{message}");
    assert!(message.contains("say format = \"tokens-u32\""), "{message}");
    assert_eq!(read_as("a.bin", ", format = \"tokens-u32\"", &wide(4)).as_deref(), Ok(text));
    let message = read_as("a.bin", "", &wide(8)).unwrap_err();
    assert!(message.contains("eight bytes") && message.contains("array.astype('<u2')"), "{message}");
    // For any configured format.
    for (width, words) in [
        (4, "of four bytes, as it seems, since every second"),
        (8, "of eight bytes, as it seems (numpy's int64), since three"),
    ] {
        let message = read_as("a.bin", ", format = \"tokens-u16\"", &wide(width)).unwrap_err();
        assert!(message.contains(words) && message.contains("its format stands for two"), "{message}");
    }
}

/// Output of big-endian writers of Java and numpy.
#[test]
fn tokens_with_the_other_order_of_bytes_are_told_with_what_turns_them_round() {
    let tokens = |at: u32| at * 37 % 251;
    let two = |big: bool| -> Vec<u8> {
        let bytes =
            |at| if big { (tokens(at) as u16).to_be_bytes() } else { (tokens(at) as u16).to_le_bytes() };
        (0..300).flat_map(bytes).collect()
    };
    let four = |big: bool| -> Vec<u8> {
        (0..300)
            .flat_map(|at| if big { tokens(at).to_be_bytes() } else { tokens(at).to_le_bytes() })
            .collect()
    };
    let [words, beyond] =
        ["with the other order of bytes (big-endian) all tokens are within it", "name in data.tokenizer"];
    let mut some = two(true);
    some.extend([1, 200]);
    for (keys, content, expected) in [
        ("", two(true), words),
        (", format = \"tokens-u16\"", two(true), words),
        (", format = \"tokens-u32\"", four(true), words),
        ("", two(true)[2..40].to_vec(), words),
        ("", two(true)[2..18].to_vec(), words),
        // Too few, one invalid in either byte order, and others.
        ("", two(true)[2..10].to_vec(), beyond),
        ("", some, beyond),
        ("", [two(false), vec![9, 9]].concat(), beyond),
        (", format = \"tokens-u32\"", [four(false), vec![9, 9, 9, 9]].concat(), beyond),
        (", format = \"tokens-u16\"", vec![0xff; 64], beyond),
    ] {
        let message = read_as("a.bin", keys, &content).unwrap_err();
        assert!(message.contains(expected), "{keys}, {} bytes: {message}", content.len());
        let command = if keys.contains("u32") { "'>u4').astype('<u4')" } else { "'>u2').astype('<u2')" };
        assert!(expected == beyond || message.contains(command), "{message}");
    }
}

#[test]
fn what_was_read_is_told_where_nothing_is_left_to_train_on() {
    for (name, content, words) in [
        ("a.csv", "id,text\n", "no records: there is no row behind a table's head"),
        ("a.jsonl", "\n\n", "or no line of JSON"),
        ("a.jsonl", "{\n[]\n", "of 2 records that were read, none is good: "),
        ("a.csv", "text\n\"open\n", "of 1 record that was read, none is good: "),
    ] {
        let folder = Folder::new();
        folder.write(name, content);
        let lines = format!("{LINES}\nbad_records_max = 9\nsources = [{{ path = \"{name}\" }}]");
        let message = folder.open(&lines).unwrap_err().to_string();
        assert!(message.contains(&format!("{name} has nothing to train on: ")), "{content:?}: {message}");
        assert!(message.contains(words), "{content:?}: {message}");
    }
}

#[test]
fn json_that_is_nested_too_deep_is_no_broken_json() {
    let line = |levels| format!("{{\"text\":\"one\",\"a\":{}{}}}\n", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(read_as("a.jsonl", "", line(100).as_bytes()).as_deref(), Ok("one|"));
    let message = read_as("a.jsonl", "", line(200).as_bytes()).unwrap_err();
    assert!(message.contains("a.jsonl, line 1: it is nested too deep"), "{message}");
}

/// Python reads such a number as infinity.
#[test]
fn a_number_that_no_double_holds_spoils_no_line_that_has_it_beside_its_text() {
    let lines = b"{\"text\": \"one\", \"n\": 1e999}\n{\"n\": [-1e999, NaN], \"text\": \"1e999\"}\n";
    assert_eq!(read_as("a.jsonl", "", lines).as_deref(), Ok("one|1e999|"));
    let message = read_as("a.jsonl", "", b"{\"text\": 1e999}\n").unwrap_err();
    assert!(message.contains("a.jsonl, line 1: its field `text` is no text"), "{message}");
}

#[test]
fn of_a_field_that_is_there_twice_neither_is_taken() {
    let message = read_as("a.jsonl", "", b"{\"text\":\"a\",\"text\":\"b\"}\n").unwrap_err();
    assert!(message.contains("a.jsonl, line 1: it has two fields `text`"), "{message}");
    let message = read_as("a.jsonl", "", b"[\"text\"]\n{\"text\":\"aa\"}\n").unwrap_err();
    assert!(message.contains("a.jsonl, line 1: it is no JSON object"), "{message}");
    let others = b"{\"text\":\"aa\",\"n\":1,\"n\":2}\n";
    assert_eq!(read_as("a.jsonl", "", others).as_deref(), Ok("aa|"));
}

#[cfg(feature = "parquet")]
#[test]
fn columns_of_one_name_and_a_stream_behind_another_are_refused_by_name() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use arrow_ipc::writer::StreamWriter;
    use arrow_schema::{DataType, Field, Schema};

    let stream = |columns: &[(&str, &str)]| -> Vec<u8> {
        let fields: Vec<Field> =
            columns.iter().map(|(name, _)| Field::new(*name, DataType::Utf8, false)).collect();
        let schema = Arc::new(Schema::new(fields));
        let arrays = columns.iter().map(|(_, text)| Arc::new(StringArray::from(vec![*text])) as ArrayRef);
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays.collect()).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    };
    let read = |keys: &str, content: &[u8]| read_as("a.arrow", keys, content);
    let one = stream(&[("text", "one")]);
    assert_eq!(read("", &one).as_deref(), Ok("one|"));
    assert_eq!(read("", &[&one[..], &[0; 16]].concat()).as_deref(), Ok("one|"), "what is filled up");
    let message = read("", &[&one[..], &one].concat()).unwrap_err();
    assert!(message.contains("more follows behind the end of its stream"), "{message}");
    let twice = stream(&[("text", "one"), ("text", "two")]);
    let message = read("", &twice).unwrap_err();
    assert!(message.contains("columns 1 and 2 are both called `text`"), "{message}");
    assert_eq!(read(", column = 2", &twice).as_deref(), Ok("two|"));
}

#[cfg(all(feature = "gzip", feature = "parquet"))]
#[test]
fn content_decides_where_a_name_says_something_else() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for (name, keys, content, words) in [
        ("a.txt", "", pointer.as_bytes(), "a pointer of git-lfs and not the file: `git lfs pull`"),
        ("a.parquet", "", pointer.as_bytes(), "a pointer of git-lfs"),
        ("a.arrow", "", pointer.as_bytes(), "a pointer of git-lfs"),
        ("a.jsonl", "", pointer.as_bytes(), "a pointer of git-lfs"),
        ("a.csv", "", pointer.as_bytes(), "a pointer of git-lfs"),
        ("a.bin", "", pointer.as_bytes(), "a pointer of git-lfs"),
        ("a.txt.xz", "", b"\xfd7zXZ\0\0\x04\xe6\xd6", "an xz file: unpack it"),
        ("a.txt", "", b"BZh91AY&SY\x12\x34\x56", "a bzip2 file: unpack it"),
        ("a.jsonl.zip", "", b"PK\x03\x04\x14\0\0\0\x08\0", "a zip archive: unpack it"),
        ("a.txt", "", b"\xff\xfeh\0i\0\n\0", "UTF-16 text: convert it, for example with `iconv -f utf-16"),
        ("a.csv", "", b"\xfe\xff\0t\0e\0x\0t\0\n", "UTF-16 text"),
        ("a.txt", "", b"h\0e\0l\0l\0o\0\n\0", "UTF-16 text: convert it, for example with `iconv -f utf-16le"),
        ("a.txt", "", b"\0h\0e\0l\0l\0o\0\n", "UTF-16 text: convert it, for example with `iconv -f utf-16be"),
        ("a.text", "", b"{\"text\": \"one\"}\n", "JSON: say format = \"jsonl\""),
        ("a.txt", "", b"<!DOCTYPE html>\n<html>", "a web page"),
        ("a.txt", "", b"PAR1\x15\x04\x15\x10", "a Parquet file: say format = \"parquet\""),
        ("a.csv", "", b"\x89PNG\r\n\x1a\n", "a PNG image"),
        ("a.parquet", "", b"ARROW1\0\0\xff\xff\xff\xff", "an Arrow file: say format"),
        ("a.txt.gz", "", b"plain text\n", "no gzip file, though its name ends so"),
    ] {
        let message = read_as(name, keys, content).unwrap_err();
        assert!(message.contains(&format!("{name} is {words}")), "{name}: {message}");
    }
    let line = b"{\"text\": \"one\", \"n\": NaN}\n";
    assert_eq!(read_as("a.json", "", line).unwrap(), "one|");
    assert_eq!(read_as("a.text", ", format = \"jsonl\"", line).unwrap(), "one|");
    assert_eq!(read_as("a.txt", ", format = \"text\"", line).unwrap().as_bytes(), line);
    let packed = zstd::encode_all(&line[..], 3).unwrap();
    assert_eq!(read_as("a.jsonl", "", &packed).unwrap(), "one|");
}

/// Opening a pipe blocks until a writer opens it.
#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let folder = Folder::new();
    let path = folder.path().join("a.txt");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    for format in ["", ", format = \"jsonl\"", ", format = \"tokens-u16\""] {
        let lines = format!(
            "sources = [{{ path = \"a.txt\"{format} }}]\nsequence_length = 2\nvalidation_share = 0.0"
        );
        let message = folder.open(&lines).unwrap_err().to_string();
        assert!(message.contains("neither a file nor a folder (a pipe"), "{message}");
    }
}

/// `zstd --long=31` requires a window of 2 GiB for any content.
#[test]
fn large_windows_of_zstd_are_read() {
    for log in [27, 28, 31] {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.long_distance_matching(true).unwrap();
        encoder.window_log(log).unwrap();
        std::io::Write::write_all(&mut encoder, b"one\ntwo\n").unwrap();
        assert_eq!(read_as("a.txt", "", &encoder.finish().unwrap()).unwrap(), "one\ntwo\n", "{log}");
    }
}

#[test]
fn what_a_pattern_has_and_would_not_be_read_is_refused_or_else_counted() {
    let folder = Folder::new();
    folder.write("ok.txt", "one\n");
    folder.write(".hidden.txt", "two\n");
    let pattern = "sources = [{ glob = \"*.txt\" }]";
    let lines = format!("{LINES}\n{pattern}");
    assert_eq!(
        folder.open(&lines).unwrap().sources()[0].size.passed.to_string(),
        format!("1 passed over: 1 hidden ({}/.hidden.txt)", folder.path().display())
    );
    symlink(folder.path().join("nowhere"), folder.path().join("gone.txt")).unwrap();
    let message = folder.open(&lines).unwrap_err().to_string();
    assert!(message.contains("1 link that leads nowhere") && message.contains("/gone.txt"), "{message}");
    assert!(message.contains("data.strict_files = false") && !message.contains("hidden"), "{message}");
    let data = folder.open(&format!("{LINES}\nstrict_files = false\n{pattern}")).unwrap();
    assert_eq!((text(&data).as_str(), data.sources()[0].size.passed.count()), ("one\n|", 2));
}

/// An interrupted download, and a data set that overwrote a longer one.
#[test]
fn a_set_that_is_not_whole_is_refused_or_counted_and_two_in_one_are_refused() {
    let folder = Folder::new();
    let lines = |pattern: &str| format!("{LINES}\nsources = [{{ glob = \"{pattern}\", format = \"text\" }}]");
    for part in [0, 1, 3] {
        folder.write(&format!("train-0000{part}-of-00004.txt"), format!("{part}\n"));
    }
    let message = folder.open(&lines("train-*.txt")).unwrap_err().to_string();
    assert!(message.contains("1 not there, by the names of the others"), "{message}");
    assert!(message.contains("/train-00002-of-00004.txt"), "{message}");
    assert_eq!(text(&folder.open(&lines("train-0000[01]-of-*.txt")).unwrap()), "0\n|1\n|");
    let data = folder.open(&format!("strict_files = false\n{}", lines("train-*.txt"))).unwrap();
    assert_eq!(text(&data), "0\n|1\n|3\n|");
    folder.write("train-00000-of-00001.txt", "all\n");
    for more in ["", "strict_files = false\n"] {
        let message = folder.open(&format!("{more}{}", lines("train-*.txt"))).unwrap_err().to_string();
        assert!(message.contains("left over") && message.contains("/train-00000-of-00001.txt"), "{message}");
    }
    assert_eq!(text(&folder.open(&lines("train-*-of-00001.txt")).unwrap()), "all\n|");
}

#[test]
fn a_file_that_is_trained_on_and_held_out_is_refused() {
    let folder = Folder::new();
    folder.write("a.txt", "one\n");
    folder.write("b.txt", "two\n");
    let lines = |held_out: &str| {
        format!("{LINES}\nsources = [{{ glob = \"*.txt\" }}]\nvalidation = [{{ path = \"{held_out}\" }}]")
            .replace("validation_share = 0.0\n", "")
    };
    let message = folder.open(&lines("b.txt")).unwrap_err().to_string();
    assert!(message.contains("it holds out") && message.contains("/b.txt, which the source"), "{message}");
    std::fs::create_dir_all(folder.path().join("held")).unwrap();
    folder.write("held/c.txt", "three\n");
    assert_eq!(text(&folder.open(&lines("held/c.txt")).unwrap()), "one\n|two\n|");
}

#[cfg(feature = "tokenizers")]
#[test]
fn tokens_of_two_bytes_of_a_vocabulary_that_needs_more_are_refused() {
    let vocab: serde_json::Map<_, _> = (0..70_000).map(|id| (format!("t{id}"), id.into())).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "unk_token": "t0", "vocab": vocab }
    });
    let tokenizer = Tokenizer::of_json(json.to_string().into_bytes(), Path::new("tokenizer.json")).unwrap();
    let folder = Folder::new();
    folder.write("a.bin", (0..64_u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>());
    for more in ["", ", format = \"tokens-u16\""] {
        let lines = format!("{LINES}\nsources = [{{ path = \"a.bin\"{more} }}]");
        let message = folder.open_with(&lines, &tokenizer, 1000, &Work::default()).unwrap_err().to_string();
        assert!(message.contains("the tokenizer has 70000") && message.contains("tokens-u32"), "{message}");
    }
}

/// Leftovers of a failed Spark job and of `map` of `datasets`: repeated or missing rows.
#[test]
fn what_other_programs_keep_beside_their_data_is_counted_and_taken_where_it_is_named() {
    let folder = Folder::new();
    folder.write("part-0.txt", "one\n");
    std::fs::create_dir_all(folder.path().join("_temporary/0")).unwrap();
    folder.write("_temporary/0/part-0.txt", "on");
    folder.write("cache-0123456789abcdef.arrow", "two\n");
    folder.write("_SUCCESS", "");
    let of = |pattern: &str| {
        let data =
            folder.open(&format!("{LINES}\nsources = [{{ glob = \"{pattern}\", format = \"text\" }}]"));
        let data = data.unwrap();
        (text(&data), data.sources()[0].size.passed.to_string())
    };
    let (taken, passed) = of("**/*");
    assert_eq!(taken, "one\n|");
    assert!(passed.contains("; 3 kept by other programs beside their data"), "{passed}");
    assert!(passed.contains("/_temporary") && passed.contains("/cache-0123456789abcdef.arrow"), "{passed}");
    assert_eq!(of("cache-*.arrow"), ("two\n|".to_owned(), "0 passed over".to_owned()));
    assert_eq!(of("_temporary/**/*.txt"), ("on|".to_owned(), "0 passed over".to_owned()));
}

/// A row with invalid UTF-8 and a null row, in a file in pyarrow's layout with a dictionary.
#[cfg(feature = "parquet")]
#[test]
fn a_row_of_parquet_that_is_no_text_is_a_bad_record_and_all_others_are_read() {
    use std::sync::Arc;

    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    for dictionary in [true, false] {
        let schema = Arc::new(
            parse_message_type("message m { required int32 n; optional binary text (UTF8); }").unwrap(),
        );
        let properties = WriterProperties::builder().set_dictionary_enabled(dictionary).build();
        let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
        // Rows 0 to 4999 in two groups; row 3211 is invalid, row 4000 null.
        for rows in [0..3000, 3000..5000] {
            let mut group = file.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let numbers: Vec<i32> = rows.clone().collect();
            column.typed::<parquet::data_type::Int32Type>().write_batch(&numbers, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            let text =
                |row: i32| if row == 3211 { vec![b'a', 0xff, 0xe9] } else { row.to_string().into_bytes() };
            let texts: Vec<ByteArray> =
                rows.clone().filter(|row| *row != 4000).map(|row| text(row).into()).collect();
            let levels: Vec<i16> = rows.map(|row| i16::from(row != 4000)).collect();
            column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        let bytes = file.into_inner().unwrap();
        let message = read_as("a.parquet", "", &bytes).unwrap_err();
        assert!(message.contains("a.parquet, row 3212: it is not UTF-8"), "{message}");
        let folder = Folder::new();
        folder.write("a.parquet", &bytes);
        let data = folder
            .open(&format!("{LINES}\nbad_records_max = 2\nsources = [{{ path = \"a.parquet\" }}]"))
            .unwrap();
        let expected: String =
            (0..5000).filter(|row| ![3211, 4000].contains(row)).map(|row| format!("{row}|")).collect();
        assert_eq!(text(&data), expected);
        let size = data.sources().remove(0).size;
        assert_eq!((size.records, size.bad.count), (4998, 2));
        assert!(size.bad.examples[1].contains("row 4001: it is null"), "{:?}", size.bad.examples);
    }
}

/// File names of Spark and pandas, with other extensions than the pattern.
#[cfg(all(feature = "gzip", feature = "parquet"))]
#[test]
fn files_that_are_named_as_another_format_than_their_pattern_are_refused_unless_it_is_said_what_they_are() {
    for (name, pattern, words) in [
        ("part-00000.csv", "part-*", "part-00000.csv, whose name is that of \"csv\""),
        ("train-1.csv.gz", "train-*", "whose name is that of \"csv\""),
        ("a.tsv", "*", "whose name is that of \"tsv\""),
        ("a.csv", "*.cs?", "whose name is that of \"csv\""),
        ("a.csv", "*.[c]sv", "whose name is that of \"csv\""),
        ("train.bin", "t*", "whose name is that of \"tokens-u16\""),
        ("a.parquet", "*", "whose name is that of \"parquet\""),
        ("a.jsonl", "a*", "whose name is that of \"jsonl\""),
    ] {
        let folder = Folder::new();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        folder.write(&format!("d/{name}"), "id,text\n1,abc\n");
        let lines = |keys: &str| {
            format!(
                "sequence_length = 2\nvalidation_share = 0.0\nsources = [{{ glob = \"d/{pattern}\"{keys} }}]"
            )
        };
        let message = folder.open(&lines("")).unwrap_err().to_string();
        assert!(message.contains(words) && message.contains("say with format"), "{message}");
        if !name.ends_with(".gz") {
            folder.open(&lines(", format = \"text\"")).unwrap();
        }
    }
}

#[test]
fn a_link_that_leads_to_no_folder_is_told_where_files_may_be_behind_it() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("o/s0")).unwrap();
    folder.write("o/s0/a.txt", "abc");
    symlink("/not/mounted/shard1", folder.path().join("o/s1")).unwrap();
    for pattern in ["o/*/*.txt", "o/**/*.txt", "o/s?/*", "o/s[01]/a.txt"] {
        let lines = |keys: &str| {
            format!(
                "sequence_length = 2\nvalidation_share = 0.0\n{keys}sources = [{{ glob = \"{pattern}\" }}]"
            )
        };
        let message = folder.open(&lines("")).unwrap_err().to_string();
        assert!(message.contains("1 link that leads nowhere") && message.contains("o/s1"), "{message}");
        let data = folder.open(&lines("strict_files = false\n")).unwrap();
        assert!(data.sources()[0].size.passed.to_string().contains("o/s1"));
    }
    let below = "sequence_length = 2\nvalidation_share = 0.0\nsources = [{ glob = \"o/s0/*\" }]";
    folder.open(below).unwrap();
}

/// Readers such as pyarrow see only one of them if both have the same layout.
#[cfg(feature = "parquet")]
#[test]
fn tables_that_were_put_one_behind_the_other_are_refused_by_name() {
    for name in
        ["snappy.parquet", "zstd.parquet", "dictionary.parquet", "large.arrow", "lz4.parquet", "view.arrow"]
    {
        let table =
            std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data").join(name))
                .unwrap();
        let keys = ", column = \"body\"";
        let message = read_as(name, keys, &[&table[..], &table].concat()).unwrap_err();
        assert!(message.contains("several files put one behind the other"), "{name}: {message}");
        let alone = read_as(name, keys, &table);
        assert!(!alone.is_err_and(|message| message.contains("several files")), "{name}");
    }
}
