//! An inspection finds the same defects as a preparation, as far as it reads.

use super::*;
use crate::Looked;

/// Looks at these files, each as a separate source.
fn look(folder: &Folder, names: &[&str]) -> Looked {
    let sources: Vec<String> = names.iter().map(|name| format!("{{ path = \"{name}\" }}")).collect();
    let lines = format!("sequence_length = 1\nsources = [{}]", sources.join(", "));
    let config = config(&lines).found_at(folder.path());
    Dataset::look(&config, &Tokenizer::Bytes, &folder.path().join("cache")).unwrap()
}

#[test]
fn each_source_that_would_be_refused_is_told_and_beginnings_come_first() {
    let folder = Folder::new();
    folder.write("a.jsonl", "{\"text\": \"one\"}\n{\n");
    folder.write("b.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n");
    folder.write("c.csv", "text\none\n");
    folder.write("d.bin", [7, 0, 0, 1]);
    folder.write("e.bin", "It was the best of times, it was");
    folder.write("f.txt", zstd::encode_all(&b""[..], 3).unwrap());
    let looked = look(&folder, &["a.jsonl", "b.txt", "c.csv", "d.bin", "e.bin", "f.txt"]);
    assert_eq!(looked.files.len(), 6);
    let defects = looked.defects();
    let refused: Vec<String> = defects.refused.iter().map(ToString::to_string).collect();
    let words = [
        "b.txt is a pointer of git-lfs",
        "e.bin is text, as it seems, and its name stands for tokens",
        "f.txt is zstd data of nothing",
        "a.jsonl, line 2: ",
        "d.bin cannot be read as tokens-u16 (token 1): 256",
    ];
    assert_eq!(refused.len(), words.len(), "{refused:?}");
    for (refused, words) in refused.iter().zip(words) {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert_eq!(defects.unread, 0);
}

/// For a compressed file its content counts, not its length.
#[test]
fn all_sources_are_read_within_one_bound_on_their_content() {
    const MIB: usize = 1 << 20;
    let folder = Folder::new();
    let line = b"{\"text\": \"one\"}\n";
    let packed = zstd::encode_all(&line.repeat(2 * MIB / line.len())[..], 3).unwrap();
    assert!(packed.len() < MIB / 8);
    folder.write("a.jsonl", packed);
    folder.write("b.jsonl", line);
    folder.write("c.jsonl", "nonsense\n");
    let looked = look(&folder, &["a.jsonl", "b.jsonl", "c.jsonl"]);
    let found = |mib: usize| {
        let defects = looked.defects_within((mib * MIB) as u64);
        (defects.refused.len(), defects.unread)
    };
    assert_eq!(found(0), (0, 3));
    assert_eq!(found(1), (0, 3));
    assert_eq!(found(3), (1, 0));
}
