//! Recovery from interruptions, changes and damage.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rand::{Rng, SeedableRng};

use super::*;
use crate::cache::{files, read_document};
use crate::prepared::PieceList;
use crate::shard::{self, Shard};
use crate::stamp::Stamp;

const LINES: &str = "path = \"text.txt\"\nsequence_length = 16\nvalidation_share = 0.0";

/// Bytes in a piece of these tests.
const PIECE_BYTES: u64 = 3 << 19;

fn long_text() -> String {
    (0..480_000_u32).map(|n| format!("{}\n", n.wrapping_mul(2_654_435_761))).collect()
}

/// Returns values that distinguish a file from its predecessor: an inode may be reused.
fn versions(folder: &Folder) -> Vec<(u64, i64, i64)> {
    folder.shards().iter().map(|path| version(path)).collect()
}

fn version(path: &Path) -> (u64, i64, i64) {
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

#[test]
fn a_text_is_prepared_once_and_read_again() {
    let folder = Folder::new();
    folder.write("text.txt", long_text());
    let first = Work::default();
    let data = folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &first).unwrap();
    assert_eq!(text(&data), long_text());
    let (second, before) = (Work::default(), versions(&folder));
    let again = folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &second).unwrap();
    assert_eq!(again.data_hash(), data.data_hash());
    assert!(before.len() > 2 && first.done().made == before.len() as u64);
    assert_eq!((second.done().made, versions(&folder)), (0, before));
}

#[test]
fn an_interrupted_preparation_goes_on_with_the_pieces_that_are_there() {
    let folder = Folder::new();
    folder.write("text.txt", long_text());
    let whole =
        folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &Work::default()).unwrap().data_hash();
    let shards = folder.shards();
    // The state after a kill: no list, and half of a shard under another name.
    std::fs::remove_dir_all(folder.path().join("cache/data/lists")).unwrap();
    std::fs::rename(&shards[0], shards[0].with_extension("partial")).unwrap();
    let work = Work::default();
    let again = folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &work).unwrap();
    assert_eq!(again.data_hash(), whole);
    assert_eq!((work.done().made, work.done().found), (1, shards.len() as u64 - 1));
    assert_eq!(folder.shards(), shards);
}

#[test]
fn a_preparation_that_is_to_stop_stops_between_pieces() {
    let folder = Folder::new();
    folder.write("text.txt", long_text());
    let work = Work::default();
    work.stop();
    let error = folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &work).unwrap_err();
    assert!(matches!(error, DataError::Stopped), "{error}");
}

#[test]
fn a_text_that_grew_keeps_the_pieces_that_are_as_they_were() {
    let folder = Folder::new();
    folder.write("text.txt", long_text());
    let before = folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &Work::default()).unwrap();
    let longer = long_text() + "and one line more\n";
    folder.write("text.txt", &longer);
    let work = Work::default();
    let after = folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &work).unwrap();
    assert_ne!(after.data_hash(), before.data_hash());
    assert_eq!(text(&after), longer);
    assert_eq!(work.done().made, 1);
}

#[test]
fn a_text_of_the_same_length_that_was_written_a_moment_ago_is_noticed() {
    let folder = Folder::new();
    for content in ["one text\n", "two text\n", "six text\n"] {
        folder.write("text.txt", content.repeat(9));
        assert_eq!(text(&folder.open(LINES).unwrap()), content.repeat(9));
    }
}

#[test]
fn a_text_that_was_changed_in_place_with_its_size_and_time_put_back_is_noticed() {
    let folder = Folder::new();
    for content in ["one text\n", "two text\n", "six text\n"] {
        folder.write_in_place("text.txt", content.repeat(9));
        assert_eq!(text(&folder.open(LINES).unwrap()), content.repeat(9));
    }
}

/// The state after `chmod`, a rename or a link.
#[test]
fn a_text_whose_attributes_alone_changed_is_found_prepared() {
    let folder = Folder::new();
    let (long, path) = (long_text(), folder.path().join("text.txt"));
    folder.write_in_place("text.txt", &long);
    let whole = folder.open(LINES).unwrap().data_hash();
    let changes: [&dyn Fn(); 3] = [
        &|| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap(),
        &|| std::fs::hard_link(&path, folder.path().join("link")).unwrap(),
        &|| {
            std::fs::rename(&path, folder.path().join("other")).unwrap();
            std::fs::rename(folder.path().join("other"), &path).unwrap();
        },
    ];
    for change in changes {
        change();
        let work = Work::default();
        let again = folder.open_with(LINES, &Tokenizer::Bytes, 1 << 20, &work).unwrap();
        assert_eq!(again.data_hash(), whole);
        assert_eq!((work.done().made, work.done().found_bytes), (0, long.len() as u64));
    }
}

#[test]
fn each_byte_of_a_small_shard_counts() {
    let folder = Folder::new();
    folder.write("text.txt", "some text to damage, and a little more");
    folder.open(LINES).unwrap();
    let path = folder.shards().remove(0);
    let whole = std::fs::read(&path).unwrap();
    let is_sound = || Shard::map(&path).unwrap().is_some_and(|shard| shard.check_all().is_ok());
    assert!(is_sound());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        assert!(!is_sound(), "byte {at}");
    }
    for shorter in 0..whole.len() {
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &whole[..shorter]).unwrap();
        assert!(!is_sound(), "{shorter} bytes");
    }
}

#[test]
fn each_of_forty_corruptions_is_found_when_it_is_read_and_only_that_shard_is_made_again() {
    let folder = Folder::new();
    folder.write("text.txt", long_text());
    let open = || folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &Work::default()).unwrap();
    let (tokens, shards) = (open().peek(0, u64::MAX).unwrap(), folder.shards());
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    for turn in 0..40 {
        let victim = random.random_range(0..shards.len());
        let mut bytes = std::fs::read(&shards[victim]).unwrap();
        assert!(bytes.len() > shard::BLOCK_BYTES);
        let at = random.random_range(0..bytes.len());
        if turn % 10 == 0 {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << random.random_range(0..8);
        }
        std::fs::remove_file(&shards[victim]).unwrap();
        std::fs::write(&shards[victim], bytes).unwrap();
        let before = versions(&folder);
        assert!(open().peek(0, u64::MAX).unwrap() == tokens, "turn {turn}, byte {at}");
        let after = versions(&folder);
        let changed: Vec<usize> = (0..shards.len()).filter(|&index| before[index] != after[index]).collect();
        assert_eq!(changed, [victim], "turn {turn}, byte {at}");
    }
    assert_eq!(open().verify(|_| {}).unwrap(), 0);
}

#[test]
fn each_of_a_hundred_corruptions_of_lists_and_stamps_is_found_and_they_are_written_anew() {
    let folder = Folder::new();
    folder.write("text.txt", alphabet(2000));
    let lines = "path = \"text.txt\"\nsequence_length = 16";
    let whole = folder.open(lines).unwrap().data_hash();
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(2);
    for turn in 0..100 {
        let part = ["lists", "stamps"][turn % 2];
        let path = files(&folder.path().join("cache/data").join(part)).unwrap().remove(0);
        let written = std::fs::read(&path).unwrap();
        let (mut bytes, at) = (written.clone(), random.random_range(0..written.len()));
        if turn % 10 < 2 {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << random.random_range(0..8);
        }
        std::fs::write(&path, &bytes).unwrap();
        let is_read = match part {
            "lists" => read_document::<PieceList>(&path).unwrap().is_some(),
            _ => read_document::<Stamp>(&path).unwrap().is_some(),
        };
        assert!(!is_read, "turn {turn}, {part}, byte {at}");
        assert_eq!(folder.open(lines).unwrap().data_hash(), whole);
        assert!(std::fs::read(&path).unwrap() == written, "turn {turn}, {part}, byte {at}");
    }
}

#[test]
fn damage_without_a_source_to_make_it_from_again_is_an_error() {
    let folder = Folder::new();
    folder.write("text.txt", alphabet(1000));
    let data = folder.open(LINES).unwrap();
    std::fs::remove_file(&folder.shards()[0]).unwrap();
    folder.write("text.txt", "another text");
    let message = data.batch([0], 1).unwrap_err().to_string();
    assert!(message.contains("text.txt was changed"), "{message}");
}

#[test]
fn workers_that_start_together_make_each_shard_once() {
    let folder = Folder::new();
    folder.write("text.txt", long_text());
    let work = Work::default();
    let hashes: Vec<_> = std::thread::scope(|scope| {
        let open = || folder.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &work).unwrap().data_hash();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    assert_eq!(work.done().made, folder.shards().len() as u64);
}
