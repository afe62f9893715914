//! Files read together: foreign ones are refused by their names, or reported.

use super::*;

const LINES: &str = "sequence_length = 2\nvalidation_share = 0.0\nseparator = \"|\"";

/// Returns the text of a pattern over these files, or the reason for refusing it.
fn read_all(pattern: &str, keys: &str, files: &[(&str, &str)]) -> Result<String, String> {
    let folder = Folder::new();
    for (name, content) in files {
        std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        folder.write(name, content);
    }
    let lines = format!("{LINES}\n{keys}\nsources = [{{ glob = \"{pattern}\" }}]");
    folder.open(&lines).map(|data| text(&data)).map_err(|error| error.to_string())
}

#[cfg(feature = "gzip")]
#[test]
fn what_does_not_belong_to_a_source_is_refused_with_its_name() {
    for (pattern, files, words) in [
        (
            "*.txt",
            &[("train.txt", "one"), ("test.txt", "two")][..],
            "which by their names are of different splits",
        ),
        (
            "**/*.txt",
            &[("train/a.txt", "one"), ("val/b.txt", "two")],
            "which by their names are of different splits",
        ),
        ("d/*", &[("d/a.txt", "one"), ("d/a.txt.gz", "")], "of which one is a packed copy"),
        (
            "**/*.txt",
            &[("s/snapshots/1a/a.txt", "one"), ("s/snapshots/2b/a.txt", "two")],
            "which are two revisions of one repository",
        ),
        ("d/*", &[("d/a.txt", "one"), ("d/a.txt~", "two")], "a.txt~ is a backup, by the ~"),
        (
            "d/*",
            &[("d/a.txt", "one"), ("d/b.tab", "1\ttwo")],
            "b.tab is named .tab, which is a table with tabs",
        ),
        ("d/*", &[("d/a.txt", "one"), ("d/b.sql", "two")], "b.sql is named .sql, which is SQL"),
        ("d/*", &[("d/a.txt", "one"), ("d/b.csv.txt", "two")], "named .csv.txt, and .csv is another format"),
        ("*.txt", &[("a.txt", "one"), ("b.txt", "Entry not found")], "b.txt is an answer of a server"),
        ("*.txt", &[("a.txt", "one"), ("b.txt", "<?xml version=\"1.0\"?><Error/>")], "b.txt is XML"),
        (
            "*.txt",
            &[("a.txt", "one"), ("b.txt", "id\ttext\n1\ttwo\n2\tthree\n")],
            "b.txt is a table, with tabs",
        ),
        (
            "*.txt",
            &[("a.txt", "one"), ("b.txt", "\x1b$B$3$s\x1b(B")],
            "b.txt cannot be read as text (byte 0): text in ISO-2022",
        ),
        ("*.txt", &[("a.txt", "~{J1<d~} ~{J1<d~} ~{J1<d~} ~{J1<d~}")], "a.txt is text in HZ"),
        ("*.txt", &[("a.txt", "+AOk- +AOk- +AOk- +AOk-")], "a.txt is text in UTF-7"),
    ] {
        let message = read_all(pattern, "", files).unwrap_err();
        assert!(message.contains(words), "{files:?}: {message}");
    }
    let splits = [("train.txt", "one"), ("test.txt", "two")];
    assert_eq!(read_all("*.txt", "strict_files = false", &splits).as_deref(), Ok("two|one|"));
}

#[test]
fn a_block_of_zeros_is_in_no_text_and_in_no_record() {
    let zeros = "\0".repeat(40);
    let message = read_all("a.txt", "", &[("a.txt", &format!("one\n{zeros}two\n"))]).unwrap_err();
    assert!(message.contains("(byte 4): it has zeros in a row"), "{message}");
    let escaped = "\\u0000".repeat(40);
    for (name, content, place) in [
        ("a.csv", format!("text\none\n{zeros}\n"), "a.csv, line 3: its text cannot be one: it has zeros"),
        (
            "a.jsonl",
            format!("{{\"text\":\"one\"}}\n{{\"text\":\"{escaped}\"}}\n"),
            "a.jsonl, line 2: its text cannot",
        ),
    ] {
        let message = read_all(name, "", &[(name, &content)]).unwrap_err();
        assert!(message.contains(place), "{message}");
        assert_eq!(read_all(name, "bad_records_max = 1", &[(name, &content)]).as_deref(), Ok("one|"));
    }
    assert_eq!(read_all("a.txt", "", &[("a.txt", "one\0two")]).as_deref(), Ok("one\0two|"));
}

#[test]
fn files_with_the_content_of_others_are_told() {
    let folder = Folder::new();
    for (name, content) in [("a.txt", "one"), ("b.txt", "two"), ("c (1).txt", "one"), ("d.txt", "")] {
        folder.write(name, content);
    }
    let open = || folder.open(&format!("{LINES}\nsources = [{{ glob = \"*.txt\" }}]")).unwrap();
    // From the files, then from the prepared data.
    for _ in 0..2 {
        let same = open().sources().remove(0).size.same;
        assert_eq!(same.count(), 1);
        let told = same.to_string();
        assert!(told.contains("c (1).txt of") && told.ends_with("a.txt)"), "{told}");
    }
    assert_eq!(open().copies().count(), 0);
    let sources = "[{ path = \"a.txt\" }, { path = \"b.txt\" }, { path = \"c (1).txt\" }]";
    let told = folder.open(&format!("{LINES}\nsources = {sources}")).unwrap().copies().to_string();
    let start = "1 file is a copy of another, and read all the same (";
    assert!(told.starts_with(start) && told.ends_with("a.txt)"), "{told}");
}

#[cfg(feature = "images")]
#[test]
fn folders_of_splits_are_no_classes() {
    let folder = Folder::new();
    for name in ["i/train/cat/a.png", "i/val/cat/b.png"] {
        std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        folder.write(name, "");
    }
    let lines = "sources = [{ path = \"i\", format = \"images\" }]\nimage = { height = 2, width = 2, channels = 1, classes = 2 }";
    let message = folder.open(lines).unwrap_err().to_string();
    assert!(message.contains("its folders are splits and no classes"), "{message}");
}

#[test]
fn a_pattern_with_files_of_several_kinds_is_told_with_these() {
    let files =
        [("part-a.csv", "text\none\n"), ("part-b.jsonl", "{\"text\": \"two\"}\n"), ("part-c.txt", "x")];
    let message = read_all("part-*", "", &files).unwrap_err();
    let words = "it matches files of several kinds: 1 file of \"csv\" (";
    assert!(message.contains(words) && message.contains("part-b.jsonl)"), "{message}");
    assert!(message.contains("narrow the pattern to the names of one kind, as `*.csv`"), "{message}");
    assert_eq!(read_all("part-*.csv", "", &files).as_deref(), Ok("one|"));
}

/// As `save_to_disk` of earlier versions of `datasets` wrote a selection, and as Delta Lake marks rows as deleted.
#[cfg(feature = "parquet")]
#[test]
fn a_file_with_rows_that_do_not_count_is_refused_by_its_name_as_by_a_pattern() {
    let state = r#"{"_data_files": [{"filename": "dataset.arrow"}], "_indices_data_files": [{"filename": "indices.arrow"}]}"#;
    let folder = Folder::new();
    for (name, content) in [
        ("ds/dataset.arrow", ""),
        ("ds/state.json", state),
        ("table/_delta_log/0.json", "{}"),
        ("table/a.parquet", ""),
    ] {
        std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        folder.write(name, content);
    }
    for (place, words) in [
        ("path = \"ds/dataset.arrow\"", "ds/state.json says that a part of the rows was selected"),
        (
            "path = \"ds/dataset.arrow\", format = \"arrow\"",
            "`datasets.load_from_disk(DIR).flatten_indices()",
        ),
        ("glob = \"ds/*.arrow\"", "says that a part of the rows was selected"),
        ("path = \"table/a.parquet\"", "table is a table of Delta Lake"),
        ("glob = \"table/*.parquet\"", "table is a table of Delta Lake"),
    ] {
        let message = folder.open(&format!("{LINES}\nsources = [{{ {place} }}]")).unwrap_err().to_string();
        assert!(message.contains(words), "{place}: {message}");
    }
}

#[test]
fn a_number_that_the_names_of_a_pattern_skip_is_told() {
    let folder = Folder::new();
    for (name, content) in [("part-0.txt", "0"), ("part-1.txt", "1"), ("part-3.txt", "3")] {
        folder.write(name, content);
    }
    let open = |pattern: &str| {
        let data = folder.open(&format!("{LINES}\nsources = [{{ glob = \"{pattern}\" }}]")).unwrap();
        (text(&data), data.sources()[0].size.passed.to_string())
    };
    let (taken, told) = open("part-*.txt");
    assert_eq!(taken, "0|1|3|");
    let words =
        "1 passed over: 1 number that the names of the others skip (fetch the file, if there is one) (";
    assert!(told.starts_with(words) && told.ends_with("/part-2.txt)"), "{told}");
    assert_eq!(open("part-[013].txt").1, "0 passed over");
}
