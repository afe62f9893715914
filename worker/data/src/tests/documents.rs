//! Plain texts of a pattern are documents, each followed by the separator.

use super::*;
use crate::WorkDone;

const PATTERN: &str = "sources = [{ glob = \"*.txt\" }]\nsequence_length = 2\nvalidation_share = 0.0";
const FILE: &str = "path = \"a.txt\"\nsequence_length = 2\nvalidation_share = 0.0";

fn prepare(folder: &Folder, lines: &str) -> (String, WorkDone) {
    let work = Work::default();
    let data = folder.open_with(lines, &Tokenizer::Bytes, 1000, &work).unwrap();
    (text(&data), work.done())
}

#[test]
fn the_separator_stands_behind_each_file_of_a_pattern_and_behind_no_file_that_is_named() {
    let folder = Folder::new();
    folder.write("a.txt", "one\ntwo");
    folder.write("b.txt", "three\n");
    folder.write("c.txt", "");
    folder.write("d.txt", "\u{feff}");
    folder.write("e.txt.zst", zstd::encode_all(&b"four"[..], 3).unwrap());
    let of =
        |lines: &str, separator: &str| prepare(&folder, &format!("separator = {separator:?}\n{lines}")).0;
    for (separator, expected) in
        [("\n", "one\ntwo\nthree\n\n"), ("<end>", "one\ntwo<end>three\n<end>"), ("", "one\ntwothree\n")]
    {
        assert_eq!(of(PATTERN, separator), expected);
        assert_eq!(of(FILE, separator), "one\ntwo");
    }
    let packed = PATTERN.replace("*.txt", "*.zst");
    assert_eq!(of(&packed, "|"), "four|");
    // As for records.
    let said = PATTERN.replace("*.txt\"", "[ab].txt\", format = \"text\"");
    assert_eq!(of(&said, "|"), "one\ntwo|three\n|");
}

#[test]
fn a_pattern_that_matches_more_than_before_has_its_other_files_as_they_were() {
    let folder = Folder::new();
    folder.write("b.txt", "some text");
    assert_eq!(prepare(&folder, PATTERN).0, "some text\n");
    for (name, content, expected) in
        [("c.txt", "more", "some text\nmore\n"), ("a.txt", "first", "first\nsome text\nmore\n")]
    {
        let there = folder.shards().len() as u64;
        folder.write(name, content);
        let (found, done) = prepare(&folder, PATTERN);
        assert_eq!(found, expected);
        assert_eq!((done.made, done.files, folder.shards().len() as u64), (1, there + 1, there + 1));
    }
}

/// Shards of a version without separators after files.
#[test]
fn shards_of_a_file_alone_are_found_but_for_that_with_the_end() {
    let folder = Folder::new();
    let long: String = (0..300_000).map(|line| format!("{line}\n")).collect();
    folder.write("a.txt", &long);
    let (alone, first) = prepare(&folder, FILE);
    let (of_pattern, done) = prepare(&folder, PATTERN);
    assert_eq!((alone.len() + 1, &of_pattern[alone.len()..]), (of_pattern.len(), "\n"));
    assert!(first.made > 1, "{}", first.made);
    assert_eq!((done.made, done.found), (1, first.made - 1));
    let (again, done) = prepare(&folder, FILE);
    assert!(again == alone && done.made == 0);
}

#[test]
fn a_separator_is_asked_about_where_it_stands_between_files() {
    let folder = Folder::new();
    folder.write("a.txt", "text");
    let special = "separator = \"<|endoftext|>\"";
    let message = folder.open(&format!("{special}\n{PATTERN}")).unwrap_err().to_string();
    assert!(
        message.contains("data.separator = \"<|endoftext|>\": it looks like a special token"),
        "{message}"
    );
    folder.open(&format!("{special}\n{FILE}")).unwrap();
}

/// With `--cache-dir .`, prepared data is in `data`, a usual folder of user data.
#[test]
fn data_beside_prepared_data_is_data() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("data/sub")).unwrap();
    for (name, content) in
        [("a.txt", "one"), ("data/b.txt", "two"), ("data/sub/c.txt", "three"), ("data/size.txt", "four")]
    {
        folder.write(name, content);
    }
    let lines = format!("separator = \"|\"\n{}", PATTERN.replace("*.txt", "**"));
    let config = config(&lines).found_at(folder.path());
    // Six folders and the lock; then the size.
    for passed in [7, 8] {
        let data = Dataset::open(&config, &Tokenizer::Bytes, folder.path(), &Work::default()).unwrap();
        assert_eq!(text(&data), "one|two|four|three|");
        assert_eq!(data.sources()[0].size.passed.count(), passed);
    }
}

/// The cache of these tests is in the folder of the data.
#[test]
fn folders_that_the_program_keeps_are_no_part_of_a_pattern_and_are_counted() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("sub/longhaul-state")).unwrap();
    std::fs::create_dir_all(folder.path().join("cache")).unwrap();
    for (name, content) in [
        ("a.txt", "one"),
        ("sub/b.txt", "two"),
        ("sub/longhaul-state/http-address", "127.0.0.1:1"),
        ("sub/longhaul-state/api-token", "secret"),
        // A corpus beside a state, and within a cache's folder, is ordinary data.
        ("sub/longhaul-state/c.txt", "three"),
        ("cache/d.txt", "four"),
    ] {
        folder.write(name, content);
    }
    // The second pass finds the files prepared by the first.
    for _ in 0..2 {
        let lines = format!("separator = \"|\"\n{}", PATTERN.replace("*.txt", "**"));
        let data = folder.open(&lines).unwrap();
        let shown = folder.path().display();
        let passed = format!(
            "3 passed over: 3 kept by this program (workers' caches, or coordinators' states) ({shown}/cache/data, {shown}/sub/longhaul-state/api-token, {shown}/sub/longhaul-state/http-address)"
        );
        let mut told: Vec<char> = data.sources()[0].size.passed.to_string().chars().collect();
        let mut expected: Vec<char> = passed.chars().collect();
        // Their order is unspecified.
        told.sort_unstable();
        expected.sort_unstable();
        assert_eq!(told, expected);
        assert_eq!(text(&data), "one|four|two|three|");
    }
    std::fs::remove_dir_all(folder.path().join("sub")).unwrap();
    let data = folder.open(&PATTERN.replace("*.txt", "*")).unwrap();
    let passed = data.sources()[0].size.passed.to_string();
    assert!(passed.starts_with("1 passed over: 1 kept by this program (a worker's cache"), "{passed}");
}
