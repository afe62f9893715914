//! Peculiarities of accepted sources are counted and reported, also for prepared data.

use super::*;
use crate::notes::Note;

const LINES: &str = "sequence_length = 2\nvalidation_share = 0.0";

/// Returns, for one file, prepared and then found: the count of a note, its message, and the number of records.
fn noted(name: &str, content: &[u8], lines: &str, keys: &str, note: Note) -> (u64, String, u64) {
    let folder = Folder::new();
    folder.write(name, content);
    let lines = format!("{LINES}\n{lines}sources = [{{ {keys} }}]");
    let told = || {
        let size = folder.open(&lines).unwrap().sources().remove(0).size;
        (
            size.notes.count(note),
            size.notes.to_string().replace(folder.path().to_str().unwrap(), ""),
            size.records,
        )
    };
    let first = told();
    assert_eq!(told(), first, "{name}");
    first
}

#[test]
fn lines_of_plain_texts_that_end_with_cr_alone_are_counted_and_stay() {
    for (content, count) in [
        ("one\rtwo\rthree\r", 3),
        ("one\rtwo", 1),
        ("one\r", 1),
        ("one\r\rtwo\n", 2),
        ("one\r\ntwo\r\n", 0),
        ("one\r\ntwo\rthree\r\n", 1),
        ("one\n\rtwo", 1),
        ("one\r\r\ntwo", 1),
        ("10 %\r20 %\r30 %\n", 2),
        ("one\ntwo\n", 0),
    ] {
        let (found, told, _) = noted("a.txt", content.as_bytes(), "", "path = \"a.txt\"", Note::LoneReturns);
        assert_eq!(found, count, "{content:?}");
        assert_eq!(told.contains("with CR alone, which stays"), count > 0, "{told}");
    }
    // Within a record they belong to it.
    let line = b"{\"text\": \"one\\rtwo\"}\n";
    assert_eq!(noted("a.jsonl", line, "", "path = \"a.jsonl\"", Note::LoneReturns).0, 0);
}

#[test]
fn nuls_of_plain_texts_are_counted_and_stay() {
    for (content, count) in [("one\0two\n", 1), ("\0\0\n", 2), ("one\n", 0)] {
        let (found, told, _) = noted("a.txt", content.as_bytes(), "", "path = \"a.txt\"", Note::Nuls);
        assert_eq!((found, told.contains("NUL, as in UTF-16")), (count, count > 0), "{content:?}: {told}");
    }
}

#[test]
fn texts_with_the_separator_within_are_counted_and_the_first_is_shown() {
    let end = "separator = \"(end)\"\n";
    for (name, content, lines, keys, count) in [
        ("a.jsonl", "{\"text\": \"one(end)two\"}\n{\"text\": \"three\"}\n", end, "path = \"a.jsonl\"", 1),
        ("a.jsonl", "{\"text\": \"one(end)\"}\n", end, "path = \"a.jsonl\"", 1),
        ("a.jsonl", "{\"text\": \"(end)(end)\"}\n{\"text\": \"(end)\"}\n", end, "path = \"a.jsonl\"", 2),
        ("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"(end\"}\n", end, "path = \"a.jsonl\"", 0),
        ("a.csv", "text\none|two\n", "separator = \"|\"\n", "path = \"a.csv\"", 1),
        ("a.tsv", "id\ttext\n1\ta || b\n2\tc\n", "separator = \"|\"\n", "path = \"a.tsv\"", 1),
        (
            "a.csv",
            "text|n\none,1\n",
            "separator = \"|\"\n",
            "path = \"a.csv\", column = \"text|n\", delimiter = \";\"",
            0,
        ),
        ("a.txt", "one(end)two", end, "glob = \"*.txt\"", 1),
        // A single file has no separator.
        ("a.txt", "one(end)two", end, "path = \"a.txt\"", 0),
        // Every text contains blanks.
        ("a.csv", "text\n\"one\ntwo\"\n", "", "path = \"a.csv\"", 0),
        ("a.csv", "text\none two\n", "separator = \" \"\n", "path = \"a.csv\"", 0),
        ("a.csv", "text\none two\n", "separator = \"\"\n", "path = \"a.csv\"", 0),
    ] {
        let (found, told, _) = noted(name, content.as_bytes(), lines, keys, Note::Separators);
        assert_eq!(found, count, "{content:?}: {told}");
        assert_eq!(
            told.contains("has the separator within") || told.contains("have the separator"),
            count > 0,
            "{told}"
        );
    }
}

/// Regardless of the number of parts it is read in.
#[test]
fn a_file_of_plain_text_is_one_text() {
    let long = "it was the best of times, it was the worst of times\n".repeat(50_000);
    let twice = long.replace("best", "bÃ©st");
    for (content, odd) in [
        (long.as_str(), None),
        (&twice, Some("of 1 text, 1 is decoded twice (the first: `bÃ©st`): where")),
        ("777", Some("of 1 text, 1 is numbers")),
        ("   ", Some("1 is blank")),
    ] {
        for keys in ["path = \"a.txt\"", "glob = \"*.txt\""] {
            let folder = Folder::new();
            folder.write("a.txt", content);
            let size =
                folder.open(&format!("{LINES}\nsources = [{{ {keys} }}]")).unwrap().sources().remove(0).size;
            assert_eq!(size.records, 1, "{keys}");
            let told = if size.odd.count() > 0 { size.odd.to_string() } else { String::new() };
            assert!(told.contains(odd.unwrap_or_default()) && told.is_empty() == odd.is_none(), "{told}");
        }
    }
    let folder = Folder::new();
    (0..3).for_each(|at| folder.write(&format!("{at}.txt"), &long[..2_000_000 * (at % 2) + 100]));
    folder.write("3.txt", "");
    let size = folder
        .open(&format!("{LINES}\nsources = [{{ glob = \"*.txt\" }}]"))
        .unwrap()
        .sources()
        .remove(0)
        .size;
    assert_eq!((size.files, size.records), (3, 3));
}

#[test]
fn a_first_line_that_is_taken_for_a_record_and_looks_like_a_head_is_told() {
    for (name, content, keys, told) in [
        ("a.csv", ",text\n0,one\n1,two\n", ", column = 2", "its text is `text`"),
        ("a.csv", "id,words\n1,one\n2,two\n", ", column = 2", "its text is `words`"),
        ("a.csv", "text\none\n", ", column = 1", "its text is `text`"),
        ("a.tsv", "stars\tcomment\n5\tfine\n", ", column = 2", "its text is `comment`"),
        ("a.csv", "n;body\n1;fine\n", ", column = 2, delimiter = \";\"", "its text is `body`"),
        ("a.csv", "\u{feff}label,Review\npos,fine\n", ", column = 2", "its text is `Review`"),
        ("a.csv", "0,one\n1,two\n", ", column = 2", ""),
        ("a.csv", "pos,It was fine.\nneg,It was not.\n", ", column = 2", ""),
        ("a.csv", "id,text\n1,one\n", ", column = \"text\"", ""),
        ("a.csv", "one,two\nthree,four\n", ", column = 1", ""),
        ("a.csv", "It was fine.,pos\ntext,1\n", ", column = 1", ""),
    ] {
        let keys = format!("path = \"{name}\"{keys}");
        let (count, found, _) = noted(name, content.as_bytes(), "", &keys, Note::HeadTaken);
        assert_eq!(count, u64::from(!told.is_empty()), "{content:?}: {found}");
        assert!(found.contains(told), "{found}");
    }
    let folder = Folder::new();
    for (name, line) in [("a.csv", "1,one"), ("b.csv", "3,three")] {
        folder.write(name, format!("id,text\n{line}\n"));
    }
    folder.write("c.csv", "2,two\n");
    let data = folder.open(&format!("{LINES}\nsources = [{{ glob = \"*.csv\", column = 2 }}]")).unwrap();
    let told = data.sources().remove(0).size.notes.to_string();
    assert!(
        told.starts_with("the first lines of 2 files are taken") && told.contains("a.csv: its text"),
        "{told}"
    );
}

#[test]
fn rows_of_a_table_with_tabs_that_go_over_several_lines_are_told() {
    for (name, content, keys, count) in [
        ("a.tsv", "id\ttext\n1\t\"Hello\n2\tc\"\n", "", 1),
        ("a.tsv", "id\ttext\n1\t\"two\nlines\"\n2\tc\n", "", 1),
        ("a.tsv", "id\ttext\n1\t\"a\nb\"\n2\t\"c\n\nd\"\n", "", 2),
        ("a.tsv", "id\ttext\n1\t\"a\r\nb\"\r\n", "", 1),
        ("a.tsv", "id\ttext\n\"1\n2\"\tabc\n", "", 1),
        ("a.csv", "id\ttext\n1\t\"a\nb\"\n", ", delimiter = \"\\t\"", 1),
        ("a.tsv", "id\ttext\n1\tone\n2\t\"two\"\n", "", 0),
        ("a.tsv", "id\ttext\n1\t\"Hello\n2\tc\"\n", ", quote = \"\"", 0),
        ("a.csv", "id,text\n1,\"a\nb\"\n", "", 0),
        ("a.tsv", "id\ttext\n\n1\tone\n\n\n2\ttwo\n", "", 0),
    ] {
        let keys = format!("path = \"{name}\"{keys}");
        let (found, told, _) = noted(name, content.as_bytes(), "", &keys, Note::LongRows);
        assert_eq!(found, count, "{content:?}: {told}");
        assert_eq!(told.contains("say quote = \"\""), count > 0, "{told}");
    }
}

#[test]
fn columns_that_are_not_read_are_counted_where_they_have_a_value() {
    let unread = |names: &str| format!("columns that are not read: {names}");
    let table = "id,text,url,\n1,one,,x\n2,two,u,\n,\"\",u,y\n";
    let all = unread("`column 4` (2 records), `id` (2 records), `url` (2 records)");
    let tabs = table.replace(',', "\t");
    let lines = "{\"text\": \"one\", \"id\": 0, \"url\": null, \"meta\": {}}\n{\"meta\": [1], \"text\": \"two\", \"id\": \"\"}\n";
    for (name, content, keys, told) in [
        ("a.csv", table, "path = \"a.csv\"", all.clone()),
        ("a.tsv", &tabs, "path = \"a.tsv\"", all),
        ("a.csv", "0,one\n1,two\n", "path = \"a.csv\", column = 2", unread("`column 1` (2 records)")),
        ("a.jsonl", lines, "path = \"a.jsonl\"", unread("`id` (1 record), `meta` (1 record)")),
        ("a.jsonl", "{\"text\": \"one\"}\n", "path = \"a.jsonl\"", String::new()),
    ] {
        assert_eq!(noted(name, content.as_bytes(), "", keys, Note::UnreadColumns).1, told, "{content}");
    }
    let many: String = (0..2000).map(|at| format!("{{\"text\": \"one\", \"k{at}\": 1}}\n")).collect();
    let (count, told, _) = noted("a.jsonl", many.as_bytes(), "", "path = \"a.jsonl\"", Note::UnreadColumns);
    assert!(count == 2000 && told.ends_with(" and others") && told.len() < 400, "{told}");
}

#[test]
fn texts_that_spell_control_tokens_of_other_tokenizers_are_counted_once_each() {
    let told = "texts that spell control tokens of other tokenizers, which this one encodes in pieces: ";
    for (text, names) in [
        ("one<|im_end|> <|im_end|><|endoftext|>", "`<|endoftext|>` (1 text), `<|im_end|>` (1 text)"),
        ("<<|eot_id|>> [SEP]", "`<|eot_id|>` (1 text), `[SEP]` (1 text)"),
        ("é</s>", "`</s>` (1 text)"),
        ("<s>a<｜end▁of▁sentence｜>", "`<s>` (1 text), `<｜end▁of▁sentence｜>` (1 text)"),
        ("[gMASK]<sop>a<|fim_middle|>", "`<sop>` (1 text), `<|fim_middle|>` (1 text), `[gMASK]` (1 text)"),
        ("<b>bold</b> [1] <|end <i>", ""),
    ] {
        let line = format!("{{\"text\": {text:?}}}\n");
        let (_, found, _) =
            noted("a.jsonl", line.as_bytes(), "", "path = \"a.jsonl\"", Note::OtherControlTokens);
        let told = if names.is_empty() { String::new() } else { format!("{told}{names}") };
        assert_eq!(found, told);
    }
}
