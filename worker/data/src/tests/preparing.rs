//! Preparation of many files in parallel, and within a limit.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::*;
use crate::WorkDone;
use crate::cache::files;

/// Files of the large test; each makes a stamp, a shard and a list.
const FILES: usize = 1000;

fn prepare(folder: &Folder, lines: &str, bytes_max: Option<u64>) -> Result<(Dataset, WorkDone), DataError> {
    let (work, tokenizer) = (Work::default(), Tokenizer::Bytes);
    let cache = Cache::open(&folder.path().join("cache"), bytes_max)?;
    let maker = Maker { cache: &cache, tokenizer: &tokenizer, work: &work, piece_bytes: 1000 };
    let data = Dataset::prepared_by(&config(lines).found_at(folder.path()), maker)?;
    Ok((data, work.done()))
}

/// Returns the bytes that count towards the limit.
fn taken(folder: &Folder) -> u64 {
    let data = folder.path().join("cache/data");
    let all = ["lists", "shards"].into_iter().flat_map(|part| files(&data.join(part)).unwrap());
    let stamps = files(&data.join("stamps")).unwrap();
    let in_stamps: u64 = stamps.iter().map(|path| std::fs::metadata(path).unwrap().blocks() * 512).sum();
    in_stamps + all.map(|path| std::fs::metadata(path).unwrap().len()).sum::<u64>()
}

/// Ages lists and stamps: two uses within a tick of the disk's clock have no order.
fn age(folder: &Folder) {
    let parts = ["lists", "stamps"].map(|part| files(&folder.path().join("cache/data").join(part)).unwrap());
    for used in parts.iter().flatten() {
        let file = File::options().write(true).open(used).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_modified(modified - Duration::from_secs(1000)).unwrap();
    }
}

fn source(name: &str) -> String {
    format!("sources = [{{ path = \"{name}\" }}]\nsequence_length = 10\nvalidation_share = 0.0")
}

#[test]
fn a_thousand_small_files_are_prepared_side_by_side_and_stay_in_their_order() {
    let folder = Folder::new();
    let mut whole = String::new();
    for number in 0..FILES {
        let text = format!("the text of file {number}\n");
        folder.write(&format!("{number:04}.txt"), &text);
        whole += &format!("{text}\n");
    }
    let lines = "sources = [{ glob = \"*.txt\" }]\nsequence_length = 10\nvalidation_share = 0.0";
    let (data, done) = prepare(&folder, lines, None).unwrap();
    assert_eq!(text(&data), whole);
    // Without separators.
    let (files_, bytes) = (FILES as u64, (whole.len() - FILES) as u64);
    assert_eq!((done.files, done.files_done, done.made), (files_, files_, files_));
    assert_eq!(
        (done.bytes, done.hashed_bytes, done.prepared_bytes, done.found_bytes),
        (bytes, bytes, bytes, 0)
    );
    let (again, done) = prepare(&folder, lines, None).unwrap();
    assert_eq!(again.data_hash(), data.data_hash());
    assert_eq!((done.made, done.found, done.files_done, done.found_bytes), (0, 0, files_, bytes));
}

#[test]
fn one_bad_file_of_many_ends_the_preparation_and_is_named() {
    let folder = Folder::new();
    (0..50).for_each(|number| folder.write(&format!("{number:02}.txt"), "fine\n"));
    folder.write("31.txt", b"n\xffot");
    let lines = "sources = [{ glob = \"*.txt\" }]\nsequence_length = 10";
    let message = prepare(&folder, lines, None).unwrap_err().to_string();
    assert!(message.contains("31.txt is not UTF-8 at byte 1"), "{message}");
    let cache = folder.path().join("cache/data");
    for part in ["stamps", "lists", "shards", "uses"] {
        let left = files(&cache.join(part)).unwrap();
        assert!(left.iter().all(|path| path.extension().is_none() && part != "uses"), "{left:?}");
    }
}

#[test]
fn the_limit_holds_while_data_is_prepared_and_what_was_opened_longest_ago_goes() {
    let folder = Folder::new();
    // Room for two of them.
    let max = 40_000;
    Cache::open(&folder.path().join("cache"), None).unwrap();
    for number in 0..6 {
        let name = format!("{number}.txt");
        folder.write(&name, alphabet(3000 + number).repeat(2));
        // The first is opened repeatedly.
        for name in [&name, "0.txt"] {
            age(&folder);
            drop(prepare(&folder, &source(name), Some(max)).unwrap());
            assert!(taken(&folder) <= max, "{name}: {} bytes", taken(&folder));
        }
    }
    let found = |name: &str| prepare(&folder, &source(name), None).unwrap().1.found_bytes > 0;
    assert!(found("0.txt") && found("5.txt"));
    assert!(!found("1.txt"));
}

#[test]
fn what_is_in_use_is_never_thrown_away_for_what_is_prepared_and_that_it_does_not_fit_is_said() {
    let folder = Folder::new();
    folder.write("used.txt", alphabet(6000));
    folder.write("large.txt", alphabet(7000).to_uppercase());
    let max = 30_000;
    folder.write("old.txt", alphabet(100));
    drop(prepare(&folder, &source("old.txt"), Some(max)).unwrap());
    let (used, _) = prepare(&folder, &source("used.txt"), Some(max)).unwrap();
    let message = prepare(&folder, &source("large.txt"), Some(max)).unwrap_err().to_string();
    assert!(message.contains("may hold 29.30 KiB") && message.contains("--cache-max-gib"), "{message}");
    assert!(taken(&folder) <= max);
    assert_eq!((text(&used), used.verify(|_| {}).unwrap()), (alphabet(6000), 0));
    assert!(prepare(&folder, &source("old.txt"), None).unwrap().1.found_bytes > 0, "it would not have done");
    drop(used);
    let (large, _) = prepare(&folder, &source("large.txt"), Some(max)).unwrap();
    assert_eq!(text(&large), alphabet(7000).to_uppercase());
    assert!(taken(&folder) <= max);
}

#[test]
fn a_run_that_needs_more_than_the_limit_is_told_so_and_leaves_room_for_others() {
    let folder = Folder::new();
    folder.write("text.txt", alphabet(50_000));
    folder.write("small.txt", alphabet(2000));
    let error = prepare(&folder, &source("text.txt"), Some(30_000)).unwrap_err();
    assert!(matches!(error, DataError::NoRoom { max: 30_000, .. }), "{error}");
    assert!(taken(&folder) <= 30_000);
    let (small, _) = prepare(&folder, &source("small.txt"), Some(30_000)).unwrap();
    assert_eq!(text(&small).len(), 2000);
}
