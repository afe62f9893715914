//! `worker data` with interruptions by the user.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_run_toml::RunToml;
use longhaul_tests::cluster::Process;

/// Far more than the expected time.
const LIMIT: Duration = Duration::from_secs(120);
/// Polling interval for a folder.
const LOOK: Duration = Duration::from_millis(2);
/// Enough for several pieces of 16 MiB.
const LINES: u32 = 1_200_000;

fn prepare(folder: &Path, name: &str) -> Process {
    Process::start_program(Path::new(env!("CARGO_BIN_EXE_worker-torch")), name, folder, |command| {
        command.args(["data", "prepare", "--config", "run.toml", "--cache-dir", "cache"]);
    })
    .unwrap()
}

/// All unfinished files of the cache, private to their writer.
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in ["stamps", "lists", "shards", "uses"] {
        let Ok(entries) = fs::read_dir(folder.join("cache/data").join(part)) else { continue };
        let files = entries.map(|entry| entry.unwrap().path());
        found.extend(files.filter(|path| part == "uses" || path.extension().is_some()));
    }
    found
}

/// Waits for a file with `part` in its name.
fn wait_for(folder: &Path, part: &str) {
    for _ in 0..LIMIT.as_millis() / LOOK.as_millis() {
        if unfinished(folder).iter().any(|path| path.to_string_lossy().contains(part)) {
            return;
        }
        // Another process creates the file, without a notification.
        std::thread::park_timeout(LOOK);
    }
    panic!("no {part} in {:?}", unfinished(folder));
}

fn folder_with_text() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let run_toml = RunToml::new("data").batch(1).set("data.path", "text.txt");
    run_toml.write(folder.path().join("run.toml")).unwrap();
    let text = (0..LINES).fold(String::new(), |mut text, n| {
        writeln!(
            text,
            "{n} times {n} is {}, and {} in all",
            u64::from(n).pow(2),
            n.wrapping_mul(2_654_435_761)
        )
        .unwrap();
        text
    });
    fs::write(folder.path().join("text.txt"), text).unwrap();
    folder
}

#[test]
fn a_preparation_that_is_interrupted_leaves_nothing_half_done_and_the_next_one_goes_on() {
    let folder = folder_with_text();
    for (turn, part) in ["uses/", "shards/"].into_iter().enumerate() {
        let mut process = prepare(folder.path(), &format!("stopped-{turn}"));
        wait_for(folder.path(), part);
        process.signal("INT").unwrap();
        assert!(!process.wait(LIMIT).unwrap().success());
        assert!(process.log().contains("the same command goes on from there"), "{}", process.log());
        let left = unfinished(folder.path());
        assert!(left.is_empty(), "{part}: {left:?}");
    }
    let mut process = prepare(folder.path(), "whole");
    assert!(process.wait(LIMIT).unwrap().success(), "{}", process.log());
    let shards = fs::read_dir(folder.path().join("cache/data/shards")).unwrap().count();
    assert!(shards > 3 && process.log().contains("shards were made"), "{}", process.log());
    let mut again = prepare(folder.path(), "again");
    assert!(again.wait(LIMIT).unwrap().success(), "{}", again.log());
    assert!(again.log().contains("all of it was prepared before"), "{}", again.log());
}

#[test]
fn what_a_killed_preparation_left_is_removed_by_the_next_one_and_its_shards_are_used() {
    let folder = folder_with_text();
    let mut process = prepare(folder.path(), "killed");
    wait_for(folder.path(), "shards/");
    process.signal("KILL").unwrap();
    process.wait(LIMIT).unwrap();
    assert!(!unfinished(folder.path()).is_empty());
    let mut process = prepare(folder.path(), "whole");
    assert!(process.wait(LIMIT).unwrap().success(), "{}", process.log());
    let left = unfinished(folder.path());
    assert!(left.is_empty(), "{left:?}");
}
