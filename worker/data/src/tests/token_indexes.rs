//! An index of Megatron-LM beside tokens.

use super::silent::LINES;
use super::*;
use crate::token_index::tests::{index, index_at};

/// Returns a folder with a file of this name and an index.
fn folder(name: &str, content: &[u8], index: &[u8]) -> Folder {
    let folder = Folder::new();
    folder.write(name, content);
    folder.write("a.idx", index);
    folder
}

fn read(folder: &Folder, name: &str, keys: &str) -> Result<String, String> {
    let lines = format!("{LINES}\nsources = [{{ path = \"{name}\"{keys} }}]");
    folder.open(&lines).map(|data| text(&data)).map_err(|error| error.to_string())
}

const SHORT: &str = ", format = \"tokens-u16\"";
const LONG: &str = ", format = \"tokens-u32\"";
const TWO: &[u8] = b"o\0n\0e\0t\0w\0o\0";
const FOUR: &[u8] = b"o\0\0\0n\0\0\0e\0\0\0";

#[test]
fn tokens_that_their_index_contradicts_are_refused_with_both_named() {
    for (keys, content, index, words) in [
        ("", TWO, index(8, 2, &[3, 1]), "it lists 4 tokens, and the .bin holds 6, as when its writer"),
        (SHORT, TWO, index(8, 2, &[3, 1]), "move the index away to train on all 6"),
        (LONG, FOUR, index(4, 4, &[1]), "it lists 1 token, and the .bin holds 3, as when"),
        ("", TWO, index(8, 2, &[]), "it lists 0 tokens, and the .bin holds 6"),
        ("", TWO, index(8, 2, &[3, 4]), "it lists 7 tokens, and the .bin holds 6: the .bin is cut off"),
        (LONG, &FOUR[..11], index(4, 4, &[3]), "lists 3 tokens, and the .bin holds 2 and 3 bytes: the"),
        (LONG, &FOUR[..9], index(4, 4, &[2]), "lists 2 tokens, and the .bin holds 2 and 1 byte, as"),
        (
            "",
            FOUR,
            index(4, 4, &[3]),
            "it says int32, and without `format`, a .bin is read as numbers of 2 bytes (\"tokens-u16\"): say format = \"tokens-u32\"",
        ),
        (SHORT, FOUR, index(4, 4, &[3]), "format = \"tokens-u16\" reads numbers of 2 bytes: say format"),
        (LONG, TWO, index(8, 2, &[6]), "it says uint16, and format = \"tokens-u32\" reads numbers of 4"),
        (LONG, FOUR, index(5, 8, &[1]), "it says int64, and format = \"tokens-u32\""),
        (LONG, FOUR, index(5, 8, &[1]), "`numpy.fromfile(IN, 'int64').astype('<u4').tofile(OUT)`"),
        ("", TWO, index(1, 1, &[12]), "it says uint8"),
        ("", TWO, index(7, 4, &[3]), "it says floating-point numbers, and without `format`"),
        ("", TWO, index(77, 2, &[6]), "it says a type of the unknown code 77"),
    ] {
        let message = read(&folder("a.bin", content, &index), "a.bin", keys).unwrap_err();
        assert!(message.contains(words), "{message}");
        assert!(message.contains("/a.bin cannot be read as tokens-u"), "{message}");
        assert!(message.contains("/a.idx): it "), "{message}");
    }
}

#[test]
fn an_index_that_is_cut_off_or_damaged_is_named() {
    let whole = index(8, 2, &[3, 3]);
    let mut newer = whole.clone();
    newer[9] = 2;
    for (index, words) in [
        (whole[..40].to_vec(), "it is cut off: copy it again"),
        (whole[..whole.len() - 8].to_vec(), "it is cut off: copy it again"),
        (newer, "it is of version 2, and only version 1 is read: copy it again"),
        (index(8, 2, &[7, -1]), "sequence 1 has a length of -1: copy it again"),
    ] {
        let message = read(&folder("a.bin", TWO, &index), "a.bin", "").unwrap_err();
        assert!(message.contains("/a.idx cannot be read as an index of Megatron-LM"), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

/// Subsets and shuffled copies made by writing another index alone.
#[test]
fn an_index_that_takes_sequences_otherwise_than_from_beginning_to_end_is_refused() {
    for (sequences, words) in [
        // Permuted, repeated in place of another and in addition, left out, backwards, and beside the file.
        (&[(3, 6), (3, 0)][..], "by it sequence 0 begins at byte 6, and those before it end at byte 0"),
        (&[(3, 0), (3, 0)], "by it sequence 1 begins at byte 0, and those before it end at byte 6"),
        (&[(3, 0), (3, 6), (3, 6)], "by it sequence 2 begins at byte 6, and those before it end at byte 12"),
        (&[(2, 0), (2, 8)], "by it sequence 1 begins at byte 8, and those before it end at byte 4"),
        (&[(4, 0), (2, 6)], "by it sequence 1 begins at byte 6, and those before it end at byte 8"),
        (&[(3, 6)], "by it sequence 0 begins at byte 6"),
        (&[(3, 0), (0, 0), (3, 6)], "by it sequence 1 begins at byte 0"),
        (&[(3, 0), (3, -6)], "by it sequence 1 begins at byte -6"),
    ] {
        for (name, packed) in [("a.bin", TWO.to_vec()), ("a.bin.zst", zstd::encode_all(TWO, 3).unwrap())] {
            let message = read(&folder(name, &packed, &index_at(8, sequences)), name, "").unwrap_err();
            assert!(message.contains(words), "{message}");
            assert!(message.contains("/a.idx): by it") && message.contains(".tofile(OUT)`; or move it away"));
        }
    }
    let whole = index_at(8, &[(3, 0), (3, 6)]);
    assert_eq!(read(&folder("a.bin", TWO, &whole), "a.bin", "").as_deref(), Ok("onetwo"));
}

#[test]
fn tokens_with_a_fitting_index_or_a_file_that_is_none_are_read() {
    for (keys, content, index, expected) in [
        ("", TWO, index(8, 2, &[3, 0, 3]), "onetwo"),
        (SHORT, TWO, index(3, 2, &[6]), "onetwo"),
        (LONG, FOUR, index(4, 4, &[1, 2]), "one"),
        ("", TWO, b"\0\0\x08\x01\0\0\0\x02\x01\x02".to_vec(), "onetwo"),
        ("", TWO, b"MMIDIDX".to_vec(), "onetwo"),
        ("", TWO, Vec::new(), "onetwo"),
    ] {
        let folder = folder("a.bin", content, &index);
        assert_eq!(read(&folder, "a.bin", keys).as_deref(), Ok(expected), "{index:?}");
    }
    // Not of this name.
    let index = index(8, 2, &[1]);
    assert_eq!(read(&folder("b.bin", TWO, &index), "b.bin", "").as_deref(), Ok("onetwo"));
    assert_eq!(read(&folder("a.tok", TWO, &index), "a.tok", SHORT).as_deref(), Ok("onetwo"));
    let folder = folder("a.bin", TWO, b"");
    std::fs::remove_file(folder.path().join("a.idx")).unwrap();
    std::fs::create_dir(folder.path().join("a.idx")).unwrap();
    assert_eq!(read(&folder, "a.bin", "").as_deref(), Ok("onetwo"));
}

#[test]
fn of_packed_tokens_the_type_alone_is_compared() {
    let packed = zstd::encode_all(TWO, 3).unwrap();
    let read = |index: &[u8]| read(&folder("a.bin.zst", &packed, index), "a.bin.zst", "");
    assert_eq!(read(&index(8, 2, &[1])).as_deref(), Ok("onetwo"));
    let message = read(&index(4, 4, &[3])).unwrap_err();
    assert!(message.contains("/a.bin.zst cannot be read as tokens-u16 (its index "), "{message}");
    assert!(message.contains("it says int32"), "{message}");
}

#[test]
fn an_index_that_comes_later_is_compared_with_prepared_tokens_too() {
    let folder = Folder::new();
    folder.write("a.bin", TWO);
    assert_eq!(read(&folder, "a.bin", "").as_deref(), Ok("onetwo"));
    folder.write("a.idx", index(8, 2, &[3]));
    let lines = format!("{LINES}\nsources = [{{ glob = \"*.bin\" }}]");
    let opened = folder.open(&lines).map(drop).unwrap_err().to_string();
    let config = config(&lines).found_at(folder.path());
    let looked = Dataset::look(&config, &Tokenizer::Bytes, &folder.path().join("cache")).unwrap_err();
    for message in [read(&folder, "a.bin", "").unwrap_err(), opened, looked.to_string()] {
        assert!(message.contains("it lists 3 tokens, and the .bin holds 6"), "{message}");
    }
}
