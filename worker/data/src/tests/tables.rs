//! Tables whose rows differ, or appear to differ, from their writer's intent.

use super::silent::read_as;
use super::*;
use crate::notes::Note;

#[test]
fn a_row_is_told_as_too_short_with_what_made_it_so() {
    let ctrl_z =
        "it is Ctrl-Z alone (0x1a), with which DOS ends a text: take it out (`sed '/^\\x1a/d' IN > OUT";
    let alone = "the line before it ends with a carriage return alone (0x0d): if that is part of a value";
    for (name, keys, content, place, words) in [
        ("a.csv", "", "id,text\r\n1,one\r\n\x1a", "line 3", ctrl_z),
        ("a.tsv", "", "text\tid\none\t1\n\x1a\n", "line 3: it has 1 value, and the head has 2", ctrl_z),
        ("a.csv", ", column = 2", "1,one\n\x1a", "line 2: it has 1 column, and column 2 was", ctrl_z),
        ("a.csv", "", "text,id\n1,one\rand\n", "line 3: it has 1 value, and the head has 2", alone),
        ("a.csv", ", column = 2", "1,one\rand\n", "line 2: it has 1 column, and column 2 was", alone),
        ("a.csv", "", "text,id\none\n", "line 2", "is there a delimiter in a text without quotes around it?"),
        ("a.csv", "", "id,text\n1,b\r1,b,c\n", "line 3: it has 3 values", "is there a delimiter in"),
    ] {
        let message = read_as(name, keys, content.as_bytes()).unwrap_err();
        assert!(message.contains(place) && message.contains(words), "{content:?}: {message}");
    }
    // Lines may end so, and a text may be Ctrl-Z.
    assert_eq!(read_as("a.csv", "", b"id,text\r1,one\r2,\x1a\r").as_deref(), Ok("one|\x1a|"));
}

/// Python's `csv` drops the escape, so that `\n` of PostgreSQL's COPY would become an n, and `\N` an N.
#[test]
fn escapes_before_letters_are_counted_and_an_escaped_capital_n_alone_is_null() {
    for (name, row, text, notes) in [
        ("a.tsv", "1\tone\\ntwo", Ok("onentwo|"), 1),
        ("a.tsv", "1\ta\\tb\\nc", Ok("atbnc|"), 1),
        ("a.tsv", "1\tC:\\new", Ok("C:new|"), 1),
        ("a.tsv", "1\ta\\0", Ok("a0|"), 1),
        ("a.tsv", "1\t\"a\\nb\"", Ok("anb|"), 1),
        ("a.csv", "\\n,\"a \\\"b\\\"\"", Ok("a \"b\"|"), 0),
        ("a.csv", "1,\"a\\, b\\\\ c\"", Ok("a, b\\ c|"), 0),
        ("a.csv", "1,\\NO", Ok("NO|"), 1),
        ("a.csv", "\\N,text", Ok("text|"), 0),
        ("a.csv", "1,\"\\N\"", Ok("N|"), 1),
        ("a.csv", "1,\\N", Err("line 2: it is null (`\\N`)"), 0),
        ("a.tsv", "1\t\\N", Err("line 2: it is null (`\\N`)"), 0),
    ] {
        let folder = Folder::new();
        let head = if name == "a.tsv" { "id\ttext" } else { "id,text" };
        folder.write(name, format!("{head}\n{row}\n"));
        let lines = format!(
            "separator = \"|\"\nsequence_length = 1\nvalidation_share = 0.0\nsources = [{{ path = \"{name}\", escape = \"\\\\\" }}]"
        );
        match (folder.open(&lines), text) {
            (Ok(data), Ok(expected)) => {
                let found = data.sources().remove(0).size.notes;
                assert_eq!(
                    (super::text(&data).as_str(), found.count(Note::Escapes)),
                    (expected, notes),
                    "{row}"
                );
                assert_eq!(
                    found.to_string().contains(&format!("{name}, line 2")),
                    notes > 0,
                    "{row}: {found}"
                );
            }
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{row}: {error}"),
            (found, _) => panic!("{row}: {:?}", found.map(|data| super::text(&data))),
        }
    }
}

/// Each row with the result of Python's strict `csv` for the rest.
#[test]
fn a_table_s_row_of_another_shape_is_a_bad_record_with_its_line() {
    for (name, content, place, reason) in [
        ("a.csv", "id,text\n1,Hello, world\n2,plain\n", "line 2", "it has 3 values, and the head has 2"),
        ("a.csv", "id,text,n\n1,one\n2,two,3\n", "line 2", "it has 2 values, and the head has 3"),
        ("a.csv", "text\na,b\nc\n", "line 2", "it has 2 values, and the head has 1"),
        ("a.csv", "id,text\n1,\"a\nb\",c\n2,d\n", "lines 2 to 3", "it has 3 values"),
        ("a.tsv", "id\ttext\n1\tone\ttwo\n2\tthree\n", "line 2", "it has 3 values"),
        (
            "a.tsv",
            "id\ttext\n1\t\"open\n2\ttwo\n3\tthree\n4\t\"x\"\n",
            "lines 2 to 5",
            "text behind a closing quote",
        ),
        (
            "a.tsv",
            "id\ttext\n1\tone\n2\t\"open\n3\tthree\n",
            "lines 3 to 4",
            "a quote is opened in it and never closed",
        ),
        ("a.csv", "id,text\n1,\"one\"x\n2,two\n", "line 2", "text behind a closing quote"),
        ("a.csv", "id,text\n1,one\n2,\"", "line 3", "never closed"),
        ("a.csv", "id,text\n1,one\nid,text\n2,two\n", "line 3", "it is the head again"),
        ("a.csv", "text\none\n\"text\"\n", "line 3", "it is the head again"),
        ("a.csv", "\u{feff}id,text\n1,one\n\u{feff}id,text\n2,two\n", "line 3", "it is the head again"),
        ("a.csv", "text\none\n\u{feff}text\ntwo\n", "line 3", "it is the head again"),
        ("a.csv", "id,text\n1,a\n\n2,b,c\n", "line 4", "it has 3 values"),
        ("a.csv", "id,text\n1,\"a\nb\",c", "lines 2 to 3", "it has 3 values"),
        ("a.csv", "id,text\r\n1,\"o\"\"ne\"\r\n2,two,\r\n", "line 3", "it has 3 values"),
    ] {
        let message = read_as(name, "", content.as_bytes()).unwrap_err();
        // With faulty quotes, each line may have been a record.
        let count = match place {
            "lines 2 to 5" => "4 records",
            "lines 3 to 4" => "2 records",
            _ => "1 record",
        };
        assert!(message.contains(&format!("{count} of a source cannot be read")), "{content:?}: {message}");
        assert!(
            message.contains(&format!("{name}, {place}: ")) && message.contains(reason),
            "{content:?}: {message}"
        );
    }
    for (name, keys, content, expected) in [
        ("a.csv", "", "id,text\n1,\"Hello, world\"\n2,a\"b\n", "Hello, world|a\"b|"),
        ("a.csv", "", "id,text\n1,\"a\n\"\"b\"\"\"\n\n2,\n", "a\n\"b\"||"),
        ("a.tsv", ", quote = \"\"", "id\ttext\n1\t\"open\n2\ttwo\n", "\"open|two|"),
        ("a.csv", ", delimiter = \";\"", "id;text\n1;a, b\n", "a, b|"),
        ("a.csv", ", quote = \"'\"", "id,text\n1,'a, \"b\"'\n", "a, \"b\"|"),
        ("a.csv", ", escape = \"\\\\\"", "id,text\n1,\"a \\\"b\\\", c\"\n", "a \"b\", c|"),
        // Output of pandas with `doublequote=False, escapechar='\\'`, and with `quoting=csv.QUOTE_NONE`.
        (
            "a.csv",
            ", escape = \"\\\\\"",
            "id,text\n0,\"He said \\\"yes, it is\\\" loudly\"\n1,size 5\\\" pipe\n2,C:\\\\temp\\\\new\n",
            "He said \"yes, it is\" loudly|size 5\" pipe|C:\\temp\\new|",
        ),
        ("a.tsv", ", quote = \"\", escape = \"\\\\\"", "id\ttext\n1\ta \"b\" \\\\c\n", "a \"b\" \\c|"),
        ("a.txt", ", format = \"csv\", delimiter = \"\\t\", column = 2", "1\tone\n2\ttwo\n", "one|two|"),
    ] {
        assert_eq!(read_as(name, keys, content.as_bytes()).as_deref(), Ok(expected), "{content:?}");
    }
    let message = read_as("a.csv", "", b"text,text\n1,2\n").unwrap_err();
    assert!(message.contains("columns 1 and 2 are both called `text`"), "{message}");
}

/// In another file of the source, a column of that name may be at another place.
#[cfg(feature = "parquet")]
#[test]
fn a_number_of_a_column_that_has_a_name_is_refused_with_the_name() {
    let folder = Folder::new();
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/snappy.parquet");
    std::fs::copy(table, folder.path().join("a.parquet")).unwrap();
    let message =
        folder.open("sequence_length = 2\nsources = [{ path = \"a.parquet\", column = 2 }]").unwrap_err();
    assert!(message.to_string().ends_with("column 2 is called `body`: say column = \"body\""), "{message}");
}

#[test]
fn numbers_of_eight_bytes_are_not_read_as_tokens_of_four() {
    let bytes = |numbers: std::ops::Range<u64>| numbers.flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    for numbers in [1..65, 0..4, 100..140] {
        let message = read_as("a.bin", ", format = \"tokens-u32\"", &bytes(numbers)).unwrap_err();
        assert!(message.contains("numbers of eight bytes, as it seems (numpy's int64)"), "{message}");
    }
    let four: Vec<u8> = (1..65_u32).flat_map(u32::to_le_bytes).collect();
    assert!(read_as("a.bin", ", format = \"tokens-u32\"", &four).is_ok());
}

/// Python's `csv` merges the rows in between into one value; their writer did not quote.
#[test]
fn a_quote_that_closes_in_a_later_row_of_a_table_with_tabs_is_a_bad_record() {
    let table = "id\ttext\n1\t\"He left\n2\tthe house\n3\tand said bye\"\n4\tok\n";
    let message = read_as("a.tsv", "", table.as_bytes()).unwrap_err();
    assert!(message.contains("3 records of a source"), "{message}");
    assert!(message.contains("lines 2 to 4: a quote that opens in one row closes in another"), "{message}");
    // As in GLUE: the quote closes in the next row.
    let table = "n\ta\ttext\n1\tp\t\"I am pleased\n2\tq\tthat is all.\"\n3\tr\tok\n";
    for column in ["a", "text"] {
        let message = read_as("b.tsv", &format!(", column = \"{column}\""), table.as_bytes()).unwrap_err();
        assert!(
            message.contains("lines 2 to 3: a quote that opens in one row closes in another"),
            "{message}"
        );
    }
    let lines = "n\ta\ttext\n1\tp\t\"two\nlines\"\n2\t\"a\n\tb\"\tc\n";
    assert_eq!(read_as("b.tsv", "", lines.as_bytes()).as_deref(), Ok("two\nlines|c|"));
    let table = "id\ttext\n1\t\"He left\n2\tthe house\n3\tand said bye\"\n4\tok\n";
    let all = "\"He left|the house|and said bye\"|ok|";
    assert_eq!(read_as("a.tsv", ", quote = \"\"", table.as_bytes()).as_deref(), Ok(all));
    // Lines of a text, and tabs within one.
    for (table, expected) in [
        ("id\ttext\n1\t\"one\ntwo\"\n", "one\ntwo|"),
        ("id\ttext\n1\t\"one\ttwo\"\n", "one\ttwo|"),
        ("id\ttext\n1\t\"one\ntwo\tthree\"\n", "one\ntwo\tthree|"),
        ("id\ttext\n1\t\"one\n\tx\ty\nend\"\n", "one\n\tx\ty\nend|"),
    ] {
        assert_eq!(read_as("a.tsv", "", table.as_bytes()).as_deref(), Ok(expected), "{table:?}");
    }
}
