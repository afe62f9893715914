//! Eviction, and data never evicted.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use super::server::Server;
use super::*;
use crate::cache::files;
use crate::lease::Lease;
use crate::stamp::Stamp;
use crate::{Pruned, prune};

/// Returns a folder with two texts; the second is the least recently used.
fn two() -> Folder {
    let folder = Folder::new();
    for (name, age_s) in [("a.txt", 100), ("b.txt", 200)] {
        folder.write(name, format!("{name}{}", alphabet(5000)));
        drop(open(&folder, name));
        let lists = folder.path().join("cache/data/lists");
        for list in std::fs::read_dir(lists).unwrap() {
            let file = File::options().write(true).open(list.unwrap().path()).unwrap();
            let is_new = file.metadata().unwrap().modified().unwrap()
                > SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
            if is_new {
                file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age_s)).unwrap();
            }
        }
    }
    folder
}

fn open(folder: &Folder, name: &str) -> Dataset {
    folder.open(&format!("path = \"{name}\"\nsequence_length = 10")).unwrap()
}

/// Sets the time of a file's last write or use, in seconds after 1970.
fn at(path: &Path, second: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
}

/// Returns the bytes of stamps on disk.
fn in_stamps(folder: &Folder) -> u64 {
    let stamps = files(&folder.path().join("cache/data/stamps")).unwrap();
    stamps.iter().map(|path| std::fs::metadata(path).unwrap().blocks() * 512).sum()
}

fn run(folder: &Folder, bytes_max: u64) -> Pruned {
    prune(&folder.path().join("cache"), bytes_max).unwrap()
}

#[test]
fn what_was_used_longest_ago_goes_first_and_the_limit_holds() {
    let folder = two();
    let shards = folder.shards();
    assert_eq!((run(&folder, 1 << 30).removed_bytes, folder.shards()), (0, shards));
    let limit = 15_000 + in_stamps(&folder);
    let pruned = run(&folder, limit);
    assert!(pruned.removed_bytes > 10_000 && pruned.left_bytes <= limit, "{pruned:?}");
    let work = Work::default();
    folder.open_with("path = \"a.txt\"\nsequence_length = 10", &Tokenizer::Bytes, 1 << 20, &work).unwrap();
    assert_eq!((work.done().made, work.done().found), (0, 0), "the newer one is still there");
    assert_eq!((run(&folder, 0).left_bytes, folder.shards().len()), (0, 0));
    assert_eq!(in_stamps(&folder), 0);
}

#[test]
fn stamps_are_counted_as_the_disk_does_and_the_one_that_was_used_longest_ago_goes_first() {
    let folder = Folder::new();
    let names: Vec<String> = (0..8).map(|number| format!("{number}.txt")).collect();
    for name in &names {
        folder.write(name, format!("{name}{}", alphabet(500)));
        at(&folder.path().join(name), 1000);
        drop(open(&folder, name));
    }
    let bytes = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
    let parts = ["lists", "shards"].map(|part| files(&folder.path().join("cache/data").join(part)).unwrap());
    let in_lists_and_shards: u64 = parts.iter().flatten().map(bytes).sum();
    let all = in_lists_and_shards + in_stamps(&folder);
    assert_eq!(run(&folder, u64::MAX).left_bytes, all);
    // The first is the oldest until it is used again.
    let cache = Cache::open(&folder.path().join("cache"), None).unwrap();
    let stamp = |name: &String| cache.stamp(&Stamp::name(&folder.path().join(name)).unwrap());
    names.iter().zip(2000..).for_each(|(name, second)| at(&stamp(name), second));
    drop(open(&folder, "0.txt"));
    let each = in_stamps(&folder) / names.len() as u64;
    let pruned = run(&folder, all - 2 * each);
    assert_eq!((pruned.left_bytes, pruned.removed_bytes), (all - 2 * each, 2 * each));
    let there: Vec<bool> = names.iter().map(|name| stamp(name).is_file()).collect();
    assert_eq!(there, [true, false, false, true, true, true, true, true]);
    assert_eq!(run(&folder, 0).left_bytes, 0);
    assert_eq!(in_stamps(&folder), 0);
}

#[test]
fn stamps_of_what_is_in_use_stay_and_those_of_other_files_go() {
    let server = Server::start(&[("there.txt", alphabet(5000).into())]);
    let folder = Folder::new();
    for name in ["used.txt", "other.txt"] {
        folder.write(name, format!("{name}{}", alphabet(500)));
    }
    let (images, labels) = (
        [0_u8, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1, 7, 8, 9, 10],
        [0_u8, 0, 8, 1, 0, 0, 0, 4, 0, 1, 0, 1],
    );
    folder.write("images", images);
    folder.write("labels", labels);
    drop(open(&folder, "other.txt"));
    let texts = format!(
        "sources = [{{ path = \"used.txt\" }}, {{ url = \"{}\" }}]\nsequence_length = 10",
        server.url("there.txt")
    );
    let idx = "image = { channels = 1, height = 1, width = 1, classes = 2 }\n\
               sources = [{ path = \"images\", labels = \"labels\", format = \"idx\" }]";
    let used = [folder.open(&texts).unwrap(), folder.open(idx).unwrap()];
    let stamps = || files(&folder.path().join("cache/data/stamps")).unwrap();
    assert_eq!(stamps().len(), 5);
    let pruned = run(&folder, 0);
    assert_eq!((stamps().len(), pruned.left_bytes), (4, pruned.in_use_bytes));
    let other = Stamp::name(&folder.path().join("other.txt")).unwrap();
    assert!(stamps().iter().all(|path| !path.ends_with(&other)));
    drop(used);
    assert_eq!((run(&folder, 0).left_bytes, stamps().len()), (0, 0));
}

#[test]
fn what_is_in_use_stays_and_is_said() {
    let folder = two();
    let used = open(&folder, "b.txt");
    let pruned = run(&folder, 0);
    assert!(pruned.in_use_bytes > 10_000 && pruned.left_bytes == pruned.in_use_bytes, "{pruned:?}");
    assert_eq!(folder.shards().len(), 1);
    assert_eq!(text(&used).len(), 5005 - 250);
    drop(used);
    assert_eq!(run(&folder, 0).left_bytes, 0);
}

#[test]
fn a_shard_that_two_lists_share_stays_as_long_as_one_of_them_is_there() {
    let folder = Folder::new();
    let open = || {
        let lines = "sources = [{ path = \"a.csv\" }]\nsequence_length = 10\nvalidation_share = 0.0";
        folder.open_with(lines, &Tokenizer::Bytes, 1000, &Work::default()).unwrap()
    };
    let rows: String = (0..1000).map(|n| format!("row {n}\n")).collect();
    folder.write("a.csv", format!("text\n{rows}"));
    drop(open());
    folder.write("a.csv", format!("text\n{rows}more\n"));
    let kept = open();
    let before = folder.shards();
    run(&folder, 0);
    assert_eq!(before.len() - folder.shards().len(), 1, "only the last piece is another");
    assert_eq!(text(&kept), format!("{rows}more\n"));
}

#[test]
fn what_was_left_unfinished_is_thrown_away_and_what_is_being_made_is_not() {
    let folder = two();
    let partial = folder.path().join("cache/data/shards/0123.partial");
    std::fs::write(&partial, "half").unwrap();
    let maker = File::open(&partial).unwrap();
    maker.lock().unwrap();
    let pruned = run(&folder, 0);
    assert_eq!((partial.exists(), pruned.left_bytes, pruned.in_use_bytes), (true, 4, 4));
    drop(maker);
    assert_eq!((run(&folder, 1 << 30).left_bytes, partial.exists()), (0, false));
}

#[test]
fn shards_of_a_list_that_is_not_written_yet_stay() {
    let folder = two();
    let cache = Cache::open(&folder.path().join("cache"), None).unwrap();
    let lease = Lease::new(&cache).unwrap();
    let claimed = folder.shards().remove(0);
    lease.shard(&claimed.file_name().unwrap().to_string_lossy()).unwrap();
    let pruned = run(&folder, 0);
    assert_eq!((folder.shards(), pruned.left_bytes), (vec![claimed], pruned.in_use_bytes));
    drop(lease);
    assert_eq!(run(&folder, 0).left_bytes, 0);
}
